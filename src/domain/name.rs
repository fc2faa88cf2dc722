//! Lock names and their buckets. How a store derives its keys from names is up to the store.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use thiserror::Error;

use super::InvalidField;

/// The name of a lock: 1 to 255 bytes of `A-Z a-z 0-9 . _ ~ : @ + , = -`, in segments joined by `/`.
///
/// Every proxy passes these characters on unchanged, so clients behind different proxies never lock different things
/// under the same name. Cloning is cheap.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockName(Arc<str>);

impl LockName {
    /// The longest name, in bytes.
    pub const BYTES_MAX: usize = 255;

    /// Parses a name from bytes that have been percent-decoded exactly once.
    ///
    /// # Errors
    /// States which rule the name breaks.
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidName> {
        if bytes.is_empty() {
            return Err(InvalidName::Empty);
        }
        if bytes.len() > Self::BYTES_MAX {
            return Err(InvalidName::TooLong(bytes.len()));
        }
        for segment in bytes.split(|&byte| byte == b'/') {
            match segment {
                b"" => return Err(InvalidName::EmptySegment),
                b"." | b".." => return Err(InvalidName::DotSegment),
                _ => {}
            }
        }
        let text = std::str::from_utf8(bytes).map_err(|_| InvalidName::NotText)?;
        match text.chars().find(|&letter| !is_allowed(letter)) {
            Some(letter) => Err(InvalidName::Letter(letter)),
            None => Ok(Self(text.into())),
        }
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The bucket whose fencing counter serves this lock.
    #[must_use]
    pub fn bucket(&self) -> Bucket {
        Bucket::of(&self.0)
    }

    /// A number that tells names apart: the same in every process.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        fingerprint(&self.0)
    }
}

fn fingerprint(text: &str) -> u64 {
    // FNV-1a, 64 bits.
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in text.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash
}

fn is_allowed(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || "._~:@+,=-/".contains(letter)
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// One of the 1,024 groups of locks that share a fencing counter (and, in Redis, a hash slot).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bucket(u16);

impl Bucket {
    /// The number of buckets; it never changes.
    pub const COUNT: usize = 1024;

    /// The bucket of a name.
    pub(super) fn of(name: &str) -> Self {
        // The function and the number of buckets are frozen: as long as any store exists, a name must find its counter in
        // the same bucket.
        let hash = fingerprint(name);
        let folded = hash ^ (hash >> 32);
        Self(
            u16::try_from(folded % Self::COUNT as u64)
                .expect("a remainder of 1024 fits into 16 bits"),
        )
    }

    /// The bucket's number, from 0 to 1,023.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Why a name was refused; the text states what the caller must change.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InvalidName {
    /// The name is empty.
    #[error("the lock name is empty; write it after /locks/, for example /locks/orders/42")]
    Empty,
    /// Longer than [`LockName::BYTES_MAX`].
    #[error("the lock name has {0} bytes; at most 255 are allowed")]
    TooLong(usize),
    /// `a//b`, `/a` or `a/`.
    #[error("the lock name has an empty segment; remove the leading, trailing or doubled '/'")]
    EmptySegment,
    /// A segment is `.` or `..`, which proxies rewrite.
    #[error("the lock name has a '.' or '..' segment, which proxies rewrite; use another word")]
    DotSegment,
    /// The bytes are not UTF-8.
    #[error(
        "the lock name is not valid UTF-8 after percent-decoding; use letters, digits and . _ ~ : @ + , = - /"
    )]
    NotText,
    /// A character outside the alphabet.
    #[error("the lock name may not contain {0:?}; use letters, digits and . _ ~ : @ + , = - /")]
    Letter(char),
}

/// 1 to 64 locks, without duplicates, sorted by name.
///
/// The client's order never matters: two claims on the same locks have equal lists. Cloning is cheap.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LockNames(Names);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Names {
    One(LockName),
    Several(Arc<[LockName]>),
}

impl LockNames {
    /// The most locks that one claim may have.
    pub const COUNT_MAX: usize = 64;

