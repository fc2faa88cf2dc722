//! A lease: how long it lasts, its renewal, and its end.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::claim::{Claim, Grant};
use crate::error::{Error, Problem};
use crate::moment::{Moment, jittered, later};
use crate::service::Service;

const RENEWAL_TIMEOUT_MAX: Duration = Duration::from_secs(10);
const RELEASE_ATTEMPTS: u32 = 3;
const RELEASE_PAUSE: Duration = Duration::from_millis(400);

/// A held lock, or several. A task renews it until it is released or lost.
///
/// Dropping it releases the lock in the background, as far as the runtime still runs and the service can be reached.
/// [`Self::release`] says whether it worked.
pub struct Lease {
    kept: Arc<KeptLease>,
    runtime: Handle,
}

/// What the task that renews shares with the lease.
struct KeptLease {
    service: Arc<Service>,
    claim: Arc<Claim>,
    fencing_tokens: BTreeMap<String, u64>,
    validity: Mutex<Validity>,
    /// Changes when the lease is lost or released.
    has_ended: watch::Sender<bool>,
    /// Whether the service confirmed the release, once it has ended.
    was_confirmed: watch::Sender<Option<bool>>,
}

struct Validity {
    ttl: Duration,
    valid_for: Duration,
    /// When the request was sent that `valid_for` answers.
    confirmed_at: Moment,
    /// What the service last refused a renewal with.
    refusal: Option<Problem>,
    loss: Option<Problem>,
    is_released: bool,
}

impl Lease {
    pub(crate) fn new(
        service: Arc<Service>,
        claim: Arc<Claim>,
        grant: Grant,
        sent_at: Moment,
    ) -> Self {
        let validity = Validity {
            ttl: grant.ttl,
            valid_for: grant.valid_for,
            confirmed_at: sent_at,
            refusal: None,
            loss: None,
            is_released: false,
        };
        let kept = Arc::new(KeptLease {
            service,
            claim,
            fencing_tokens: grant.fencing_tokens,
            validity: Mutex::new(validity),
            has_ended: watch::Sender::new(false),
            was_confirmed: watch::Sender::new(None),
        });
        let runtime = Handle::current();
        let (keeper, mut has_ended) = (kept.clone(), kept.has_ended.subscribe());
        runtime.spawn(async move {
            tokio::select! {
                _ = has_ended.wait_for(|has_ended| *has_ended) => {}
                () = keeper.renew_until_lost() => {}
            }
        });
        Self { kept, runtime }
    }

    /// The names of the locks.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.kept.claim.names
    }

    /// Proves the claim. It is secret.
    #[must_use]
    pub fn token(&self) -> &str {
        &self.kept.claim.token
    }

    /// A number that is larger than that of every earlier grant of this lock. Send it with every write. Of several
    /// locks it is that of the first; [`Self::fencing_tokens`] has all.
    #[must_use]
    pub fn fencing_token(&self) -> u64 {
        let first = self.names().first();
        let token = first.and_then(|name| self.kept.fencing_tokens.get(name));
        token.copied().unwrap_or_default()
    }

    /// The fencing token of each lock, by name.
    #[must_use]
    pub fn fencing_tokens(&self) -> &BTreeMap<String, u64> {
        &self.kept.fencing_tokens
    }

    /// Whether the lease is certainly ours at this moment. It reads the clock, and so is right before any task ran.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// How long the lease certainly lasts without another renewal.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.kept.remaining()
    }

    /// Waits until the lease is lost, and returns [`Error::Lost`] with the reason. It never returns if the lease is
    /// released before that.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn lost(&self) -> Error {
        let mut has_ended = self.kept.has_ended.subscribe();
        // The sender lives as long as the lease.
        let _ = has_ended.wait_for(|has_ended| *has_ended).await;
        match self.kept.loss() {
            Some(loss) => Error::Lost(loss),
            None => std::future::pending().await,
        }
    }

    /// Runs the future, and drops it when the lease is lost.
    ///
    /// # Errors
    /// [`Error::Lost`], also if the future completed after the lease was over.
    ///
    /// # Cancel safety
    /// The future is dropped, and the lease stays as it is.
    pub async fn while_held<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        let result = tokio::select! {
            biased;
            lost = self.lost() => return Err(lost),
            result = work => result,
        };
        self.check()?;
        Ok(result)
    }

    /// Returns an error if the lease is lost: for use between steps of the work.
    ///
    /// # Errors
    /// [`Error::Lost`] with the reason.
    pub fn check(&self) -> Result<(), Error> {
        let _ = self.remaining();
        self.kept
            .loss()
            .map_or(Ok(()), |loss| Err(Error::Lost(loss)))
    }

    /// Releases the lock, and returns whether the service confirmed it; otherwise the lease ends with its TTL. A second
    /// release waits for the first, and returns the same.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lease was lost.
    ///
    /// # Cancel safety
    /// The release goes on in the background.
    pub async fn release(&self) -> Result<bool, Error> {
        let mut end = self.kept.was_confirmed.subscribe();
        if self.kept.begin_release() {
            let kept = self.kept.clone();
            let release = self.runtime.spawn(async move {
                let was_confirmed = kept.release().await;
                kept.was_confirmed.send_replace(Some(was_confirmed));
            });
            if release.await.is_err() {
                // The runtime is shutting down.
                self.kept.was_confirmed.send_replace(Some(false));
            }
        }
        // The sender lives as long as the lease.
        let end = end.wait_for(Option::is_some).await;
        let was_confirmed = end.is_ok_and(|end| *end == Some(true));
        self.kept
            .loss()
            .map_or(Ok(was_confirmed), |loss| Err(Error::Lost(loss)))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.kept.begin_release() {
            let kept = self.kept.clone();
            self.runtime.spawn(async move { kept.release().await });
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lease = formatter.debug_struct("Lease");
        lease.field("fencing_tokens", &self.kept.fencing_tokens);
        lease.finish_non_exhaustive()
    }
}

