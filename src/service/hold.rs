//! Holding a lock for as long as somebody listens: the wait, the lease, its renewals, and the release when nobody listens
//! any more. How the listener is told is HTTP's affair.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::Stream;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::acquire::Request;
use super::answer::{AcquireAnswer, AcquireOutcome};
use super::held::HeldByStream;
use super::jitter;
use super::wait_loop::WaitLoop;
use super::waiter::DisconnectGuard;
use super::{ServiceShared, UnclaimedLease, remaining};
use crate::domain::{Claim, Lease, NotHolder, Position, RenewOptions, Renewed, RollbackRight};
use crate::limits::{PeerLimits, Slot};
use crate::store::{Fault, StoreError};

/// Between two tries to renew; doubled each time.
const RETRY_MIN: Duration = Duration::from_millis(50);

/// For how many renewals that a client asks for one counts that a stream makes by itself, of which there may be thousands at
/// once.
const RENEWAL_COUNTS: usize = 8;

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
    Refused(Result<AcquireOutcome, StoreError>),
    /// The process is about to stop. The lease, or the place, is kept: the claim goes on elsewhere. The last event.
    Draining,
}

/// The events of one claim. Dropped, it gives back what it holds unless a later request with the same token was told of it;
/// nobody waits for it any more, and its place is kept for a while.
#[derive(Debug)]
pub struct Hold {
    events: mpsc::Receiver<DatedEvent>,
    is_over: bool,
}

/// An event, and when what it says of a lease was so.
#[derive(Debug)]
struct DatedEvent(Instant, HoldEvent);

impl Stream for Hold {
    type Item = HoldEvent;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<HoldEvent>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let told = ready!(self.events.poll_recv(context));
        Poll::Ready(told.map(|told| {
            told.by_now().unwrap_or_else(|| {
                // Who did not listen until the lease was over is gone, and the sender finds that out.
                self.events.close();
                self.is_over = true;
                HoldEvent::Lost(NotHolder::Expired)
            })
        }))
    }
}

impl DatedEvent {
    /// The event as it is when it is taken, which may be long after it was sent; it may still have to wait for room then, see
    /// `server::delivery`. None if its lease is over.
    fn by_now(self) -> Option<HoldEvent> {
        let Self(since, event) = self;
        Some(match event {
            HoldEvent::Acquired {
                lease,
                waited,
                replayed,
            } => HoldEvent::Acquired {
                lease: remaining::remaining(lease, since)?,
                waited,
                replayed,
            },
            HoldEvent::Renewed(lease) => HoldEvent::Renewed(remaining::remaining(lease, since)?),
            event @ (HoldEvent::Queued(_)
            | HoldEvent::Lost(_)
            | HoldEvent::Refused(_)
            | HoldEvent::Draining) => event,
        })
    }
}

/// How a stream ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StreamEnd {
    /// Nothing is left to give up: the listener was told how it ended, or is to go on elsewhere, or had gone before
    /// anything was granted.
    Over,
    /// Nobody listens to what is held, by a lease that lasts so long.
    Closed { ttl: Duration },
}

/// One claim that is held for a listener.
struct HoldTask {
    request: Request,
    /// The peer that listens, in whose share the lease is renewed.
    peer: Option<Arc<PeerLimits>>,
    held: HeldByStream,
    tells: EventSender,
}

/// Where the events of a stream go.
#[derive(Clone, Debug)]
pub(super) struct EventSender(mpsc::Sender<DatedEvent>);

impl EventSender {
    /// Tells what can be told at once. Says whether that was so.
    pub(super) fn at_once(&self, event: HoldEvent) -> bool {
        self.0.try_send(DatedEvent(Instant::now(), event)).is_ok()
    }

    /// Says whether somebody took it. Who does not listen until the lease is over is gone.
    async fn until(&self, until: Instant, event: HoldEvent) -> bool {
        let told = DatedEvent(Instant::now(), event);
        let told = tokio::time::timeout_at(until, self.0.send(told)).await;
        matches!(told, Ok(Ok(())))
    }

