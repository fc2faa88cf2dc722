//! What the service answered, and whether it is an answer of the service at all: between a client and the service there may
//! be other servers, and another one may be at its address.

use std::time::Duration;

use hyper::body::Bytes;
use hyper::header::RETRY_AFTER;
use hyper::{HeaderMap, StatusCode};
use serde_json::Value;

use crate::domain::LockName;

/// What the service answered.
#[derive(Debug)]
pub struct ServiceAnswer {
    /// The status, which says what to do.
    pub status: StatusCode,
    /// When to ask again, if the answer says so.
    pub retry_after: Option<Duration>,
    /// The JSON body; `Null` if the body is none.
    pub body: Value,
    /// The body as it was sent.
    pub text: Bytes,
}

impl ServiceAnswer {
    pub(crate) fn new(status: StatusCode, headers: &HeaderMap, text: Bytes) -> Self {
        Self {
            status,
            retry_after: retry_after(headers),
            body: serde_json::from_slice(&text).unwrap_or_default(),
            text,
        }
    }

    /// Whether the service refused the request, and not another server or a gateway.
    pub(crate) fn is_refusal(&self) -> bool {
        !self.code().is_empty()
    }

    /// Whether this says that a claim was released.
    pub(crate) fn is_release(&self) -> bool {
        self.status == StatusCode::NO_CONTENT
    }

    /// Whether this says who was evicted.
    pub(crate) fn is_eviction(&self) -> bool {
        self.status == StatusCode::OK
            && self.body["evicted"].is_array()
            && self.body["evicted_total"].is_u64()
    }

    /// Whether this is the state of the lock.
    pub(crate) fn is_lock(&self, name: &LockName) -> bool {
        self.status == StatusCode::OK
            && self.body["name"] == name.as_str()
            && self.body["state"].is_string()
            && self.body["holders"].is_array()
    }

    /// Whether this is the page of this token of the locks whose names begin with the prefix. The next page
    /// is another one, or the list would never end.
    pub(crate) fn is_lock_page(&self, prefix: &str, page_token: &str) -> bool {
        let is_listed = |lock: &Value| {
            let name = lock["name"].as_str();
            name.is_some_and(|name| name.starts_with(prefix))
        };
        let locks = self.body["locks"].as_array();
        let next = self.body["next_page_token"].as_str();
        self.status == StatusCode::OK
            && locks.is_some_and(|locks| locks.iter().all(is_listed))
            && next.is_some_and(|next| next.is_empty() || next != page_token)
    }

    /// Whether a probe of the service succeeded.
    pub(crate) fn is_healthy(&self) -> bool {
        self.status == StatusCode::OK && self.body["status"] == "ok"
    }

    /// The code of the problem, or an empty text. An answer that says that all went well has no problem.
    #[must_use]
    pub fn code(&self) -> &str {
        match self.status.is_success() {
            true => "",
            false => self.body["code"].as_str().unwrap_or_default(),
        }
    }

    /// The problem for people: the service's sentence, with the reason of an eviction; or the status if the answer is not
    /// from the service.
    #[must_use]
    pub fn detail(&self) -> String {
        let text = |name: &str| self.body[name].as_str().filter(|text| !text.is_empty());
        let Some(detail) = text("detail").or_else(|| text("title")) else {
            return self.status.to_string();
        };
        match text("reason") {
            Some(reason) => format!("{detail}; reason: {reason}"),
            None => detail.to_owned(),
        }
    }

    /// What is wrong with an answer that is not the expected one.
    pub(crate) fn problem(&self) -> String {
        match self.status.is_success() {
            true => format!(
                "{} is not how the service answers; is this the URL of a Leasehold service, and is no other server between?",
                self.status
            ),
            false => self.detail(),
        }
    }

    /// The quota that was used up; `None` if the request was not refused for one.
    #[must_use]
    pub fn used_up_quota(&self) -> Option<&str> {
        let is_over = self.code() == "quota_exceeded";
        is_over.then(|| self.body["quota"].as_str().unwrap_or_default())
    }

    /// Whether the same request may succeed later although nothing is wrong with it: the service, its store or a proxy
    /// is overloaded or away.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        self.status.is_server_error()
            || [StatusCode::TOO_MANY_REQUESTS, StatusCode::REQUEST_TIMEOUT].contains(&self.status)
    }
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}
