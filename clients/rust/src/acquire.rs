//! Acquiring: repeats the request of one claim until it is granted, refused, or the wait is over.

use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::runtime::Handle;
use tokio::time::sleep;
use uuid::Uuid;

use crate::claim::{Answer, Claim, Grant, in_ms};
use crate::error::Error;
use crate::lease::Lease;
use crate::moment::{Moment, jittered, later};
use crate::service::Service;

/// The wait of one request: shorter than what most proxies allow a request to take.
const POLL: Duration = Duration::from_secs(25);
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// A claim that is made when it is awaited.
///
/// Awaiting it gives a [`Lease`], or [`Error::Held`] when the wait is over, [`Error::Unavailable`] without a useful
/// answer, and [`Error::Refused`] for a wrong request. After an error, or when the future is dropped, the claim is
/// withdrawn.
#[must_use = "nothing is acquired until it is awaited"]
#[derive(Clone)]
pub struct Acquire {
    service: Arc<Service>,
    names: Vec<String>,
    token: Option<String>,
    hold_count: u16,
    wait: Option<Duration>,
    fields: Map<String, Value>,
}

impl Acquire {
    pub(crate) fn new(service: Arc<Service>, names: Vec<String>) -> Self {
        Self {
            service,
            names,
            token: None,
            hold_count: 1,
            wait: None,
            fields: Map::new(),
        }
    }

    /// How long the lease lasts without renewal, 30 s by default. It is renewed at a third of this.
    pub fn ttl(self, ttl: Duration) -> Self {
        self.with("ttl", in_ms(ttl))
    }

    /// How long to wait for the lock; zero does not wait.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Holds the lock together with other shared claims: a read lock.
    pub fn shared(self) -> Self {
        self.with("mode", "shared".into())
    }

    /// Takes a permit of a semaphore that has this many.
    pub fn semaphore(self, limit: u32) -> Self {
        self.shared().with("limit", limit.into())
    }

    /// How many permits of a semaphore to take, 1 by default.
    pub fn permits(self, permits: u32) -> Self {
        self.with("permits", permits.into())
    }

    /// Who holds, for others to read.
    pub fn owner(self, owner: impl Into<String>) -> Self {
        self.with("owner", owner.into().into())
    }

    /// A JSON object for others to read.
    pub fn metadata(self, metadata: Value) -> Self {
        self.with("metadata", metadata)
    }

    /// Keeps the lock taken at least this long, even if it is released earlier.
    pub fn min_hold(self, min_hold: Duration) -> Self {
        self.with("min_hold", in_ms(min_hold))
    }

    /// Ends the lease after this at the latest, whatever the renewals.
    pub fn max_hold(self, max_hold: Duration) -> Self {
        self.with("max_hold", in_ms(max_hold))
    }

    /// Keeps the lock closed for this long after the lease expired or was evicted.
    pub fn lock_delay(self, lock_delay: Duration) -> Self {
        self.with("lock_delay", in_ms(lock_delay))
    }

    /// Takes a free lock ahead of the queue.
    pub fn unfair(self) -> Self {
        self.with("fair", false.into())
    }

    /// The token of the claim, a new random UUID by default.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// The depth of re-entry, 1 by default. With the token of a held lease and a larger depth the lock is re-entered;
    /// releasing such a lease steps back.
    pub fn hold_count(mut self, hold_count: u16) -> Self {
        self.hold_count = hold_count;
        self.with("hold_count", hold_count.into())
    }

    fn with(mut self, name: &str, value: Value) -> Self {
        self.fields.insert(name.to_owned(), value);
        self
    }

    async fn run(self) -> Result<Lease, Error> {
        // If there is no key, that is the error, and nothing has to be withdrawn.
        self.service.check_key()?;
        let claim = Arc::new(Claim {
            names: self.names,
            token: self.token.unwrap_or_else(|| Uuid::new_v4().to_string()),
            hold_count: self.hold_count,
            fields: self.fields,
        });
        let mut acquisition = Acquisition {
            withdrawal: Withdrawal {
                service: self.service,
                claim,
                is_needed: false,
            },
            wait: self.wait,
            begun_at: Moment::now(),
            failures: 0,
            failing_since: Moment::now(),
        };
        let acquired = acquisition.until_granted().await;
        if acquired.is_err() {
            acquisition.withdrawal.withdraw().await;
        }
        acquired
    }
}