    async fn closed(&self) {
        self.0.closed().await;
    }
}

impl ServiceShared {
    pub(super) fn hold(
        self: &Arc<Self>,
        claim: Arc<Claim>,
        wait: Option<Duration>,
        slot: Slot,
    ) -> Hold {
        // One at a time: who does not listen in time is not renewed for.
        let (tells, events) = mpsc::channel(1);
        let claim = Arc::new(Claim {
            takes_over: true,
            ..Arc::unwrap_or_clone(claim)
        });
        let holding = HoldTask {
            // Before the lock is asked for, so that nothing is missed that ends the lease.
            held: self.held.register(claim.names.clone(), claim.token),
            peer: slot.peer(),
            request: Request::new(self, claim, slot),
            tells: EventSender(tells),
        };
        let inner = Arc::clone(self);
        self.in_background(async move {
            let _open = inner.metrics.open_stream("hold");
            let end = holding.run(wait).await;
            let Request { claim, attempt, .. } = holding.request;
            drop(holding.held);
            if let StreamEnd::Closed { ttl } = end {
                inner.release_on_close(&claim, attempt, ttl).await;
            }
        });
        Hold {
            events,
            is_over: false,
        }
    }
}

impl HoldTask {
    async fn run(&self, wait: Option<Duration>) -> StreamEnd {
        let inner = &self.request.inner;
        if inner.draining.is_cancelled() {
            return self.send_last(HoldEvent::Draining).await;
        }
        let answer = if wait.is_some_and(|wait| wait.is_zero()) {
            self.request.clone().at_once(None).await
        } else {
            match self.request.enter() {
                Ok(waiter) => self.wait(DisconnectGuard(waiter), wait).await,
                Err(crowd) => self.request.clone().at_once(Some(crowd)).await,
            }
        };
        let StreamGrant {
            lease,
            waited,
            replayed,
            undelivered,
        } = match answer {
            Ok(answer) => match granted(answer) {
                Ok(granted) => granted,
                Err(AcquireOutcome::Draining(_)) => {
                    return self.send_last(HoldEvent::Draining).await;
                }
                Err(refused) => return self.send_last(HoldEvent::Refused(Ok(refused))).await,
            },
            Err(error) => return self.send_last(HoldEvent::Refused(Err(error))).await,
        };
        let (until, ttl) = (Instant::now() + lease.holder.expires_in, lease.ttl.get());
        let acquired = HoldEvent::Acquired {
            lease,
            waited,
            replayed,
        };
        if !self.tells.until(until, acquired).await {
            // What nobody was told of is undelivered, and given back as such.
            return StreamEnd::Over;
        }
        // From here on the stream is what gives the lock back.
        undelivered.delivered();
        self.keep(until, ttl).await
    }

    async fn wait(
        &self,
        caller: DisconnectGuard,
        wait: Option<Duration>,
    ) -> Result<AcquireAnswer, StoreError> {
        let waiter = Arc::clone(&caller.0);
        let waiting = WaitLoop::new(self.request.clone(), waiter, wait).telling(self.tells.clone());
        let mut waiting = Box::pin(waiting.run());
        tokio::select! {
            answer = &mut waiting => return answer,
            () = self.tells.closed() => drop(caller),
        }
        waiting.await
    }

