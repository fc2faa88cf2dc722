//! Holding a lock for as long as a stream is open: the wait, the lease, its renewals, and the release on close. The
//! encoding of the events is in `http`.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::Stream;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::ServiceShared;
use super::acquire::{AcquireAnswer, AcquireFailure, AcquireOutcome, Request, subtract_elapsed};
use super::held::HeldByStream;
use super::hold_observer::{HoldObserver, StreamLease};
use super::revocation::Revocation;
use super::wait_loop::WaitLoop;
use super::waiter::DisconnectGuard;
use crate::backoff::{self, Backoff};
use crate::domain::{Claim, GrantKind, Lease, NotHolder, Position, RenewOptions, Renewed};
use crate::limits::{Gate, GatePermit};
use crate::store::{Fault, StoreError};
use crate::telemetry::traces::{self, SpanScope};

/// The first pause before a failed renewal is retried; doubled each time.
const RETRY_MIN: Duration = Duration::from_millis(50);

/// How many permits of the peer's gate a renewal by a stream takes, because thousands of streams may renew at once. A
/// renewal by request takes one per lock.
const RENEWAL_WEIGHT: usize = 8;

/// An item of a [`Hold`].
#[derive(Debug)]
pub enum HoldEvent {
    /// The claim waits at this position.
    Queued(Position),
    /// The claim was granted.
    Acquired {
        /// The lease.
        lease: Lease,
        /// How long it waited in the queue.
        waited: Duration,
        /// Whether the claim already held.
        replayed: bool,
    },
    /// The lease was renewed.
    Renewed(Lease),
    /// The claim no longer holds the lock. The last event.
    Lost(NotHolder),
    /// The claim was not granted. The last event, and the only one unless the claim waited.
    Refused(Result<AcquireOutcome, StoreError>),
    /// The process is shutting down. The lease or the place is kept for the client to resume elsewhere. The last event.
    Draining,
    /// The claim may no longer hold the lock. The last event. A lease is not renewed from now on, and not released.
    Revoked {
        /// Whether it holds a lease, until that expires.
        is_held: bool,
    },
}

/// The events of one claim. Dropping it releases the lock, unless a later request with the same token has received the
/// lease; a waiting claim leaves the queue, and its place is kept for a while.
#[derive(Debug)]
pub struct Hold {
    events: mpsc::Receiver<DatedEvent>,
    is_over: bool,
}

/// An event, and the time at which its lease had the remaining time that it states.
#[derive(Debug)]
struct DatedEvent(Instant, HoldEvent);

impl Stream for Hold {
    type Item = HoldEvent;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<HoldEvent>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let event = ready!(self.events.poll_recv(context));
        Poll::Ready(event.map(|event| {
            event.with_current_remaining().unwrap_or_else(|| {
                // A listener that did not read until the lease expired is gone; closing the channel stops the task.
                self.events.close();
                self.is_over = true;
                HoldEvent::Lost(NotHolder::Expired)
            })
        }))
    }
}

impl DatedEvent {
    /// The event with the remaining time as of now, which may be long after it was sent. It may still have to wait for
    /// buffer space, see `server::delivery`. `None` if the lease has expired.
    fn with_current_remaining(self) -> Option<HoldEvent> {
        let Self(since, mut event) = self;
        match &mut event {
            HoldEvent::Acquired { lease, .. } | HoldEvent::Renewed(lease) => {
                subtract_elapsed([lease], since).ok()?;
            }
            HoldEvent::Queued(_)
            | HoldEvent::Lost(_)
            | HoldEvent::Refused(_)
            | HoldEvent::Draining
            | HoldEvent::Revoked { .. } => {}
        }
        Some(event)
    }
}

/// How a stream ended.
enum StreamEnd {
    /// The stream has nothing to release: the claim ended or was not granted, or the client resumes it elsewhere.
    Over,
    /// The listener has gone, and the claim holds this lease.
    Closed(StreamLease),
}

/// The task that waits for a claim and holds it.
struct HoldTask<O> {
    request: Request,
    observer: O,
    /// The renewals of all, in which those of streams count.
    renewals: Gate,
    held: HeldByStream,
    events: EventSender,
    /// The span of the request. It ends when the stream begins, so what follows the acquire is not part of its trace.
    scope: Option<SpanScope>,
}

/// Where the events of a stream go.
#[derive(Clone, Debug)]
pub(super) struct EventSender(mpsc::Sender<DatedEvent>);

impl EventSender {
    /// Sends the event if the channel has room. Returns whether it had.
    pub(super) fn try_send(&self, event: HoldEvent) -> bool {
        self.0.try_send(DatedEvent(Instant::now(), event)).is_ok()
    }

