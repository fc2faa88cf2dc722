//! The body of an answer on its way to the peer. Over HTTP/2 it goes out in pieces, each of which says when it was
//! written, and it ends only when all of them were; so whoever runs the stream can tell that nobody reads it.
//!
//! hyper takes one frame of a body before it waits for a window, and does not poll the body meanwhile; h2 keeps what it was
//! given for as long as the connection lives. Both are why a body cannot have a deadline by itself: `streams` has it. They
//! are also why what a frame says of a lease may be old when it is written, by as much as that deadline at the most.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes, HttpBody};
use futures_util::task::AtomicWaker;
use http_body::{Frame, SizeHint};

use super::activity::Activity;
use crate::limits::RequestPermit;

/// What is given to a stream of HTTP/2 at once, which is the size of its frames.
const PIECE_BYTES: usize = 16 * 1024;
/// How many pieces may be unwritten: one goes out while the next one is there.
const PIECES_MAX: usize = 2;

/// How far the answer of one stream has come.
#[derive(Debug, Default)]
pub(super) struct AnswerDelivery {
    unwritten: AtomicUsize,
    written: AtomicUsize,
    /// The body, when it waits for a piece to be written.
    waits: AtomicWaker,
}

impl AnswerDelivery {
    /// Whether something was given out that was not written yet.
    pub(super) fn is_unread(&self) -> bool {
        self.unwritten.load(Ordering::Acquire) > 0
    }

    /// How many pieces were written, ever.
    pub(super) fn written(&self) -> usize {
        self.written.load(Ordering::Acquire)
    }
}

/// A part of an answer. It is dropped when it has been written, or never will be.
struct Piece {
    bytes: Bytes,
    delivery: Arc<AnswerDelivery>,
}

impl Piece {
    fn of(bytes: Bytes, delivery: &Arc<AnswerDelivery>) -> Bytes {
        delivery.unwritten.fetch_add(1, Ordering::AcqRel);
        let delivery = Arc::clone(delivery);
        Bytes::from_owner(Self { bytes, delivery })
    }
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.delivery.written.fetch_add(1, Ordering::AcqRel);
        self.delivery.unwritten.fetch_sub(1, Ordering::AcqRel);
        self.delivery.waits.wake();
    }
}

/// A request counts as under way for as long as this lives, which its answer has.
pub(super) struct UnderWay {
    activity: Arc<Activity>,
    _request: Option<RequestPermit>,
}

impl UnderWay {
    pub(super) fn new(activity: &Arc<Activity>, request: Option<RequestPermit>) -> Self {
        activity.begin();
        Self {
            activity: Arc::clone(activity),
            _request: request,
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.activity.end();
    }
}

/// The body of an answer, whatever is answered.
pub(super) struct AnswerBody {
    body: Body,
    _under_way: UnderWay,
    /// Over HTTP/2.
    delivery: Option<Arc<AnswerDelivery>>,
    rest: Bytes,
    has_begun: bool,
    /// The body has said that there is nothing more, which it is not asked again.
    has_ended: bool,
}

impl AnswerBody {
    pub(super) fn new(
        body: Body,
        under_way: UnderWay,
        delivery: Option<Arc<AnswerDelivery>>,
    ) -> Self {
        if body.size_hint().exact().is_none() {
            under_way.activity.begin_stream();
        }
        Self {
            body,
            _under_way: under_way,
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
            return Poll::Ready(Some(Ok(Frame::data(Piece::of(piece, delivery)))));
        }
        if answer.has_ended {
            ready!(delivery.poll_below(1, context));
            return Poll::Ready(None);
        }
        // Of many small frames, as of events, no more are taken either.
        ready!(delivery.poll_below(PIECES_MAX, context));
        match ready!(Pin::new(&mut answer.body).poll_frame(context)) {
            Some(Ok(frame)) => Poll::Ready(Some(Ok(match frame.into_data() {
                Ok(bytes) => {
                    answer.rest = bytes;
                    Frame::data(Piece::of(split(&mut answer.rest), delivery))
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
    /// Waits until fewer pieces than that are unwritten.
    fn poll_below(&self, pieces: usize, context: &mut Context<'_>) -> Poll<()> {
        if self.unwritten.load(Ordering::Acquire) < pieces {
            return Poll::Ready(());
        }
        self.waits.register(context.waker());
        // What was written in between has woken nobody.
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
