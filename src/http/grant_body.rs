//! The body of an answer to an acquire: it knows whether it was sent. What happens to an unsent grant is the service's.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::service::Undelivered;

/// One frame of data, and the duty to deliver it.
///
/// The grant counts as delivered when the connection takes the frame to write it. Dropped before that, because the
/// client hung up or reset its stream, it gives the grant back.
pub(super) struct GrantBody {
    unsent: Option<(Bytes, Undelivered)>,
}

impl GrantBody {
    pub(super) fn new(bytes: Bytes, undelivered: Undelivered) -> Self {
        Self {
            unsent: Some((bytes, undelivered)),
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
        Poll::Ready(self.unsent.take().map(|(bytes, undelivered)| {
            undelivered.delivered();
            Ok(Frame::data(bytes))
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.unsent.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let bytes = self.unsent.as_ref().map_or(0, |(bytes, _)| bytes.len());
        SizeHint::with_exact(bytes as u64)
    }
}
