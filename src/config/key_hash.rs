//! The hash of a key, which is all that is kept of it.
//!
//! SHA-256 without a salt and in one round is enough for a key, unlike for a password: `leasehold keys new` makes keys of
//! 256 random bits, which nobody can guess whatever a guess costs, and no two principals have the same one. A slow hash
//! would let every client make the service work.

use std::fmt;
use std::hash::{Hash, Hasher};

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// How a hash begins in the keys file.
const PREFIX: &str = "sha256:";

/// The SHA-256 of a key.
#[derive(Clone, Copy, Eq)]
pub struct KeyHash([u8; 32]);

impl KeyHash {
    /// The hash of a key.
    #[must_use]
    pub fn of(key: &[u8]) -> Self {
        Self(Sha256::digest(key).into())
    }

    /// Parses a hash as it is written in the keys file: `sha256:` and 64 hexadecimal digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix(PREFIX)?.as_bytes();
        if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Self(bytes))
    }

    /// The first digits, which are enough for a person to tell keys apart.
    #[must_use]
    pub fn beginning(&self) -> String {
        self.to_string()[PREFIX.len()..][..8].to_owned()
    }
}

/// In constant time, so that response times reveal nothing about the hash of any key.
impl PartialEq for KeyHash {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Hash for KeyHash {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Not shown, because a weak key can be guessed from its hash.
impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_read_as_it_is_written() {
        let hash = KeyHash::of(b"abc");
        let text = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hash.to_string(), text);
        assert_eq!(KeyHash::parse(text), Some(hash));
        assert_eq!(hash.beginning(), "ba7816bf");
        for other in ["", "sha256:", &text[7..], &text[..70], "sha256:+a7816bf"] {
            assert_eq!(KeyHash::parse(other), None, "{other}");
        }
    }
}
