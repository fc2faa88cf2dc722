//! All problem codes, with the status and the texts of each, and the pages at `/problems` that explain them. `problem.rs`
//! decides when each occurs.

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::Problem;
use crate::http::wire::json;
use crate::http::{negotiate, pages};

/// The status and texts of a code.
#[derive(Debug)]
pub(crate) struct ProblemInfo {
    /// The code on the wire.
    pub(crate) code: &'static str,
    /// The status. Codes that share a status need the same kind of reaction from the client.
    pub(crate) status: StatusCode,
    /// A short summary.
    pub(crate) title: &'static str,
    /// What happened.
    pub(crate) meaning: &'static str,
    /// What to do.
    pub(crate) remedy: &'static str,
}

/// One row defines the variant, its documentation, its status and its texts, so that none of them can be missing.
macro_rules! codes {
    ($($variant:ident $code:literal $status:ident $title:literal $meaning:literal $remedy:literal)*) => {
        /// The kind of a problem, for programs to check. A code is never renamed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Code {
            $(#[doc = $meaning] $variant,)*
        }

        impl Code {
            /// Every code, by status.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The status and texts of this code.
            pub(crate) const fn facts(self) -> &'static ProblemInfo {
                match self {
                    $(Self::$variant => &ProblemInfo {
                        code: $code,
                        status: StatusCode::$status,
                        title: $title,
                        meaning: $meaning,
                        remedy: $remedy,
                    },)*
                }
            }
        }
    };
}

