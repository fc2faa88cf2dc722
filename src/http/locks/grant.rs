//! Answers that carry leases. Who gets one is decided elsewhere.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::{CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION};
use axum::http::{StatusCode, Version};
use axum::response::Response;

use super::{FENCING_TOKEN, LOCK_TOKEN, RouteForm, secret};
use crate::domain::{Lease, LockName, Token};
use crate::http::grant_body::GrantBody;
use crate::http::wire::{GrantView, GrantsView};
use crate::service::UnclaimedLease;

/// As many headers as an answer has at the most, with those that every answer has: a map that grows is made anew.
const HEADERS_MAX: usize = 9;

/// Why the client holds the locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GrantKind {
    /// They were granted just now.
    New,
    /// It held them already and holds deeper now.
    Reentered,
    /// It held them already; the same answer again.
    Replayed,
    /// It holds on, renewed or at a smaller depth.
    Unchanged,
}

/// Leases on their way to their holder, one for each name.
pub(super) struct GrantAnswer<'a> {
    pub(super) named: RouteForm,
    pub(super) names: &'a [LockName],
    pub(super) token: Token,
    pub(super) leases: &'a [Lease],
    pub(super) granted: GrantKind,
    pub(super) waited: Duration,
}

impl GrantAnswer<'_> {
    /// The answer to an acquire, in the format that the client asks for, which gives the grant back if it is not sent.
    pub(super) fn acquired(
        &self,
        form: &str,
        undelivered: UnclaimedLease,
        version: Version,
    ) -> Response {
        let (content_type, body) = if form == "text/plain" {
            let token = format!("{}\n", self.token.expose());
            ("text/plain; charset=utf-8", Bytes::from(token))
        } else {
            ("application/json", self.json())
        };
        let body = Body::new(GrantBody::new(body, undelivered, version));
        let mut response = self.response(content_type, body);
        if self.granted == GrantKind::New {
            *response.status_mut() = StatusCode::CREATED;
            if let Some((name, _)) = self.only() {
                // Every letter of a lock name may stand in a path as it is.
                let location = HeaderValue::try_from(["/locks/", name.as_str()].concat())
                    .expect("lock names are printable ASCII");
                response.headers_mut().insert(LOCATION, location);
            }
        }
        response
    }

    /// The answer to anything else that ends with leases.
    pub(super) fn plain(&self) -> Response {
        self.response("application/json", Body::from(self.json()))
    }

    /// The lock and its lease, where the request names it in its path.
    fn only(&self) -> Option<(&LockName, &Lease)> {
        match self.named {
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
