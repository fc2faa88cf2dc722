//! Leases in one Redis or Valkey: one script, one round trip for every operation, on Redis' own clock.
//!
//! This is the only room that knows Redis. Keys are made in `keys`, scripts are called and read in `scripts`, sockets
//! are kept in `pool`, and `topology` knows whether the data may be trusted.

mod call;
mod facts;
mod keys;
mod listing;
mod pool;
mod scripts;
mod topology;

use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use redis::Cmd;
use tokio::time::Instant;

use super::{Fault, ListQuery, LockStore, StoreError, StoreFuture, StoreHealth};
use crate::config::{RedisAddress, RedisConfig};
use crate::domain::{
    Acquired, Attempt, Claim, HoldCount, Holder, Listing, LockName, LockView, Metadata, Released,
    Renewed, Token, Ttl,
};
use pool::{Connection, Pool};
use scripts::{AcquireReply, Reply, Script};
use topology::Topology;

/// How long a survey may take.
const SURVEY_TIMEOUT: Duration = Duration::from_secs(2);

/// Leases in a Redis.
pub struct RedisStore {
    pool: Pool,
    topology: Arc<Topology>,
    mismatches: AtomicU64,
    survey: Mutex<Survey>,
}

/// What the last survey found out beside the topology.
#[derive(Default)]
struct Survey {
    /// Why the store could not be looked at, or that it could.
    last_look: Option<Result<(), String>>,
    /// What was found not to be fine.
    amiss: Vec<&'static str>,
    held_locks: Option<u64>,
    next_count: Option<Instant>,
}

impl RedisStore {
    /// Opens the Redis at `address` and looks at it. `lease_max` is the longest lease that may have been granted there.
    ///
    /// # Errors
    /// The Redis is configured so that it would lose leases. One that does not answer is no error here.
    pub async fn open(
        address: &RedisAddress,
        config: &RedisConfig,
        lease_max: Duration,
    ) -> Result<Self, StoreError> {
        let topology = Arc::new(Topology::new(config, lease_max));
        let pool = Pool::new(address, config, Arc::clone(&topology))
            .map_err(|error| StoreError::unavailable(Fault::Refused, error))?;
        let store = Self {
            pool,
            topology,
            mismatches: AtomicU64::new(0),
            survey: Mutex::default(),
        };
        let look = store.look().await;
        store.tell(&look);
        match store.topology.findings() {
            Some((Some(refusal), ..)) => Err(StoreError::unavailable(Fault::Refused, refusal)),
            Some((None, ..)) | None => Ok(store),
        }
    }

    async fn acquire(
        &self,
        claim: &Claim,
        attempt: Attempt,
        deadline: Instant,
    ) -> Result<Acquired, StoreError> {
        if self.topology.is_refused() {
            return Err(StoreError::unavailable(
                Fault::Refused,
                "the store is configured so that it would lose leases",
            ));
        }
        let bucket = claim.name.bucket();
        let command = || {
            // Read once the connection is there: getting it is what may find out that the data were lost.
            let may_grant = self.topology.grace_left().is_none();
            acquire_call(claim, attempt, may_grant, self.topology.last_fence(bucket))
        };
        let read = |reply: Reply, connection: &Connection| {
            let reply = reply.acquired(claim)?;
            match &reply {
                AcquireReply::Told(Acquired::Granted { lease, .. }) => {
                    let Holder {
                        fence, expires_in, ..
                    } = lease.holder;
                    self.topology.granted(bucket, fence, connection.epoch);
                    self.topology.reported(expires_in, connection.epoch);
                }
                AcquireReply::Told(Acquired::Reentered(lease) | Acquired::Replayed(lease)) => {
                    self.topology
                        .reported(lease.holder.expires_in, connection.epoch);
                }
                AcquireReply::Forgotten => self.topology.forgotten(connection.epoch),
                AcquireReply::Told(_)
                | AcquireReply::Waiting
                | AcquireReply::UsedUp
                | AcquireReply::Withdrawn => {}
            }
            Ok(reply)
        };
        match self
            .run(&scripts::ACQUIRE, attempt.0, deadline, command, read)
            .await?
        {
            AcquireReply::Told(acquired) => Ok(acquired),
            AcquireReply::Waiting | AcquireReply::Forgotten => Ok(self.recovering()),
            AcquireReply::UsedUp => Err(StoreError::unavailable(
                Fault::Corrupt,
                "the fencing counter is used up",
            )),
            AcquireReply::Withdrawn => Err(StoreError::unavailable(
                Fault::Timeout,
                "the attempt was withdrawn",
            )),
        }
    }