codes! {
    InvalidName "invalid_name" BAD_REQUEST "Invalid lock name"
        "A lock name has 1 to 255 bytes of A-Z a-z 0-9 . _ ~ : @ + , = - in segments joined by '/', none of them empty, '.' or '..'."
        "Use another name. Nothing was done."
    InvalidField "invalid_field" BAD_REQUEST "Invalid value for a field"
        "A field is out of its bounds, of the wrong type, or given twice with different values. `field` says which."
        "Fix the field as `detail` says. Nothing was done."
    UnknownField "unknown_field" BAD_REQUEST "Unknown field"
        "The request has a field that this operation does not know. It is refused, because ignoring a misspelt ttl would be dangerous."
        "Fix or remove the field; `suggestion` may have the right name. Nothing was done."
    MalformedBody "malformed_body" BAD_REQUEST "The request cannot be parsed"
        "The body is not valid JSON, is not valid form data, or ended early; or the query string is not valid UTF-8; or there are more than 200 fields."
        "Send a JSON object, a form, or no body at all. Nothing was done."
    TokenMissing "token_missing" BAD_REQUEST "The token is missing"
        "Renewing and releasing need the token from the grant; the name of the lock is not enough."
        "Send the token in the Lock-Token header or the field `token`. Nothing was done."
    TokenInQuery "token_in_query" BAD_REQUEST "The token is in the query string"
        "A token is a secret, and query strings are written to the logs of proxies."
        "Send the token in the Lock-Token header or in the body; consider the token in the query string as leaked. Nothing was done."
    Unauthorized "unauthorized" UNAUTHORIZED "Valid credentials are required"
        "This service requires an API key, or a token or a certificate if it accepts them, and the request has none that is valid."
        "Send \"Authorization: Bearer <key>\". Nothing was done."
    Forbidden "forbidden" FORBIDDEN "This is not allowed"
        "The API key does not allow this operation, or no rule of its principal allows it on this lock; or no keys are configured, and the request looks as if a browser sent it for a page of another site, or is for an unknown host name. `detail` says which."
        "Use a key that allows it, or do what `detail` says. Nothing was done."
    NotFound "not_found" NOT_FOUND "Not found"
        "No route has this path. This says nothing about any lock: for a free lock, the response is 200."
        "Compare the path with /openapi.json."
    MethodNotAllowed "method_not_allowed" METHOD_NOT_ALLOWED "The method is not allowed here"
        "The path exists, but does not support this method."
        "Use one of the methods in the Allow header. Nothing was done."
    BodyTimeout "body_timeout" REQUEST_TIMEOUT "The body took too long to arrive"
        "The body of the request did not arrive in time."
        "Send the whole request again. Nothing was done."
    ClaimEnded "claim_ended" CONFLICT "This claim has ended"
        "A token identifies one claim, and this claim ended less than a minute ago; `ended` says how, and `name` on which lock if the claim is on several. It is refused, because a late duplicate of a request must not create a lease that no client knows about."
        "Stop the work that the lock protects. To hold the lock again, send a request without a token or with a new one."
    ClaimMismatch "claim_mismatch" CONFLICT "This token belongs to a claim with different parameters"
        "An earlier request with this token has another mode, limit or number of permits, or other locks."
        "Repeat the earlier request unchanged, or make a new claim with a new token. Nothing was done."
    LimitMismatch "limit_mismatch" CONFLICT "The holders of the lock use a different limit"
        "All claims that share a lock at the same time must have the same `limit`; `limit_in_force` is the current one, null for readers without a limit."
        "Use the limit in force, or try again when all of the holders are gone. Nothing was done."
    UpgradeUnsupported "upgrade_unsupported" CONFLICT "A shared claim cannot become exclusive"
        "The claim shares the lock. If two shared claims waited to become exclusive, they would wait for each other forever."
        "Release the claim, then acquire the lock exclusively with a new token. Nothing was done."
    LeaseReleased "lease_released" PRECONDITION_FAILED "The claim was released"
        "A DELETE with the token of this claim released the lock or left its queue less than a minute ago, so there is no lease to renew."
        "Stop the work that the lock protects: another claim may hold the lock. To hold the lock again, send a request without a token or with a new one."
    LeaseExpired "lease_expired" PRECONDITION_FAILED "The lease has expired"
        "The lease was not renewed in time. The lock has not been granted to another claim since."
        "Stop the work that the lock protects, then acquire the lock again with a new token."
    LeaseLost "lease_lost" PRECONDITION_FAILED "The lease has expired and the lock went to another claim"
        "The lease was not renewed in time, and another claim has been granted the lock since."
        "Stop the work that the lock protects at once: another claim may hold the lock."
    LeaseEvicted "lease_evicted" PRECONDITION_FAILED "The lease was evicted"
        "An operator took the lock away from its holders; `reason` is the operator's text."
        "Stop the work that the lock protects at once: another claim may hold the lock."
    TokenUnknown "token_unknown" PRECONDITION_FAILED "No lease with this token is known"
        "The claim of this token is still waiting, was never granted, was rolled back because its stream or connection closed, or ended more than a minute ago; or it is a claim on another lock."
        "Stop the work that the lock protects, and check that name and token belong together."
    BodyTooLarge "body_too_large" PAYLOAD_TOO_LARGE "The body is too large"
        "The request body is larger than the configured maximum."
        "Send less; metadata is meant for small data. Nothing was done."
    UnsupportedMediaType "unsupported_media_type" UNSUPPORTED_MEDIA_TYPE "Unsupported type of the body"
        "Bodies are JSON objects or URL-encoded forms."
        "Send application/json or application/x-www-form-urlencoded. Nothing was done."
    LockHeld "lock_held" LOCKED "Another claim holds the lock"
        "The lock is held by the claims in `holders`, or other claims are ahead in its queue."
        "Try again after `retry_after_ms`; or send the field `wait` to wait in the queue."
    WaitTimeout "wait_timeout" LOCKED "The wait timed out before the lock was granted"
        "The claim waited for as long as it asked, or for the longest wait that this service allows. Another claim still holds the lock, or new grants wait because the store was unavailable. The claim keeps its place in the queue for `place_kept_ms`."
        "Send the request again with the token of this response to keep waiting in the same place; or DELETE with it to leave the queue."
    LockCooling "lock_cooling" LOCKED "The lock is closed for a while"
        "No claim holds the lock, but its last holder asked to keep it closed for some time (min_hold or lock_delay)."
        "Try again after `retry_after_ms`."
    TooManyWaiters "too_many_waiters" TOO_MANY_REQUESTS "Too many claims are waiting already"
        "The queue of the lock, or this process, has its maximum number of waiters; this claim did not join the queue."
        "Try again after `retry_after_ms`. Nothing was done."
    QuotaExceeded "quota_exceeded" TOO_MANY_REQUESTS "A quota is used up"
        "The principal of this request sends more requests, has more waiting claims on this process, or would hold more locks over all processes, than its quota permits; or all clients together send more requests, or would hold more locks, than the service is configured to permit. `quota` says which. Renewals and releases are never refused for that."
        "Try again after `retry_after_ms`. If that happens often, send less, release what is no longer needed, or ask an operator for a larger quota. Nothing was done."
    RateLimited "rate_limited" TOO_MANY_REQUESTS "Too much from one address"
        "The address that this request came from has reached its limit of requests, operations or unread responses in flight, or has sent too many requests without a valid API key."
        "Try again after `retry_after_ms`, with fewer requests at once; requests with a valid key are never limited because of requests without one, except that an address which sends such requests has its new tokens verified at a bounded rate. If many clients share a proxy, an operator can configure it as trusted. `outcome` says whether the request may have taken effect."
    Internal "internal" INTERNAL_SERVER_ERROR "Internal error"
        "Something unexpected went wrong; see the log of the service for this request id."
        "Report it with the request id. Whether the request took effect is unknown; sending it again with the same token is safe."
    StoreUnavailable "store_unavailable" SERVICE_UNAVAILABLE "The store is unavailable"
        "The store that keeps the leases did not answer in time, could not be reached, or refused the operation; `detail` says which. `outcome` says whether the request may have taken effect."
        "Send the request again, with the token of this response if it has one: it then continues the same claim. A lease that you hold lasts until its known end."
    IssuerUnavailable "issuer_unavailable" SERVICE_UNAVAILABLE "The keys of the issuer of tokens are not known"
        "The service verifies tokens with the public keys of their issuer, and has not been able to read them, or not for too long; or the token refers to a key that may be newer than the last reading. API keys and client certificates are not affected."
        "Send the request again after `retry_after_ms`. Nothing was done; whoever runs the service finds the reason in its log."
    StoreFull "store_full" SERVICE_UNAVAILABLE "The store has no room for another claim"
        "The store has reached its limit of memory. Leases can be renewed and released, and releasing them makes room."
        "Release what is not needed, then send the request again after `retry_after_ms`, with the token of this response. Nothing was done."
    Overloaded "overloaded" SERVICE_UNAVAILABLE "The service is overloaded"
        "This process has reached its limit of requests, operations or unread responses in flight."
        "Send the request again after `retry_after_ms`, with the same token if it had one. `outcome` says whether it may have taken effect."
    Draining "draining" SERVICE_UNAVAILABLE "This process is about to stop"
        "The process that the claim waited on, or whose stream held the lock, is about to stop; other processes keep running. The claim keeps its place in the queue for `place_kept_ms`, or its lease for the rest of its TTL."
        "Send the request again with the token of this response, over a new connection: the claim continues from its place or lease."
    Recovering "recovering" SERVICE_UNAVAILABLE "New grants wait because the store was unavailable"
        "The store was unavailable for some time, or may have lost leases that have not ended. New grants wait until all processes have reported, and until every lease that may have been lost has ended. Renewing and releasing work."
        "Send the request again after `retry_after_ms`, with the token of this response. Nothing was done."
}

