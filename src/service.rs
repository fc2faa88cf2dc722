//! What happens to a request in time: deadlines, clients that hang up, outcomes that stay unknown.
//!
//! Nothing here knows HTTP or any particular store. Every operation runs to its end even when its caller is gone, a
//! grant that nobody received is given back, and a store that did not answer is asked again in the background.

mod detached;
mod give_back;
pub mod metrics;
mod undelivered;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior};
use tokio_util::task::TaskTracker;

use crate::domain::{
    Acquired, Attempt, Claim, HoldCount, Holder, Lease, Listing, LockName, LockView, NotHolder,
    Released, Renewed, Token, Ttl,
};
use crate::store::{Fault, ListQuery, LockStore, StoreError, StoreHealth};
use detached::Detached;
use metrics::LockMetrics;
pub use undelivered::Undelivered;

/// A listing looks at every lock in many steps, so it gets the time of so many operations.
const LIST_TIMEOUTS: u32 = 10;

/// The four operations on locks, and what operators ask for. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct LockService {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    store: Arc<dyn LockStore>,
    operation_timeout: Duration,
    metrics: LockMetrics,
    background: TaskTracker,
}

/// What came of an acquire, and the duty to deliver it.
#[derive(Debug)]
pub struct AcquireAnswer {
    /// What came of it.
    pub outcome: Acquired,
    /// To be marked as delivered when the answer is on its way; dropped before that, a new grant is given back.
    pub undelivered: Undelivered,
}

impl LockService {
    /// A service over a store, in which no single store operation may take longer than `operation_timeout`.
    #[must_use]
    pub fn new(
        store: Arc<dyn LockStore>,
        operation_timeout: Duration,
        metrics: LockMetrics,
    ) -> Self {
        let background = TaskTracker::new();
        Self {
            inner: Arc::new(Inner {
                store,
                operation_timeout,
                metrics,
                background,
            }),
        }
    }

    /// Grants the lock to the claim if it is free, or says who has it.
    ///
    /// # Errors
    /// The store could not answer. Where the outcome is unknown, what may have been granted is given back in the
    /// background, unless the claim is posted again first.
    ///
    /// # Cancel safety
    /// When the future is dropped, the operation still runs to its end, and a grant is given back.
    pub async fn acquire(&self, claim: Arc<Claim>) -> Result<AcquireAnswer, StoreError> {
        let inner = Arc::clone(&self.inner);
        self.to_the_end(async move {
            let attempt = Attempt::random();
            let (sent, deadline) = inner.start();
            let answer = inner.store.acquire(&claim, attempt, deadline).await;
            inner.metrics.acquire(sent.elapsed(), &answer);
            match answer {
                Ok(outcome) => {
                    let undelivered = Undelivered::of(&outcome, &inner, &claim, attempt);
                    Ok(AcquireAnswer {
                        outcome: age_acquired(outcome, sent)?,
                        undelivered,
                    })
                }
                Err(error) => {
                    if matches!(error, StoreError::Unknown { .. }) {
                        inner.withdraw_in_background(claim, attempt);
                    }
                    Err(error)
                }
            }
        })
        .await
    }

    /// Lets a lease last longer; never creates one.
    ///
    /// # Errors
    /// The store could not answer; the lease lasts at least until its former end.
    ///
    /// # Cancel safety
    /// When the future is dropped, the operation still runs to its end.
    pub async fn renew(
        &self,
        name: LockName,
        token: Token,
        ttl: Option<Ttl>,
    ) -> Result<Renewed, StoreError> {
        let inner = Arc::clone(&self.inner);
        self.to_the_end(async move {
            let (sent, deadline) = inner.start();
            let answer = inner.store.renew(&name, token, ttl, deadline).await;
            inner.metrics.renew(sent.elapsed(), &answer);
            Ok(match answer? {
                Renewed::Extended(mut renewal) => match age(renewal.lease, sent) {
                    Some(lease) => {
                        renewal.lease = lease;
                        Renewed::Extended(renewal)
                    }
                    None => Renewed::NotHolder(NotHolder::Expired),
                },
                Renewed::NotHolder(reason) => Renewed::NotHolder(reason),
            })
        })
        .await
    }

    /// Ends a claim, or steps it back to a smaller depth.
    ///
    /// # Errors
    /// The store could not answer; until it is asked again, the claim may hold or not.
    ///
    /// # Cancel safety
    /// When the future is dropped, the operation still runs to its end.
    pub async fn release(
        &self,
        name: LockName,
        token: Token,
        hold_count: Option<HoldCount>,
    ) -> Result<Released, StoreError> {
        let inner = Arc::clone(&self.inner);
        self.to_the_end(async move {
            let (sent, deadline) = inner.start();
            let answer = inner
                .store
                .release(&name, token, hold_count, deadline)
                .await;
            inner.metrics.release(sent.elapsed(), &answer);
            Ok(match answer? {
                Released::SteppedBack(lease) => age(lease, sent).map_or(
                    Released::NotHolder(NotHolder::Expired),
                    Released::SteppedBack,
                ),
                released @ (Released::Freed { .. }
                | Released::Repeated
                | Released::NotHolder(_)) => released,
            })
        })
        .await
    }

