//! What a client requests: the claim, its fields and their bounds. The wire format of the fields belongs to HTTP.

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use super::{LockNames, Mode, Share, Token, duration, text};

/// What a client requests: to hold one or several locks. It lasts from the first request to the final release.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The locks; the claim gets all of them or none.
    pub names: LockNames,
    /// Identifies the claim; repeating a request with it never makes a second claim.
    pub token: Token,
    /// Whether to hold them exclusively or shared.
    pub mode: Mode,
    /// Whether the claim queues behind earlier waiters. An unfair claim takes any lock that is free.
    pub fair: bool,
    /// How long the lease lasts without renewal.
    pub ttl: Ttl,
    /// The re-entry depth; a repeated request with a larger one re-enters.
    pub hold_count: HoldCount,
    /// The holder's description of itself, readable by everybody.
    pub owner: Owner,
    /// Additional data of the holder for others to read.
    pub metadata: Option<Metadata>,
    /// The lock stays taken at least this long after the grant, even if it is released earlier.
    pub min_hold: Option<Duration>,
    /// No renewal reaches further than this after the grant.
    pub max_hold: Option<Duration>,
    /// How long the lock stays closed after this lease expired or was evicted; never after a release.
    pub lock_delay: Option<Duration>,
    /// Whether an attempt that finds the claim already holding takes the lease over: from then on this attempt may roll
    /// the lease back, as a stream does when its connection closes. If not, no attempt may roll it back any more.
    pub takes_over: bool,
    /// Whether the service made the token for this request, so the claim can have no lease yet.
    pub has_new_token: bool,
}

impl Claim {
    /// An exclusive claim without options.
    #[must_use]
    pub fn plain(names: LockNames, token: Token, ttl: Ttl) -> Self {
        Self {
            names,
            token,
            mode: Mode::Exclusive,
            fair: true,
            ttl,
            hold_count: HoldCount::ONE,
            owner: Owner::default(),
            metadata: None,
            min_hold: None,
            max_hold: None,
            lock_delay: None,
            takes_over: false,
            has_new_token: false,
        }
    }
}

/// Distinguishes the requests for one claim, which share its token.
///
/// A grant remembers which attempt may roll it back. So the rollback of an attempt whose response was lost, or of a
/// closed stream, never takes the lease from a later attempt that did get its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attempt(pub u64);

impl Attempt {
    /// A new random attempt.
    #[must_use]
    pub fn random() -> Self {
        let (high, low) = uuid::Uuid::new_v4().as_u64_pair();
        // The fixed version and variant bits are XORed with random ones.
        Self(high ^ low.rotate_left(32))
    }
}

/// How long a lease lasts without renewal, within the configured range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ttl(Duration);

impl Ttl {
    /// The duration.
    #[must_use]
    pub fn get(self) -> Duration {
        self.0
    }

    /// Takes a TTL that a store recorded earlier, possibly under other bounds.
    #[must_use]
    pub fn from_store(ttl: Duration) -> Self {
        Self(ttl)
    }
}

/// The configured bounds of a claim's fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The TTL of a claim without one.
    pub ttl_default: Duration,
    /// The shortest TTL.
    pub ttl_min: Duration,
    /// The longest TTL, and the longest `min_hold`.
    pub ttl_max: Duration,
    /// The longest `max_hold`.
    pub max_hold_max: Duration,
    /// The longest `lock_delay`; at most a minute, because tombstones are kept that long.
    pub lock_delay_max: Duration,
    /// The largest limits.
    pub limits: LimitBounds,
}

/// The largest limits of the locks of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitBounds {
    /// The largest `limit`.
    pub limit_max: u32,
    /// The largest `limit` times the number of locks.
    pub total_max: u32,
}

impl LimitBounds {
    /// Those of most stores: a claim costs them the same, whatever its limit.
    pub const ANY: Self = Self {
        limit_max: Share::LIMIT_MAX,
        total_max: u32::MAX,
    };
    /// Those of a quorum, whose nodes list all who take permits for each claim.
    pub const OF_QUORUM: Self = Self {
        limit_max: 1_000,
        total_max: 10_000,
    };
}

impl Bounds {
    /// The same bounds with a longest TTL of at most this. It is also the TTL of a claim without one, if that is longer, and
    /// the longest `min_hold` and `lock_delay`, which keep a lock from others as well.
    #[must_use]
    pub fn with_ttl_at_most(&self, ttl_max: Duration) -> Self {
        let ttl_max = ttl_max.min(self.ttl_max).max(self.ttl_min);
        Self {
            ttl_default: self.ttl_default.min(ttl_max),
            ttl_max,
            lock_delay_max: self.lock_delay_max.min(ttl_max),
            ..self.clone()
        }
    }

    /// Checks a `ttl`.
    ///
    /// # Errors
    /// Outside of the configured range.
    pub fn ttl(&self, ttl: Duration) -> Result<Ttl, InvalidField> {
        within("ttl", ttl, self.ttl_min, self.ttl_max).map(Ttl)
    }

    /// The TTL of a claim without one.
    #[must_use]
    pub fn default_ttl(&self) -> Ttl {
        Ttl(self.ttl_default)
    }

    /// Checks the `limit` of a claim on this many locks.
    ///
    /// # Errors
    /// Larger than the store can keep.
    pub fn limit(&self, mode: Mode, locks: usize) -> Result<(), InvalidField> {
        let Mode::Shared(share) = mode else {
            return Ok(());
        };
        let LimitBounds {
            limit_max,
            total_max,
        } = self.limits;
        let limit = share.limit().unwrap_or_default();
        let total = u64::from(limit) * locks as u64;
        let problem = if limit > limit_max {
            format!("{limit} is more than a quorum can keep; use 1 to {limit_max}")
        } else if total > u64::from(total_max) {
            format!(
                "{limit} on {locks} locks is more than a quorum can keep; use at most {}",
                u64::from(total_max) / locks as u64
            )
        } else {
            return Ok(());
        };
        Err(InvalidField {
            field: "limit",
            problem,
        })
    }

