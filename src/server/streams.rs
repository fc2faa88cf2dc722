//! HTTP/2 streams. Each is a task that ends when its peer does not read its response for too long. Then the stream is
//! reset, and h2 frees its buffers. PING replies and progress on other streams do not count as reading.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::rt::Executor;
use tokio::time::{Instant, Sleep, sleep_until};

use super::delivery::AnswerDelivery;
use crate::limits::{Limit, Refusals};

tokio::task_local! {
    /// The delivery progress of the response of the current task's stream.
    static DELIVERY: Arc<AnswerDelivery>;
}

/// The delivery progress of the current task's stream; `None` outside of such a task.
pub(super) fn delivery() -> Option<Arc<AnswerDelivery>> {
    DELIVERY.try_with(Arc::clone).ok()
}

/// Spawns streams.
#[derive(Clone, Debug)]
pub(super) struct StreamExecutor {
    pub(super) write_timeout: Duration,
    pub(super) answer_timeout: Duration,
    pub(super) refusals: Refusals,
}

impl<F: Future<Output: Send> + Send + 'static> Executor<F> for StreamExecutor {
    fn execute(&self, stream: F) {
        let delivery = Arc::<AnswerDelivery>::default();
        let watched = Watched {
            stream: Some(Box::pin(stream)),
            delivery: Arc::clone(&delivery),
            executor: self.clone(),
            unread: None,
        };
        tokio::spawn(DELIVERY.scope(delivery, watched));
    }
}

/// A stream whose response must be read within the timeouts.
struct Watched<F> {
    stream: Option<Pin<Box<F>>>,
    delivery: Arc<AnswerDelivery>,
    executor: StreamExecutor,
    unread: Option<UnreadStream>,
}

/// A stream with response data that h2 has taken and not yet written.
struct UnreadStream {
    since: Instant,
    written: usize,
    timer: Pin<Box<Sleep>>,
}

impl<F: Future> Future for Watched<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let watched = &mut *self;
        let Some(stream) = &mut watched.stream else {
            return Poll::Ready(());
        };
        if stream.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        let Some(limit) = watched.limit(context) else {
            return Poll::Pending;
        };
        watched.executor.refusals.count(limit);
        tracing::debug!(
            limit = limit.label(),
            "reset a stream whose response was not read"
        );
        // Dropping the stream before its end resets it.
        watched.stream = None;
        Poll::Ready(())
    }
}

impl<F> Watched<F> {
    /// The timeout that the peer has exceeded, if any.
    fn limit(&mut self, context: &mut Context<'_>) -> Option<Limit> {
        if !self.delivery.is_unread() {
            self.unread = None;
            return None;
        }
        let within = self.executor.write_timeout;
        let whole = self.executor.answer_timeout;
        let written = self.delivery.written();
        let unread = self
            .unread
            .get_or_insert_with(|| UnreadStream::new(written, within.min(whole)));
        let end = unread.since + whole;
        while unread.timer.as_mut().poll(context).is_ready() {
            let now = Instant::now();
            if end <= now {
                return Some(Limit::AnswerTimeout);
            }
            if unread.written == written {
                return Some(Limit::WriteTimeout);
            }
            unread.written = written;
            unread.timer.as_mut().reset(end.min(now + within));
        }
        None
    }
}

impl UnreadStream {
    fn new(written: usize, within: Duration) -> Self {
        let since = Instant::now();
        Self {
            since,
            written,
            timer: Box::pin(sleep_until(since + within)),
        }
    }
}
