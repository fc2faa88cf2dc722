//! The shape of a problem as it is written (RFC 9457). What is put into it is decided in `problem.rs`.

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
#[schema(as = Outcome)]
#[serde(rename_all = "snake_case")]
pub(in crate::http) enum ProblemOutcome {
    /// It had no effect.
    NothingDone,
    /// It may have had its effect or not.
    Unknown,
}

/// A lock that keeps a claim on several locks from being granted.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = BlockedBy)]
pub(in crate::http) struct Blocked<'a> {
    /// The lock.
    name: &'a str,
    /// What is in the way.
    state: InTheWay,
    /// Who holds it; never a token. Those whose leases end first: at most 100 over all locks of the answer, and fewer where
    /// their metadata would make it too large.
    #[schema(value_type = Vec<HolderView>)]
    holders: Vec<HolderView<'a>>,
    /// How many hold it.
    holders_total: u64,
    /// How many claims wait for it.
    queue_length: u64,
    /// How long it still stays closed while nobody holds it; null unless it is cooling.
    #[schema(required)]
    free_in_ms: Option<u64>,
}

impl<'a> Blocked<'a> {
    fn new(blockade: &'a Conflict) -> Self {
        let (state, holders, free_in) = match &blockade.by {
            ConflictKind::Holders(holders) => (InTheWay::Held, Some(holders), None),
            ConflictKind::Cooling { free_in } => (InTheWay::Cooling, None, Some(*free_in)),
            ConflictKind::Waiters => (InTheWay::Queued, None, None),
        };
        let (holders, holders_total) = HolderView::listed(holders);
        Self {
            name: blockade.name.as_str(),
            state,
            holders,
            holders_total,
            queue_length: blockade.queue_length,
            free_in_ms: free_in.map(millis),
        }
    }

    pub(super) fn all(blockades: &'a [Conflict]) -> Vec<Self> {
        blockades.iter().map(Self::new).collect()
    }
}

/// What keeps a lock from being granted.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum InTheWay {
    /// Others hold it.
    Held,
    /// Nobody holds it, but it stays closed for a while.
    Cooling,
    /// Others wait for it and came first.
    Queued,
}

/// One of several locks that the token does not hold (any more).
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct LostLock<'a> {
    /// The lock.
    name: &'a str,
    /// The code that a request for this lock alone would be answered with.
    code: &'static str,
    /// Why an operator took the lock away.
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
    /// Which of several locks this is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String)]
    pub(super) name: Option<&'a str>,
    /// Who holds the lock; never a token. Those whose leases end first: at most 100 over all locks of the answer, and fewer
    /// where their metadata would make it too large.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Vec<HolderView>)]
    pub(super) holders: Option<Vec<HolderView<'a>>>,
    /// How many hold the lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u64)]
    pub(super) holders_total: Option<u64>,
    /// How many holders an eviction took the lock from before its time was over.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u64)]
    pub(super) evicted_total: Option<u64>,
    /// How many claims wait for the lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u64)]
    pub(super) queue_length: Option<u64>,
    /// How far the claim came in the queue: 1 for the next in turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u64)]
    pub(super) position: Option<u64>,
    /// How long the claim keeps its place in the queue while no request with its token is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u64)]
    pub(super) place_kept_ms: Option<u64>,
    /// The limit that those agreed on who hold the lock; null for readers, who have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u32>, required = false)]
    pub(super) limit_in_force: Option<Option<u32>>,
    /// Of several locks, those that are in the way.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Vec<Blocked>)]
    pub(super) blocked_by: Option<Vec<Blocked<'a>>>,
    /// Of several locks, those that the token does not hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Vec<LostLock>)]
    pub(super) lost: Option<Vec<LostLock<'a>>>,
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
    #[schema(value_type = ProblemOutcome)]
    pub(super) outcome: Option<ProblemOutcome>,
    /// The token of the claim whose outcome is open: to be sent again.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Uuid)]
    pub(super) token: Option<Uuid>,
}
