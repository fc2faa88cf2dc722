//! The operations of the scripted store: each runs on the store below, as scripted.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::domain::{
    Acquired, Attempt, Claim, CountOutcome, CountStep, Evicted, Holders, LeaseQuota, Listing,
    LockName, LockNames, LockView, Position, QueueRequest, Refused, Released, RenewOptions,
    Renewed, Rollback, StepBack, SuspendOptions, Suspended, Ticket, Token, Waiting,
};
use leasehold::store::assignment::{AssignFences, Assigned, FenceChange, MissedEviction};
use leasehold::store::{
    CountLeases, Deadlines, ListQuery, Listener, LockStore, StoreHealth, StoreResult,
};
use tokio::time::Instant;

use super::{Behavior, Operation, ScriptedStore, behaves, unavailable};

const FIRST: Position = Position {
    position: 1,
    queue_length: 1,
};

/// What a recovering store answers to a claim.
fn recovering(request: Option<&QueueRequest>) -> Acquired {
    let Some(_) = request else {
        let retry_in = Duration::from_millis(2_500);
        return Acquired::Refused(Refused::Recovering { retry_in });
    };
    Acquired::Waiting(Waiting {
        ticket: Ticket {
            sequence: 1,
            until: None,
        },
        recheck_in: None,
        position: Some(FIRST),
        restored: false,
        has_ambiguous_attempt: false,
    })
}

#[async_trait]
impl LockStore for ScriptedStore {
    async fn acquire(
        &self,
        claim: &Claim,
        attempt: Attempt,
        request: Option<&QueueRequest>,
        deadline: Instant,
    ) -> StoreResult<Acquired> {
        self.acquires.fetch_add(1, Ordering::Relaxed);
        let behavior = request.and_then(|request| {
            let mut polls = self.polls.lock().unwrap();
            polls.push((claim.token, request.ticket));
            self.behaviors_of_polls.lock().unwrap().pop_front()
        });
        let answer = async {
            let is_undone = (self.undone.lock().unwrap()).contains(&(claim.token, attempt));
            match self.is_recovering.load(Ordering::Relaxed) {
                _ if is_undone => Err(unavailable()),
                true => Ok(recovering(request)),
                false => {
                    let answer = self.store.acquire(claim, attempt, request, deadline).await;
                    let seen = (Some(attempt), answer.as_ref().ok());
                    self.note(Operation::Acquire, &claim.names[0], claim.token, seen)
                        .await;
                    answer
                }
            }
        };
        let answer = self.run(Operation::Acquire, answer);
        behaves(behavior.unwrap_or(Behavior::Answered), answer).await
    }

    async fn suspend(
        &self,
        claim: &Claim,
        options: SuspendOptions,
        deadline: Instant,
    ) -> StoreResult<Suspended> {
        let answer = async {
            match self.is_recovering.load(Ordering::Relaxed) {
                true => Ok(Suspended {
                    position: Some(FIRST),
                    blocked_by: Vec::new(),
                }),
                false => {
                    let answer = self.store.suspend(claim, options, deadline).await;
                    let name = &claim.names[0];
                    self.note(Operation::Suspend, name, claim.token, (None, None))
                        .await;
                    answer
                }
            }
        };
        self.run(Operation::Suspend, answer).await
    }

    async fn withdraw(
        &self,
        claim: &Claim,
        attempt: Attempt,
        rollback: Rollback,
        deadline: Instant,
    ) -> StoreResult<usize> {
        let answer = async {
            if rollback == Rollback::Undo {
                let mut undone = self.undone.lock().unwrap();
                undone.insert((claim.token, attempt));
            }
            let answer = self
                .store
                .withdraw(claim, attempt, rollback, deadline)
                .await;
            let (name, seen) = (&claim.names[0], (Some(attempt), None));
            self.note(Operation::Withdraw, name, claim.token, seen)
                .await;
            answer
        };
        self.run(Operation::Withdraw, answer).await
    }

