//! The socket of a connection, with limits that hyper does not have: deadlines for each head and for unread answers, and a
//! limit on bytes that belong to no request. A violation ends the connection with an error and frees its memory. A socket
//! that always has data to read yields to the other connections.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use super::activity::{Activity, ExcessTraffic};
use crate::limits::{Limit, Refusals};

/// The bytes read before the task yields to other connections of the thread. They hold at most two thousand frames, which
/// h2 handles in a fraction of a millisecond. Without this, h2 reads as long as data arrives, and tokio's coop budget stops
/// it only after 128 full buffers.
const TURN_BYTES: usize = 16 * 1024;

/// The deadlines of a peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct SocketDeadlines {
    /// From the first byte of a head to its end; `None` if requests are concurrent.
    pub(super) head: Option<Duration>,
    /// Between two reads of parts of an answer.
    pub(super) write: Duration,
    /// For a whole answer; `None` if answers are concurrent.
    pub(super) answer: Option<Duration>,
}

/// A socket with deadlines for its peer.
pub(super) struct Socket<S> {
    stream: S,
    /// The bytes that were read before the protocol was known.
    replayed: Vec<u8>,
    deadlines: SocketDeadlines,
    activity: Arc<Activity>,
    refusals: Refusals,
    has_part_of_head: bool,
    /// How many requests had begun at the last read.
    begun: usize,
    /// The bytes read since the last yield.
    turn_bytes: usize,
    /// For HTTP/2 only. Over HTTP/1 every byte belongs to a request.
    excess: Option<Box<ExcessTraffic>>,
    head_ends: Option<Pin<Box<Sleep>>>,
    unread: Option<Box<UnreadSocket>>,
}

/// The state of a write that the system did not accept, because the peer does not read.
struct UnreadSocket {
    since: Instant,
    has_progressed: bool,
    timer: Pin<Box<Sleep>>,
}

impl<S> Socket<S> {
    pub(super) fn new(
        stream: S,
        replayed: Vec<u8>,
        deadlines: SocketDeadlines,
        activity: Arc<Activity>,
        refusals: Refusals,
    ) -> Self {
        Self {
            stream,
            replayed,
            deadlines,
            activity,
            refusals,
            has_part_of_head: false,
            begun: 0,
            turn_bytes: 0,
            excess: None,
            head_ends: None,
            unread: None,
        }
    }

    /// Adds the limit on bytes that belong to no request.
    pub(super) fn with_flood_limit(self) -> Self {
        Self {
            excess: Some(Box::new(ExcessTraffic::new())),
            ..self
        }
    }

    fn timed_out(&self, limit: Limit) -> io::Error {
        self.refusals.count(limit);
        let what = match limit == Limit::HeadTimeout {
            true => "the head of a request did not arrive in time",
            false => "the peer did not read its answers in time",
        };
        io::Error::new(io::ErrorKind::TimedOut, what)
    }

    /// Notes received bytes: they belong to a head, unless a request is in progress or begins with them.
    fn note_read(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.begun = self.activity.begun();
        self.has_part_of_head = true;
        self.turn_bytes += bytes.len();
        let Some(excess) = &mut self.excess else {
            return Ok(());
        };
        excess.read(bytes, &self.activity);
        if !excess.is_too_much() {
            return Ok(());
        }
        self.refusals.count(Limit::Http2Flood);
        self.activity.end_for_flood();
        Err(io::Error::other(
            "the peer sends more data than its requests explain",
        ))
    }

    /// Checks the deadline when nothing more has arrived. It applies only while a head is incomplete.
    fn waits_for_head(&mut self, context: &mut Context<'_>) -> Option<io::Error> {
        if self.activity.is_answering() || self.activity.begun() != self.begun {
            self.has_part_of_head = false;
        }
        let (Some(within), true) = (self.deadlines.head, self.has_part_of_head) else {
            self.head_ends = None;
            return None;
        };
        let ends = || Box::pin(sleep_until(Instant::now() + within));
        let timer = self.head_ends.get_or_insert_with(ends);
        let is_over = timer.as_mut().poll(context).is_ready();
        is_over.then(|| self.timed_out(Limit::HeadTimeout))
    }

