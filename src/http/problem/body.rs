//! The body of an error response (RFC 9457). `problem.rs` fills it in.

use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::refusal::code_of;
use crate::domain::{Conflict, ConflictKind, NotHeld, NotHolder};
use crate::http::wire::{HolderView, millis};

/// How a claim ended.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(in crate::http) enum Ended {
    /// A request released it.
    Released,
    /// Its lease expired.
    Expired,
    /// An operator evicted it.
    Evicted,
    /// The reason is no longer known.
    Unknown,
}

/// Whether a failed request may have taken effect.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[schema(as = Outcome)]
#[serde(rename_all = "snake_case")]
pub(in crate::http) enum ProblemOutcome {
    /// It had no effect.
    NothingDone,
    /// It may or may not have taken effect.
    Unknown,
}

/// A lock that keeps a claim on several locks from being granted.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = BlockedBy)]
pub(in crate::http) struct Blocked<'a> {
    /// The lock.
    name: &'a str,
    /// Why it cannot be granted.
    state: ConflictKindView,
    /// The holders whose leases end first, without tokens: at most 100 over all locks of the response, and fewer if
    /// their metadata would make it too large.
    #[schema(value_type = Vec<HolderView>)]
    holders: Vec<HolderView<'a>>,
    /// The number of holders.
    holders_total: u64,
    /// The number of claims that wait for it.
    queue_length: u64,
    /// How long it still stays closed; null unless it is cooling.
    #[schema(required)]
    free_in_ms: Option<u64>,
}

impl<'a> Blocked<'a> {
    fn new(conflict: &'a Conflict) -> Self {
        let (state, holders, free_in) = match &conflict.by {
            ConflictKind::Holders(holders) => (ConflictKindView::Held, Some(holders), None),
            ConflictKind::Cooling { free_in } => (ConflictKindView::Cooling, None, Some(*free_in)),
            ConflictKind::Waiters => (ConflictKindView::Queued, None, None),
        };
        let (holders, holders_total) = HolderView::listed(holders);
        Self {
            name: conflict.name.as_str(),
            state,
            holders,
            holders_total,
            queue_length: conflict.queue_length,
            free_in_ms: free_in.map(millis),
        }
    }

    pub(super) fn all(conflicts: &'a [Conflict]) -> Vec<Self> {
        conflicts.iter().map(Self::new).collect()
    }
}

/// Why a lock cannot be granted.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ConflictKind)]
enum ConflictKindView {
    /// Other claims hold it.
    Held,
    /// No claim holds it, but it stays closed for a while.
    Cooling,
    /// Other claims wait for it and are ahead in the queue.
    Queued,
}

/// One of several locks that the token does not hold, or no longer.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct LostLock<'a> {
    /// The lock.
    name: &'a str,
    /// The code that a request for this lock alone would get.
    code: &'static str,
    /// Why an operator evicted the holder.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String)]
    reason: Option<&'a str>,
}

impl<'a> LostLock<'a> {
    fn new(lost: &'a NotHeld) -> Self {
        let reason = match &lost.reason {
            NotHolder::Evicted { reason } => Some(reason.as_str()),
            NotHolder::Expired | NotHolder::Lost | NotHolder::Released | NotHolder::Unknown => None,
        };
        Self {
            name: lost.name.as_str(),
            code: code_of(&lost.reason).as_str(),
            reason,
        }
    }

    pub(super) fn all(lost: &'a [NotHeld]) -> Vec<Self> {
        lost.iter().map(Self::new).collect()
    }
}

/// An error (RFC 9457).
#[derive(Serialize, ToSchema)]
#[schema(as = Problem)]
pub(in crate::http) struct ProblemBody<'a> {
    /// The path of the explanation of the code, on this server.
    #[schema(format = "uri-reference")]
    pub(super) r#type: String,
    /// A short summary, the same for every problem of this code.
    pub(super) title: &'static str,
    /// The status of the response.
    pub(super) status: u16,
    /// What is wrong in this case, and what to do.
    pub(super) detail: &'a str,
    /// The code for programs to check; never renamed.
    pub(super) code: &'static str,
    /// The id of the request, to find it in the log of the service.
    pub(super) instance: &'a str,
    /// The invalid field.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String)]
    pub(super) field: Option<&'a str>,
    /// The field that was probably meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String)]
    pub(super) suggestion: Option<&'a str>,
    /// The lock that this is about, if the request names several.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String)]
    pub(super) name: Option<&'a str>,
    /// The holders whose leases end first, without tokens: at most 100 over all locks of the response, and fewer if
    /// their metadata would make it too large.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Vec<HolderView>)]
    pub(super) holders: Option<Vec<HolderView<'a>>>,
    /// The number of holders.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u64)]
    pub(super) holders_total: Option<u64>,
    /// The number of holders that an eviction removed before it timed out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u64)]
    pub(super) evicted_total: Option<u64>,
    /// The number of claims that wait for the lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u64)]
    pub(super) queue_length: Option<u64>,
    /// The position of the claim in the queue; 1 is the head.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u64)]
    pub(super) position: Option<u64>,
    /// How long the claim keeps its place in the queue while no request with its token is connected.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u64)]
    pub(super) place_kept_ms: Option<u64>,
    /// The limit of the current holders; null if they are readers without a limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u32>, required = false)]
    pub(super) limit_in_force: Option<Option<u32>>,
    /// The locks that cannot be granted, if the request names several.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Vec<Blocked>)]
    pub(super) blocked_by: Option<Vec<Blocked<'a>>>,
    /// The locks that the token does not hold, if the request names several.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Vec<LostLock>)]
    pub(super) lost: Option<Vec<LostLock<'a>>>,
    /// When to try again, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u64)]
    pub(super) retry_after_ms: Option<u64>,
    /// How the claim ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Ended)]
    pub(super) ended: Option<Ended>,
    /// Why an operator evicted the holder.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String)]
    pub(super) reason: Option<&'a str>,
    /// Whether the request may have taken effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = ProblemOutcome)]
    pub(super) outcome: Option<ProblemOutcome>,
    /// The quota of the principal that is used up.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String)]
    pub(super) quota: Option<&'static str>,
    /// The token of the claim, to repeat the request with.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Uuid)]
    pub(super) token: Option<Uuid>,
}