    /// Waits for room until the lease ends. Returns whether the event was sent: if not, the listener is gone.
    async fn send_until(&self, until: Instant, event: HoldEvent) -> bool {
        let event = DatedEvent(Instant::now(), event);
        let sent = tokio::time::timeout_at(until, self.0.send(event)).await;
        matches!(sent, Ok(Ok(())))
    }

    async fn closed(&self) {
        self.0.closed().await;
    }
}

impl ServiceShared {
    pub(super) fn hold(
        self: &Arc<Self>,
        request: Request,
        wait: Option<Duration>,
        mut revocation: Revocation,
        observer: impl HoldObserver,
        renewals: Gate,
    ) -> Hold {
        // One event at a time: without a reader, the lease is not renewed.
        let (sender, events) = mpsc::channel(1);
        let claim = Arc::new(Claim {
            takes_over: true,
            ..Arc::unwrap_or_clone(request.claim)
        });
        let task = HoldTask {
            // Registered before the acquire, so that no end of the lease is missed.
            held: self.held.register(claim.names.clone(), claim.token),
            request: Request { claim, ..request },
            observer,
            renewals,
            events: EventSender(sender),
            scope: traces::current(),
        };
        let inner = Arc::clone(self);
        self.in_background_untraced(async move {
            let _open = inner.metrics.acquires.stream("hold");
            let end = task.run(wait, &mut revocation).await;
            drop(task.held);
            if let StreamEnd::Closed(lease) = end
                && task.request.release_on_close(lease.ttl).await
            {
                task.observer.released(lease.fence);
            }
        });
        Hold {
            events,
            is_over: false,
        }
    }
}

impl<O: HoldObserver> HoldTask<O> {
    async fn run(&self, wait: Option<Duration>, revocation: &mut Revocation) -> StreamEnd {
        let inner = &self.request.inner;
        if inner.draining.is_cancelled() {
            return self.send_last(HoldEvent::Draining).await;
        }
        let acquiring = self.acquire(wait, revocation);
        let answer = traces::within(self.scope.clone(), acquiring).await;
        // The client may leave the answer unread, whatever it is.
        self.request.slot.release();
        if revocation.has_come() {
            let is_held = answer.is_ok_and(AcquireAnswer::revoke);
            return self.send_last(HoldEvent::Revoked { is_held }).await;
        }
        let AcquireAnswer {
            outcome,
            waited,
            unclaimed,
        } = match answer {
            Ok(answer) => answer,
            Err(error) => return self.send_last(HoldEvent::Refused(Err(error))).await,
        };
        let granted = match outcome {
            AcquireOutcome::Granted(granted) => granted,
            AcquireOutcome::Draining(_) => return self.send_last(HoldEvent::Draining).await,
            refused @ (AcquireOutcome::Refused(_)
            | AcquireOutcome::TooManyWaiters(_)
            | AcquireOutcome::TimedOut(_)) => {
                return self.send_last(HoldEvent::Refused(Ok(refused))).await;
            }
        };
        let replayed = granted.kind != GrantKind::New;
        let unclaimed = match replayed {
            true => unclaimed,
            false => self.observer.granted(&granted, unclaimed),
        };
        let lease = granted.leases.into_iter().next();
        let lease = lease.expect("a claim has at least one lock");
        let until = Instant::now() + lease.holder.expires_in;
        let reported = StreamLease::from(&lease);
        let acquired = HoldEvent::Acquired {
            lease,
            waited,
            replayed,
        };
        if !self.events.send_until(until, acquired).await {
            // Dropping `unclaimed` rolls back the grant.
            return StreamEnd::Over;
        }
        // From here on the stream releases the lock when it closes.
        unclaimed.delivered();
        self.keep(until, reported, revocation).await
    }

    async fn acquire(
        &self,
        wait: Option<Duration>,
        revocation: &mut Revocation,
    ) -> Result<AcquireAnswer, StoreError> {
        if wait.is_some_and(|wait| wait.is_zero()) {
            return self.request.clone().acquire_now(None).await;
        }
        match self.request.enter() {
            Ok(waiter) => {
                let waited = self.wait(DisconnectGuard(waiter), wait, revocation).await;
                waited.map_err(StoreError::from)
            }
            Err(queue_full) => self.request.clone().acquire_now(Some(queue_full)).await,
        }
    }

