//! Shorthand for asking a store. What is about one lock panics when there are several.

use std::time::Duration;

use leasehold::domain::{
    Acquired, Attempt, Change, Claim, Holder, Holders, Lease, Listing, LockName, LockState,
    LockView, Mode, Parked, Queue, Released, Renewal, Renewed, Rollback,
};
use leasehold::store::{ListQuery, StoreError};

use super::{Bench, deadline, deadlines, hold_count, leases_granted, only, ttl};

impl Bench {
    /// Acquires by an attempt of its own, without waiting.
    pub(crate) async fn acquire(&self, claim: &Claim) -> Acquired {
        self.attempt(claim, Attempt::random())
            .await
            .expect("the store answers")
    }

    /// Acquires what must be granted.
    pub(crate) async fn granted(&self, claim: &Claim) -> Lease {
        only(self.all_granted(claim).await)
    }

    /// Acquires several locks that must be granted.
    pub(crate) async fn all_granted(&self, claim: &Claim) -> Vec<Lease> {
        leases_granted(self.acquire(claim).await)
    }

    /// Acquires by a certain attempt, without waiting.
    pub(crate) async fn attempt(
        &self,
        claim: &Claim,
        attempt: Attempt,
    ) -> Result<Acquired, StoreError> {
        self.store.acquire(claim, attempt, None, deadline()).await
    }

    /// Withdraws an attempt that nobody was told of.
    pub(crate) async fn withdraw(&self, claim: &Claim, attempt: Attempt) {
        self.roll_back(claim, attempt, Rollback::Undo).await;
    }

    /// Ends what the attempt of a stream holds that was closed.
    pub(crate) async fn close(&self, claim: &Claim, attempt: Attempt) {
        self.roll_back(claim, attempt, Rollback::Close).await;
    }

    async fn roll_back(&self, claim: &Claim, attempt: Attempt, rollback: Rollback) {
        self.store
            .withdraw(claim, attempt, rollback, deadline())
            .await
            .expect("the store answers");
    }

    /// Lets a waiting claim step out of the queue.
    pub(crate) async fn park(&self, claim: &Claim, keep: Duration) -> Parked {
        self.store
            .park(claim, keep, deadline())
            .await
            .expect("the store answers")
    }

    /// Renews by the claim's own TTL.
    pub(crate) async fn renew(&self, claim: &Claim) -> Renewed {
        self.renew_for(claim, None).await
    }

    /// Renews by a TTL.
    pub(crate) async fn renew_for(&self, claim: &Claim, for_ttl: Option<Duration>) -> Renewed {
        self.renew_to(claim, for_ttl, None).await
    }

    /// Renews, and changes how the lock is held.
    pub(crate) async fn renew_in_mode(&self, claim: &Claim, mode: Mode) -> Renewed {
        self.renew_to(claim, None, Some(mode)).await
    }

    /// Renews by a TTL, and changes how the lock is held.
    pub(crate) async fn renew_to(
        &self,
        claim: &Claim,
        for_ttl: Option<Duration>,
        mode: Option<Mode>,
    ) -> Renewed {
        let change = Change {
            ttl: for_ttl.map(ttl),
            mode,
            ..Change::default()
        };
        self.store
            .renew(&claim.names, claim.token, change, deadline())
            .await
            .expect("the store answers")
    }

    /// Renews what must be renewable.
    pub(crate) async fn renewed(&self, claim: &Claim, ttl: Option<Duration>) -> Renewal {
        match self.renew_for(claim, ttl).await {
            Renewed::Extended(renewals) => only(renewals),
            other => panic!("{:?} must be renewed, but: {other:?}", claim.names),
        }
    }

    /// Releases for good.
    pub(crate) async fn release(&self, claim: &Claim) -> Released {
        only(self.release_all(claim).await)
    }

    /// Releases several locks for good.
    pub(crate) async fn release_all(&self, claim: &Claim) -> Vec<Released> {
        self.store
            .release(&claim.names, claim.token, None, deadline())
            .await
            .expect("the store answers")
    }

    /// Releases what must be held.
    pub(crate) async fn freed(&self, claim: &Claim) -> Duration {
        match self.release(claim).await {
            Released::Freed { held_for } => held_for,
            other => panic!("{:?} must be freed, but: {other:?}", claim.names),
        }
    }

    /// Releases down to a depth.
    pub(crate) async fn step_back(&self, claim: &Claim, depth: u64) -> Released {
        only(self.step_back_all(claim, depth).await)
    }

    /// Releases several locks down to a depth.
    pub(crate) async fn step_back_all(&self, claim: &Claim, depth: u64) -> Vec<Released> {
        let depth = Some(hold_count(depth));
        self.store
            .release(&claim.names, claim.token, depth, deadline())
            .await
            .expect("the store answers")
    }

    /// Takes the lock away from its holders, of whom there are few.
    pub(crate) async fn evict(&self, name: &LockName, reason: &str) -> Vec<Holder> {
        let holders = self.evict_many(name, reason).await;
        assert_eq!(holders.told.len() as u64, holders.total, "{holders:?}");
        holders.told
    }

    /// Takes the lock away from all of its holders.
    pub(crate) async fn evict_many(&self, name: &LockName, reason: &str) -> Holders {
        let evicted = self.store.evict(name, reason, deadlines()).await;
        let evicted = evicted.expect("the store answers");
        assert!(evicted.is_complete, "{evicted:?}");
        evicted.holders
    }

    /// The lock as everybody may see it.
    pub(crate) async fn view(&self, name: &LockName) -> LockView {
        let view = self
            .store
            .inspect(name, deadline())
            .await
            .expect("the store answers");
        assert_eq!(
            &view.name, name,
            "the view is of the lock that was asked for"
        );
        view
    }

    /// What the lock is doing.
    pub(crate) async fn state(&self, name: &LockName) -> LockState {
        self.view(name).await.state
    }

    /// Who waits for the lock.
    pub(crate) async fn queue(&self, name: &LockName) -> Queue {
        self.view(name).await.queue
    }

    /// Those who hold the lock.
    pub(crate) async fn holders(&self, name: &LockName) -> Vec<Holder> {
        match self.state(name).await {
            LockState::Held(holders) => {
                assert_eq!(holders.told.len() as u64, holders.total, "{holders:?}");
                holders.told
            }
            other => panic!("{name} is held, but: {other:?}"),
        }
    }

    /// The only claim that holds the lock.
    pub(crate) async fn holder(&self, name: &LockName) -> Holder {
        only(self.holders(name).await)
    }

    /// One page of the held locks.
    pub(crate) async fn page(
        &self,
        prefix: &str,
        after: Option<LockName>,
        page_size: usize,
    ) -> Listing {
        let query = ListQuery {
            prefix: prefix.to_owned(),
            after,
            page_size,
        };
        self.store
            .list(&query, deadlines())
            .await
            .expect("the store answers")
    }

    /// The names of all held locks that begin with `prefix`, page by page.
    pub(crate) async fn names(&self, prefix: &str, page_size: usize) -> Vec<String> {
        let mut names = Vec::new();
        let mut after = None;
        loop {
            let page = self.page(prefix, after, page_size).await;
            assert!(page.locks.len() <= page_size, "a page is too long");
            names.extend(page.locks.iter().map(|lock| lock.name.to_string()));
            after = page.next_after;
            if after.is_none() {
                return names;
            }
        }
    }
}
