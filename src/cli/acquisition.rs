//! Acquiring a lock: one claim that keeps its token, and so its place, over as many requests as it takes.

use std::time::Duration;

use hyper::StatusCode;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::arguments::ClaimOptions;
use super::boottime::BootTime;
use super::notices::Notices;
use super::refusals::{held_for, holders, place};
use super::service::{self, ClientError};
use super::signals::ClientSignals;
use crate::backoff::at_least;
use crate::client::{Client, ClientClaim, GrantedLease, NoAnswer, RetryPauses, ServiceAnswer};
use crate::domain::{LockName, LockNames, Token, duration};

/// The wait of one request: shorter than what proxies allow a request to take.
const POLL: Duration = Duration::from_secs(25);
/// The wait of the first request if the command prints notices: its answer names the holder.
const FIRST_POLL: Duration = Duration::from_secs(1);
/// How much longer than its wait a request may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to try a service that has not answered yet.
const UNREACHABLE_MAX: Duration = Duration::from_secs(10);
/// How long to try a service that has queued the claim and then stopped answering: it may be restarting.
const AWAY_MAX: Duration = Duration::from_secs(60);
/// The pause between two notices about a wait if stderr is no terminal: the output of a scheduled job is kept or
/// mailed.
const NOTICE_PAUSE: Duration = Duration::from_secs(60);
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// A lease and its claim, and when the request for it was sent.
pub(super) struct AcquiredLease {
    pub(super) claim: ClientClaim,
    pub(super) lease: GrantedLease,
    pub(super) sent_at: BootTime,
    /// The grant, as the service wrote it.
    pub(super) answer: ServiceAnswer,
}

/// The end of an acquisition that did not fail.
pub(super) enum AcquisitionEnd {
    Granted(Box<AcquiredLease>),
    /// A signal asked to stop. The claim has left the queue.
    Stopped(Signal),
}

/// One claim and its place in the queue.
pub(super) struct Acquisition<'a> {
    client: &'a mut Client,
    claim: ClientClaim,
    options: &'a ClaimOptions,
    notices: Notices,
    begun_at: Instant,
    /// When the service last answered that the lock is taken.
    refused_at: Option<Instant>,
    /// Since when every grant has expired before its answer arrived.
    late_since: Option<Instant>,
    pauses: RetryPauses,
    /// Whether the claim may hold the lock although no grant has been returned.
    may_be_held: bool,
    notice: LastNotice,
}

/// The last notice about the wait, and when it was printed.
#[derive(Default)]
struct LastNotice(Option<(String, Instant)>);

impl LastNotice {
    /// Whether to print this: it differs from the last notice, which was printed `pause` ago or longer.
    fn is_due(&mut self, text: &str, now: Instant, pause: Duration) -> bool {
        let is_due = self
            .0
            .as_ref()
            .is_none_or(|(last, said_at)| last != text && now >= *said_at + pause);
        if is_due {
            self.0 = Some((text.to_owned(), now));
        }
        is_due
    }
}

impl<'a> Acquisition<'a> {
    pub(super) fn new(client: &'a mut Client, options: &'a ClaimOptions, notices: Notices) -> Self {
        Self {
            client,
            claim: new_claim(options),
            options,
            notices,
            begun_at: Instant::now(),
            refused_at: None,
            late_since: None,
            pauses: RetryPauses::default(),
            may_be_held: false,
            notice: LastNotice::default(),
        }
    }

    /// Waits until the lock is granted, the wait is over, or a signal asks to stop. Unless it is granted, nothing is left
    /// in the queue, as far as the service can be reached; but a claim of a token that the caller has chosen stays, because
    /// another command may hold the lock by it, or wait.
    pub(super) async fn acquire(
        mut self,
        signals: &mut ClientSignals,
    ) -> Result<AcquisitionEnd, ClientError> {
        let ended = tokio::select! {
            acquired = self.until_granted() => acquired.map(|acquired| AcquisitionEnd::Granted(Box::new(acquired))),
            signal = signals.next_stop() => Ok(AcquisitionEnd::Stopped(signal)),
        };
        let may_be_there = match &ended {
            Ok(AcquisitionEnd::Granted(_)) => false,
            Ok(AcquisitionEnd::Stopped(_)) => true,
            Err(_) => {
                let may_be_queued = self.options.wait != Some(Duration::ZERO);
                may_be_queued || self.pauses.has_begun() || self.may_be_held
            }
        };
        if may_be_there && self.options.token.is_none() {
            leave(self.client, &self.claim).await;
        }
        ended
    }