    async fn wait(
        &self,
        guard: DisconnectGuard,
        wait: Option<Duration>,
        revocation: &mut Revocation,
    ) -> Result<AcquireAnswer, AcquireFailure> {
        let waiter = Arc::clone(&guard.0);
        let waiting =
            WaitLoop::new(self.request.clone(), waiter, wait).with_progress(self.events.clone());
        let mut waiting = Box::pin(waiting.run());
        tokio::select! {
            answer = &mut waiting => return answer,
            () = self.events.closed() => drop(guard),
            () = revocation.come() => drop(guard),
        }
        waiting.await
    }

    /// Keeps renewing the lease with the lease's own TTL. It can differ from the claim's TTL if the lease was taken
    /// over, or was renewed by another request.
    async fn keep(
        &self,
        mut until: Instant,
        mut reported: StreamLease,
        revocation: &mut Revocation,
    ) -> StreamEnd {
        let revoked = HoldEvent::Revoked { is_held: true };
        let draining = &self.request.inner.draining;
        let mut backoff = Backoff::default();
        loop {
            let ttl = reported.ttl;
            let left = until.saturating_duration_since(Instant::now());
            // If `max_hold` limits the lease, each pause is half of the remaining time, but at least a 50th of the TTL.
            let interval = backoff
                .last()
                .unwrap_or_else(|| (ttl / 3).min(left / 2).max(ttl / 50));
            tokio::select! {
                () = self.events.closed() => return StreamEnd::Closed(reported),
                () = draining.cancelled() => return self.send_last(HoldEvent::Draining).await,
                () = revocation.come() => return self.send_last(revoked).await,
                () = self.held.ended() => {}
                // Jitter, so that streams opened together do not renew together.
                () = tokio::time::sleep(backoff::jittered(interval.min(left))) => {}
            }
            if until <= Instant::now() {
                return self.send_last(HoldEvent::Lost(NotHolder::Expired)).await;
            }
            let renewed = tokio::select! {
                () = self.events.closed() => return StreamEnd::Closed(reported),
                () = revocation.come() => return self.send_last(revoked).await,
                renewed = self.renew(until) => renewed,
            };
            match renewed {
                Ok(Ok(lease)) => {
                    until = Instant::now() + lease.holder.expires_in;
                    reported.ttl = lease.ttl.get();
                    backoff.reset();
                    if !self
                        .events
                        .send_until(until, HoldEvent::Renewed(lease))
                        .await
                    {
                        return StreamEnd::Closed(reported);
                    }
                }
                Ok(Err(reason)) => return self.send_last(HoldEvent::Lost(reason)).await,
                Err(_) => {
                    backoff.next(RETRY_MIN, ttl / 3);
                }
            }
        }
    }

    /// Renews the lease, or returns why the claim does not hold. A renewal that is in flight when the stream closes may
    /// arrive late; that is safe, because it keeps the rollback right as it was and creates no lease.
    async fn renew(&self, until: Instant) -> Result<Result<Lease, NotHolder>, StoreError> {
        let change = RenewOptions::AS_BEFORE;
        let (inner, claim) = (&self.request.inner, &self.request.claim);
        let (_, deadline) = inner.start();
        let deadline = deadline.min(until);
        let Some(_permits) = self.admit_renewal(deadline).await else {
            let detail = "other renewals came first";
            return Err(StoreError::unavailable(Fault::Timeout, detail));
        };
        let (_, deadline) = inner.start();
        let (leases, deadline) = (self.request.slot.leases(), deadline.min(until));
        let renewed = inner
            .renew(&claim.names, claim.token, change, leases, deadline)
            .await?;
        Ok(match renewed {
            Renewed::Extended(renewals) => renewals
                .into_iter()
                .next()
                .map(|renewal| renewal.lease)
                .ok_or(NotHolder::Unknown),
            Renewed::NotHolder(lost) => Err(lost
                .into_iter()
                .next()
                .map_or(NotHolder::Unknown, |lost| lost.reason)),
            // A renewal without a new mode cannot contradict.
            Renewed::Mismatched(_) => Err(NotHolder::Unknown),
        })
    }

    /// Waits until a renewal may be sent, because thousands of streams with short leases are cheap for a client.
    async fn admit_renewal(&self, deadline: Instant) -> Option<[Option<GatePermit>; 2]> {
        let of_peer = match self.request.slot.peer() {
            Some(peer) => Some(peer.renewals.pass(RENEWAL_WEIGHT, deadline).await?),
            None => None,
        };
        let of_all = self.renewals.pass(1, deadline).await?;
        Some([of_peer, Some(of_all)])
    }

    async fn send_last(&self, event: HoldEvent) -> StreamEnd {
        let until = Instant::now() + self.request.claim.ttl.get();
        // A claim that ended has nothing to release, and one that was kept is resumed elsewhere.
        self.events.send_until(until, event).await;
        StreamEnd::Over
    }
}
