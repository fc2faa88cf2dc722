//! The response body of an acquire, which tracks whether the grant was delivered. The service rolls back a grant that
//! was not.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Bytes;
use axum::http::Version;
use http_body::{Body, Frame, SizeHint};

use crate::service::UnclaimedLease;

/// The data of a grant, with its unclaimed lease.
///
/// Over HTTP/1 the grant counts as delivered when the connection polls the data to write it. Over HTTP/2 hyper polls
/// data before the client has opened any flow-control window for it, waits for a window for its first byte, and then
/// polls again. So the last byte is a frame of its own: the grant counts as delivered when hyper polls again after that
/// frame, because by then the window had room for it.
///
/// Dropped before that, because the client disconnected or reset its stream, it rolls the grant back.
pub(super) struct GrantBody {
    first: Bytes,
    last: Bytes,
    unclaimed: Option<UnclaimedLease>,
    /// Whether delivery is confirmed only by another poll after the last frame (HTTP/2).
    confirms: bool,
}

impl GrantBody {
    pub(super) fn new(bytes: Bytes, unclaimed: UnclaimedLease, version: Version) -> Self {
        let (mut first, confirms) = (bytes, version == Version::HTTP_2);
        let last = match confirms {
            true => first.split_off(first.len().saturating_sub(1)),
            false => Bytes::new(),
        };
        Self {
            first,
            last,
            unclaimed: Some(unclaimed),
            confirms,
        }
    }

    fn is_taken(&self) -> bool {
        self.first.is_empty() && self.last.is_empty()
    }

    fn confirm(&mut self) {
        if let Some(unclaimed) = self.unclaimed.take() {
            unclaimed.delivered();
        }
    }
}

impl Body for GrantBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.is_taken() {
            self.confirm();
            return Poll::Ready(None);
        }
        let Self { first, last, .. } = &mut *self;
        let next = if first.is_empty() { last } else { first };
        let data = std::mem::take(next);
        if self.is_taken() && !self.confirms {
            self.confirm();
        }
        Poll::Ready(Some(Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        self.unclaimed.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact((self.first.len() + self.last.len()) as u64)
    }
}