    /// Notes the result of a write. While the system accepts nothing, the deadline runs.
    fn written(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            if let Some(unread) = &mut self.unread {
                unread.has_progressed = true;
            }
            return written;
        }
        let ends = match self.deadlines.answer {
            Some(within) if !self.activity.is_stream() => Some(within),
            Some(_) | None => None,
        };
        let within = self.deadlines.write;
        let unread = self.unread.get_or_insert_with(|| {
            let first = ends.map_or(within, |ends| within.min(ends));
            Box::new(UnreadSocket::new(first))
        });
        let limit = unread.limit(context, within, ends);
        match limit {
            Some(limit) => Poll::Ready(Err(self.timed_out(limit))),
            None => Poll::Pending,
        }
    }
}

impl UnreadSocket {
    fn new(within: Duration) -> Self {
        let since = Instant::now();
        Self {
            since,
            has_progressed: false,
            timer: Box::pin(sleep_until(since + within)),
        }
    }

    /// The limit that the peer has reached, if it has.
    fn limit(
        &mut self,
        context: &mut Context<'_>,
        within: Duration,
        ends: Option<Duration>,
    ) -> Option<Limit> {
        let end = ends.map(|within| self.since + within);
        if std::mem::take(&mut self.has_progressed) {
            let next = Instant::now() + within;
            let next = end.map_or(next, |end| next.min(end));
            self.timer.as_mut().reset(next);
        }
        if self.timer.as_mut().poll(context).is_pending() {
            return None;
        }
        let is_at_end = end.is_some_and(|end| end <= Instant::now());
        Some(if is_at_end {
            Limit::AnswerTimeout
        } else {
            Limit::WriteTimeout
        })
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Socket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.replayed.is_empty() {
            let count = self.replayed.len().min(buffer.remaining());
            let replayed: Vec<u8> = self.replayed.drain(..count).collect();
            buffer.put_slice(&replayed);
            return Poll::Ready(self.note_read(&replayed));
        }
        if self.turn_bytes >= TURN_BYTES {
            self.turn_bytes = 0;
            return poll_yield(context);
        }
        let before = buffer.filled().len();
        match Pin::new(&mut self.stream).poll_read(context, buffer) {
            Poll::Ready(Ok(())) => match &buffer.filled()[before..] {
                [] => Poll::Ready(Ok(())),
                bytes => Poll::Ready(self.note_read(bytes)),
            },
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                self.turn_bytes = 0;
                self.activity.end_row();
                match self.waits_for_head(context) {
                    Some(error) => Poll::Ready(Err(error)),
                    None => Poll::Pending,
                }
            }
        }
    }
}

/// Yields to the runtime, which polls its I/O driver before this task again. A task that only wakes itself would run sixty
/// more times before that.
fn poll_yield<T>(context: &mut Context<'_>) -> Poll<T> {
    let polled = std::pin::pin!(tokio::task::yield_now()).poll(context);
    debug_assert!(polled.is_pending(), "it is new");
    Poll::Pending
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Socket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.written(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.written(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Nothing is buffered here, so a flush means that everything is written and the peer has caught up. TLS has a buffer:
    /// while that cannot be flushed, the peer does not read, as with a write that the system does not accept.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_flush(context) {
            Poll::Ready(flushed) => {
                self.unread = None;
                Poll::Ready(flushed)
            }
            Poll::Pending => self.written(context, Poll::Pending).map_ok(|_| ()),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_shutdown(context) {
            Poll::Ready(closed) => Poll::Ready(closed),
            // The last message of TLS waits for a peer that does not read.
            Poll::Pending => self.written(context, Poll::Pending).map_ok(|_| ()),
        }
    }
}
