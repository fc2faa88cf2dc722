//! Queues with real processes: several Leaseholds on one Redis, and clients on sockets of their own.
//!
//! The contract tests of the stores and the tests of the service cover the queue of one process. These tests are about
//! processes that are killed, paused, stopped or cut off, and about many waiters at once.
//!
//! The usual sizes fit into the test suite on two cores, and the bounds allow for a machine that is busy with other
//! tests. `LEASEHOLD_WAITERS=full` runs the full sizes with strict bounds; it needs an idle machine and a release
//! build: `LEASEHOLD_WAITERS=full scripts/test --release --test it waiters:: -- --nocapture --test-threads 1`.

mod chaos;
pub(crate) mod client;
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
mod rollout;
mod streams;

use std::time::Duration;

/// The extra time allowed in an unoptimised build, on a machine that runs other tests at the same time.
const BUSY: Duration = Duration::from_millis(1500);

/// A TTL longer than any test.
const LASTING: &str = "ttl=10m&wait=5m";

/// The guaranteed bound, plus the extra time for a busy machine.
fn bound(promised: Duration) -> Duration {
    promised + if is_full() { Duration::ZERO } else { BUSY }
}

/// A count: the usual one, or the one of a full run.
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

/// A random number below `end`.
fn random(end: u64) -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().0 % end
}

/// A random duration below `end`.
fn random_duration(end: Duration) -> Duration {
    Duration::from_micros(random(u64::try_from(end.as_micros()).expect("short")))
}
