//! The body of an answer to an acquire: it knows whether it was sent. What happens to an unsent grant is the service's.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Bytes;
use axum::http::Version;
use http_body::{Body, Frame, SizeHint};

use crate::service::Undelivered;

/// The data, and the duty to deliver it.
///
/// The grant counts as delivered when the connection takes the last frame to write it. Dropped before that, because the
/// client hung up or reset its stream, it gives the grant back.
pub(super) struct GrantBody {
    /// What comes before the last frame.
    first: Bytes,
    last: Option<(Bytes, Undelivered)>,
}

impl GrantBody {
    /// The last byte is a frame of its own over HTTP/2. hyper asks for a frame as soon as the client grants it one byte of
    /// flow control, and keeps the rest for as long as the client likes. It asks for the last byte only when the client has
    /// granted room for all. Over HTTP/1 there is no such control, and each frame would be a write of its own.
    pub(super) fn new(mut bytes: Bytes, undelivered: Undelivered, version: Version) -> Self {
        let first = match version {
            Version::HTTP_2 => bytes.split_to(bytes.len().saturating_sub(1)),
            _ => Bytes::new(),
        };
        Self {
            first,
            last: Some((bytes, undelivered)),
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
        if !self.first.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.first)))));
        }
        Poll::Ready(self.last.take().map(|(bytes, undelivered)| {
            undelivered.delivered();
            Ok(Frame::data(bytes))
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.last.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let last = self.last.as_ref().map_or(0, |(bytes, _)| bytes.len());
        SizeHint::with_exact((self.first.len() + last) as u64)
    }
}
