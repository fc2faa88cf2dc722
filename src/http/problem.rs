//! What goes wrong, as it is told to the client (RFC 9457). This is the only file that turns outcomes and errors into
//! statuses and codes; the texts that belong to a code alone are in `code`.
//!
//! A handler returns a [`Problem`]; the outermost layer writes it, because only there is the request id known.

mod body;
mod code;
pub(super) mod pages;

use std::any::Any;
use std::borrow::Cow;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::response::{IntoResponse, Response};

use super::wire::{HolderView, json, millis};
use crate::domain::{Holder, InvalidField, InvalidName, InvalidToken, NotHolder, Token, duration};
use crate::store::StoreError;
pub(super) use body::ProblemBody;
use body::{Ended, Outcome};
pub use code::Code;

/// How often a held lock is worth asking for, at the least, in however long a lease it is held.
const RETRY_HELD_MAX: Duration = Duration::from_secs(5);
/// When a store that failed is worth asking again.
const RETRY_STORE: Duration = Duration::from_secs(1);

/// What went wrong, on its way to the client.
#[derive(Clone, Debug)]
pub(super) struct Problem(Box<Parts>);

#[derive(Clone, Debug)]
struct Parts {
    code: Code,
    detail: Cow<'static, str>,
    retry_after: Option<Duration>,
    extras: Extras,
    /// For the log, never for the client.
    cause: Option<String>,
}

