//! Holding a lock for as long as somebody listens: the wait, the lease, its renewals, and the release when nobody listens
//! any more. How the listener is told is HTTP's affair.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::Stream;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::acquire::Request;
use super::answer::{AcquireAnswer, Crowd, Outcome};
use super::waiter::Caller;
use super::waiting::Wait;
use super::{Inner, age};
use crate::domain::{Change, Claim, Lease, NotHolder, Position, Renewed, Withdrawable};
use crate::limits::Slot;
use crate::store::StoreError;

/// Between two tries to renew; doubled each time.
const RETRY_MIN: Duration = Duration::from_millis(50);

/// What becomes of a claim that is held for as long as somebody listens.
#[derive(Debug)]
pub enum HoldEvent {
    /// The claim waits, and has come so far.
    Queued(Position),
    /// The claim was granted.
    Acquired {
        /// The lease.
        lease: Lease,
        /// How long it waited in the queue.
        waited: Duration,
        /// Whether the claim held before.
        replayed: bool,
    },
    /// The lease lasts longer.
    Renewed(Lease),
    /// The lock is not the claim's any more. The last event.
    Lost(NotHolder),
    /// The claim was not granted. The last event, and the only one unless the claim waited.
    Refused(Result<Outcome, StoreError>),
    /// The process is about to stop. The lease, or the place, is kept: the claim goes on elsewhere. The last event.
    Draining,
}

/// The events of one claim. Dropped, it gives back what it holds unless a later request with the same token was told of it;
/// nobody waits for it any more, and its place is kept for a while.
#[derive(Debug)]
pub struct Hold(mpsc::Receiver<HoldEvent>);

impl Stream for Hold {
    type Item = HoldEvent;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<HoldEvent>> {
        self.0.poll_recv(context)
    }
}

/// How a stream ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// Nothing is left to give up: the listener was told how it ended, or is to go on elsewhere, or had gone before
    /// anything was granted.
    Over,
    /// Nobody listens to what is held.
    Closed,
}

/// One claim that is held for a listener.
struct Holding {
    request: Request,
    tells: mpsc::Sender<HoldEvent>,
}

impl Inner {
    pub(super) fn hold(
        self: &Arc<Self>,
        claim: Arc<Claim>,
        wait: Option<Duration>,
        slot: Slot,
    ) -> Hold {
        // One at a time: who does not listen in time is not renewed for.
        let (tells, events) = mpsc::channel(1);
        let holding = Holding {
            request: Request::new(self, claim, slot),
            tells,
        };
        let inner = Arc::clone(self);
        self.in_background(async move {
            let _open = inner.metrics.open_stream("hold");
            let end = holding.run(wait).await;
            let Request { claim, attempt, .. } = holding.request;
            if end == End::Closed {
                inner.let_go(&claim, attempt).await;
            }
        });
        Hold(events)
    }
}

impl Holding {
    async fn run(&self, wait: Option<Duration>) -> End {
        let inner = &self.request.inner;
        if inner.draining.is_cancelled() {
            return self.tell_last(HoldEvent::Draining).await;
        }
        let answer = if wait.is_some_and(|wait| wait.is_zero()) {
            self.request.clone().at_once(None).await
        } else {
            match inner.queues.enter(&self.request.claim) {
                Ok(waiter) => self.wait(Caller(waiter), wait).await,
                Err(waiters) => {
                    let crowd = Crowd::Process { waiters };
                    self.request.clone().at_once(Some(crowd)).await
                }
            }
        };
        if self.tells.is_closed() {
            // What was granted meanwhile is undelivered, and given back as such.
            return End::Over;
        }
        let (lease, waited, replayed) = match answer {
            Ok(answer) => match granted(answer) {
                Ok(granted) => granted,
                Err(Outcome::Draining(_)) => return self.tell_last(HoldEvent::Draining).await,
                Err(refused) => return self.tell_last(HoldEvent::Refused(Ok(refused))).await,
            },
            Err(error) => return self.tell_last(HoldEvent::Refused(Err(error))).await,
        };
        let until = Instant::now() + lease.holder.expires_in;
        let acquired = HoldEvent::Acquired {
            lease,
            waited,
            replayed,
        };
        if !self.tell(acquired, until).await {
            return End::Closed;
        }
        self.keep(until, replayed).await
    }

    async fn wait(
        &self,
        caller: Caller,
        wait: Option<Duration>,
    ) -> Result<AcquireAnswer, StoreError> {
        let waiter = Arc::clone(&caller.0);
        let waiting = Wait::new(self.request.clone(), waiter, wait).telling(self.tells.clone());
        let mut waiting = Box::pin(waiting.run());
        tokio::select! {
            answer = &mut waiting => return answer,
            () = self.tells.closed() => drop(caller),
        }
        waiting.await
    }

