//! Tokens: the secret that identifies and proves a claim, and the digest that a store keeps instead.

use std::fmt;

use sha2::{Digest, Sha256};
use thiserror::Error;
use uuid::Uuid;

use super::LockName;

/// Identifies one claim from its first request to its end, and proves it. Secret: it prints as `***`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(Uuid);

impl Token {
    /// A new token of 122 random bits, from a generator seeded by the operating system.
    #[must_use]
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }

    /// Parses a token that a client sent.
    ///
    /// # Errors
    /// The text is not a UUID, or it is the nil or max UUID, which uninitialised memory looks like.
    pub fn parse(text: &str) -> Result<Self, InvalidToken> {
        let uuid = Uuid::try_parse(text).map_err(|_| InvalidToken::NotUuid)?;
        if uuid.is_nil() || uuid.is_max() {
            return Err(InvalidToken::NilOrMax);
        }
        Ok(Self(uuid))
    }

    /// The token itself, for the response to its owner and nothing else.
    #[must_use]
    pub fn expose(&self) -> Uuid {
        self.0
    }

    /// What a store keeps instead of the token.
    ///
    /// The hash includes the name, so a reader of the store cannot link the records of one token on two locks.
    #[must_use]
    pub fn digest(&self, name: &LockName) -> ClaimDigest {
        let mut hasher = Sha256::new();
        hasher.update(self.0.as_bytes());
        hasher.update(name.as_str().as_bytes());
        let mut digest = [0; ClaimDigest::LEN];
        digest.copy_from_slice(&hasher.finalize()[..ClaimDigest::LEN]);
        ClaimDigest(digest)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// The first half of the SHA-256 of a token and its lock's name. Half a digest is still infeasible to invert, and two
/// claims collide as rarely as two random UUIDs. It halves what Redis keeps of each ended claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimDigest(pub [u8; Self::LEN]);

impl ClaimDigest {
    /// Its length in bytes.
    pub const LEN: usize = 16;
}

/// Why a token was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InvalidToken {
    /// Not a UUID.
    #[error("the token is not a UUID; send one like 6f1c3b0e-8f0a-4f57-9c55-0d5d3f1f4a1b")]
    NotUuid,
    /// Nil or max.
    #[error("the token is the nil or max UUID, which everybody could have; send a random one")]
    NilOrMax,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_never_prints_itself() {
        let token = Token::random();
        assert_eq!(format!("{token:?}"), "***");
    }

    #[test]
    fn nil_max_and_nonsense_are_refused() {
        assert_eq!(
            Token::parse("00000000-0000-0000-0000-000000000000"),
            Err(InvalidToken::NilOrMax)
        );
        assert_eq!(
            Token::parse("ffffffff-ffff-ffff-ffff-ffffffffffff"),
            Err(InvalidToken::NilOrMax)
        );
        assert_eq!(Token::parse("lease-1"), Err(InvalidToken::NotUuid));
    }

    #[test]
    fn the_digest_depends_on_token_and_name() {
        let (a, b) = (Token::random(), Token::random());
        let name = |text: &str| LockName::parse(text.as_bytes()).expect(text);
        assert_eq!(a.digest(&name("x")), a.digest(&name("x")));
        assert_ne!(a.digest(&name("x")), b.digest(&name("x")));
        assert_ne!(a.digest(&name("x")), a.digest(&name("y")));
    }
}
