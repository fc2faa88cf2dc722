//! A request that waits, as a service would look after it: it asks again with what it was told last.

use std::time::Duration;

use leasehold::domain::{Acquired, Attempt, Claim, Stand, Waiting};
use leasehold::store::{LAST_CALL, OFFER};

use super::{Bench, LONG, deadline, leases_granted};

/// How long a process may be silent in laws that are not about that.
const LOOK_EVERY: Duration = LONG;

/// One request that goes on waiting until its claim is granted.
#[derive(Debug)]
pub(crate) struct Waiter {
    /// What it waits with.
    pub(crate) claim: Claim,
    /// Which request it is.
    pub(crate) attempt: Attempt,
    /// How it waits, and the place that it was told last.
    pub(crate) stand: Stand,
}

impl Waiter {
    /// A request that has not asked yet. It waits [`LONG`] and tells its position.
    pub(crate) fn new(claim: Claim) -> Self {
        Self {
            claim,
            attempt: Attempt::random(),
            stand: Stand {
                place: None,
                wait: LONG,
                place_kept: LONG,
                look_every: LOOK_EVERY,
                waiters_max: 1_000,
                tells_position: true,
                is_head: false,
                takes_over: true,
            },
        }
    }

    /// The same claim posted anew: another request, which has not been told of a place.
    pub(crate) fn again(&self) -> Self {
        Self::new(self.claim.clone())
    }

    /// The same with another stand.
    pub(crate) fn with(mut self, change: impl FnOnce(&mut Stand)) -> Self {
        change(&mut self.stand);
        self
    }
}

impl Bench {
    /// Asks for a waiter, once.
    pub(crate) async fn ask(&self, waiter: &mut Waiter) -> Acquired {
        let Waiter {
            claim,
            attempt,
            stand,
        } = &waiter;
        let answer = self
            .store
            .acquire(claim, *attempt, Some(stand), deadline())
            .await
            .expect("the store answers");
        if let Acquired::Waiting(waiting) = &answer {
            waiter.stand.place = Some(waiting.place);
        }
        answer
    }

    /// Asks what must not be granted yet.
    pub(crate) async fn waits(&self, waiter: &mut Waiter) -> Waiting {
        match self.ask(waiter).await {
            Acquired::Waiting(waiting) => waiting,
            other => panic!("{:?} must wait, but: {other:?}", waiter.claim.names),
        }
    }

    /// Asks what must be granted, and gives it back: what is left is who is next.
    pub(crate) async fn served(&self, waiter: &mut Waiter) {
        leases_granted(self.ask(waiter).await);
        self.release_all(&waiter.claim).await;
    }

    /// Lets a process lose its turn that does not take what it was offered; `next` finds out.
    pub(crate) async fn outlast_offer(&self, next: &mut Waiter) {
        self.outlast(OFFER).await;
        self.waits(next).await;
        self.outlast(LAST_CALL).await;
    }

    /// A request for the claim that has come to stand.
    pub(crate) async fn waiting(&self, claim: &Claim) -> Waiter {
        let mut waiter = Waiter::new(claim.clone());
        self.waits(&mut waiter).await;
        waiter
    }
}
