//! How a claim wants to hold its lock: alone, or together with others.

use std::num::NonZeroU32;

use super::InvalidField;
use super::claim::out_of_range;

/// How a lock is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Alone.
    #[default]
    Exclusive,
    /// Together with other shared claims, as far as the permits go.
    Shared(Share),
}

/// What a shared claim takes: some of a limited number of permits, or no more than a place among any number of readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    limit: Option<NonZeroU32>,
    permits: NonZeroU32,
}

impl Share {
    /// A read lock: any number of holders at once.
    pub const READ: Self = Self {
        limit: None,
        permits: NonZeroU32::MIN,
    };
    /// The largest `limit`.
    pub const LIMIT_MAX: u32 = 1_000_000;

    /// Checks a `limit` and the `permits` that a claim takes of it.
    ///
    /// # Errors
    /// `limit` is not within 1 to 1,000,000, `permits` is not within 1 to `limit`, or there are several permits without
    /// a limit.
    pub fn new(limit: Option<u64>, permits: u64) -> Result<Self, InvalidField> {
        let limit = limit.map(limit_of).transpose()?;
        let most = match limit {
            Some(limit) => limit.get(),
            None if permits > 1 => {
                let problem = "goes with a limit only".to_owned();
                return Err(InvalidField {
                    field: "permits",
                    problem,
                });
            }
            None => 1,
        };
        let permits = u32::try_from(permits)
            .ok()
            .filter(|&permits| permits <= most)
            .and_then(NonZeroU32::new)
            .ok_or_else(|| InvalidField {
                field: "permits",
                problem: out_of_range(permits, most),
            })?;
        Ok(Self { limit, permits })
    }

    /// How many permits there are in all; none for a read lock.
    #[must_use]
    pub fn limit(self) -> Option<u32> {
        self.limit.map(NonZeroU32::get)
    }

    /// How many of them the claim takes.
    #[must_use]
    pub fn permits(self) -> u32 {
        self.permits.get()
    }
}

fn limit_of(limit: u64) -> Result<NonZeroU32, InvalidField> {
    u32::try_from(limit)
        .ok()
        .filter(|&limit| limit <= Share::LIMIT_MAX)
        .and_then(NonZeroU32::new)
        .ok_or_else(|| InvalidField {
            field: "limit",
            problem: out_of_range(limit, Share::LIMIT_MAX),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_are_at_least_one_and_at_most_the_limit() {
        assert!(Share::new(Some(4), 1).is_ok());
        assert!(Share::new(Some(4), 4).is_ok());
        assert!(Share::new(Some(4), 5).is_err());
        assert!(Share::new(Some(4), 0).is_err());
        assert!(Share::new(Some(1_000_000), 1_000_000).is_ok());
        assert!(Share::new(Some(1_000_001), 1).is_err());
        assert!(Share::new(Some(0), 1).is_err());
    }

    #[test]
    fn without_a_limit_there_is_nothing_to_take_several_of() {
        assert_eq!(Share::new(None, 1), Ok(Share::READ));
        assert!(Share::new(None, 2).is_err());
        assert!(Share::new(None, 0).is_err());
    }
}
