//! Waiting in line, tried with real processes: several Leaseholds on one Redis, and clients on sockets of their own.
//!
//! What one process does with a queue is in the contract of the stores and in the tests of the service. Here is what only
//! shows when processes are killed, paused, told to stop or cut off, and when many wait at once.
//!
//! The usual sizes fit into the suite on two cores, and the bounds allow for a machine that is busy with other tests.
//! `LEASEHOLD_WAITERS=full` tries the full sizes and allows for nothing; it wants a machine for itself and a build for
//! speed: `LEASEHOLD_WAITERS=full scripts/test --release --test it waiters:: -- --nocapture --test-threads 1`.

mod chaos;
mod client;
mod commands;
mod deadlines;
mod draining;
mod fleet;
mod hang_ups;
pub(crate) mod http1;
mod kills;
mod messages;
mod order;
mod pace;
mod pauses;
mod streams;

use std::time::Duration;

/// How much later than promised something may be on a machine that runs other tests meanwhile, without optimisation.
const BUSY: Duration = Duration::from_millis(1500);

/// A lease that no test outlasts.
const LASTING: &str = "ttl=10m&wait=5m";

/// The bound that is promised, and what a busy machine is allowed beyond it.
fn bound(promised: Duration) -> Duration {
    promised + if is_full() { Duration::ZERO } else { BUSY }
}

/// How many there are of something, by default and in full.
fn size(usual: usize, full: usize) -> usize {
    if is_full() { full } else { usual }
}

#[allow(
    clippy::disallowed_methods,
    reason = "a knob of the tests is no configuration of the service"
)]
fn is_full() -> bool {
    std::env::var("LEASEHOLD_WAITERS").is_ok_and(|size| size == "full")
}

/// Any number below `end`.
fn random(end: u64) -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().0 % end
}

/// Any duration below `end`.
fn random_duration(end: Duration) -> Duration {
    Duration::from_micros(random(u64::try_from(end.as_micros()).expect("short")))
}
