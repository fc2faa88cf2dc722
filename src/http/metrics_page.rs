//! The text of `GET /metrics`: rendered once for all requests that come at the same time, and so rarely that it takes a
//! small part of a processor, however many come.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Bytes;
use nix::time::{ClockId, clock_gettime};
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until};

use crate::telemetry::Metrics;

/// The pause after a rendering, as a multiple of what it took. So renderings take a tenth of one processor at most.
const PAUSE: u32 = 9;
/// The assumed duration of the first rendering.
const FIRST: Duration = Duration::from_millis(1);

/// Renders the metrics, one rendering at a time.
#[derive(Debug)]
pub(super) struct MetricsPage {
    metrics: Arc<Metrics>,
    /// The number of the last rendering that began. Changed by the owner of `last` alone.
    begun: AtomicU64,
    /// Held during a rendering. The requests that wait for it share the next one.
    last: Mutex<Rendered>,
}

#[derive(Debug)]
struct Rendered {
    number: u64,
    text: Bytes,
    /// The time of a processor that it took.
    took: Duration,
    /// When the next one may begin.
    next_at: Instant,
}

impl MetricsPage {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            metrics,
            begun: AtomicU64::new(0),
            last: Mutex::new(Rendered {
                number: 0,
                text: Bytes::new(),
                took: FIRST,
                next_at: Instant::now(),
            }),
        }
    }

    /// The first rendering that begins from now on, so that it counts all that was done before.
    ///
    /// # Cancel safety
    /// If the future is dropped, the next request begins another rendering, after the pause.
    pub(super) async fn text(&self) -> Bytes {
        let begun_before = self.begun.load(Ordering::SeqCst);
        let mut last = self.last.lock().await;
        if last.number <= begun_before {
            sleep_until(last.next_at).await;
            let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
            // Noted before it begins, because it goes on if this future is dropped.
            last.next_at = Instant::now() + last.took * (1 + PAUSE);
            let metrics = Arc::clone(&self.metrics);
            // A page of many series takes milliseconds, which would delay the requests of this thread.
            let rendering = spawn_blocking(move || {
                let began = cpu_time();
                (metrics.render(), cpu_time().saturating_sub(began))
            });
            let (text, took) = rendering.await.expect("rendering does not panic");
            last.text = text.into();
            last.took = took;
            last.next_at = Instant::now() + took * PAUSE;
            last.number = number;
        }
        last.text.clone()
    }
}

/// The processor time of this thread. It does not grow while other threads run.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(FIRST, Duration::from)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use futures_util::future::join_all;

    use super::*;

    #[tokio::test]
    async fn those_who_ask_together_share_a_page_that_counts_all_that_was_done_before() {
        let metrics = Arc::new(Metrics::new());
        let renderings = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&renderings);
        metrics.sampled_gauge("renderings", "", &[], move || {
            counted.fetch_add(1, Ordering::SeqCst) as f64
        });
        let done = metrics.counter("done_total", "", &[]);
        let page = MetricsPage::new(metrics);
        for number in 1..=3 {
            done.increment(1);
            let pages = join_all((0..100).map(|_| page.text())).await;
            let expected = format!("done_total {number}\n");
            for page in pages {
                let page = std::str::from_utf8(&page).unwrap();
                assert!(page.contains(&expected), "{page}");
            }
        }
        // Some may ask when the first of them has begun.
        assert!(renderings.load(Ordering::SeqCst) <= 6);
    }
}