    async fn until_granted(&mut self) -> Result<AcquiredLease, ClientError> {
        loop {
            let wait = self.next_wait();
            let call = self.claim.acquire(&self.fields(wait));
            let sent_at = BootTime::now();
            let pause = match self.client.send(&call, wait + ANSWER_TIMEOUT).await {
                Ok(answer) if [StatusCode::OK, StatusCode::CREATED].contains(&answer.status) => {
                    match self.claim.lease_in(&answer) {
                        Some(lease) => {
                            let acquired = AcquiredLease {
                                claim: self.claim.clone(),
                                lease,
                                sent_at,
                                answer,
                            };
                            match self.with_time_left(acquired).await? {
                                Ok(acquired) => return Ok(acquired),
                                Err(pause) => pause,
                            }
                        }
                        None => return Err(self.given_up(&answer)),
                    }
                }
                Ok(answer) if answer.status == StatusCode::LOCKED && answer.is_refusal() => {
                    self.after_refusal(&answer)?
                }
                Ok(answer) if answer.used_up_quota().is_some() => self.after_quota(&answer)?,
                Ok(answer) if self.options.token.is_some() && has_ended(&answer) => {
                    return Err(ended(&answer.detail()));
                }
                Ok(answer) if has_expired(&answer) => self.after_late_grant()?,
                Ok(answer) if answer.is_temporary() => self.after_trouble(Ok(&answer))?,
                Ok(answer) => return Err(self.given_up(&answer)),
                Err(error) => self.after_trouble(Err(&error))?,
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// How long the next request waits.
    fn next_wait(&self) -> Duration {
        let left = self.time_left().unwrap_or(Duration::MAX);
        match self.refused_at.is_none() && self.notices.shows_notes() {
            true => left.min(FIRST_POLL),
            false => left.min(POLL),
        }
    }

    /// How much of the wait is left; `None` for ever.
    fn time_left(&self) -> Option<Duration> {
        let wait = self.options.wait?;
        Some(wait.saturating_sub(self.begun_at.elapsed()))
    }

    fn fields(&self, wait: Duration) -> serde_json::Map<String, Value> {
        let mut fields = self.options.fields.clone();
        if !wait.is_zero() {
            fields.insert("wait".to_owned(), json!(duration::format(wait)));
        }
        fields
    }

    /// The lease, renewed if its answer was long under way; or, if it has run out meanwhile, when to ask again.
    async fn with_time_left(
        &mut self,
        acquired: AcquiredLease,
    ) -> Result<Result<AcquiredLease, Duration>, ClientError> {
        let AcquiredLease { lease, sent_at, .. } = &acquired;
        if sent_at.after(lease.valid_for).remaining() > lease.ttl / 2 {
            return Ok(Ok(acquired));
        }
        self.may_be_held = true;
        let sent_at = BootTime::now();
        match self
            .client
            .send(&self.claim.renew(None), ANSWER_TIMEOUT)
            .await
        {
            Ok(answer) if answer.status == StatusCode::OK => match self.claim.lease_in(&answer) {
                Some(lease) if !sent_at.after(lease.valid_for / 2).has_passed() => {
                    Ok(Ok(AcquiredLease {
                        lease,
                        sent_at,
                        answer,
                        ..acquired
                    }))
                }
                Some(_) => self.after_useless_grant().map(Err),
                None => Err(self.given_up(&answer)),
            },
            Ok(answer)
                if answer.status == StatusCode::PRECONDITION_FAILED && answer.is_refusal() =>
            {
                self.after_late_grant().map(Err)
            }
            Ok(answer) if answer.is_temporary() => self.after_trouble(Ok(&answer)).map(Err),
            Ok(answer) => Err(self.given_up(&answer)),
            Err(error) => self.after_trouble(Err(&error)).map(Err),
        }
    }

    /// The error for an answer that ends the attempts. One that is not the service's may stand for a grant.
    fn given_up(&mut self, answer: &ServiceAnswer) -> ClientError {
        self.may_be_held |= !answer.is_refusal();
        ClientError::refused(answer, self.client.url())
    }

    /// A grant has expired before its answer arrived. Its claim has ended with it, so a new claim replaces it.
    fn after_late_grant(&mut self) -> Result<Duration, ClientError> {
        if self.options.token.is_some() {
            return Err(ended("its lease expired before the answer arrived"));
        }
        self.claim = new_claim(self.options);
        self.after_useless_grant()
    }

    /// The answers take about as long as the leases: when to ask again, unless that has failed for too long.
    fn after_useless_grant(&mut self) -> Result<Duration, ClientError> {
        let text = format!(
            "{} granted the lock, but its answer took too long for the TTL; a longer --ttl helps",
            self.client.url()
        );
        let pause = self.pauses.next(None);
        let since = *self.late_since.get_or_insert_with(Instant::now);
        self.try_again(
            ClientError::Unreachable(text),
            pause,
            (since, UNREACHABLE_MAX),
        )
    }

    /// The lock is taken: when to ask again, or that the wait is over.
    fn after_refusal(&mut self, answer: &ServiceAnswer) -> Result<Duration, ClientError> {
        let names = shown(self.claim.names());
        let (holders, place) = (holders(&answer.body), place(&answer.body));
        let left = held_for(&answer.body);
        let taken = ClientError::Busy(format!("{names} is taken{holders}{left}"));
        let waiting = format!("waiting for {names}{holders}{place}");
        self.keep_waiting(answer, taken, &waiting)
    }

    /// A quota is used up: the same. The lock may be free, and the claim has no place in the queue.
    fn after_quota(&mut self, answer: &ServiceAnswer) -> Result<Duration, ClientError> {
        let error = ClientError::refused(answer, self.client.url());
        let waiting = format!("waiting for {}: {error}", shown(self.claim.names()));
        self.keep_waiting(answer, error, &waiting)
    }

    /// When to ask again, never after the end of the wait; or the error, if that has come.
    fn keep_waiting(
        &mut self,
        answer: &ServiceAnswer,
        error: ClientError,
        notice: &str,
    ) -> Result<Duration, ClientError> {
        self.refused_at = Some(Instant::now());
        self.late_since = None;
        let left = self.time_left();
        if left.is_some_and(|left| left.is_zero()) {
            return Err(error);
        }
        self.pauses.reset();
        let pause = match self.notices.shows_progress() {
            true => Duration::ZERO,
            false => NOTICE_PAUSE,
        };
        if self.notice.is_due(notice, Instant::now(), pause) {
            self.notices.note(notice);
        }
        let pause = at_least(answer.retry_after.unwrap_or(Duration::from_secs(1)));
        Ok(left.map_or(pause, |left| pause.min(left)))
    }

    /// There was no useful answer: when to ask again, unless that has failed for too long.
    fn after_trouble(
        &mut self,
        answer: Result<&ServiceAnswer, &NoAnswer>,
    ) -> Result<Duration, ClientError> {
        let error = match answer {
            Ok(answer) => ClientError::refused(answer, self.client.url()),
            Err(error) => ClientError::no_answer(error),
        };
        if answer.is_err_and(NoAnswer::is_final) {
            return Err(error);
        }
        let pause = self.pauses.next(answer.ok());
        let limit = match self.refused_at {
            Some(refused_at) => (refused_at, AWAY_MAX),
            None => (self.begun_at, UNREACHABLE_MAX),
        };
        self.try_again(error, pause, limit)
    }

    fn try_again(
        &mut self,
        error: ClientError,
        pause: Duration,
        (since, limit): (Instant, Duration),
    ) -> Result<Duration, ClientError> {
        // A claim that does not wait for the lock is tried for as long as one that waits for ever.
        let wait = self.options.wait.filter(|wait| !wait.is_zero());
        let left = wait.map(|wait| wait.saturating_sub(self.begun_at.elapsed()));
        if let (Some(wait), Some(Duration::ZERO)) = (wait, left) {
            let wait = duration::format(wait);
            return Err(ClientError::Unreachable(format!(
                "the wait of {wait} is over: {error}"
            )));
        }
        let pause = left.map_or(pause, |left| pause.min(left));
        if since.elapsed() + pause > limit {
            return Err(error);
        }
        let text = format!("{error}; trying again");
        let is_long = since.elapsed() > service::NOTICE_AFTER;
        let is_said = is_long || self.notices.shows_progress();
        if is_said && self.notice.is_due(&text, Instant::now(), Duration::ZERO) {
            self.notices.note(&text);
        }
        Ok(pause)
    }
}

/// Leaves the queue, and gives back what may have been granted.
async fn leave(client: &mut Client, claim: &ClientClaim) {
    // If there is no answer, the place is lost by itself, and a lease ends with its TTL.
    let _ = client.send(&claim.release(None), LEAVE_TIMEOUT).await;
}

fn new_claim(options: &ClaimOptions) -> ClientClaim {
    let token = options.token.unwrap_or_else(Token::random);
    ClientClaim::new(options.names.clone(), token)
}

/// The claim of a token that the caller has chosen is over. The caller would not know another token.
fn ended(why: &str) -> ClientError {
    ClientError::Lost(format!(
        "the claim of this token has ended: {why}; acquire with another token"
    ))
}

fn has_ended(answer: &ServiceAnswer) -> bool {
    answer.code() == "claim_ended"
}

/// Whether the claim was granted and its lease has run out before its client learnt of it.
fn has_expired(answer: &ServiceAnswer) -> bool {
    has_ended(answer) && answer.body["ended"] == "expired"
}

pub(super) fn shown(names: &LockNames) -> String {
    let names: Vec<_> = names.iter().map(LockName::as_str).collect();
    names.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_said_once_and_not_before_the_pause_is_over() {
        let (begin, mut notice) = (Instant::now(), LastNotice::default());
        let mut is_due =
            |text, seconds| notice.is_due(text, begin + Duration::from_secs(seconds), NOTICE_PAUSE);
        assert!(is_due("place 2", 0));
        assert!(!is_due("place 1", 59));
        assert!(is_due("place 1", 60));
        assert!(!is_due("place 1", 600));
        assert!(is_due("place 2", 601));
    }
}