    fn recovering(&self) -> Acquired {
        Acquired::Recovering {
            retry_in: self.topology.grace_left().unwrap_or_default(),
        }
    }

    async fn inspect(&self, name: &LockName, deadline: Instant) -> Result<LockView, StoreError> {
        let request = pool::request_id();
        let command = || pool::call(&scripts::INSPECT, &[&keys::lock(name)], request);
        let state = self
            .run(&scripts::INSPECT, request, deadline, command, |reply, _| {
                reply.state()
            })
            .await?;
        Ok(LockView {
            name: name.clone(),
            state,
        })
    }

    /// Looks at the store once more. The error says why that was not possible.
    async fn look(&self) -> Result<(), String> {
        let deadline = Instant::now() + SURVEY_TIMEOUT;
        let mut connection = self
            .pool
            .get(deadline)
            .await
            .map_err(|failure| failure.detail)?;
        let met = tokio::time::timeout_at(deadline, self.topology.meet(connection.socket())).await;
        let trouble = match met {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer in time".to_owned(),
        };
        connection.abandon();
        Err(trouble)
    }

    /// Tells the log what has changed since the last look, and not every few seconds what has not.
    fn tell(&self, look: &Result<(), String>) {
        let findings = self
            .topology
            .findings()
            .map(|(_, findings, _)| findings)
            .unwrap_or_default();
        let mut survey = self.survey.lock().expect("nobody panics while holding it");
        let before = survey.last_look.replace(look.clone());
        match look {
            _ if before.as_ref() == Some(look) => {}
            Ok(()) => tracing::info!("the store answers"),
            Err(reason) => tracing::warn!(reason, "the store does not answer"),
        }
        let amiss: Vec<_> = findings
            .into_iter()
            .filter(|finding| !finding.is_fine)
            .collect();
        for finding in &amiss {
            if !survey.amiss.contains(&finding.topic) {
                tracing::warn!(topic = finding.topic, "{}", finding.detail);
            }
        }
        survey.amiss = amiss.iter().map(|finding| finding.topic).collect();
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RedisStore")
    }
}

