//! What the recovery script answers. What follows from it is in `recovery`.

use std::time::Duration;

use crate::store::redis::scripts;

/// What the store said about the data.
pub(super) struct RecoveryReply {
    pub(super) now_us: u64,
    pub(super) epoch: u64,
    /// Whether this question began the epoch.
    pub(super) begins: bool,
    pub(super) revision: u64,
    pub(super) longest_ttl_ms: u64,
    pub(super) grace_left: Duration,
    /// How many processes hear events.
    pub(super) watchers: u64,
    /// How many hear what is told to this process: itself, unless it listens elsewhere.
    pub(super) listeners: u64,
    /// Whether the user may count them.
    pub(super) may_count: bool,
    /// Whether the clock was set back since the data were looked at last.
    pub(super) went_back: bool,
}

impl RecoveryReply {
    pub(super) fn read(mut reply: scripts::Reply) -> Result<Self, scripts::Malformed> {
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
