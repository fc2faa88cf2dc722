//! Quotas: how much of the service a principal may use. `http` enforces them; what is not in a quota has only the limits
//! of the service.

use std::num::NonZeroU32;
use std::time::Duration;

use super::KeysFile;
use super::tables::Section;
use crate::config::error::ConfigError;
use crate::domain::{Bounds, LockName, Metadata, duration};

/// No process answers more requests in a second, and no more fit into a burst.
const REQUESTS_MAX: u32 = 1_000_000;
/// The largest number of waiters that a process can be configured for.
const WAITERS_MAX: u32 = 10_000_000;
/// The count of so many locks takes the store some hundred megabytes.
const LOCKS_MAX: u32 = 1_000_000;

const REQUESTS_PER_SECOND: &str = "requests_per_second";
const REQUESTS_BURST: &str = "requests_burst";
const WAITERS: &str = "waiters_max";
const LOCKS: &str = "locks_max";
const TTL: &str = "ttl_max";
const NAME_BYTES: &str = "name_bytes_max";
const METADATA_BYTES: &str = "metadata_bytes_max";

/// How much of the service a principal may use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Quota {
    /// How fast its requests may come, without renewals and releases, which are never refused for it.
    pub requests: Option<RequestRate>,
    /// How many places in queues its waiting claims may have on one process.
    pub waiters_max: Option<usize>,
    /// How many locks it may hold at a time, counted by the store for all processes.
    pub locks_max: Option<usize>,
    /// The longest TTL, and the longest `min_hold` and `lock_delay`.
    pub ttl_max: Option<Duration>,
    /// The longest name of a lock, in bytes.
    pub name_bytes_max: Option<usize>,
    /// The longest metadata of a claim, in bytes.
    pub metadata_bytes_max: Option<usize>,
}

/// How fast requests may come to one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestRate {
    /// How many per second, in the long run.
    pub per_second: NonZeroU32,
    /// How many at once, after a pause; no fewer than in one second.
    pub burst: NonZeroU32,
}

impl Quota {
    /// Takes what the table does not have from `default`.
    pub(super) fn parse(table: &Section<'_>, default: &Self) -> Result<Self, ConfigError> {
        table.has_only(&[
            REQUESTS_PER_SECOND,
            REQUESTS_BURST,
            WAITERS,
            LOCKS,
            TTL,
            NAME_BYTES,
            METADATA_BYTES,
        ])?;
        let bytes = |key, max: usize| {
            let max = u32::try_from(max).expect("it is a length of some kilobytes");
            count(table, key, max)
        };
        Ok(Self {
            requests: rate(table)?.or(default.requests),
            waiters_max: count(table, WAITERS, WAITERS_MAX)?.or(default.waiters_max),
            locks_max: count(table, LOCKS, LOCKS_MAX)?.or(default.locks_max),
            ttl_max: ttl(table)?.or(default.ttl_max),
            name_bytes_max: bytes(NAME_BYTES, LockName::BYTES_MAX)?.or(default.name_bytes_max),
            metadata_bytes_max: bytes(METADATA_BYTES, Metadata::BYTES_MAX)?
                .or(default.metadata_bytes_max),
        })
    }
}

impl KeysFile {
    /// Checks the quotas against the bounds of the service, which the file does not know.
    ///
    /// # Errors
    /// One line about a principal that could acquire nothing.
    pub fn check_quotas(&self, bounds: &Bounds) -> Result<(), String> {
        match self
            .ttl_max_where(|ttl_max| ttl_max < bounds.ttl_min)
            .next()
        {
            None => Ok(()),
            Some((name, ttl_max)) => Err(format!(
                "the quota of {name}: ttl_max is {}, shorter than lease.ttl_min, {}, so no lease could be granted",
                duration::format(ttl_max),
                duration::format(bounds.ttl_min)
            )),
        }
    }

    /// Quotas that have no effect. They are valid, because services with other bounds may share the file.
    pub(in crate::config) fn warnings(&self, bounds: &Bounds) -> impl Iterator<Item = String> {
        let longest = bounds.ttl_max;
        let without_effect = self.ttl_max_where(move |ttl_max| ttl_max > longest);
        without_effect.map(move |(name, ttl_max)| {
            format!(
                "the quota of {name}: ttl_max is {}, longer than lease.ttl_max, {}, which bounds its leases too",
                duration::format(ttl_max),
                duration::format(longest)
            )
        })
    }

    fn ttl_max_where(
        &self,
        has_to_be: impl Fn(Duration) -> bool,
    ) -> impl Iterator<Item = (&str, Duration)> {
        self.principals.iter().filter_map(move |principal| {
            let ttl_max = principal.quota.ttl_max?;
            has_to_be(ttl_max).then_some((principal.name.as_str(), ttl_max))
        })
    }
}

fn count(table: &Section<'_>, key: &str, max: u32) -> Result<Option<usize>, ConfigError> {
    let number = table.number(key, max)?;
    Ok(number.map(|number| number.get() as usize))
}

/// A burst belongs to the rate beside it: that of another table may be far too large for this rate, or too small.
fn rate(table: &Section<'_>) -> Result<Option<RequestRate>, ConfigError> {
    let burst = table.number(REQUESTS_BURST, REQUESTS_MAX)?;
    match table.number(REQUESTS_PER_SECOND, REQUESTS_MAX)? {
        // A smaller one would make the stated policy (`burst` requests in so many whole seconds) too low.
        Some(per_second) if burst.is_some_and(|burst| burst < per_second) => {
            let problem = format!(
                "is less than {REQUESTS_PER_SECOND}, {per_second}; use this number or a larger one"
            );
            Err(table.invalid(REQUESTS_BURST, problem))
        }
        Some(per_second) => Ok(Some(RequestRate {
            per_second,
            burst: burst.unwrap_or(per_second),
        })),
        None if burst.is_some() => {
            let problem = format!("has no meaning without {REQUESTS_PER_SECOND} beside it");
            Err(table.invalid(REQUESTS_BURST, problem))
        }
        None => Ok(None),
    }
}

fn ttl(table: &Section<'_>) -> Result<Option<Duration>, ConfigError> {
    let Some((text, offset)) = table.text(TTL)? else {
        return Ok(None);
    };
    let invalid = |problem: String| table.invalid_at(offset, TTL, problem);
    let ttl = duration::parse(text).map_err(|error| invalid(error.to_string()))?;
    if ttl.is_zero() {
        return Err(invalid("0s leaves no lease; use 100ms or more".to_owned()));
    }
    Ok(Some(ttl))
}