    async fn renew(
        &self,
        names: &LockNames,
        token: Token,
        change: RenewOptions,
        deadline: Instant,
    ) -> StoreResult<Renewed> {
        let answer = self.store.renew(names, token, change, deadline);
        self.run(Operation::Renew, answer).await
    }

    async fn release(
        &self,
        names: &LockNames,
        token: Token,
        step_back: Option<StepBack>,
        deadline: Instant,
    ) -> StoreResult<Vec<Released>> {
        let answer = async {
            let answer = self.store.release(names, token, step_back, deadline).await;
            self.note(Operation::Release, &names[0], token, (None, None))
                .await;
            answer
        };
        self.run(Operation::Release, answer).await
    }

    async fn evict(
        &self,
        name: &LockName,
        reason: &str,
        deadlines: Deadlines,
    ) -> StoreResult<Evicted> {
        self.note_deadlines(deadlines);
        let answer = async {
            let Some(total) = self.evicted else {
                return self.store.evict(name, reason, deadlines).await;
            };
            let listed = Vec::new();
            Ok(Evicted {
                holders: Holders { listed, total },
                claims: Vec::new(),
                closed_for: Duration::ZERO,
                is_complete: false,
            })
        };
        self.run(Operation::Evict, answer).await
    }

    async fn inspect(&self, name: &LockName, deadline: Instant) -> StoreResult<LockView> {
        let answer = self.store.inspect(name, deadline);
        self.run(Operation::Inspect, answer).await
    }

    async fn list(&self, query: &ListQuery, deadlines: Deadlines) -> StoreResult<Listing> {
        self.note_deadlines(deadlines);
        let answer = self.store.list(query, deadlines);
        self.run(Operation::List, answer).await
    }

    async fn refresh_health(&self) {
        self.store.refresh_health().await;
    }

    async fn sweep(&self) {
        self.store.sweep().await;
    }

    fn health(&self) -> StoreHealth {
        let health = self.health.clone();
        let health = health.unwrap_or_else(|| self.store.health());
        let up = health.up && !self.is_known_down.load(Ordering::Relaxed);
        StoreHealth { up, ..health }
    }

    fn set_listener(&self, listener: Arc<dyn Listener>) {
        *self.messages.listener.lock().unwrap() = Some(listener);
    }

    async fn set_event_delivery(&self, wanted: bool) {
        self.event_deliveries.lock().unwrap().push(wanted);
        let delivers = !matches!(*self.behavior.lock().unwrap(), Behavior::Unanswered);
        if wanted && !delivers {
            return pending().await;
        }
        self.store.set_event_delivery(wanted).await;
    }

    async fn close(&self) {
        // How a store ends is of no importance to its service, but whether it does.
        let _ = self.run(Operation::Close, async { Ok(()) }).await;
    }
}

#[async_trait]
impl CountLeases for ScriptedStore {
    async fn count_leases(
        &self,
        quota: &LeaseQuota,
        step: CountStep,
        names: &[LockName],
        token: Token,
        deadline: Instant,
    ) -> StoreResult<CountOutcome> {
        let answer = self.store.count_leases(quota, step, names, token, deadline);
        self.run(Operation::CountLeases, answer).await
    }
}

#[async_trait]
impl AssignFences for ScriptedStore {
    async fn assign_fences(
        &self,
        claim: &Claim,
        changes: &[FenceChange],
        deadline: Instant,
    ) -> StoreResult<Assigned> {
        self.assignments.fetch_add(1, Ordering::Relaxed);
        let behavior = self.behaviors_of_assignments.lock().unwrap().pop_front();
        let answer = self.store.assign_fences(claim, changes, deadline);
        let answer = self.run(Operation::AssignFences, answer);
        behaves(behavior.unwrap_or(Behavior::Answered), answer).await
    }

    async fn evict_missed(
        &self,
        name: &LockName,
        missed: &MissedEviction,
        deadlines: Deadlines,
    ) -> StoreResult<()> {
        let answer = self.store.evict_missed(name, missed, deadlines);
        self.run(Operation::Evict, answer).await
    }
}
