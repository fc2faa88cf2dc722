//! Acquiring the lock of `run`: one claim that keeps its token, and so its place, over as many requests as it takes.

use std::time::Duration;

use hyper::StatusCode;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::super::service::ClientError;
use super::boottime::BootTime;
use super::keeper::jittered;
use super::options::RunOptions;
use super::say::Say;
use crate::client::{Client, ClientClaim, GrantedLease, NoAnswer, ServiceAnswer};
use crate::domain::{LockName, duration};

/// The wait of one request: shorter than what proxies allow a request to take.
const POLL: Duration = Duration::from_secs(25);
/// The wait of the first request if somebody watches, who learns soon whom the runner waits for.
const FIRST_POLL: Duration = Duration::from_secs(1);
/// How much longer than its wait a request may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a service is asked that has not answered yet.
const UNREACHABLE_MAX: Duration = Duration::from_secs(10);
/// How long a service is asked that has put the claim in the queue: it may be restarting.
const AWAY_MAX: Duration = Duration::from_secs(60);
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(2);
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// A lease, when the request was sent that it answers, and whether the claim held before.
pub(super) struct AcquiredLease {
    pub(super) lease: GrantedLease,
    pub(super) sent_at: BootTime,
    pub(super) is_reentry: bool,
}

/// One claim in line.
pub(super) struct Acquisition<'a> {
    client: &'a mut Client,
    claim: &'a ClientClaim,
    options: &'a RunOptions,
    hold_count: Option<u16>,
    say: Say,
    begun_at: Instant,
    /// When the claim was last refused, and so had its place.
    refused_at: Option<Instant>,
    failures: u32,
    last_text: String,
}

impl<'a> Acquisition<'a> {
    pub(super) fn new(
        client: &'a mut Client,
        claim: &'a ClientClaim,
        options: &'a RunOptions,
        hold_count: Option<u16>,
        say: Say,
    ) -> Self {
        Self {
            client,
            claim,
            options,
            hold_count,
            say,
            begun_at: Instant::now(),
            refused_at: None,
            failures: 0,
            last_text: String::new(),
        }
    }

    /// Waits until the lock is granted or the wait is over. After an error nothing is left in the queue, as far as the
    /// service can be reached.
    pub(super) async fn acquire(mut self) -> Result<AcquiredLease, ClientError> {
        let acquired = self.until_granted().await;
        let may_be_queued = self.options.wait != Some(Duration::ZERO) || self.failures > 0;
        if acquired.is_err() && may_be_queued && self.hold_count.is_none() {
            leave(self.client, self.claim).await;
        }
        acquired
    }

