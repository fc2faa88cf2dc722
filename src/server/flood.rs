//! What a connection sends that belongs to no request: frames of HTTP/2 that h2 reads without end and does not count. Which
//! frames they are is not known here: what is received is compared with what came of it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Bytes, HttpBody};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Instant;

use super::activity::Activity;

/// What may belong to a request beside its path and its body: its headers, and frames for it and its answer. Longer headers
/// are rare, and how long they were before they were unpacked is not known.
const REQUEST_BYTES: usize = 8 * 1024;
/// What may come at once. It is more than the window of a connection, all of which may be bodies that were not looked at yet.
const BURST_BYTES: usize = 512 * 1024;
/// What may come in a second. Clients that announce the room for each event by itself do so for ten thousand.
const BYTES_PER_SECOND: u128 = 256 * 1024;

/// The bytes of one connection that belong to no request as far as is known yet.
#[derive(Debug)]
pub(super) struct Surplus {
    bytes: usize,
    /// Since when the time has not been taken off.
    since: Instant,
    /// The requests, and the bytes of their paths and bodies, that were taken off.
    requests: usize,
    received: usize,
}

impl Surplus {
    pub(super) fn new() -> Self {
        Self {
            bytes: 0,
            since: Instant::now(),
            requests: 0,
            received: 0,
        }
    }

    /// Counts bytes that were received, but for what has come of them and of those before.
    pub(super) fn receive(&mut self, bytes: usize, activity: &Activity) {
        let (requests, received) = (activity.begun(), activity.received());
        let of_requests = requests.wrapping_sub(self.requests) * REQUEST_BYTES
            + received.wrapping_sub(self.received);
        (self.requests, self.received) = (requests, received);
        self.bytes = (self.bytes + bytes).saturating_sub(of_requests);
    }

    /// Whether more has come than may. The clock is asked only when it matters.
    pub(super) fn is_too_much(&mut self) -> bool {
        self.bytes > BURST_BYTES && self.is_too_much_at(Instant::now())
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

/// The body of a request, which is counted as it is given out.
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

    /// Receives so much in each of so many seconds, and says whether that was too much.
    fn floods(surplus: &mut Surplus, bytes: usize, seconds: u64) -> bool {
        let (began, activity) = (surplus.since, Activity::default());
        (1..=seconds).any(|second| {
            surplus.receive(bytes, &activity);
            surplus.bytes > BURST_BYTES
                && surplus.is_too_much_at(began + Duration::from_secs(second))
        })
    }

    #[test]
    fn a_stream_that_is_read_for_a_week_is_no_flood() {
        assert!(!floods(&mut Surplus::new(), 200 * KIB, 7 * 24 * 60 * 60));
        assert!(floods(&mut Surplus::new(), 300 * KIB, 60));
    }

    #[test]
    fn a_quiet_time_does_not_make_room_for_more_than_twice_the_burst() {
        let mut surplus = Surplus::new();
        assert!(!floods(&mut surplus, 1, 60 * 60));
        surplus.receive(BURST_BYTES, &Activity::default());
        assert!(!surplus.is_too_much_at(surplus.since + Duration::from_secs(60 * 60)));
        surplus.receive(BURST_BYTES + KIB, &Activity::default());
        assert!(surplus.is_too_much_at(surplus.since));
    }

    #[test]
    fn requests_with_their_paths_and_bodies_make_up_for_what_is_received() {
        let (mut surplus, activity) = (Surplus::new(), Activity::default());
        for _ in 0..1_000 {
            surplus.receive(64 * KIB + 8 * KIB, &activity);
            activity.begin();
            activity.receive(64 * KIB);
        }
        surplus.receive(0, &activity);
        assert_eq!(surplus.bytes, 0);
    }
}
