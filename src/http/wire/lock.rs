//! A lock as everybody may see it.

use serde::Serialize;
use utoipa::ToSchema;

use super::{HolderView, ModeView, Rfc3339, millis};
use crate::domain::{HeadWaiter, LockState, LockView};

/// A lock as everybody may see it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Lock)]
pub(in crate::http) struct LockBody<'a> {
    /// The lock.
    name: &'a str,
    /// What it is doing.
    state: StateView,
    /// Who holds it; never a token. Those whose leases end first: at most 100, and fewer where their metadata would make the
    /// answer too large.
    #[schema(value_type = Vec<HolderView>)]
    holders: Vec<HolderView<'a>>,
    /// How many hold it.
    holders_total: u64,
    /// How many claims wait for it.
    queue_length: u64,
    /// The claim that is next in turn; null if none waits.
    #[schema(value_type = Option<QueueHead>, required)]
    queue_head: Option<QueueHead<'a>>,
    /// How long it still stays closed while nobody holds it; null unless it is cooling.
    #[schema(required)]
    free_in_ms: Option<u64>,
}

impl<'a> LockBody<'a> {
    pub(in crate::http) fn new(view: &'a LockView) -> Self {
        let (state, holders, free_in) = match &view.state {
            LockState::Free => (StateView::Free, None, None),
            LockState::Held(holders) => (StateView::Held, Some(holders), None),
            LockState::Cooling { free_in } => (StateView::Cooling, None, Some(*free_in)),
        };
        let (holders, holders_total) = HolderView::listed(holders);
        Self {
            name: view.name.as_str(),
            state,
            holders,
            holders_total,
            queue_length: view.queue.length,
            queue_head: view.queue.head.as_ref().map(QueueHead::new),
            free_in_ms: free_in.map(millis),
        }
    }
}

/// What a lock is doing.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[schema(as = LockState)]
#[serde(rename_all = "snake_case")]
enum StateView {
    /// Nobody holds it.
    Free,
    /// Somebody holds it.
    Held,
    /// Nobody holds it, but it stays closed for a while.
    Cooling,
}

/// A claim that waits, as everybody may see it; never a token.
#[derive(Debug, Serialize, ToSchema)]
struct QueueHead<'a> {
    /// Who waits, in their own words; proves nothing.
    owner: &'a str,
    /// How it wants to hold the lock.
    mode: ModeView,
    /// How many permits there are to be in all; null without a limit, and for an exclusive claim.
    #[schema(required, minimum = 1, maximum = 1_000_000)]
    limit: Option<u32>,
    /// How many permits it would take.
    #[schema(minimum = 1, maximum = 1_000_000)]
    permits: u32,
    /// Since when it waits, by the store's clock.
    #[schema(value_type = String, format = DateTime)]
    waiting_since: Rfc3339,
}

impl<'a> QueueHead<'a> {
    fn new(waiter: &'a HeadWaiter) -> Self {
        let (mode, share) = ModeView::of(waiter.mode);
        Self {
            owner: waiter.owner.as_str(),
            mode,
            limit: share.limit(),
            permits: share.permits(),
            waiting_since: Rfc3339(waiter.since),
        }
    }
}

/// One page of the locks that are held or waited for, in the order of names.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LockPage)]
pub(in crate::http) struct LockPage<'a> {
    /// The locks.
    #[schema(value_type = Vec<LockBody>)]
    pub(in crate::http) locks: Vec<LockBody<'a>>,
    /// To be sent as `page_token` for the next page; empty on the last one.
    pub(in crate::http) next_page_token: String,
}

/// Who was evicted.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Evicted)]
pub(in crate::http) struct EvictedBody<'a> {
    /// The former holders; none if nobody held the lock. At most 100, and fewer where their metadata would make the answer
    /// too large.
    #[schema(value_type = Vec<HolderView>)]
    pub(in crate::http) evicted: Vec<HolderView<'a>>,
    /// How many were evicted.
    pub(in crate::http) evicted_total: u64,
}