/// What some codes carry beside the members of RFC 9457.
#[derive(Clone, Debug, Default)]
struct Extras {
    field: Option<Cow<'static, str>>,
    suggestion: Option<&'static str>,
    holders: Option<Vec<Holder>>,
    ended: Option<Ended>,
    reason: Option<String>,
    outcome: Option<Outcome>,
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
        }))
    }

    pub(super) fn not_found() -> Self {
        Self::new(
            Code::NotFound,
            "no route has this path; / lists what there is",
        )
    }

    pub(super) fn method_not_allowed() -> Self {
        Self::new(
            Code::MethodNotAllowed,
            "this path does not take this method; the Allow header lists those that it takes",
        )
    }

    pub(super) fn unauthorized(detail: &'static str) -> Self {
        Self::new(Code::Unauthorized, detail)
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
            "this needs the token of the claim; send it in the Lock-Token header",
        )
    }

    pub(super) fn token_in_query() -> Self {
        Self::new(
            Code::TokenInQuery,
            "a token in the query string ends up in logs; send it in the Lock-Token header",
        )
    }

    /// A field that is there but wrong. `problem` completes the sentence "field: …".
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

    /// Other claims hold the lock.
    pub(super) fn held(holders: Vec<Holder>) -> Self {
        let soonest = holders.iter().map(|holder| holder.expires_in).min();
        let retry_after = soonest.map_or(RETRY_HELD_MAX, |soonest| soonest.min(RETRY_HELD_MAX));
        let mut refusal = Self::new(Code::LockHeld, "the lock is held by another claim");
        refusal.0.extras.holders = Some(holders);
        refusal.retry_after(retry_after)
    }

    /// Nobody holds the lock, but it stays closed for a while.
    pub(super) fn cooling(free_in: Duration) -> Self {
        let mut refusal = Self::new(
            Code::LockCooling,
            "nobody holds the lock, but it stays closed for a while after its last lease",
        );
        refusal.0.extras.holders = Some(Vec::new());
        refusal.retry_after(free_in)
    }

    /// New grants wait.
    pub(super) fn recovering(retry_in: Duration, token: Token) -> Self {
        let mut refusal = Self::new(
            Code::Recovering,
            "the store may have forgotten leases that are still alive; new grants wait for their end",
        );
        refusal.0.extras.outcome = Some(Outcome::NothingDone);
        refusal.retry_after(retry_in).with_token(token)
    }

    /// A claim cannot be granted again.
    pub(super) fn claim_ended(how: NotHolder) -> Self {
        let (ended, reason, how) = match how {
            NotHolder::Released => (Ended::Released, None, "it was released"),
            NotHolder::Expired | NotHolder::Lost => (Ended::Expired, None, "its lease ran out"),
            NotHolder::Evicted { reason } => (
                Ended::Evicted,
                Some(reason),
                "an operator took the lock away",
            ),
            NotHolder::Unknown => (Ended::Unknown, None, "it is no longer known how"),
        };
        let mut refusal = Self::new(
            Code::ClaimEnded,
            format!("the claim of this token has ended: {how}; a new claim needs a new token"),
        );
        refusal.0.extras.ended = Some(ended);
        refusal.0.extras.reason = reason;
        refusal
    }

    /// The token does not hold the lock (any more).
    pub(super) fn not_holder(why: NotHolder) -> Self {
        match why {
            NotHolder::Expired => Self::new(
                Code::LeaseExpired,
                "the lease ran out before this request; stop what the lock protects",
            ),
            NotHolder::Lost => Self::new(
                Code::LeaseLost,
                "the lease ran out and the lock went to another claim; stop what the lock protects",
            ),
            NotHolder::Evicted { reason } => {
                let mut refusal = Self::new(
                    Code::LeaseEvicted,
                    "an operator took the lock away; stop what the lock protects",
                );
                refusal.0.extras.reason = Some(reason);
                refusal
            }
            NotHolder::Released => Self::claim_ended(NotHolder::Released),
            NotHolder::Unknown => Self::new(
                Code::TokenUnknown,
                "no claim of this lock is known by this token; it never held the lock, or ended over a minute ago",
            ),
        }
    }

    /// The claim that the client should ask for again.
    pub(super) fn with_token(mut self, token: Token) -> Self {
        self.0.extras.token = Some(token);
        self
    }

    fn retry_after(mut self, retry_after: Duration) -> Self {
        // A zero would be read as "at once, as often as you like".
        self.0.retry_after = Some(retry_after.max(Duration::from_millis(1)));
        self
    }

    /// What kind of problem this is.
    pub(super) fn code(&self) -> Code {
        self.0.code
    }

    /// What the log must know and the client may not.
    pub(super) fn cause(&self) -> Option<&str> {
        self.0.cause.as_deref()
    }

    /// The answer. Only the outermost layer calls this.
    pub(super) fn render(&self, instance: &str) -> Response {
        let facts = self.0.code.facts();
        let body = self.body(instance);
        let mut response = json(facts.status, "application/problem+json", &body);
        if let Some(retry_after) = self.0.retry_after {
            let seconds = retry_after.as_millis().div_ceil(1_000);
            let seconds = u64::try_from(seconds).unwrap_or(u64::MAX);
            response.headers_mut().insert(RETRY_AFTER, seconds.into());
        }
        if self.0.code == Code::Unauthorized {
            let scheme = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(WWW_AUTHENTICATE, scheme);
        }
        response
    }

    fn body<'a>(&'a self, instance: &'a str) -> ProblemBody<'a> {
        let Parts {
            code,
            detail,
            retry_after,
            extras,
            ..
        } = &*self.0;
        let facts = code.facts();
        ProblemBody {
            r#type: format!("/problems/{}", facts.code),
            title: facts.title,
            status: facts.status.as_u16(),
            detail,
            code: facts.code,
            instance,
            field: extras.field.as_deref(),
            suggestion: extras.suggestion,
            holders: extras.holders.as_deref().map(HolderView::all),
            queue_length: extras.holders.as_ref().map(|_| 0),
            retry_after_ms: retry_after.map(millis),
            ended: extras.ended,
            reason: extras.reason.as_deref(),
            outcome: extras.outcome,
            token: extras.token.map(|token| token.expose()),
        }
    }
}

/// Leaves the problem for the outermost layer to write.
impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = self.0.code.facts().status;
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

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let (outcome, detail) = match &error {
            StoreError::Unavailable { .. } => (
                Outcome::NothingDone,
                "the store could not be asked; nothing was done",
            ),
            StoreError::Unknown { .. } => (
                Outcome::Unknown,
                "the store did not answer in time; whether the request took effect is unknown",
            ),
        };
        let mut refusal = Self::new(Code::StoreUnavailable, detail);
        refusal.0.extras.outcome = Some(outcome);
        refusal.0.cause = Some(error.to_string());
        refusal.retry_after(RETRY_STORE)
    }
}

/// The answer to a request whose handler panicked.
pub(super) fn of_panic(panic: &(dyn Any + Send)) -> Response<Body> {
    let message = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let mut refusal = Problem::new(
        Code::Internal,
        "the service made a mistake; its log has it under the request id",
    );
    let message = message.unwrap_or("no message");
    refusal.0.cause = Some(format!("a handler panicked: {message}"));
    refusal.into_response()
}
