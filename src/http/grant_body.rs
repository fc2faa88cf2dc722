//! The body of an answer to an acquire: it knows whether it was sent. What happens to an unsent grant is the service's.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Bytes;
use axum::http::Version;
use http_body::{Body, Frame, SizeHint};

use crate::service::UnclaimedLease;

/// The data, and the duty to deliver it.
///
/// Over HTTP/1 the grant counts as delivered when the connection takes the data to write it. Over HTTP/2 hyper takes data
/// before the client has granted any room for it, waits for room for its first byte, and asks for more as soon as that is
/// there. So the last byte comes by itself, and the grant counts as delivered when hyper has had room for that and asks for
/// what comes after it.
///
/// Dropped before, because the client hung up or reset its stream, it gives the grant back.
pub(super) struct GrantBody {
    first: Bytes,
    last: Bytes,
    undelivered: Option<UnclaimedLease>,
    /// Whether the connection has to ask once more after the last of the data.
    confirms: bool,
}

impl GrantBody {
    pub(super) fn new(bytes: Bytes, undelivered: UnclaimedLease, version: Version) -> Self {
        let (mut first, confirms) = (bytes, version == Version::HTTP_2);
        let last = match confirms {
            true => first.split_off(first.len().saturating_sub(1)),
            false => Bytes::new(),
        };
        Self {
            first,
            last,
            undelivered: Some(undelivered),
            confirms,
        }
    }

    fn is_taken(&self) -> bool {
        self.first.is_empty() && self.last.is_empty()
    }

    fn is_delivered(&mut self) {
        if let Some(undelivered) = self.undelivered.take() {
            undelivered.delivered();
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
            self.is_delivered();
            return Poll::Ready(None);
        }
        let Self { first, last, .. } = &mut *self;
        let next = if first.is_empty() { last } else { first };
        let data = std::mem::take(next);
        if self.is_taken() && !self.confirms {
            self.is_delivered();
        }
        Poll::Ready(Some(Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        self.undelivered.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact((self.first.len() + self.last.len()) as u64)
    }
}
