//! Every problem by its code: its status, and what people are told about it. When each arises is in `problem.rs`.

use axum::http::StatusCode;

/// What people are told about a code.
#[derive(Debug)]
pub(crate) struct ProblemInfo {
    /// The code as it is written.
    pub(crate) code: &'static str,
    /// One status is one thing for the client to do.
    pub(crate) status: StatusCode,
    /// A few words.
    pub(crate) title: &'static str,
    /// What has happened.
    pub(crate) meaning: &'static str,
    /// What to do.
    pub(crate) remedy: &'static str,
}

/// One row makes the variant, its documentation, and its facts, so that none of them can be missing.
macro_rules! codes {
    ($($variant:ident $code:literal $status:ident $title:literal $meaning:literal $remedy:literal)*) => {
        /// What went wrong, as programs tell it apart. A code is never renamed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Code {
            $(#[doc = $meaning] $variant,)*
        }

        impl Code {
            /// Every code, by status.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// What people are told about it.
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
    InvalidName "invalid_name" BAD_REQUEST "The lock name is not allowed"
        "A lock name has 1 to 255 bytes of A-Z a-z 0-9 . _ ~ : @ + , = - in segments joined by '/', none of them empty, '.' or '..'."
        "Use another name. Nothing was done."
    InvalidField "invalid_field" BAD_REQUEST "A field has a value that is not allowed"
        "A field is out of its bounds, of the wrong type, or given twice with different values. `field` says which."
        "Mend the field as `detail` says. Nothing was done."
    UnknownField "unknown_field" BAD_REQUEST "There is no such field"
        "The request has a field that this operation does not know. It is refused, because a misspelt ttl would be dangerous to ignore."
        "Mend or remove the field; `suggestion` may have the right name. Nothing was done."
    MalformedBody "malformed_body" BAD_REQUEST "The request cannot be read"
        "The body is not valid JSON or not valid form data, ended early, or the query string is not valid UTF-8; or there are more than 200 fields."
        "Send a JSON object, a form, or no body at all. Nothing was done."
    TokenMissing "token_missing" BAD_REQUEST "The token is missing"
        "Renewing and releasing need the token that the grant carried; a name alone is not enough."
        "Send the token in the Lock-Token header or the field `token`. Nothing was done."
    TokenInQuery "token_in_query" BAD_REQUEST "The token is in the query string"
        "A token is a secret, and query strings are written to the logs of proxies."
        "Send the token in the Lock-Token header or in the body; consider the one that was sent as known to others. Nothing was done."
    Unauthorized "unauthorized" UNAUTHORIZED "An API key is needed"
        "This service asks for an API key, and the request had none or a wrong one."
        "Send \"Authorization: Bearer <key>\". Nothing was done."
    Forbidden "forbidden" FORBIDDEN "This is not allowed"
        "The API key that was sent does not allow this, or there is no key and the request looks as if a web page of another site had made a browser send it, or as if the name of the host had been made up by one. `detail` says which."
        "Use a key that allows it, or do what `detail` says. Nothing was done."
    NotFound "not_found" NOT_FOUND "There is nothing here"
        "No route has this path. It says nothing about any lock: a free lock is answered with 200."
        "Compare the path with /openapi.json."
    MethodNotAllowed "method_not_allowed" METHOD_NOT_ALLOWED "The method is not allowed here"
        "The path exists, but not with this method."
        "Use one of the methods in the Allow header. Nothing was done."
    BodyTimeout "body_timeout" REQUEST_TIMEOUT "The body took too long to arrive"
        "The request announced a body that did not arrive in time."
        "Send the request again, as a whole. Nothing was done."
    ClaimEnded "claim_ended" CONFLICT "This claim has ended"
        "A token is good for one claim, and this one ended less than a minute ago; `ended` says how, and `name` on which lock if the claim is on several. A late duplicate of a request must not make a lease that nobody knows of."
        "Stop what the lock protects. To hold the lock again, send a request without a token or with a new one."
    ClaimMismatch "claim_mismatch" CONFLICT "This claim was made with other words"
        "The token belongs to a claim that was made before with another mode, limit or number of permits, or on other locks."
        "Repeat the request as it was first made, or make a new claim with a new token. Nothing was done."
    LimitMismatch "limit_mismatch" CONFLICT "Those who hold the lock agreed on another limit"
        "All who share a lock at the same time name the same `limit`; `limit_in_force` is theirs, null for readers, who have none."
        "Name the limit in force, or try again when all of them are gone. Nothing was done."
    UpgradeUnsupported "upgrade_unsupported" CONFLICT "A shared claim cannot become exclusive"
        "The claim holds the lock together with others. If two such claims wanted it alone, they would wait for each other forever."
        "Release the claim, then acquire the lock exclusively with a new token. Nothing was done."
    LeaseReleased "lease_released" PRECONDITION_FAILED "The claim was released"
        "A request with the token of this claim, a DELETE, let go of the lock or left its queue less than a minute ago, so there is no lease to renew."
        "Stop what the lock protects: another claim may be at work. To hold the lock again, send a request without a token or with a new one."
    LeaseExpired "lease_expired" PRECONDITION_FAILED "The lease has run out"
        "The lease was not renewed in time. Nobody has been granted the lock since."
        "Stop what the lock protects, then acquire the lock anew with a new token."
    LeaseLost "lease_lost" PRECONDITION_FAILED "The lease has run out and the lock went to another claim"
        "The lease was not renewed in time, and somebody else holds or held the lock since."
        "Stop what the lock protects at once: another claim may be at work."
    LeaseEvicted "lease_evicted" PRECONDITION_FAILED "The lock was taken away"
        "An operator took the lock away from its holders; `reason` is what the operator said."
        "Stop what the lock protects at once: another claim may be at work."
    TokenUnknown "token_unknown" PRECONDITION_FAILED "No lease with this token is known"
        "The claim of this token waits still, was never granted, was given back because its stream or its connection closed, or ended more than a minute ago; or it is a claim on another lock."
        "Stop what the lock protects, and check that name and token belong together."
    BodyTooLarge "body_too_large" PAYLOAD_TOO_LARGE "The body is too large"
        "The request body is longer than this service reads."
        "Send less; metadata is meant for a few words. Nothing was done."
    UnsupportedMediaType "unsupported_media_type" UNSUPPORTED_MEDIA_TYPE "The body has a type that cannot be read"
        "Bodies are JSON objects or URL-encoded forms."
        "Send application/json or application/x-www-form-urlencoded. Nothing was done."
    LockHeld "lock_held" LOCKED "Somebody else holds the lock"
        "The lock is held by the claims in `holders`, or others wait for it and came first."
        "Try again after `retry_after_ms`; or wait in the queue, by sending the field `wait`."
    WaitTimeout "wait_timeout" LOCKED "The wait is over and the lock was not granted"
        "The claim waited as long as it asked for, or as long as this service lets any claim wait. Somebody else still has the lock, or new grants wait because the store was away. The claim keeps its place in the queue for `place_kept_ms`."
        "Send the request again with the token of this answer to go on waiting in the same place; or DELETE with it to leave the queue."
    LockCooling "lock_cooling" LOCKED "The lock is closed for a while"
        "Nobody holds the lock, but its last holder asked that it stay closed for some time (min_hold or lock_delay)."
        "Try again after `retry_after_ms`."
    TooManyWaiters "too_many_waiters" TOO_MANY_REQUESTS "Too many claims wait already"
        "The queue of the lock, or this process, has as many waiters as it may have; this claim was not let in."
        "Try again after `retry_after_ms`. Nothing was done."
    RateLimited "rate_limited" TOO_MANY_REQUESTS "Too much from one address"
        "The address that this request came from has as much under way as one address may have (requests, operations, or answers that it does not read), or has sent too many requests without a valid API key."
        "Try again after `retry_after_ms`, and have less under way at once; a valid key is answered however many requests came without one. An operator can name the proxy that many clients come through as trusted. `outcome` says whether the request may have taken effect."
    Internal "internal" INTERNAL_SERVER_ERROR "The service made a mistake"
        "Something went wrong that should never go wrong; the log of the service has it under the request id."
        "Report it with the request id. What the request did is unknown; sending it again with the same token is safe."
    StoreUnavailable "store_unavailable" SERVICE_UNAVAILABLE "The store cannot be used"
        "The store that keeps the leases did not answer in time, could not be reached, refused, or has no room for another claim; `detail` says which. `outcome` says whether the request may have taken effect."
        "Send the request again, with the token of this answer if it has one: the same claim then gets its answer. A lease that you hold lasts until its known end."
    Overloaded "overloaded" SERVICE_UNAVAILABLE "The service has too much to do"
        "This process has as much under way as it may have: requests, operations, or answers that nobody reads."
        "Send the request again after `retry_after_ms`, with the same token if it had one. `outcome` says whether it may have taken effect."
    Draining "draining" SERVICE_UNAVAILABLE "This process is about to stop"
        "The process that the claim waited on, or was held by, is about to stop, and others go on. The claim keeps its place in the queue for `place_kept_ms`, or its lease for the rest of its TTL."
        "Send the request again with the token of this answer, over a new connection: the claim goes on where it stood."
    Recovering "recovering" SERVICE_UNAVAILABLE "New grants wait because the store was away"
        "The store was away for some time, or may have lost leases that are still alive. New grants wait until all processes have been heard, and until the leases that may have been lost must have ended. Renewing and releasing work."
        "Send the request again after `retry_after_ms`, with the token of this answer. Nothing was done."
}

impl Code {
    /// The code as it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.facts().code
    }

    /// The code that is written so.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.as_str() == text)
    }
}
