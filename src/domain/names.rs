//! The locks that one claim asks for.

use std::ops::Deref;
use std::sync::Arc;

use super::{InvalidField, LockName};

/// At least one lock and at most 64, each once, in the order of names.
///
/// The order in which a client writes them never matters: two claims on the same locks name them in the same order.
/// Cloning is cheap.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LockNames(Names);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Names {
    One(LockName),
    Several(Arc<[LockName]>),
}

impl LockNames {
    /// How many locks one claim may ask for.
    pub const COUNT_MAX: usize = 64;

    /// Puts several names in order.
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
        // A list of one lock is the claim on that lock: they are equal.
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
    fn none_too_many_and_twice_the_same_are_refused() {
        assert!(LockNames::several(Vec::new()).is_err());
        assert!(LockNames::several(vec![name("a"), name("b"), name("a")]).is_err());
        let many = |count: usize| (0..count).map(|i| name(&i.to_string())).collect();
        assert!(LockNames::several(many(64)).is_ok());
        assert!(LockNames::several(many(65)).is_err());
    }
}
