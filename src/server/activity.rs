//! What a connection is doing, as its socket, its requests and its answers report it, and whether an HTTP/2 connection sends
//! more bytes than its requests explain. Its other limits are decided elsewhere.
//!
//! h2 reads PRIORITY and unknown frames without a limit. Received bytes are compared with the requests that resulted from
//! them; frames are told apart only where they cost more than their bytes. For SETTINGS, h2 visits every open stream. Of a
//! head that continues in another frame, it keeps all bytes while its table of headers has a slice of them.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use axum::body::{Bytes, HttpBody};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Instant;

use super::frames::Frames;

/// The bytes that one request accounts for beside its path and body: headers and control frames. The compressed size of
/// the headers is not known here, and longer headers are rare.
const REQUEST_BYTES: usize = 8 * 1024;
/// The burst. It is larger than the flow-control window of a connection, which may be full of bodies not yet read.
const BURST_BYTES: usize = 512 * 1024;
/// The sustained rate. It allows a client that sends a WINDOW_UPDATE for each event to receive ten thousand a second.
const BYTES_PER_SECOND: u128 = 256 * 1024;
/// The bytes that a SETTINGS frame counts. So a connection may send 32 at once and 16 per second; clients send one at the
/// beginning, and seldom another.
const SETTINGS_BYTES: usize = 16 * 1024;
/// How many heads may be longer than a frame, which is 16 KiB. Clients seldom send one. The table of headers has room for a
/// hundred slices, which would keep 64 KiB each.
const LONG_HEADS_MAX: usize = 8;

/// The state of one connection, shared by its socket and its requests.
#[derive(Debug, Default)]
pub(super) struct Activity {
    /// How many requests have begun so far.
    begun: AtomicUsize,
    /// How many of them have no complete answer.
    answering: AtomicUsize,
    /// How many have begun since the socket had nothing more to read.
    begun_in_row: AtomicUsize,
    /// How many bytes of the paths and bodies of requests were passed on so far. It may wrap.
    received: AtomicUsize,
    /// Whether one of the answers is an endless stream.
    is_stream: AtomicBool,
    /// Whether the socket has ended it because of a flood.
    is_flooded: AtomicBool,
}

