//! What the tests stand on: a Redis of their own, a network that can fail, stores to put to the test, and polling.

pub(crate) mod fixture;
pub(crate) mod http2;
pub(crate) mod proxy;
pub(crate) mod recording_listener;
pub(crate) mod redis_server;
pub(crate) mod stores;

use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

/// Those who keep the whole machine busy do so one at a time.
pub(crate) static TURN: Mutex<()> = Mutex::const_new(());

/// How long something that must happen may take before the test gives up. Generous: it only costs when a test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Asks again and again until the answer is `Some`, and fails with `what` once `patience` is over.
pub(crate) async fn eventually_within<T>(
    patience: Duration,
    what: &str,
    mut ask: impl AsyncFnMut() -> Option<T>,
) -> T {
    let give_up = Instant::now() + patience;
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(Instant::now() < give_up, "not within {patience:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// [`eventually_within`] the usual patience.
pub(crate) async fn eventually<T>(what: &str, ask: impl AsyncFnMut() -> Option<T>) -> T {
    eventually_within(PATIENCE, what, ask).await
}
