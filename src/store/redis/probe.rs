//! While Redis is known to be down, requests are refused at once, and one probe finds out when it is back.
//!
//! During a short interruption, a request is retried until its deadline. But once Redis has been silent for as long as a
//! request may take, the next requests would all wait until they fail, and hold what they need in memory meanwhile.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::failure::Failure;
use super::pool::Pool;
use super::recovery::Recovery;

/// From this length of a silence on, requests are refused at once.
const KNOWN_DOWN_AFTER: Duration = Duration::from_secs(2);
/// The pause between two probes. Requests are refused for so long after Redis is back.
const PROBE_PAUSE: Duration = Duration::from_millis(100);
/// How long a probe may take, apart from the search for the cause of its failure.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Why requests are refused at once; none unless Redis is known to be down.
pub(super) fn known_down(pool: &Pool, recovery: &Recovery) -> Option<Failure> {
    let length = recovery.outage.length();
    let silence = length.filter(|it| *it >= KNOWN_DOWN_AFTER && recovery.outage.is_confirmed())?;
    // None while connections can be opened, or while a slot moves: whatever goes wrong then, each request has to find out.
    pool.refusal().filter(|failure| !failure.is_moving())?;
    let mut failure = pool.not_connected(&format!("unusable for {} s", silence.as_secs()));
    failure.is_worth_retrying = false;
    Some(failure)
}

/// Probes Redis whenever it is known to be down, for as long as the store lives.
pub(super) async fn run(pool: Weak<Pool>, recovery: Arc<Recovery>) {
    loop {
        recovery.outage.began.notified().await;
        sleep(KNOWN_DOWN_AFTER).await;
        while recovery.outage.length().is_some() {
            let Some(pool) = pool.upgrade() else { return };
            // A connection that can be opened ends the silence.
            let probe = pool.connect(Instant::now() + PROBE_TIMEOUT).await;
            if probe.is_err() {
                recovery.outage.confirm();
            }
            drop(pool);
            sleep(PROBE_PAUSE).await;
        }
    }
}