    /// Renews the lease again and again, by its own TTL: that of a lease that was taken over, or that was renewed by a
    /// request of another kind, is not what the claim asks for.
    async fn keep(&self, mut until: Instant, mut ttl: Duration) -> StreamEnd {
        let draining = &self.request.inner.draining;
        let mut pause: Option<Duration> = None;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            // Of a lease that cannot be made longer, what is left is halved until it is not worth the while.
            let rest = pause.unwrap_or_else(|| (ttl / 3).min(left / 2).max(ttl / 50));
            tokio::select! {
                () = self.tells.closed() => return StreamEnd::Closed { ttl },
                () = draining.cancelled() => return self.send_last(HoldEvent::Draining).await,
                () = self.held.ended() => {}
                // Streams that were opened together must not renew together.
                () = tokio::time::sleep(jitter::about(rest.min(left))) => {}
            }
            if until <= Instant::now() {
                return self.send_last(HoldEvent::Lost(NotHolder::Expired)).await;
            }
            let renewed = tokio::select! {
                () = self.tells.closed() => return StreamEnd::Closed { ttl },
                renewed = self.renew(until) => renewed,
            };
            match renewed {
                Ok(Ok(lease)) => {
                    until = Instant::now() + lease.holder.expires_in;
                    ttl = lease.ttl.get();
                    pause = None;
                    if !self.tells.until(until, HoldEvent::Renewed(lease)).await {
                        return StreamEnd::Closed { ttl };
                    }
                }
                Ok(Err(how)) => return self.send_last(HoldEvent::Lost(how)).await,
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

    /// The lease as it is now, or why it is not there any more. One that is still under way when the stream closes may
    /// arrive late: it leaves the right to roll the lease back as it was, and makes no lease.
    async fn renew(&self, until: Instant) -> Result<Result<Lease, NotHolder>, StoreError> {
        let change = RenewOptions {
            rollback_right: RollbackRight::AsBefore,
            ..RenewOptions::default()
        };
        let (inner, claim) = (&self.request.inner, &self.request.claim);
        let (_, deadline) = inner.start();
        let deadline = deadline.min(until);
        // Thousands of streams with short leases cost their client nothing, but may not all ask at once.
        let _turn = match &self.peer {
            Some(peer) => Some(
                peer.renewals
                    .pass(RENEWAL_COUNTS, deadline)
                    .await
                    .ok_or_else(|| {
                        StoreError::unavailable(
                            Fault::Timeout,
                            "other renewals of the peer came first",
                        )
                    })?,
            ),
            None => None,
        };
        let sent = Instant::now();
        let answer = inner
            .store
            .renew(&claim.names, claim.token, change, deadline)
            .await;
        inner.metrics.renew(sent.elapsed(), &answer);
        Ok(match remaining::renewed(answer?, sent)? {
            Renewed::Extended(renewals) => renewals
                .into_iter()
                .next()
                .map(|renewal| renewal.lease)
                .ok_or(NotHolder::Unknown),
            Renewed::NotHolder(lost) => Err(lost
                .into_iter()
                .next()
                .map_or(NotHolder::Unknown, |lost| lost.reason)),
            // A plain renewal changes nothing that could contradict.
            Renewed::Contradicts(_) => Err(NotHolder::Unknown),
        })
    }

    async fn send_last(&self, event: HoldEvent) -> StreamEnd {
        let patience = Instant::now() + self.request.claim.ttl.get();
        // What ended has nothing left to release; of what is kept, the client goes on elsewhere.
        self.tells.until(patience, event).await;
        StreamEnd::Over
    }
}

/// What a stream came to hold, and the duty to tell.
struct StreamGrant {
    lease: Lease,
    waited: Duration,
    replayed: bool,
    undelivered: UnclaimedLease,
}

/// The first lease, or why there is none.
fn granted(answer: AcquireAnswer) -> Result<StreamGrant, AcquireOutcome> {
    let AcquireAnswer {
        outcome,
        waited,
        undelivered,
    } = answer;
    let (leases, replayed) = match outcome {
        AcquireOutcome::Granted(leases) => (leases, false),
        AcquireOutcome::Reentered(leases) | AcquireOutcome::Replayed(leases) => (leases, true),
        refused @ (AcquireOutcome::Blocked(_)
        | AcquireOutcome::Contradicts(_)
        | AcquireOutcome::TooManyWaiters(_)
        | AcquireOutcome::TimedOut(_)
        | AcquireOutcome::Draining(_)
        | AcquireOutcome::Ended(_)
        | AcquireOutcome::Recovering { .. }) => return Err(refused),
    };
    let lease = leases.into_iter().next();
    Ok(StreamGrant {
        lease: lease.expect("a claim has at least one lock"),
        waited,
        replayed,
        undelivered,
    })
}