impl IntoFuture for Acquire {
    type Output = Result<Lease, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

struct Acquisition {
    withdrawal: Withdrawal,
    wait: Option<Duration>,
    begun_at: Moment,
    failures: u32,
    failing_since: Moment,
}

/// Withdraws a claim that the service may know of, also when the future that makes it is dropped.
struct Withdrawal {
    service: Arc<Service>,
    claim: Arc<Claim>,
    is_needed: bool,
}

impl Acquisition {
    async fn until_granted(&mut self) -> Result<Lease, Error> {
        loop {
            let wait = self.wait_left().min(POLL);
            let sent_at = Moment::now();
            // Cancellation safety: from here on, dropping this withdraws the claim.
            let was_needed = std::mem::replace(&mut self.withdrawal.is_needed, true);
            let Withdrawal { service, claim, .. } = &self.withdrawal;
            let answer = service.send(claim, claim.acquire(wait)).await;
            match answer.status {
                200 | 201 => {
                    let Some(grant) = Grant::read(&answer.body, &claim.names) else {
                        return Err(Error::Refused(answer.into()));
                    };
                    if sent_at.elapsed() < grant.valid_for {
                        let lease = Lease::new(service.clone(), claim.clone(), grant, sent_at);
                        self.withdrawal.is_needed = false;
                        return Ok(lease);
                    }
                    // The answer was too long under way. The next one says what is left.
                    sleep(self.pause_after(answer, sent_at)?).await;
                }
                423 => {
                    self.failures = 0;
                    self.withdrawal.is_needed = was_needed || !wait.is_zero();
                    let left = self.wait_left();
                    if left.is_zero() {
                        return Err(Error::Held(answer.into()));
                    }
                    // After a wait the next request follows at once, so that the claim keeps its turn; otherwise there is a
                    // pause.
                    let least = BACKOFF_MIN.saturating_sub(sent_at.elapsed());
                    sleep(later(answer.retry_after).max(least).min(left)).await;
                }
                _ if answer.is_temporary() => sleep(self.pause_after(answer, sent_at)?).await,
                _ => {
                    self.withdrawal.is_needed = was_needed;
                    let has_ended = answer.body["code"] == "claim_ended";
                    let kind = if has_ended {
                        Error::Lost
                    } else {
                        Error::Refused
                    };
                    return Err(kind(answer.into()));
                }
            }
        }
    }

    fn wait_left(&self) -> Duration {
        let wait = self.wait.unwrap_or(Duration::MAX);
        wait.saturating_sub(self.begun_at.elapsed())
    }

    /// There was no useful answer: when to ask again, unless that has failed for too long.
    fn pause_after(&mut self, answer: Answer, sent_at: Moment) -> Result<Duration, Error> {
        if self.failures == 0 {
            self.failing_since = sent_at;
        }
        let backoff = BACKOFF_MIN * 2_u32.pow(self.failures.min(8));
        self.failures += 1;
        let pause = jittered(backoff.min(BACKOFF_MAX)).max(later(answer.retry_after));
        let failing_for = self.failing_since.elapsed();
        if failing_for.saturating_add(pause) > self.withdrawal.service.retry_for {
            return Err(Error::Unavailable(answer.into()));
        }
        Ok(pause)
    }
}

impl Withdrawal {
    async fn withdraw(&mut self) {
        if self.is_needed {
            // If there is no answer, the place is lost by itself, and a lease ends with its TTL.
            self.service.send(&self.claim, self.claim.release()).await;
            self.is_needed = false;
        }
    }
}

impl Drop for Withdrawal {
    fn drop(&mut self) {
        // Outside of a runtime nothing can be sent; it is shutting down.
        if self.is_needed
            && let Ok(runtime) = Handle::try_current()
        {
            let (service, claim) = (self.service.clone(), self.claim.clone());
            runtime.spawn(async move { service.send(&claim, claim.release()).await });
        }
    }
}
