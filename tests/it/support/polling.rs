//! Waiting for an effect: asking again and again, with a deadline. Nothing here knows what is asked.

use std::time::Duration;

use tokio::time::Instant;

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
