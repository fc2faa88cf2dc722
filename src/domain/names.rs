//! The locks of one claim.

use std::ops::Deref;
use std::sync::Arc;

use super::{InvalidField, LockName};

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
