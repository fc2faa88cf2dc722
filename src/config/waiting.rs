//! How claims wait and how long events are kept. `service` implements the waiting.

use std::time::Duration;

use super::error::ConfigError;
use super::settings::{KEPT_MAX, Settings};

/// Polls are heartbeats too: a longer interval would delay the detection of dead processes too much.
const POLL_INTERVAL_MAX: Duration = Duration::from_secs(60);
/// Below this a process would do little else than poll.
const POLL_INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Longer waits and kept places have no use, and their records would pile up in the store.
const WAIT_MAX: Duration = Duration::from_secs(60 * 60);

/// Queues and lock events.
#[derive(Debug, Clone)]
pub struct WaitingConfig {
    /// The longest wait.
    pub wait_max: Duration,
    /// How long a place in a queue is kept while no request is connected for it.
    pub place_kept: Duration,
    /// How often a process polls each queue in which it has waiters.
    pub poll_interval: Duration,
    /// How many waiters the queue of one lock may have.
    pub waiters_per_lock_max: u32,
    /// How many waiters one process may have.
    pub waiters_max: usize,
    /// How many recent events a process keeps.
    pub events_kept: usize,
}

impl WaitingConfig {
    pub(super) fn parse(settings: &Settings) -> Result<Self, ConfigError> {
        let waiters_per_lock = settings.count("waiting.waiters_per_lock_max", KEPT_MAX)?;
        Ok(Self {
            wait_max: settings.between("waiting.wait_max", Duration::ZERO, WAIT_MAX)?,
            place_kept: settings.between("waiting.place_kept", Duration::ZERO, WAIT_MAX)?,
            poll_interval: settings.between(
                "waiting.poll_interval",
                POLL_INTERVAL_MIN,
                POLL_INTERVAL_MAX,
            )?,
            waiters_per_lock_max: u32::try_from(waiters_per_lock).expect("it is below the bound"),
            waiters_max: settings.count("waiting.waiters_max", KEPT_MAX)?,
            events_kept: settings.count("events.kept", KEPT_MAX)?,
        })
    }
}