impl KeptLease {
    fn validity(&self) -> MutexGuard<'_, Validity> {
        // Nothing panics while it is locked.
        self.validity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remaining(&self) -> Duration {
        let mut validity = self.validity();
        if validity.loss.is_some() || validity.is_released {
            return Duration::ZERO;
        }
        let left = validity
            .valid_for
            .saturating_sub(validity.confirmed_at.elapsed());
        if left.is_zero() {
            // It stays over, also if an answer to a renewal comes late: the lease was reported as lost.
            let mut detail = "the lease was not renewed in time".to_owned();
            if let Some(Problem {
                status,
                detail: why,
                ..
            }) = &validity.refusal
            {
                detail += &format!(", because the service answered {status}: {why}");
            }
            validity.loss = Some(Problem::local("lease_expired", detail));
            drop(validity);
            self.has_ended.send_replace(true);
        }
        left
    }

    fn loss(&self) -> Option<Problem> {
        self.validity().loss.clone()
    }

    fn lose(&self, problem: Problem) {
        self.validity().loss.get_or_insert(problem);
        self.has_ended.send_replace(true);
    }

    async fn renew_until_lost(&self) {
        let mut pause = {
            let validity = self.validity();
            (validity.ttl / 3).saturating_sub(validity.confirmed_at.elapsed())
        };
        loop {
            sleep(pause.min(self.remaining())).await;
            let left = self.remaining();
            if left.is_zero() {
                return;
            }
            let ttl = self.validity().ttl;
            let timeout = (ttl / 4).min(RENEWAL_TIMEOUT_MAX).min(left);
            let sent_at = Moment::now();
            let answer = self
                .service
                .send(&self.claim, self.claim.renew(timeout))
                .await;
            if self.remaining().is_zero() {
                return;
            }
            pause = match (answer.status, Grant::read(&answer.body, &self.claim.names)) {
                (200, Some(grant)) => {
                    let pause = (grant.ttl / 3).saturating_sub(sent_at.elapsed());
                    let mut validity = self.validity();
                    validity.ttl = grant.ttl;
                    validity.valid_for = grant.valid_for;
                    validity.confirmed_at = sent_at;
                    validity.refusal = None;
                    pause
                }
                (409 | 412, _) => return self.lose(answer.into()),
                _ => {
                    let asked = later(answer.retry_after).min(ttl / 6);
                    if answer.is_refusal() {
                        self.note_refusal(answer.into());
                    }
                    asked.max(jittered(ttl / 10))
                }
            };
        }
    }

    /// The key is wrong now, for example. Somebody may correct that in time, so the first refusal is logged.
    fn note_refusal(&self, refusal: Problem) {
        let mut validity = self.validity();
        if validity.refusal.is_none() {
            let names = self.claim.names.join(" ");
            let Problem { status, detail, .. } = &refusal;
            log::warn!("{names} is not renewed, because the service answered {status}: {detail}");
        }
        validity.refusal = Some(refusal);
    }

    /// Whether this is the first release, which has to send it.
    fn begin_release(&self) -> bool {
        // Notices a loss, which it is too late for afterwards.
        let _ = self.remaining();
        let is_first = !std::mem::replace(&mut self.validity().is_released, true);
        self.has_ended.send_replace(true);
        is_first
    }

    async fn release(&self) -> bool {
        let attempts = match self.loss() {
            // The service itself said that the lease is gone.
            Some(loss) if loss.status != 0 => return false,
            // It may still keep others waiting, but it is not worth more than one attempt.
            Some(_) => 1,
            None => RELEASE_ATTEMPTS,
        };
        for attempt in 0..attempts {
            if attempt > 0 {
                sleep(jittered(RELEASE_PAUSE)).await;
            }
            let answer = self.service.send(&self.claim, self.claim.release()).await;
            match answer.status {
                200 | 204 => return true,
                412 => {
                    self.lose(answer.into());
                    return false;
                }
                _ if answer.is_temporary() => {}
                _ => return false,
            }
        }
        false
    }
}
