//! The answer of the recovery script. `recovery` draws the conclusions.

use std::time::Duration;

use crate::store::redis::reply::{Malformed, Reply};

/// The state of the data as the store reports it.
pub(super) struct RecoveryReply {
    pub(super) now_us: u64,
    pub(super) epoch: u64,
    /// Whether this exchange began the epoch.
    pub(super) begins: bool,
    /// The number of checks so far; 0 if this one could not be stored.
    pub(super) revision: u64,
    pub(super) longest_ttl_ms: u64,
    pub(super) grace_left: Duration,
    /// How many processes subscribe to events.
    pub(super) watchers: u64,
    /// How many subscribe to this process's own channel: itself, unless it is connected elsewhere.
    pub(super) listeners: u64,
    /// Whether the user may count subscribers.
    pub(super) may_count: bool,
    /// Whether the clock was set back since the last check of the data.
    pub(super) went_back: bool,
}

impl RecoveryReply {
    pub(super) fn read(mut reply: Reply) -> Result<Self, Malformed> {
        Ok(Self {
            now_us: reply.number()?,
            epoch: reply.number()?,
            begins: reply.number()? == 1,
            revision: reply.number()?,
            longest_ttl_ms: reply.number()?,
            grace_left: reply.millis()?,
            watchers: reply.number()?,
            listeners: reply.number()?,
            may_count: reply.number()? == 1,
            went_back: reply.number()? == 1,
        })
    }
}
