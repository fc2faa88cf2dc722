//! Large answers: how many bytes of them may be under way, to one peer and to all. They take up room until they have been
//! written, however long the client takes to read them.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody as _};
use axum::http::Method;
use axum::response::Response;
use http_body::{Frame, SizeHint};

use super::RequestFacts;
use crate::http::app::App;
use crate::http::route::Route;
use crate::limits::{Limit, Taken};
use crate::server::{Peer, SharedBytes};

/// Smaller answers are many, and are bounded by the number of requests.
const LARGE_BYTES: u64 = 16 * 1024;

/// What a large answer may be expected to have before it is made.
const EXPECTED_BYTES: usize = 64 * 1024;

/// Whether there may be room for the large answer of this request, so that nothing is made that cannot be sent: what a
/// client does not read, it is not to be given more of.
pub(super) fn expect(app: &App, asked: &RequestFacts) -> Result<(), Limit> {
    let is_large = match asked.route {
        Some(Route::Metrics) => true,
        Some(Route::Locks) => asked.method == Method::GET,
        _ => false,
    };
    if !is_large {
        return Ok(());
    }
    let peer = asked.requester.peer.as_ref().and_then(Peer::limits);
    if peer.is_some_and(|peer| !peer.answer_bytes.has_room(EXPECTED_BYTES)) {
        return Err(Limit::AnswerBytesPerPeer);
    }
    match app.answer_bytes().has_room(EXPECTED_BYTES) {
        true => Ok(()),
        false => Err(Limit::AnswerBytes),
    }
}

/// Makes a large answer take up room, or says which limit is in the way.
pub(super) fn admit(app: &App, peer: Option<&Peer>, response: &mut Response) -> Result<(), Limit> {
    let length = response.body().size_hint().exact().unwrap_or_default();
    if length <= LARGE_BYTES || response.extensions().get::<SharedBytes>().is_some() {
        return Ok(());
    }
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let of_peer = match peer.and_then(Peer::limits) {
        Some(limits) => {
            let taken = limits.answer_bytes.take(length);
            Some(taken.ok_or(Limit::AnswerBytesPerPeer)?)
        }
        None => None,
    };
    let of_all = app.answer_bytes().take(length).ok_or(Limit::AnswerBytes)?;
    let body = std::mem::take(response.body_mut());
    *response.body_mut() = Body::new(LargeBody {
        body,
        taken: Some((of_all, of_peer)),
    });
    Ok(())
}

/// A body whose bytes take up room.
struct LargeBody {
    body: Body,
    taken: Option<(Taken, Option<Taken>)>,
}

/// Bytes that take up room until nobody has them any more.
struct CountedBytes {
    bytes: Bytes,
    _taken: (Taken, Option<Taken>),
}

impl AsRef<[u8]> for CountedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl http_body::Body for LargeBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        frame.map_ok(|frame| {
            // A body whose length is known is in one piece, but for the last byte of a grant.
            frame.map_data(|bytes| match self.taken.take() {
                Some(taken) => Bytes::from_owner(CountedBytes {
                    bytes,
                    _taken: taken,
                }),
                None => bytes,
            })
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
