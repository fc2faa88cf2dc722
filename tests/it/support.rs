//! Support for tests: a Redis of their own, a network that can fail, the stores under test, and polling.

pub(crate) mod certificates;
pub(crate) mod cluster;
pub(crate) mod disk;
pub(crate) mod fixture;
pub(crate) mod http2;
pub(crate) mod load;
pub(crate) mod monitor;
pub(crate) mod neighbour;
pub(crate) mod proxy;
pub(crate) mod recording_listener;
pub(crate) mod redis_server;
pub(crate) mod replicas;
pub(crate) mod scripted_store;
pub(crate) mod sentinels;
pub(crate) mod single_connection;
pub(crate) mod stores;
pub(crate) mod tls_front;
pub(crate) mod tls_tunnel;

use std::time::Duration;

use tokio::sync::RwLock;
use tokio::time::Instant;

/// Written by tests that use the whole machine, so that they run one at a time; read by those that start many servers,
/// which mostly wait for them and may run side by side.
pub(crate) static TURN: RwLock<()> = RwLock::const_new(());

/// How long a test waits for an effect before it fails. Generous, because only failing tests wait that long.
pub(crate) const EFFECT_TIMEOUT: Duration = Duration::from_secs(20);

/// Polls until the result is `Some`, and fails with `what` after `timeout`.
pub(crate) async fn eventually_within<T>(
    timeout: Duration,
    what: &str,
    mut ask: impl AsyncFnMut() -> Option<T>,
) -> T {
    let give_up = Instant::now() + timeout;
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(Instant::now() < give_up, "not within {timeout:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// [`eventually_within`] [`EFFECT_TIMEOUT`].
pub(crate) async fn eventually<T>(what: &str, ask: impl AsyncFnMut() -> Option<T>) -> T {
    eventually_within(EFFECT_TIMEOUT, what, ask).await
}