    /// Takes the lock away from its holders, whoever they are, and returns them.
    ///
    /// # Errors
    /// The store could not answer.
    ///
    /// # Cancel safety
    /// When the future is dropped, the operation still runs to its end.
    pub async fn evict(&self, name: LockName, reason: String) -> Result<Vec<Holder>, StoreError> {
        let inner = Arc::clone(&self.inner);
        self.to_the_end(async move {
            let (sent, deadline) = inner.start();
            let answer = inner.store.evict(&name, &reason, deadline).await;
            inner.metrics.evict(sent.elapsed(), &answer);
            answer
        })
        .await
    }

    /// What a lock is doing.
    ///
    /// # Errors
    /// The store could not answer.
    pub async fn inspect(&self, name: &LockName) -> Result<LockView, StoreError> {
        let (sent, deadline) = self.inner.start();
        let answer = self.inner.store.inspect(name, deadline).await;
        self.inner.metrics.inspect(sent.elapsed(), &answer);
        answer
    }

    /// One page of the held locks.
    ///
    /// # Errors
    /// The store could not answer.
    pub async fn list(&self, query: &ListQuery) -> Result<Listing, StoreError> {
        let sent = Instant::now();
        let deadline = sent + self.inner.operation_timeout * LIST_TIMEOUTS;
        let answer = self.inner.store.list(query, deadline).await;
        self.inner.metrics.list(sent.elapsed(), &answer);
        answer
    }

    /// What is known about the store without asking it.
    #[must_use]
    pub fn store_health(&self) -> StoreHealth {
        self.inner.store.health()
    }

    /// Surveys the store again and again, for ever; to be run as a task that ends with the process.
    pub async fn survey(&self, every: Duration) -> Infallible {
        let Inner { store, metrics, .. } = &*self.inner;
        let surveys = async {
            let mut ticks = ticks(every);
            loop {
                ticks.tick().await;
                store.survey().await;
                metrics.health(&store.health());
            }
        };
        // Apart from each other: no count may keep a loss of data from being noticed.
        let counts = async {
            let mut ticks = ticks(every);
            loop {
                ticks.tick().await;
                store.count().await;
            }
        };
        tokio::select! {
            never = surveys => never,
            never = counts => never,
        }
    }

    /// Waits until what runs in the background has ended, or `grace` is over.
    pub async fn shut_down(&self, grace: Duration) {
        self.inner.background.close();
        if tokio::time::timeout(grace, self.inner.background.wait())
            .await
            .is_err()
        {
            tracing::warn!(
                unfinished = self.inner.background.len(),
                "the store did not answer in time; leases that may be orphaned end with their TTL"
            );
        }
    }

    fn to_the_end<T: Send + 'static>(
        &self,
        operation: impl Future<Output = T> + Send + 'static,
    ) -> Detached<T> {
        Detached::new(operation, self.inner.background.clone())
    }
}

impl Inner {
    /// When an operation starts and by when it must be over.
    fn start(&self) -> (Instant, Instant) {
        let now = Instant::now();
        (now, now + self.operation_timeout)
    }
}

fn ticks(every: Duration) -> Interval {
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// The outcome as it is after the way back from the store.
///
/// A grant that is over before it could be reported is not reported: etcd once did (Jepsen, etcd 3.4.3).
fn age_acquired(outcome: Acquired, sent: Instant) -> Result<Acquired, StoreError> {
    let too_late = || {
        StoreError::unknown(
            Fault::Timeout,
            "the lease ended before it could be reported",
        )
    };
    Ok(match outcome {
        Acquired::Granted {
            lease,
            after_expiry,
        } => Acquired::Granted {
            lease: age(lease, sent).ok_or_else(too_late)?,
            after_expiry,
        },
        Acquired::Reentered(lease) => Acquired::Reentered(age(lease, sent).ok_or_else(too_late)?),
        Acquired::Replayed(lease) => Acquired::Replayed(age(lease, sent).ok_or_else(too_late)?),
        other @ (Acquired::Held(_)
        | Acquired::Cooling { .. }
        | Acquired::Ended(_)
        | Acquired::Recovering { .. }) => other,
    })
}

/// Counts the remaining time from before the request was sent, by this machine's monotonic clock: the lease was
/// granted somewhere between then and now, so it ends no earlier than what is reported. None if it is over.
fn age(mut lease: Lease, sent: Instant) -> Option<Lease> {
    lease.holder.expires_in = lease.holder.expires_in.checked_sub(sent.elapsed())?;
    (!lease.holder.expires_in.is_zero()).then_some(lease)
}
