//! Tokens: the secret that identifies one claim and proves it, and the digest under which a store knows it.

use std::fmt;

use sha2::{Digest, Sha256};
use thiserror::Error;
use uuid::Uuid;

use super::LockName;

/// Identifies one claim through its whole life and proves it. Secret: it prints as `***`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(Uuid);

impl Token {
    /// A new token of 122 random bits from a generator that the operating system seeds.
    #[must_use]
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }

    /// Reads a token that a client proposes or presents.
    ///
    /// # Errors
    /// The text is not a UUID, or it is the nil or the max UUID, which are what uninitialised memory looks like.
    pub fn parse(text: &str) -> Result<Self, InvalidToken> {
        let uuid = Uuid::try_parse(text).map_err(|_| InvalidToken::NotUuid)?;
        if uuid.is_nil() || uuid.is_max() {
            return Err(InvalidToken::NilOrMax);
        }
        Ok(Self(uuid))
    }

    /// The token itself, to be written into an answer to its owner and nowhere else.
    #[must_use]
    pub fn expose(&self) -> Uuid {
        self.0
    }

    /// What a store keeps in place of the token.
    ///
    /// The name is hashed along, so that the records of one token on two locks cannot be linked by reading the store.
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

/// The first half of the SHA-256 of a token and the name of the lock that it claims. Nobody finds a token to half of it
/// either, and two claims have the same half as rarely as two random UUIDs are equal; what Redis keeps of every claim that
/// ended is as much smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClaimDigest(pub [u8; Self::LEN]);

impl ClaimDigest {
    /// Its length in bytes.
    pub const LEN: usize = 16;
}

/// Why a token was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InvalidToken {
    /// Not a UUID at all.
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
