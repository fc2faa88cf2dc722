//! Keeps a lease: renews it at a third of its TTL, repeats requests without an answer, and says when it is lost.

use std::time::Duration;

use hyper::StatusCode;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::super::boottime::{AsyncAlarm, BootTime};
use super::messages::CommandDeadline;
use crate::backoff::{at_least, jittered};
use crate::client::{Client, ClientClaim, GrantedLease, NoAnswer, ServiceAnswer};

/// How long one attempt may take at most, however long the TTL is.
const ATTEMPT_TIMEOUT_MAX: Duration = Duration::from_secs(10);
const KILL_AFTER_MAX: Duration = Duration::from_secs(10);
/// How long before the end of a lease its command is killed. This covers the time that killing takes, and clocks that run
/// at slightly different rates.
const MARGIN_MAX: Duration = Duration::from_secs(1);
const RELEASE_ATTEMPTS: u32 = 3;
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// What happened to the lease.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LeaseNews {
    /// It was renewed, so the command has until then.
    Renewed(CommandDeadline),
    /// A renewal failed and is repeated.
    Trouble(String),
    /// It is gone, or may be.
    Lost(String),
}

/// How a release ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReleaseOutcome {
    Released,
    /// The lease had ended before.
    WasLost(String),
    /// The lock stays taken until the lease ends.
    NotReleased(String),
}

/// A lease, when it was confirmed, and the claim that it belongs to.
pub(super) struct LeaseKeeper {
    pub(super) client: Client,
    pub(super) claim: ClientClaim,
    /// The depth to step back to at the end, if an outer `run` holds the lock.
    pub(super) outer_depth: Option<u16>,
    pub(super) lease: GrantedLease,
    /// When the last request that confirmed the lease was sent.
    pub(super) confirmed_at: BootTime,
    pub(super) kill_after: Option<Duration>,
}

impl LeaseKeeper {
    /// When the command has to end if the lease is not renewed.
    pub(super) fn deadline(&self) -> CommandDeadline {
        let ttl = self.lease.ttl;
        let kill_after = self.kill_after.unwrap_or((ttl / 5).min(KILL_AFTER_MAX));
        let valid_until = self.confirmed_at.after(self.lease.valid_for);
        let kill_at = valid_until.before((ttl / 10).min(MARGIN_MAX));
        CommandDeadline {
            terminate_at: kill_at.before(kill_after.min(ttl / 2)),
            kill_at,
        }
    }

    /// Renews until it is stopped or the lease is lost.
    pub(super) async fn keep(
        mut self,
        news: mpsc::Sender<LeaseNews>,
        stopped: CancellationToken,
    ) -> Self {
        tokio::select! {
            () = stopped.cancelled() => {}
            () = self.renew_until_lost(&news) => {}
        }
        self
    }

    async fn renew_until_lost(&mut self, news: &mpsc::Sender<LeaseNews>) {
        let Ok(alarm) = AsyncAlarm::new() else {
            let text = "the system has no timer left".to_owned();
            return send(news, LeaseNews::Lost(text)).await;
        };
        let mut at = self.confirmed_at.after(self.lease.ttl / 3);
        loop {
            if alarm.set(at).is_err() || alarm.goes_off().await.is_err() {
                let text = "the system's timer failed".to_owned();
                return send(news, LeaseNews::Lost(text)).await;
            }
            let sent_at = BootTime::now();
            if self.deadline().terminate_at.has_passed() {
                let text = "it could not be renewed in time".to_owned();
                return send(news, LeaseNews::Lost(text)).await;
            }
            let timeout = (self.lease.ttl / 4).min(ATTEMPT_TIMEOUT_MAX);
            let answer = self.client.send(&self.claim.renew(None), timeout).await;
            at = match self.after_renewal(answer, sent_at) {
                (LeaseNews::Renewed(deadline), _) => {
                    send(news, LeaseNews::Renewed(deadline)).await;
                    sent_at.after(self.lease.ttl / 3)
                }
                (LeaseNews::Trouble(text), pause) => {
                    send(news, LeaseNews::Trouble(text)).await;
                    let again_at = BootTime::now().after(pause);
                    again_at.min(self.deadline().terminate_at)
                }
                (lost @ LeaseNews::Lost(_), _) => return send(news, lost).await,
            };
        }
    }

    /// What an attempt to renew means, and when to repeat it.
    fn after_renewal(
        &mut self,
        answer: Result<ServiceAnswer, NoAnswer>,
        sent_at: BootTime,
    ) -> (LeaseNews, Duration) {
        let ttl = self.lease.ttl;
        let pause = jittered(ttl / 10);
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => return (LeaseNews::Trouble(error.to_string()), pause),
        };
        match (answer.status, self.claim.renewed_lease_in(&answer)) {
            (_, Some(lease)) => {
                self.lease = lease;
                self.confirmed_at = sent_at;
                (LeaseNews::Renewed(self.deadline()), Duration::ZERO)
            }
            (StatusCode::PRECONDITION_FAILED | StatusCode::CONFLICT, None)
                if answer.is_refusal() =>
            {
                (LeaseNews::Lost(answer.detail()), Duration::ZERO)
            }
            _ => {
                let pause = answer
                    .retry_after
                    .map_or(pause, |after| at_least(after).min(ttl / 6));
                (LeaseNews::Trouble(answer.problem()), pause.max(ttl / 50))
            }
        }
    }

    /// Releases the lock, or steps back to the depth of the outer run.
    pub(super) async fn release(&mut self) -> ReleaseOutcome {
        let call = self.claim.release(self.outer_depth);
        let mut problem = String::new();
        for attempt in 0..RELEASE_ATTEMPTS {
            if attempt > 0 {
                tokio::time::sleep(jittered(Duration::from_millis(300))).await;
            }
            problem = match self.client.send(&call, RELEASE_TIMEOUT).await {
                Ok(answer) if self.is_released(&answer) => return ReleaseOutcome::Released,
                Ok(answer)
                    if answer.status == StatusCode::PRECONDITION_FAILED && answer.is_refusal() =>
                {
                    return ReleaseOutcome::WasLost(answer.detail());
                }
                Ok(answer) => answer.problem(),
                Err(error) => error.to_string(),
            };
        }
        ReleaseOutcome::NotReleased(problem)
    }

    /// Whether the answer confirms the release. Any server could answer 200.
    fn is_released(&self, answer: &ServiceAnswer) -> bool {
        let is_stepped_back = || {
            self.outer_depth.is_some()
                && answer.status == StatusCode::OK
                && GrantedLease::read(&answer.body).is_some()
        };
        answer.is_release() || is_stepped_back()
    }
}

/// The runner reads all news until it stops the keeper.
async fn send(news: &mpsc::Sender<LeaseNews>, item: LeaseNews) {
    let _ = news.send(item).await;
}
