//! The body of an answer on its way to the peer, and the HTTP/2 streams that carry such bodies.
//!
//! Over HTTP/2 a body is sent in pieces that count when they are written, and it ends only after all of them were written.
//! Each stream is a task. If its peer does not read the response for too long, the stream is reset, and h2 frees its
//! buffers. PING replies and progress on other streams do not count as reading.
//!
//! A body cannot have a deadline by itself, so its stream has it: hyper takes one frame before it waits for a window and
//! does not poll the body meanwhile, and h2 keeps the data that it was given for as long as the connection lives. For the
//! same reason, what a frame says about a lease may be old when it is written, by that deadline at most.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use futures_util::task::AtomicWaker;
use http_body::{Frame, SizeHint};
use hyper::rt::Executor;
use tokio::time::{Instant, Sleep, sleep_until};

use super::activity::Activity;
use crate::limits::{Limit, Refusals, RequestPermit};

/// The most data passed to an HTTP/2 stream at once, which is the size of its frames.
const PIECE_BYTES: usize = 16 * 1024;
/// How many pieces may be unwritten: one is sent while the next one is ready.
const PIECES_MAX: usize = 2;

/// The delivery progress of the answer on one stream.
#[derive(Debug, Default)]
pub(super) struct AnswerDelivery {
    unwritten: AtomicUsize,
    written: AtomicUsize,
    /// Wakes the body when a piece was written.
    waits: AtomicWaker,
}

impl AnswerDelivery {
    /// Whether some piece was taken and is not written yet.
    pub(super) fn is_unread(&self) -> bool {
        self.unwritten.load(Ordering::Acquire) > 0
    }

    /// How many pieces were written so far.
    pub(super) fn written(&self) -> usize {
        self.written.load(Ordering::Acquire)
    }
}

/// A part of an answer. It is dropped when it has been written, or when it never will be.
struct AnswerChunk {
    bytes: Bytes,
    delivery: Arc<AnswerDelivery>,
}

impl AnswerChunk {
    fn of(bytes: Bytes, delivery: &Arc<AnswerDelivery>) -> Bytes {
        delivery.unwritten.fetch_add(1, Ordering::AcqRel);
        let delivery = Arc::clone(delivery);
        Bytes::from_owner(Self { bytes, delivery })
    }
}

impl AsRef<[u8]> for AnswerChunk {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for AnswerChunk {
    fn drop(&mut self) {
        self.delivery.written.fetch_add(1, Ordering::AcqRel);
        self.delivery.unwritten.fetch_sub(1, Ordering::AcqRel);
        self.delivery.waits.wake();
    }
}

/// Counts a request as in progress until this is dropped. Its answer holds it.
pub(super) struct RequestInProgress {
    activity: Arc<Activity>,
    _request: Option<RequestPermit>,
}

impl RequestInProgress {
    pub(super) fn new(activity: &Arc<Activity>, request: Option<RequestPermit>) -> Self {
        activity.begin();
        Self {
            activity: Arc::clone(activity),
            _request: request,
        }
    }
}

impl Drop for RequestInProgress {
    fn drop(&mut self) {
        self.activity.end();
    }
}

/// The body of every answer.
pub(super) struct AnswerBody {
    body: Body,
    _in_progress: RequestInProgress,
    /// The progress; only over HTTP/2.
    delivery: Option<Arc<AnswerDelivery>>,
    rest: Bytes,
    has_begun: bool,
    /// Whether the body has ended, after which it must not be polled.
    has_ended: bool,
}

impl AnswerBody {
    pub(super) fn new(
        body: Body,
        in_progress: RequestInProgress,
        delivery: Option<Arc<AnswerDelivery>>,
    ) -> Self {
        if body.size_hint().exact().is_none() {
            in_progress.activity.begin_stream();
        }
        Self {
            body,
            _in_progress: in_progress,
            delivery,
            rest: Bytes::new(),
            has_begun: false,
            has_ended: false,
        }
    }
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let answer = &mut *self;
        let Some(delivery) = &answer.delivery else {
            return Pin::new(&mut answer.body).poll_frame(context);
        };
        answer.has_begun = true;
        if !answer.rest.is_empty() {
            ready!(delivery.poll_below(PIECES_MAX, context));
            let piece = split(&mut answer.rest);
            return Poll::Ready(Some(Ok(Frame::data(AnswerChunk::of(piece, delivery)))));
        }
        if answer.has_ended {
            ready!(delivery.poll_below(1, context));
            return Poll::Ready(None);
        }
        // The limit holds for small frames, such as events, too.
        ready!(delivery.poll_below(PIECES_MAX, context));
        match ready!(Pin::new(&mut answer.body).poll_frame(context)) {
            Some(Ok(frame)) => Poll::Ready(Some(Ok(match frame.into_data() {
                Ok(bytes) => {
                    answer.rest = bytes;
                    Frame::data(AnswerChunk::of(split(&mut answer.rest), delivery))
                }
                Err(frame) => frame,
            }))),
            Some(Err(error)) => Poll::Ready(Some(Err(error))),
            None => {
                answer.has_ended = true;
                ready!(delivery.poll_below(1, context));
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let may_end = self.delivery.is_none() || !self.has_begun;
        may_end && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl AnswerDelivery {
    /// Waits until fewer than this many pieces are unwritten.
    fn poll_below(&self, pieces: usize, context: &mut Context<'_>) -> Poll<()> {
        if self.unwritten.load(Ordering::Acquire) < pieces {
            return Poll::Ready(());
        }
        self.waits.register(context.waker());
        // A piece may have been written before the waker was registered.
        if self.unwritten.load(Ordering::Acquire) < pieces {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

fn split(rest: &mut Bytes) -> Bytes {
    rest.split_to(rest.len().min(PIECE_BYTES))
}

tokio::task_local! {
    /// The delivery progress of the response of the current task's stream.
    static DELIVERY: Arc<AnswerDelivery>;
}

/// The delivery progress of the current task's stream; `None` outside of such a task.
pub(super) fn of_this_stream() -> Option<Arc<AnswerDelivery>> {
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
