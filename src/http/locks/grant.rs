//! Responses with leases, and the body that tracks whether a grant was delivered.

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
use crate::domain::{Claim, GrantKind, Granted, Lease, LockName, Token};
use crate::http::wire::{GrantView, GrantsView};
use crate::service::UnclaimedLease;

/// The most headers that a response has, including the common ones, so that the map never reallocates.
const HEADERS_MAX: usize = 11;

/// The format of the response to an acquire.
pub(super) struct Format {
    pub(super) route_form: RouteForm,
    pub(super) media_type: &'static str,
    pub(super) version: Version,
}

/// The response to an acquire. If it is not delivered, it rolls the grant back.
pub(super) fn acquired(
    format: &Format,
    claim: &Claim,
    granted: &Granted,
    waited: Duration,
    unclaimed: UnclaimedLease,
) -> Response {
    let (names, token, leases) = (&claim.names, claim.token, &granted.leases);
    let (content_type, text) = match format.media_type {
        "text/plain" => {
            let text = format!("{}\n", token.expose());
            ("text/plain; charset=utf-8", text.into())
        }
        _ => {
            let replayed = granted.kind == GrantKind::Replayed;
            let grants =
                grants(names, token, leases).map(|grant| grant.waited(waited).replayed(replayed));
            ("application/json", json(format.route_form, token, grants))
        }
    };
    let body = Body::new(GrantBody::new(text, unclaimed, format.version));
    let mut response = response(format.route_form, token, leases, content_type, body);
    if granted.kind == GrantKind::New {
        *response.status_mut() = StatusCode::CREATED;
        if let (RouteForm::Single, Some(name)) = (format.route_form, names.first()) {
            // Every character of a lock name is valid in a path without encoding.
            let location = HeaderValue::try_from(["/locks/", name.as_str()].concat())
                .expect("lock names are printable ASCII");
            response.headers_mut().insert(LOCATION, location);
        }
    }
    response
}

/// The response to any other operation after which the claim holds these locks.
pub(super) fn still_held(
    route_form: RouteForm,
    names: &[LockName],
    token: Token,
    leases: &[Lease],
) -> Response {
    let json = json(route_form, token, grants(names, token, leases));
    response(
        route_form,
        token,
        leases,
        "application/json",
        Body::from(json),
    )
}

fn grants<'a>(
    names: &'a [LockName],
    token: Token,
    leases: &'a [Lease],
) -> impl Iterator<Item = GrantView<'a>> {
    let leases = names.iter().zip(leases);
    leases.map(move |(name, lease)| GrantView::new(name, token, lease))
}

fn json<'a>(
    route_form: RouteForm,
    token: Token,
    mut grants: impl Iterator<Item = GrantView<'a>>,
) -> Bytes {
    match route_form {
        RouteForm::Single => {
            let grant = grants.next();
            grant.expect("a claim has a lock").to_json().into()
        }
        RouteForm::Multi => {
            let grants = GrantsView {
                token: token.expose(),
                locks: grants.collect(),
            };
            let mut text = serde_json::to_vec(&grants)
                .expect("grants have string keys and no failing serializer");
            text.push(b'\n');
            text.into()
        }
    }
}

fn response(
    route_form: RouteForm,
    token: Token,
    leases: &[Lease],
    content_type: &'static str,
    body: Body,
) -> Response {
    let mut headers = HeaderMap::with_capacity(HEADERS_MAX);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    if let (RouteForm::Single, Some(lease)) = (route_form, leases.first()) {
        headers.insert(FENCING_TOKEN, lease.holder.fence.get().into());
    }
    headers.insert(LOCK_TOKEN, secret(token));
    let mut response = Response::new(body);
    *response.headers_mut() = headers;
    response
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