    async fn until_granted(&mut self) -> Result<AcquiredLease, ClientError> {
        loop {
            let wait = self.next_wait();
            let call = self.claim.acquire(&self.fields(wait));
            let sent_at = BootTime::now();
            let pause = match self.client.send(&call, wait + ANSWER_TIMEOUT).await {
                Ok(answer) if answer.status.is_success() => {
                    match GrantedLease::read(&answer.body) {
                        Some(lease) => match self.with_time_left(lease, sent_at).await? {
                            Some((lease, sent_at)) => {
                                let is_reentry = answer.status == StatusCode::OK;
                                return Ok(AcquiredLease {
                                    lease,
                                    sent_at,
                                    is_reentry,
                                });
                            }
                            None => Duration::ZERO,
                        },
                        None => return Err(ClientError::refused(&answer, self.client.url())),
                    }
                }
                Ok(answer) if answer.status == StatusCode::LOCKED => self.after_refusal(&answer)?,
                Ok(answer) if answer.is_temporary() => self.after_trouble(Ok(&answer))?,
                Ok(answer) => return Err(ClientError::refused(&answer, self.client.url())),
                Err(error) => self.after_trouble(Err(&error))?,
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// How long the next request waits.
    fn next_wait(&self) -> Duration {
        let left = self.time_left().unwrap_or(Duration::MAX);
        match self.refused_at.is_none() && self.say.shows_progress() {
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
        if let Some(count) = self.hold_count {
            fields.insert("hold_count".to_owned(), json!(count));
        }
        fields
    }

    /// The lease, renewed if its answer was long under way. `None` if it has run out meanwhile.
    async fn with_time_left(
        &mut self,
        lease: GrantedLease,
        sent_at: BootTime,
    ) -> Result<Option<(GrantedLease, BootTime)>, ClientError> {
        if sent_at.after(lease.valid_for).remaining() > lease.ttl / 2 {
            return Ok(Some((lease, sent_at)));
        }
        let sent_at = BootTime::now();
        match self.client.send(&self.claim.renew(), ANSWER_TIMEOUT).await {
            Ok(answer) if answer.status == StatusCode::OK => {
                let lease = GrantedLease::read(&answer.body);
                let in_time =
                    lease.filter(|lease| !sent_at.after(lease.valid_for / 2).has_passed());
                Ok(in_time.map(|lease| (lease, sent_at)))
            }
            Ok(answer) if answer.is_temporary() => self.after_trouble(Ok(&answer)).map(|_| None),
            Ok(answer) => Err(ClientError::refused(&answer, self.client.url())),
            Err(error) => self.after_trouble(Err(&error)).map(|_| None),
        }
    }

    /// The lock is taken: when to ask again, or that the wait is over.
    fn after_refusal(&mut self, answer: &ServiceAnswer) -> Result<Duration, ClientError> {
        self.refused_at = Some(Instant::now());
        self.failures = 0;
        let names = shown(self.claim);
        let (holders, place) = (holders(&answer.body), place(&answer.body));
        if self.time_left().is_some_and(|left| left.is_zero()) {
            return Err(ClientError::Busy(format!("{names} is taken{holders}")));
        }
        let text = format!("waiting for {names}{holders}{place}");
        if text != self.last_text {
            self.say.progress(&text);
            self.last_text = text;
        }
        let pause = answer.retry_after.unwrap_or(Duration::from_secs(1));
        Ok(match self.time_left() {
            Some(left) => jittered(pause).min(left),
            None => jittered(pause),
        })
    }

    /// There was no useful answer: when to ask again, unless that has failed for too long.
    fn after_trouble(
        &mut self,
        answer: Result<&ServiceAnswer, &NoAnswer>,
    ) -> Result<Duration, ClientError> {
        let error = match answer {
            Ok(answer) => ClientError::Unreachable(format!(
                "{} answered {}: {}",
                self.client.url(),
                answer.status.as_u16(),
                answer.detail()
            )),
            Err(error) => ClientError::no_answer(error),
        };
        let backoff = RETRY_MIN * 2_u32.saturating_pow(self.failures.min(8));
        let asked = answer.ok().and_then(|answer| answer.retry_after);
        let pause = jittered(backoff.min(RETRY_MAX)).max(asked.unwrap_or_default());
        self.failures += 1;
        let (since, limit) = match self.refused_at {
            Some(refused_at) => (refused_at, AWAY_MAX),
            None => (self.begun_at, UNREACHABLE_MAX),
        };
        if since.elapsed() + pause > limit {
            return Err(error);
        }
        let text = format!("{error}; trying again");
        if text != self.last_text {
            self.say.progress(&text);
            self.last_text = text;
        }
        Ok(pause)
    }
}

/// Leaves the queue, and gives back what may have been granted.
pub(super) async fn leave(client: &mut Client, claim: &ClientClaim) {
    // If there is no answer, the place is lost by itself, and a lease ends with its TTL.
    let _ = client.send(&claim.release(None), LEAVE_TIMEOUT).await;
}

pub(super) fn shown(claim: &ClientClaim) -> String {
    let names: Vec<_> = claim.names().iter().map(LockName::as_str).collect();
    names.join(" ")
}

/// Who holds the lock, as far as the refusal says it.
fn holders(body: &Value) -> String {
    let of = |value: &Value| value["holders"].as_array().cloned().unwrap_or_default();
    let mut holders = of(body);
    for blocking in body["blocked_by"].as_array().into_iter().flatten() {
        holders.extend(of(blocking));
    }
    let owners = holders.iter().filter_map(|holder| holder["owner"].as_str());
    let mut owners: Vec<_> = owners.filter(|owner| !owner.is_empty()).collect();
    owners.sort_unstable();
    owners.dedup();
    match owners.as_slice() {
        [] => String::new(),
        [first, rest @ ..] if rest.len() > 2 => {
            format!(", held by {first} and {} others", rest.len())
        }
        owners => format!(", held by {}", owners.join(", ")),
    }
}

fn place(body: &Value) -> String {
    match (body["position"].as_u64(), body["queue_length"].as_u64()) {
        (Some(position), Some(length)) => format!("; place {position} of {length}"),
        (Some(position), None) => format!("; place {position}"),
        (None, _) => String::new(),
    }
}