    /// Checks a `min_hold`.
    ///
    /// # Errors
    /// Longer than the longest TTL.
    pub fn min_hold(&self, min_hold: Duration) -> Result<Duration, InvalidField> {
        within("min_hold", min_hold, Duration::ZERO, self.ttl_max)
    }

    /// Checks a `max_hold`.
    ///
    /// # Errors
    /// Shorter than the shortest TTL, or longer than configured.
    pub fn max_hold(&self, max_hold: Duration) -> Result<Duration, InvalidField> {
        within("max_hold", max_hold, self.ttl_min, self.max_hold_max)
    }

    /// Checks a `lock_delay`.
    ///
    /// # Errors
    /// Longer than configured.
    pub fn lock_delay(&self, lock_delay: Duration) -> Result<Duration, InvalidField> {
        within(
            "lock_delay",
            lock_delay,
            Duration::ZERO,
            self.lock_delay_max,
        )
    }
}

fn within(
    field: &'static str,
    value: Duration,
    min: Duration,
    max: Duration,
) -> Result<Duration, InvalidField> {
    if value < min || value > max {
        let [min, max] = [min, max].map(duration::format);
        let value = match duration::is_saturated(value) {
            true => "this".to_owned(),
            false => duration::format(value),
        };
        return Err(InvalidField {
            field,
            problem: format!("{value} is out of range; use {min} to {max}"),
        });
    }
    Ok(value)
}

/// Reports a number outside 1 to `max`. A saturated number is not quoted, because the client wrote a different one.
pub(super) fn out_of_range(number: u64, max: u32) -> String {
    match number {
        u64::MAX => format!("this is out of range; use 1 to {max}"),
        _ => format!("{number} is out of range; use 1 to {max}"),
    }
}

/// The re-entry depth of a lease, 1 to 1,000.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HoldCount(u16);

impl HoldCount {
    /// A single hold, not re-entered.
    pub const ONE: Self = Self(1);
    /// The deepest re-entry.
    pub const MAX: u16 = 1_000;

    /// Checks a `hold_count`.
    ///
    /// # Errors
    /// Not within 1 to 1,000.
    pub fn new(count: u64) -> Result<Self, InvalidField> {
        match u16::try_from(count) {
            Ok(count @ 1..=Self::MAX) => Ok(Self(count)),
            _ => Err(InvalidField {
                field: "hold_count",
                problem: out_of_range(count, Self::MAX.into()),
            }),
        }
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u16 {
        self.0
    }
}

/// Free text that names the holder; at most 256 bytes, without characters that hide or forge text. Proves nothing.
///
/// Cloning is cheap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner(Option<Arc<str>>);

impl Owner {
    /// The longest owner, in bytes.
    pub const BYTES_MAX: usize = 256;

    /// Checks an `owner`.
    ///
    /// # Errors
    /// Too long, or with characters that could forge lines in terminals and logs, or make text look like other text.
    pub fn new(text: &str) -> Result<Self, InvalidField> {
        let problem = if text.len() > Self::BYTES_MAX {
            format!(
                "{} bytes are too many; at most {} are allowed",
                text.len(),
                Self::BYTES_MAX
            )
        } else if let Some(letter) = text.chars().find(|letter| letter.is_control()) {
            format!("the control character {letter:?} is not allowed")
        } else if let Some(letter) = text.chars().find(|letter| text::is_unprintable(*letter)) {
            format!(
                "the character {letter:?} is invisible or changes how text is shown, and is not allowed"
            )
        } else {
            return Ok(Self::from_store(text));
        };
        Err(InvalidField {
            field: "owner",
            problem,
        })
    }

    /// Takes text that a store recorded earlier, possibly under other rules.
    #[must_use]
    pub fn from_store(text: &str) -> Self {
        // Most claims have no owner, which needs no allocation.
        Self((!text.is_empty()).then(|| text.into()))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }
}

/// The text of a JSON object of at most 4 KiB, kept byte for byte as the client wrote it. Cloning is cheap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata(Arc<str>);

impl Metadata {
    /// The longest metadata, in bytes.
    pub const BYTES_MAX: usize = 4096;

    /// Takes text that the caller knows to be a JSON object.
    ///
    /// # Errors
    /// Too long.
    pub fn from_json_object(text: &str) -> Result<Self, InvalidField> {
        if text.len() > Self::BYTES_MAX {
            let problem = format!(
                "{} bytes are too many; at most {} are allowed",
                text.len(),
                Self::BYTES_MAX
            );
            return Err(InvalidField {
                field: "metadata",
                problem,
            });
        }
        Ok(Self(text.into()))
    }

    /// The JSON text.
    #[must_use]
    pub fn as_json(&self) -> &str {
        &self.0
    }
}

/// A field of a request that is outside of its bounds.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{field}: {problem}")]
pub struct InvalidField {
    /// The field's name on the wire.
    pub field: &'static str,
    /// What is wrong with it and what to write instead.
    pub problem: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A collision of two attempts would let one roll back the lease of the other.
    #[test]
    fn each_bit_of_an_attempt_is_random() {
        let attempts: Vec<u64> = (0..4_000).map(|_| Attempt::random().0).collect();
        for bit in 0..u64::BITS {
            let set = attempts.iter().filter(|it| *it >> bit & 1 == 1).count();
            // Nine standard deviations.
            assert!((1_715..2_285).contains(&set), "bit {bit}: {set}");
        }
    }
}