    /// Renews the lease again and again. One that another stream may hold for is taken over first: a client comes back
    /// sooner than it is noticed that it was gone, and the former stream must not give up what this one holds.
    async fn keep(&self, mut until: Instant, takes_over: bool) -> End {
        let ttl = self.request.claim.ttl.get();
        let draining = &self.request.inner.draining;
        let mut pause = takes_over.then_some(Duration::ZERO);
        let mut withdrawable = match takes_over {
            true => Withdrawable::By(self.request.attempt),
            false => Withdrawable::AsBefore,
        };
        loop {
            let left = until.saturating_duration_since(Instant::now());
            // Of a lease that cannot be made longer, what is left is halved until it is not worth the while.
            let rest = pause.unwrap_or_else(|| (ttl / 3).min(left / 2).max(ttl / 50));
            tokio::select! {
                () = self.tells.closed() => return End::Closed,
                () = draining.cancelled() => return self.tell_last(HoldEvent::Draining).await,
                () = tokio::time::sleep(rest.min(left)) => {}
            }
            if until <= Instant::now() {
                return self.tell_last(HoldEvent::Lost(NotHolder::Expired)).await;
            }
            let renewed = tokio::select! {
                () = self.tells.closed() => return End::Closed,
                renewed = self.renew(until, withdrawable) => renewed,
            };
            match renewed {
                Ok(Ok(lease)) => {
                    until = Instant::now() + lease.holder.expires_in;
                    pause = None;
                    withdrawable = Withdrawable::AsBefore;
                    if !self.tell(HoldEvent::Renewed(lease), until).await {
                        return End::Closed;
                    }
                }
                Ok(Err(how)) => return self.tell_last(HoldEvent::Lost(how)).await,
                Err(_) => {
                    pause = Some(
                        pause
                            .map_or(RETRY_MIN, |pause: Duration| (pause * 2).max(RETRY_MIN))
                            .min(ttl / 3),
                    );
                }
            }
        }
    }

    /// The lease as it is now, or why it is not there any more.
    async fn renew(
        &self,
        until: Instant,
        withdrawable: Withdrawable,
    ) -> Result<Result<Lease, NotHolder>, StoreError> {
        let change = Change {
            withdrawable,
            ..Change::default()
        };
        let (inner, claim) = (&self.request.inner, &self.request.claim);
        let (sent, deadline) = inner.start();
        let answer = inner
            .store
            .renew(&claim.names, claim.token, change, deadline.min(until))
            .await;
        inner.metrics.renew(sent.elapsed(), &answer);
        Ok(match age::renewed(answer?, &claim.names, sent) {
            Renewed::Extended(renewals) => renewals
                .into_iter()
                .next()
                .map(|renewal| renewal.lease)
                .ok_or(NotHolder::Unknown),
            Renewed::NotHolder(lost) => Err(lost
                .into_iter()
                .next()
                .map_or(NotHolder::Unknown, |lost| lost.how)),
            // A plain renewal changes nothing that could contradict.
            Renewed::Contradicts(_) => Err(NotHolder::Unknown),
        })
    }

    /// Says whether somebody took it. Who does not listen until the lease is over is gone.
    async fn tell(&self, event: HoldEvent, until: Instant) -> bool {
        let told = tokio::time::timeout_at(until, self.tells.send(event)).await;
        matches!(told, Ok(Ok(())))
    }

    async fn tell_last(&self, event: HoldEvent) -> End {
        let patience = Instant::now() + self.request.claim.ttl.get();
        // What ended has nothing left to release; of what is kept, the client goes on elsewhere.
        self.tell(event, patience).await;
        End::Over
    }
}

/// The one lease, or why there is none.
fn granted(answer: AcquireAnswer) -> Result<(Lease, Duration, bool), Outcome> {
    let AcquireAnswer {
        outcome,
        waited,
        undelivered,
    } = answer;
    let (leases, replayed) = match outcome {
        Outcome::Granted(leases) => (leases, false),
        Outcome::Reentered(leases) | Outcome::Replayed(leases) => (leases, true),
        refused @ (Outcome::Blocked(_)
        | Outcome::Contradicts(_)
        | Outcome::TooManyWaiters(_)
        | Outcome::TimedOut(_)
        | Outcome::Draining(_)
        | Outcome::Ended(_)
        | Outcome::Recovering { .. }) => return Err(refused),
    };
    // From here on the stream is what gives the lock back.
    undelivered.delivered();
    let lease = leases.into_iter().next();
    Ok((
        lease.expect("a claim has at least one lock"),
        waited,
        replayed,
    ))
}
