//! Responses with leases, and the body that tracks whether a grant was delivered. Who gets a lease is decided elsewhere.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::{CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION};
use axum::http::{StatusCode, Version};
use axum::response::Response;
use http_body::{Frame, SizeHint};

use super::{FENCING_TOKEN, LOCK_TOKEN, RouteForm, secret};
use crate::domain::{Lease, LockName, Token};
use crate::http::wire::{GrantView, GrantsView};
use crate::service::UnclaimedLease;

/// The most headers that a response has, including the common ones, so that the map never reallocates.
const HEADERS_MAX: usize = 9;

/// How the client came to hold the locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GrantKind {
    /// They were granted just now.
    New,
    /// The claim held them already and now has a higher hold count.
    Reentered,
    /// The claim held them already; this repeats the earlier response.
    Replayed,
    /// The claim still holds them, renewed or with a lower hold count.
    Unchanged,
}

/// Leases on their way to their holder, one for each name.
pub(super) struct GrantAnswer<'a> {
    pub(super) route_form: RouteForm,
    pub(super) names: &'a [LockName],
    pub(super) token: Token,
    pub(super) leases: &'a [Lease],
    pub(super) granted: GrantKind,
    pub(super) waited: Duration,
}

impl GrantAnswer<'_> {
    /// The response to an acquire, in the requested format. If it is not delivered, it rolls the grant back.
    pub(super) fn acquired(
        &self,
        form: &str,
        unclaimed: UnclaimedLease,
        version: Version,
    ) -> Response {
        let (content_type, body) = if form == "text/plain" {
            let token = format!("{}\n", self.token.expose());
            ("text/plain; charset=utf-8", Bytes::from(token))
        } else {
            ("application/json", self.json())
        };
        let body = Body::new(GrantBody::new(body, unclaimed, version));
        let mut response = self.response(content_type, body);
        if self.granted == GrantKind::New {
            *response.status_mut() = StatusCode::CREATED;
            if let Some((name, _)) = self.only() {
                // Every character of a lock name is valid in a path without encoding.
                let location = HeaderValue::try_from(["/locks/", name.as_str()].concat())
                    .expect("lock names are printable ASCII");
                response.headers_mut().insert(LOCATION, location);
            }
        }
        response
    }

    /// The response to any other operation that returns leases.
    pub(super) fn plain(&self) -> Response {
        self.response("application/json", Body::from(self.json()))
    }

    /// The lock and its lease, if the request names it in its path.
    fn only(&self) -> Option<(&LockName, &Lease)> {
        match self.route_form {
            RouteForm::Single => self.names.first().zip(self.leases.first()),
            RouteForm::Multi => None,
        }
    }

    fn json(&self) -> Bytes {
        if let Some((name, lease)) = self.only() {
            return self.grant(name, lease).to_json().into();
        }
        let locks = self.names.iter().zip(self.leases);
        let grants = GrantsView {
            token: self.token.expose(),
            locks: locks.map(|(name, lease)| self.grant(name, lease)).collect(),
        };
        let text = serde_json::to_vec(&grants);
        text.expect("grants have string keys and no failing serializer")
            .into()
    }

    fn grant<'a>(&self, name: &'a LockName, lease: &'a Lease) -> GrantView<'a> {
        GrantView::new(name, self.token, lease)
            .waited(self.waited)
            .replayed(self.granted == GrantKind::Replayed)
    }

    fn response(&self, content_type: &'static str, body: Body) -> Response {
        let mut headers = HeaderMap::with_capacity(HEADERS_MAX);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        if let Some((_, lease)) = self.only() {
            headers.insert(FENCING_TOKEN, lease.holder.fence.get().into());
        }
        headers.insert(LOCK_TOKEN, secret(self.token));
        let mut response = Response::new(body);
        *response.headers_mut() = headers;
        response
    }
}

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

impl http_body::Body for GrantBody {
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