impl LockStore for RedisStore {
    fn acquire<'a>(
        &'a self,
        claim: &'a Claim,
        attempt: Attempt,
        deadline: Instant,
    ) -> StoreFuture<'a, Acquired> {
        Box::pin(self.acquire(claim, attempt, deadline))
    }

    fn withdraw<'a>(
        &'a self,
        claim: &'a Claim,
        attempt: Attempt,
        deadline: Instant,
    ) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let script = &scripts::WITHDRAW;
            let command = || claim_call(script, &claim.name, claim.token, attempt.0);
            self.run(script, attempt.0, deadline, command, |mut reply, _| {
                reply.number().map(drop)
            })
            .await
        })
    }

    fn renew<'a>(
        &'a self,
        name: &'a LockName,
        token: Token,
        ttl: Option<Ttl>,
        deadline: Instant,
    ) -> StoreFuture<'a, Renewed> {
        Box::pin(async move {
            let (script, request) = (&scripts::RENEW, pool::request_id());
            let ttl_ms = ttl.map_or_else(String::new, |ttl| ttl.get().as_millis().to_string());
            let command = || {
                let mut command = claim_call(script, name, token, request);
                command.arg(&ttl_ms);
                command
            };
            let read = |reply: Reply, connection: &Connection| {
                let renewed = reply.renewed()?;
                if let Renewed::Extended(renewal) = &renewed {
                    let expires_in = renewal.lease.holder.expires_in;
                    self.topology.reported(expires_in, connection.epoch);
                }
                Ok(renewed)
            };
            self.run(script, request, deadline, command, read).await
        })
    }

    fn release<'a>(
        &'a self,
        name: &'a LockName,
        token: Token,
        hold_count: Option<HoldCount>,
        deadline: Instant,
    ) -> StoreFuture<'a, Released> {
        Box::pin(async move {
            let (script, request) = (&scripts::RELEASE, pool::request_id());
            let depth = hold_count.map_or_else(String::new, |count| count.get().to_string());
            let command = || {
                let mut command = claim_call(script, name, token, request);
                command.arg(&depth);
                command
            };
            self.run(script, request, deadline, command, |reply, _| {
                reply.released()
            })
            .await
        })
    }

    fn evict<'a>(
        &'a self,
        name: &'a LockName,
        reason: &'a str,
        deadline: Instant,
    ) -> StoreFuture<'a, Vec<Holder>> {
        Box::pin(async move {
            let (script, request) = (&scripts::EVICT, pool::request_id());
            let (lock, ended_prefix) = (keys::lock(name), keys::ended_prefix(name));
            let command = || {
                let mut command = pool::call(script, &[&lock, &ended_prefix], request);
                command.arg(reason);
                command
            };
            self.run(script, request, deadline, command, |reply, _| {
                reply.evicted()
            })
            .await
        })
    }

    fn inspect<'a>(&'a self, name: &'a LockName, deadline: Instant) -> StoreFuture<'a, LockView> {
        Box::pin(self.inspect(name, deadline))
    }

    fn list<'a>(&'a self, query: &'a ListQuery, deadline: Instant) -> StoreFuture<'a, Listing> {
        Box::pin(self.list(query, deadline))
    }

    fn survey(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let look = self.look().await;
            self.tell(&look);
        })
    }

    fn count(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.count_if_due())
    }

    fn health(&self) -> StoreHealth {
        let findings = self.topology.findings();
        let survey = self.survey.lock().expect("nobody panics while holding it");
        let contacted = findings.is_some();
        let (refused, findings, clock_offset_ms) = findings.unwrap_or_default();
        StoreHealth {
            contacted,
            up: matches!(survey.last_look, Some(Ok(()))),
            refused,
            recovering_for: self.topology.grace_left(),
            findings,
            held_locks: survey.held_locks,
            clock_offset_ms: contacted.then_some(clock_offset_ms),
            pool: Some(self.pool.health()),
            response_mismatches: self.mismatches.load(Ordering::Relaxed),
        }
    }
}

/// The call of `acquire.lua`. Of a claim's fields, those that are not given are empty.
fn acquire_call(claim: &Claim, attempt: Attempt, may_grant: bool, last_fence_seen: u64) -> Cmd {
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let digest = claim.token.digest(&claim.name);
    let mut command = redis::cmd("EVALSHA");
    command
        .arg(&scripts::ACQUIRE.sha)
        .arg(3)
        .arg(keys::lock(&claim.name))
        .arg(keys::fence(claim.name.bucket()))
        .arg(keys::ended(&claim.name, &digest))
        .arg(&digest.0)
        .arg(&attempt.0.to_be_bytes())
        .arg(u8::from(may_grant))
        .arg(last_fence_seen)
        .arg(millis(claim.ttl.get()))
        .arg(claim.hold_count.get());
    for optional in [claim.max_hold, claim.min_hold, claim.lock_delay] {
        match optional {
            Some(duration) => command.arg(millis(duration)),
            None => command.arg(""),
        };
    }
    let metadata = claim.metadata.as_ref().map_or("", Metadata::as_json);
    command.arg(claim.owner.as_str()).arg(metadata);
    command
}

/// The call of a script that acts on a claim.
fn claim_call(script: &Script, name: &LockName, token: Token, request: u64) -> Cmd {
    let digest = token.digest(name);
    let mut command = redis::cmd("EVALSHA");
    command
        .arg(&script.sha)
        .arg(2)
        .arg(keys::lock(name))
        .arg(keys::ended(name, &digest));
    command.arg(&digest.0).arg(&request.to_be_bytes());
    command
}
