//! The shape of a problem as it is written (RFC 9457). What is put into it is decided in `problem.rs`.

use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::http::wire::HolderView;

/// How a claim ended.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(in crate::http) enum Ended {
    /// The claim let go of the lock.
    Released,
    /// Its lease ran out.
    Expired,
    /// An operator took the lock away.
    Evicted,
    /// It is no longer known how.
    Unknown,
}

/// What is known of a request that the store did not answer.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(in crate::http) enum Outcome {
    /// It had no effect.
    NothingDone,
    /// It may have had its effect or not.
    Unknown,
}

/// A problem as it is written.
#[derive(Serialize, ToSchema)]
#[schema(as = Problem)]
pub(in crate::http) struct ProblemBody<'a> {
    /// Where to read about the code, on this server.
    #[schema(format = "uri-reference")]
    pub(super) r#type: String,
    /// A few words that are the same for every problem of this code.
    pub(super) title: &'static str,
    /// The status of the answer.
    pub(super) status: u16,
    /// What is wrong in this case, and what to do.
    pub(super) detail: &'a str,
    /// What programs go by; never renamed.
    pub(super) code: &'static str,
    /// The request id, by which the service's log has this request.
    pub(super) instance: &'a str,
    /// The field that is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String)]
    pub(super) field: Option<&'a str>,
    /// The field that was probably meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String)]
    pub(super) suggestion: Option<&'a str>,
    /// Who holds the lock; never a token.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Vec<HolderView>)]
    pub(super) holders: Option<Vec<HolderView<'a>>>,
    /// How many claims wait for the lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u64)]
    pub(super) queue_length: Option<u64>,
    /// When to try again.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u64)]
    pub(super) retry_after_ms: Option<u64>,
    /// How the claim ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Ended)]
    pub(super) ended: Option<Ended>,
    /// Why an operator took the lock away.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String)]
    pub(super) reason: Option<&'a str>,
    /// What is known of the effect of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Outcome)]
    pub(super) outcome: Option<Outcome>,
    /// The token of the claim whose outcome is open: to be sent again.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Uuid)]
    pub(super) token: Option<Uuid>,
}