impl Activity {
    pub(super) fn begin(&self) {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.begun_in_row.fetch_add(1, Ordering::Relaxed);
        self.answering.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn end(&self) {
        self.answering.fetch_sub(1, Ordering::Relaxed);
        self.is_stream.store(false, Ordering::Relaxed);
    }

    pub(super) fn begun(&self) -> usize {
        self.begun.load(Ordering::Relaxed)
    }

    /// Whether the last request came right behind another one.
    pub(super) fn is_pipelined(&self) -> bool {
        self.begun_in_row.load(Ordering::Relaxed) > 1
    }

    /// The socket has nothing more to read.
    pub(super) fn end_row(&self) {
        self.begun_in_row.store(0, Ordering::Relaxed);
    }

    /// Counts bytes of a path or a body.
    pub(super) fn receive(&self, bytes: usize) {
        self.received.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn received(&self) -> usize {
        self.received.load(Ordering::Relaxed)
    }

    pub(super) fn is_answering(&self) -> bool {
        self.answering.load(Ordering::Relaxed) > 0
    }

    pub(super) fn begin_stream(&self) {
        self.is_stream.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_stream(&self) -> bool {
        self.is_stream.load(Ordering::Relaxed)
    }

    pub(super) fn end_for_flood(&self) {
        self.is_flooded.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_flooded(&self) -> bool {
        self.is_flooded.load(Ordering::Relaxed)
    }
}

/// What one connection has sent beyond its requests: bytes, less what the rate allows, and heads that are too long.
#[derive(Debug)]
pub(super) struct ExcessTraffic {
    bytes: usize,
    /// When the rate's allowance was last subtracted.
    since: Instant,
    /// The requests, and the bytes of their paths and bodies, that were already subtracted.
    requests: usize,
    received: usize,
    frames: Frames,
    long_heads: usize,
}

impl ExcessTraffic {
    pub(super) fn new() -> Self {
        Self {
            bytes: 0,
            since: Instant::now(),
            requests: 0,
            received: 0,
            frames: Frames::new(),
            long_heads: 0,
        }
    }

    /// Adds what the connection has received.
    pub(super) fn read(&mut self, bytes: &[u8], activity: &Activity) {
        let costly = self.frames.count(bytes);
        self.long_heads += costly.long_heads;
        self.receive(bytes.len() + costly.settings * SETTINGS_BYTES, activity);
    }

    /// Adds received bytes and subtracts those that requests account for.
    fn receive(&mut self, bytes: usize, activity: &Activity) {
        let (requests, received) = (activity.begun(), activity.received());
        let of_requests = requests.wrapping_sub(self.requests) * REQUEST_BYTES
            + received.wrapping_sub(self.received);
        (self.requests, self.received) = (requests, received);
        self.bytes = (self.bytes + bytes).saturating_sub(of_requests);
    }

    /// Whether the connection exceeds its allowance. Reads the clock only above the burst.
    pub(super) fn is_too_much(&mut self) -> bool {
        self.long_heads > LONG_HEADS_MAX
            || self.bytes > BURST_BYTES && self.is_too_much_at(Instant::now())
    }

    fn is_too_much_at(&mut self, now: Instant) -> bool {
        let elapsed = now.duration_since(self.since).as_micros();
        let allowed = elapsed * BYTES_PER_SECOND / 1_000_000;
        self.since = now;
        self.bytes = self
            .bytes
            .saturating_sub(usize::try_from(allowed).unwrap_or(usize::MAX));
        self.bytes > BURST_BYTES
    }
}

/// A request body that counts its bytes as they are read.
pub(super) struct RequestBody {
    body: Incoming,
    activity: Arc<Activity>,
}

impl RequestBody {
    pub(super) fn new(body: Incoming, activity: Arc<Activity>) -> Self {
        Self { body, activity }
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            self.activity
                .receive(frame.data_ref().map_or(0, Bytes::len));
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const KIB: usize = 1024;

    /// Whether receiving this many bytes in each of this many seconds is a flood.
    fn floods(excess: &mut ExcessTraffic, bytes: usize, seconds: u64) -> bool {
        let (began, activity) = (excess.since, Activity::default());
        (1..=seconds).any(|second| {
            excess.receive(bytes, &activity);
            excess.bytes > BURST_BYTES && excess.is_too_much_at(began + Duration::from_secs(second))
        })
    }

    #[test]
    fn a_week_of_window_updates_is_no_flood() {
        assert!(!floods(
            &mut ExcessTraffic::new(),
            200 * KIB,
            7 * 24 * 60 * 60
        ));
        assert!(floods(&mut ExcessTraffic::new(), 300 * KIB, 60));
    }

    #[test]
    fn an_idle_period_allows_no_more_than_twice_the_burst() {
        let mut excess = ExcessTraffic::new();
        assert!(!floods(&mut excess, 1, 60 * 60));
        excess.receive(BURST_BYTES, &Activity::default());
        assert!(!excess.is_too_much_at(excess.since + Duration::from_secs(60 * 60)));
        excess.receive(BURST_BYTES + KIB, &Activity::default());
        assert!(excess.is_too_much_at(excess.since));
    }

    #[test]
    fn requests_account_for_their_paths_and_bodies() {
        let (mut excess, activity) = (ExcessTraffic::new(), Activity::default());
        for _ in 0..1_000 {
            excess.receive(64 * KIB + 8 * KIB, &activity);
            activity.begin();
            activity.receive(64 * KIB);
        }
        excess.receive(0, &activity);
        assert_eq!(excess.bytes, 0);
    }
}
