//! Error responses (RFC 9457). Only this module maps outcomes and errors to statuses and codes: invalid requests are
//! here, refused operations on locks in `refusal`, failures of the store in `store_failure`, refusals because of the
//! sender in `access`, those of the second address in `operators`, the texts of each code in `code`.
//!
//! A handler returns a [`Problem`]; the outermost layer renders it, because only that layer knows the request id.

mod access;
mod body;
pub(super) mod code;
mod operators;
mod refusal;
mod sentence;
mod store_failure;

use std::any::Any;
use std::borrow::Cow;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::response::{IntoResponse, Response};

use super::auth::RateLimit;
use super::extract::echo;
use super::locks::{LOCK_TOKEN, secret};
use super::scope::QueueTime;
use super::wire::{HolderView, json, millis};
use crate::domain::{
    Conflict, Holders, InvalidField, InvalidName, InvalidToken, LockName, NotHeld, Token, duration,
};
use crate::service::AcquireFailure;
pub(super) use access::AccessRefusal;
pub(super) use body::ProblemBody;
use body::{Blocked, Ended, LostLock, ProblemOutcome};
pub use code::Code;
pub(super) use code::{Page, Pages};
pub(super) use sentence::conflict as conflict_sentence;

/// An error response that is not rendered yet.
#[derive(Clone, Debug)]
pub(super) struct Problem(Box<Parts>);

#[derive(Clone, Debug)]
struct Parts {
    code: Code,
    detail: Cow<'static, str>,
    retry_after: Option<Duration>,
    extras: Extras,
    /// Only for the log, never for the client.
    cause: Option<String>,
    /// How long the request waited in a queue; for the log.
    waited: Duration,
    /// For the metrics, if the request was refused because of its sender.
    access_refusal: Option<AccessRefusal>,
    /// What is left of the quota of requests, if this refused the request before it reached a handler.
    rate_limit: Option<RateLimit>,
}

/// The members that some codes have besides those of RFC 9457.
#[derive(Clone, Debug, Default)]
struct Extras {
    field: Option<Cow<'static, str>>,
    suggestion: Option<&'static str>,
    name: Option<LockName>,
    holders: Option<Holders>,
    evicted_total: Option<u64>,
    queue_length: Option<u64>,
    position: Option<u64>,
    place_kept: Option<Duration>,
    limit_in_force: Option<Option<u32>>,
    blocked_by: Option<Vec<Conflict>>,
    lost: Option<Vec<NotHeld>>,
    ended: Option<Ended>,
    reason: Option<String>,
    outcome: Option<ProblemOutcome>,
    quota: Option<&'static str>,
    token: Option<Token>,
}

