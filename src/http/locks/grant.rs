//! Answers that carry a lease. Who gets one is decided elsewhere.

use axum::body::{Body, Bytes};
use axum::http::header::{ACCEPT, CONTENT_TYPE, HeaderValue, LOCATION};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;

use super::{FENCING_TOKEN, LOCK_TOKEN};
use crate::domain::{Lease, LockName, Token};
use crate::http::accept;
use crate::http::grant_body::GrantBody;
use crate::http::wire::Grant;
use crate::service::Undelivered;

/// Why the client holds the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Granted {
    /// It was granted just now.
    New,
    /// It held it already and holds deeper now.
    Deeper,
    /// It held it already; the same answer again.
    Again,
    /// It holds on, renewed or at a smaller depth.
    Still,
}

/// A lease on its way to its holder.
pub(super) struct GrantAnswer<'a> {
    name: &'a LockName,
    token: Token,
    lease: &'a Lease,
    granted: Granted,
}

impl<'a> GrantAnswer<'a> {
    pub(super) fn new(
        name: &'a LockName,
        token: Token,
        lease: &'a Lease,
        granted: Granted,
    ) -> Self {
        Self {
            name,
            token,
            lease,
            granted,
        }
    }

    /// The answer to an acquire, in the format that the client asks for, which gives the grant back if it is not sent.
    pub(super) fn acquired(&self, headers: &HeaderMap, undelivered: Undelivered) -> Response {
        let offers = ["application/json", "text/plain"];
        // Most clients send no `Accept` at all, or the one that takes everything.
        let is_text =
            headers.contains_key(ACCEPT) && accept::preferred(headers, &offers) == "text/plain";
        let (content_type, body) = if is_text {
            let token = format!("{}\n", self.token.expose());
            ("text/plain; charset=utf-8", Bytes::from(token))
        } else {
            ("application/json", self.json())
        };
        let mut response =
            self.response(content_type, Body::new(GrantBody::new(body, undelivered)));
        if self.granted == Granted::New {
            // Every letter of a lock name may stand in a path as it is.
            let location = HeaderValue::try_from(format!("/locks/{}", self.name))
                .expect("lock names are printable ASCII");
            response.headers_mut().insert(LOCATION, location);
            *response.status_mut() = StatusCode::CREATED;
        }
        response
    }

    /// The answer to anything else that ends with a lease.
    pub(super) fn plain(&self) -> Response {
        self.response("application/json", Body::from(self.json()))
    }

    fn json(&self) -> Bytes {
        let is_replay = self.granted == Granted::Again;
        let grant = Grant::new(self.name, &self.token, self.lease, is_replay);
        let text = serde_json::to_vec(&grant);
        text.expect("grants have string keys and no failing serializer")
            .into()
    }

    fn response(&self, content_type: &'static str, body: Body) -> Response {
        let mut response = Response::new(body);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers.insert(FENCING_TOKEN, self.lease.holder.fence.get().into());
        headers.insert(LOCK_TOKEN, secret(self.token));
        response
    }
}

/// Marked as sensitive, so that neither a log of headers nor HTTP/2's compression keeps it.
fn secret(token: Token) -> HeaderValue {
    let mut buffer = uuid::Uuid::encode_buffer();
    let text = token.expose().hyphenated().encode_lower(&mut buffer);
    let mut value = HeaderValue::from_str(text).expect("a UUID is printable ASCII");
    value.set_sensitive(true);
    value
}