impl Code {
    /// The code on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.facts().code
    }

    /// The code with this text on the wire.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.as_str() == text)
    }
}

/// What a problem means and what to do about it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ProblemPage)]
pub(crate) struct Page {
    /// The path of this page, which is the `type` of the problem.
    r#type: String,
    /// The code for programs to check.
    code: &'static str,
    /// The status of responses with this problem.
    status: u16,
    /// A short summary.
    title: &'static str,
    /// What happened.
    meaning: &'static str,
    /// What to do.
    what_to_do: &'static str,
}

/// All problems.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ProblemPages)]
pub(crate) struct Pages {
    problems: Vec<Page>,
}

impl Page {
    fn of(code: Code) -> Self {
        let facts = code.facts();
        Self {
            r#type: format!("/problems/{}", facts.code),
            code: facts.code,
            status: facts.status.as_u16(),
            title: facts.title,
            meaning: facts.meaning,
            what_to_do: facts.remedy,
        }
    }

    fn text(&self) -> String {
        format!(
            "{} ({}, {})\n\n{}\n{}\n",
            self.title, self.status, self.code, self.meaning, self.what_to_do
        )
    }

    fn html(&self) -> String {
        let [title, meaning, what_to_do] = [self.title, self.meaning, self.what_to_do].map(escaped);
        format!(
            "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title>\
             <h1>{title}</h1><p><code>{}</code>, status {}</p><p>{meaning}</p><p>{what_to_do}</p></html>\n",
            self.code, self.status
        )
    }
}

/// `GET /problems`
pub(crate) async fn list() -> Response {
    let problems = Code::ALL.iter().copied().map(Page::of).collect();
    json(StatusCode::OK, "application/json", &Pages { problems })
}

/// `GET /problems/{code}`
pub(crate) async fn page(request: Request) -> Result<Response, Problem> {
    // The raw path is enough, because codes need no percent-encoding; and so no decoding can fail.
    let code = request
        .uri()
        .path()
        .rsplit('/')
        .next()
        .and_then(Code::parse);
    let page = Page::of(code.ok_or_else(Problem::not_found)?);
    Ok(written(request.headers(), &page))
}

fn written(headers: &HeaderMap, page: &Page) -> Response {
    let offers = ["application/json", "text/html", "text/plain"];
    let (content_type, body) = match negotiate::preferred(headers, &offers) {
        "text/html" => ("text/html; charset=utf-8", page.html()),
        "text/plain" => ("text/plain; charset=utf-8", page.text()),
        _ => return json(StatusCode::OK, "application/json", page),
    };
    let mut response = Response::new(Body::from(body));
    if content_type.starts_with("text/html") {
        pages::confine(response.headers_mut(), pages::TEXT_ONLY);
    }
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
