//! The mode in which a claim holds its lock: exclusive or shared.

use std::num::NonZeroU32;

use super::InvalidField;
use super::claim::out_of_range;

/// The mode in which a lock is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// By one claim only.
    #[default]
    Exclusive,
    /// Together with other shared claims, as long as the permits suffice.
    Shared(Share),
}

/// What a shared claim takes: a number of permits out of a limit, or a read lock among any number of readers.
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
                let problem = "more than 1 needs a limit".to_owned();
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

    /// The total number of permits; none for a read lock.
    #[must_use]
    pub fn limit(self) -> Option<u32> {
        self.limit.map(NonZeroU32::get)
    }

    /// How many permits the claim takes.
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
    fn several_permits_need_a_limit() {
        assert_eq!(Share::new(None, 1), Ok(Share::READ));
        assert!(Share::new(None, 2).is_err());
        assert!(Share::new(None, 0).is_err());
    }
}
