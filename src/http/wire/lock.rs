//! A lock, as every client may see it.

use serde::Serialize;
use utoipa::ToSchema;

use super::{HolderView, ModeView, Rfc3339, millis};
use crate::domain::{HeadWaiter, LockState, LockView};

/// A lock, as every client may see it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Lock)]
pub(in crate::http) struct LockBody<'a> {
    /// The lock.
    name: &'a str,
    /// The state of the lock.
    state: StateView,
    /// The holders whose leases end first, without tokens: at most 100, and fewer if their metadata would make the
    /// response too large.
    #[schema(value_type = Vec<HolderView>)]
    holders: Vec<HolderView<'a>>,
    /// The number of holders.
    holders_total: u64,
    /// The number of claims that wait for the lock.
    queue_length: u64,
    /// The claim at the head of the queue; null if none waits.
    #[schema(value_type = Option<QueueHead>, required)]
    queue_head: Option<QueueHead<'a>>,
    /// How long the lock still stays closed; null unless it is cooling.
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

/// The state of a lock.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[schema(as = LockState)]
#[serde(rename_all = "snake_case")]
enum StateView {
    /// No claim holds it.
    Free,
    /// One or more claims hold it.
    Held,
    /// No claim holds it, but it stays closed for a while.
    Cooling,
}

/// A waiting claim, as every client may see it; without its token.
#[derive(Debug, Serialize, ToSchema)]
struct QueueHead<'a> {
    /// The owner text of the claim; it proves nothing.
    owner: &'a str,
    /// How it wants to hold the lock.
    mode: ModeView,
    /// The total number of permits that it asks for; null without a limit, and for an exclusive claim.
    #[schema(required, minimum = 1, maximum = 1_000_000)]
    limit: Option<u32>,
    /// How many permits it would take.
    #[schema(minimum = 1, maximum = 1_000_000)]
    permits: u32,
    /// When it began to wait, by the store's clock.
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
    /// The `page_token` of the next page; empty on the last one.
    pub(in crate::http) next_page_token: String,
}

/// The evicted holders.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Evicted)]
pub(in crate::http) struct EvictedBody<'a> {
    /// The former holders; empty if no claim held the lock. At most 100, and fewer if their metadata would make the
    /// response too large.
    #[schema(value_type = Vec<HolderView>)]
    pub(in crate::http) evicted: Vec<HolderView<'a>>,
    /// The number of evicted holders.
    pub(in crate::http) evicted_total: u64,
}