    /// Sorts several names.
    ///
    /// # Errors
    /// There are none, there are too many, or one is there twice.
    pub fn several(mut names: Vec<LockName>) -> Result<Self, InvalidField> {
        let invalid = |problem| {
            Err(InvalidField {
                field: "names",
                problem,
            })
        };
        if names.is_empty() || names.len() > Self::COUNT_MAX {
            let count = names.len();
            return invalid(format!(
                "{count} names are out of range; use 1 to {}",
                Self::COUNT_MAX
            ));
        }
        names.sort();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return invalid(format!("{:?} is there twice", twice[0]));
        }
        // A list of one lock equals the claim on that lock.
        Ok(Self(match <[LockName; 1]>::try_from(names) {
            Ok([name]) => Names::One(name),
            Err(names) => Names::Several(names.into()),
        }))
    }
}

impl From<LockName> for LockNames {
    fn from(name: LockName) -> Self {
        Self(Names::One(name))
    }
}

impl Deref for LockNames {
    type Target = [LockName];

    fn deref(&self) -> &[LockName] {
        match &self.0 {
            Names::One(name) => std::slice::from_ref(name),
            Names::Several(names) => names,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_the_alphabet_are_kept_unchanged() {
        for name in ["a", "orders/42", "A-z.0_9~:@+,=-/x", &"n".repeat(255)] {
            assert_eq!(LockName::parse(name.as_bytes()).expect(name).as_str(), name);
        }
    }

    #[test]
    fn a_refused_name_says_which_rule_it_breaks() {
        let refused = |name: &[u8]| LockName::parse(name).expect_err("must be refused");
        assert_eq!(refused(b""), InvalidName::Empty);
        assert_eq!(
            refused("n".repeat(256).as_bytes()),
            InvalidName::TooLong(256)
        );
        for name in [&b"/a"[..], b"a/", b"a//b", b"/"] {
            assert_eq!(refused(name), InvalidName::EmptySegment);
        }
        for name in [&b"."[..], b"..", b"a/../b", b"a/."] {
            assert_eq!(refused(name), InvalidName::DotSegment);
        }
        assert_eq!(refused(b"\xff"), InvalidName::NotText);
        for (name, letter) in [
            ("a b", ' '),
            ("a\0", '\0'),
            ("a%2Fb", '%'),
            ("caf\u{e9}", '\u{e9}'),
            ("a{b}", '{'),
        ] {
            assert_eq!(refused(name.as_bytes()), InvalidName::Letter(letter));
        }
    }

    #[test]
    fn the_bucket_of_a_name_never_changes() {
        // These numbers are part of the storage format: a store written by an older version must remain readable.
        let bucket = |name: &str| {
            LockName::parse(name.as_bytes())
                .expect(name)
                .bucket()
                .index()
        };
        assert_eq!(
            [bucket("a"), bucket("orders/42"), bucket("backup")],
            [192, 41, 802]
        );
    }

    fn name(text: &str) -> LockName {
        LockName::parse(text.as_bytes()).expect(text)
    }

    #[test]
    fn the_order_of_writing_does_not_matter() {
        let names = |texts: [&str; 3]| LockNames::several(texts.map(name).into());
        assert_eq!(names(["b", "a", "c"]), names(["c", "b", "a"]));
    }

    #[test]
    fn a_list_of_one_lock_is_the_claim_on_that_lock() {
        let list = LockNames::several(vec![name("a")]).expect("a list of one");
        assert_eq!(list, LockNames::from(name("a")));
    }

    #[test]
    fn empty_too_long_and_duplicate_lists_are_refused() {
        assert!(LockNames::several(Vec::new()).is_err());
        assert!(LockNames::several(vec![name("a"), name("b"), name("a")]).is_err());
        let many = |count: usize| (0..count).map(|i| name(&i.to_string())).collect();
        assert!(LockNames::several(many(64)).is_ok());
        assert!(LockNames::several(many(65)).is_err());
    }
}