impl Problem {
    fn new(code: Code, detail: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Parts {
            code,
            detail: detail.into(),
            retry_after: None,
            extras: Extras::default(),
            cause: None,
            waited: Duration::ZERO,
            access_refusal: None,
            rate_limit: None,
        }))
    }

    pub(super) fn not_found() -> Self {
        Self::new(
            Code::NotFound,
            "no route has this path; `GET /` lists the routes",
        )
    }

    pub(super) fn method_not_allowed() -> Self {
        Self::new(
            Code::MethodNotAllowed,
            "this path does not support this method",
        )
    }

    /// Lists the supported methods, from the `Allow` header, which only the router knows.
    pub(super) fn allowing(mut self, allow: &HeaderValue) -> Self {
        let methods = allow.to_str().unwrap_or_default().replace(',', ", ");
        self.0.detail = format!("{}, only {methods}", self.0.detail).into();
        self
    }

    pub(super) fn malformed(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::MalformedBody, detail)
    }

    pub(super) fn body_too_large(bytes_max: usize) -> Self {
        Self::new(
            Code::BodyTooLarge,
            format!("the body is longer than {bytes_max} bytes"),
        )
    }

    pub(super) fn body_timeout(within: Duration) -> Self {
        let within = duration::format(within);
        Self::new(
            Code::BodyTimeout,
            format!("the body did not arrive within {within}"),
        )
    }

    pub(super) fn unsupported_media_type(detail: &'static str) -> Self {
        Self::new(Code::UnsupportedMediaType, detail)
    }

    pub(super) fn token_missing() -> Self {
        Self::new(
            Code::TokenMissing,
            "this operation needs the token of the claim; send it in the Lock-Token header",
        )
    }

    pub(super) fn token_in_query() -> Self {
        Self::new(
            Code::TokenInQuery,
            "a token in the query string ends up in logs; send it in the Lock-Token header",
        )
    }

    /// An invalid field. `problem` completes the sentence "field: …".
    pub(super) fn field(field: &'static str, problem: impl AsRef<str>) -> Self {
        let problem = problem.as_ref();
        let mut refusal = Self::new(Code::InvalidField, format!("{field}: {problem}"));
        refusal.0.extras.field = Some(field.into());
        refusal
    }

    pub(super) fn unknown_field(
        field: String,
        suggestion: Option<&'static str>,
        detail: String,
    ) -> Self {
        let mut refusal = Self::new(Code::UnknownField, detail);
        refusal.0.extras.field = Some(field.into());
        refusal.0.extras.suggestion = suggestion;
        refusal
    }

    /// All fields that were read are known, but there are more than a valid request can have.
    pub(super) fn too_many_fields(fields_max: usize) -> Self {
        Self::malformed(format!("there are more than {fields_max} fields"))
    }

    /// One of several names is invalid.
    pub(super) fn invalid_name_among(name: &str, invalid: &InvalidName) -> Self {
        let name = echo(name);
        let mut refusal = Self::new(Code::InvalidName, format!("names: {name:?}: {invalid}"));
        refusal.0.extras.field = Some("names".into());
        refusal
    }

    /// The token of the claim, for the client to repeat the request with.
    pub(super) fn with_token(mut self, token: Token) -> Self {
        self.0.extras.token = Some(token);
        self
    }

    /// The store failed while the claim was acquired.
    pub(super) fn of_acquire(failure: AcquireFailure, token: Token) -> Self {
        let AcquireFailure { error, waited } = failure;
        Self::from(error).with_token(token).after(waited)
    }

    /// How long the request waited in a queue before it was refused.
    pub(super) fn after(mut self, waited: Duration) -> Self {
        self.0.waited = waited;
        self
    }

    /// Leaves out the lock name, for requests that name their only lock in the path.
    pub(super) fn of_one_lock(mut self) -> Self {
        self.0.extras.name = None;
        self.0.extras.blocked_by = None;
        self
    }

    /// Does not say that nothing was done: the stream has held its lock.
    pub(super) fn of_lost_lease(mut self) -> Self {
        self.0.extras.outcome = None;
        self
    }

    /// Names the lock that the detail is about, for requests that name several, and counts the others.
    pub(super) fn of_several_locks(mut self) -> Self {
        let Parts { detail, extras, .. } = &mut *self.0;
        if let (Some(name), Some(blocked_by)) = (&extras.name, &extras.blocked_by) {
            let others = match blocked_by.len() {
                0 | 1 => String::new(),
                2 => "; 1 other lock is not free either".to_owned(),
                count => format!("; {} other locks are not free either", count - 1),
            };
            *detail = format!("{name}: {detail}{others}").into();
        }
        self
    }

    fn retry_after(mut self, retry_after: Duration) -> Self {
        // Clients would read 0 as "at once, as often as you like".
        self.0.retry_after = Some(retry_after.max(Duration::from_millis(1)));
        self
    }

    /// The code of the problem.
    pub(super) fn code(&self) -> Code {
        self.0.code
    }

    /// The cause, for the log only.
    pub(super) fn cause(&self) -> Option<&str> {
        self.0.cause.as_deref()
    }

    /// The response. Only the outermost layer calls this.
    pub(super) fn render(&self, instance: &str) -> Response {
        let facts = self.0.code.facts();
        let body = self.body(instance);
        let mut response = json(facts.status, "application/problem+json", &body);
        if let Some(retry_after) = self.0.retry_after {
            let seconds = retry_after.as_millis().div_ceil(1_000);
            let seconds = u64::try_from(seconds).unwrap_or(u64::MAX);
            response.headers_mut().insert(RETRY_AFTER, seconds.into());
        }
        // Also outside the body, which `curl -f` discards.
        if let Some(token) = self.0.extras.token {
            response.headers_mut().insert(LOCK_TOKEN, secret(token));
        }
        if self.0.code == Code::Unauthorized {
            let scheme = HeaderValue::from_static(self.challenge());
            response.headers_mut().insert(WWW_AUTHENTICATE, scheme);
        }
        response
    }

    /// The body of the response, also used as the data of an event.
    pub(super) fn body<'a>(&'a self, instance: &'a str) -> ProblemBody<'a> {
        let Parts {
            code,
            detail,
            retry_after,
            extras,
            ..
        } = &*self.0;
        let facts = code.facts();
        let holders = extras.holders.as_ref();
        ProblemBody {
            r#type: format!("/problems/{}", facts.code),
            title: facts.title,
            status: facts.status.as_u16(),
            detail,
            code: facts.code,
            instance,
            field: extras.field.as_deref(),
            suggestion: extras.suggestion,
            name: extras.name.as_ref().map(LockName::as_str),
            holders: holders.map(|holders| HolderView::all(&holders.listed)),
            holders_total: holders.map(|holders| holders.total),
            evicted_total: extras.evicted_total,
            queue_length: extras.queue_length,
            position: extras.position,
            place_kept_ms: extras.place_kept.map(millis),
            limit_in_force: extras.limit_in_force,
            blocked_by: extras.blocked_by.as_deref().map(Blocked::all),
            lost: extras.lost.as_deref().map(LostLock::all),
            retry_after_ms: retry_after.map(millis),
            ended: extras.ended,
            reason: extras.reason.as_deref(),
            outcome: extras.outcome,
            quota: extras.quota,
            token: extras.token.map(|token| token.expose()),
        }
    }
}

/// Attaches the problem to the response, for the outermost layer to render.
impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = self.0.code.facts().status;
        QueueTime(self.0.waited).attach_to(&mut response);
        if let Some(rate_limit) = self.0.rate_limit {
            rate_limit.attach_to(&mut response);
        }
        response.extensions_mut().insert(self);
        response
    }
}

impl From<InvalidName> for Problem {
    fn from(invalid: InvalidName) -> Self {
        Self::new(Code::InvalidName, invalid.to_string())
    }
}

impl From<InvalidField> for Problem {
    fn from(invalid: InvalidField) -> Self {
        Self::field(invalid.field, invalid.problem)
    }
}

impl From<InvalidToken> for Problem {
    fn from(invalid: InvalidToken) -> Self {
        Self::field("token", invalid.to_string())
    }
}

/// The response to a request whose handler panicked.
pub(super) fn of_panic(panic: &(dyn Any + Send)) -> Response<Body> {
    let message = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let mut refusal = Problem::new(
        Code::Internal,
        "internal error; see the log of the service for this request id",
    );
    let message = message.unwrap_or("no message");
    refusal.0.cause = Some(format!("a handler panicked: {message}"));
    refusal.into_response()
}
