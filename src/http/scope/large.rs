//! Limits how many bytes of large responses may be in flight, to one peer and in all. A response counts until it has
//! been written, however long the client takes to read it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody as _};
use axum::http::Method;
use axum::response::Response;
use http_body::{Frame, SizeHint};

use super::RequestFacts;
use crate::http::app::App;
use crate::http::auth::ServedAddress;
use crate::http::routes::Route;
use crate::limits::{Budget, BudgetPermit, Limit, PeerLimits};

/// Responses up to this size are not counted: the limit on requests bounds them.
const LARGE_BYTES: u64 = 16 * 1024;

/// The assumed size of a large response before it is built.
const EXPECTED_BYTES: usize = 64 * 1024;

/// Refuses a request with a large response early if there is no room now, so that no response is built that cannot be
/// sent because the client does not read the earlier ones.
pub(super) fn expect(app: &App, request: &RequestFacts) -> Result<(), Limit> {
    let is_large = match request.route {
        Some(Route::Metrics) => true,
        Some(Route::Locks) => request.method == Method::GET,
        _ => false,
    };
    if !is_large {
        return Ok(());
    }
    let (of_peer, of_all) = budgets(app, request);
    if of_peer.is_some_and(|peer| !peer.answer_bytes.has_room(EXPECTED_BYTES)) {
        return Err(Limit::AnswerBytesPerPeer);
    }
    match of_all.has_room(EXPECTED_BYTES) {
        true => Ok(()),
        false => Err(Limit::AnswerBytes),
    }
}

/// What a large response counts in: that of its peer, and that of all. The metrics of the second address have a budget of
/// their own: they are needed most while clients of the first address use up theirs.
fn budgets<'a>(
    app: &'a App,
    request: &'a RequestFacts,
) -> (Option<&'a Arc<PeerLimits>>, &'a Budget) {
    match (request.address, request.route) {
        (ServedAddress::AdminListen, Some(Route::Metrics)) => (
            request.requester.limits_of_address(),
            app.admin_answer_bytes(),
        ),
        _ => (request.requester.limits(), app.answer_bytes()),
    }
}

/// Takes room for a large response, or returns the limit that is exceeded.
pub(super) fn admit(
    app: &App,
    request: &RequestFacts,
    response: &mut Response,
) -> Result<(), Limit> {
    let length = response.body().size_hint().exact().unwrap_or_default();
    // The bytes of a file are shared by all its responses, so that these take no memory of their own.
    let is_file = matches!(request.route, Some(Route::OpenApi | Route::Docs));
    if length <= LARGE_BYTES || is_file {
        return Ok(());
    }
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let (of_peer, of_all) = budgets(app, request);
    let of_peer = match of_peer {
        Some(limits) => {
            let taken = limits.answer_bytes.take(length);
            let taken = taken.ok_or(Limit::AnswerBytesPerPeer)?;
            Some((taken, Arc::clone(limits)))
        }
        None => None,
    };
    let of_all = of_all.take(length).ok_or(Limit::AnswerBytes)?;
    let body = std::mem::take(response.body_mut());
    *response.body_mut() = Body::new(LargeBody {
        body,
        taken: Some((of_all, of_peer)),
    });
    Ok(())
}

/// What a response takes of the limits: of that of all, and of that of its peer. They are kept with it, because nothing
/// else may refer to them when the request is over and the bytes wait in the buffer of a connection.
type BytePermits = (BudgetPermit, Option<(BudgetPermit, Arc<PeerLimits>)>);

/// A body whose bytes count against the limits.
struct LargeBody {
    body: Body,
    taken: Option<BytePermits>,
}

/// Bytes that count against the limits until their last reference is dropped.
struct CountedBytes {
    bytes: Bytes,
    _taken: BytePermits,
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
            // A body of known length is one frame, except for the last byte of a grant.
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
