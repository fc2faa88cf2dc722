//! Leases in one Redis or Valkey: one script, one round trip for every operation, on Redis' own clock.
//!
//! Only this module knows Redis. `keys` builds the keys; `commands` and `changes` call the scripts, and `decode` reads
//! their answers; `pool` keeps the connections; `pubsub` and `subscriber` handle messages between processes; `recovery`
//! knows whether the data can be trusted, and `reports` announces what the others must know before a grant is reported.

mod call;
mod changes;
mod commands;
mod constants;
mod decode;
mod events;
mod failure;
mod health;
mod info;
mod keys;
mod listing;
mod pool;
mod pubsub;
mod record;
mod recovery;
mod reports;
mod scripts;
mod subscriber;
mod views;

use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use super::pace::Pace;
use super::{
    Deadlines, Fault, Finding, ListQuery, Listener, LockStore, StoreError, StoreHealth, StoreResult,
};
use crate::config::{RedisAddress, RedisConfig};
use crate::domain::{
    Acquired, AnswerRoom, Attempt, Claim, Evicted, HoldCount, Holders, Listing, LockName,
    LockNames, LockView, QueueRequest, Released, RenewOptions, Renewed, Rollback, SuspendOptions,
    Suspended, Token,
};
use health::{CheckFailure, HealthCheck};
use pool::{Failure, Pool};
use pubsub::PubSub;
use recovery::{FleetState, Recovery};

/// How long a health check may take.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// Leases in a Redis.
pub struct RedisStore {
    pool: Arc<Pool>,
    recovery: Arc<Recovery>,
    messages: Arc<PubSub>,
    mismatches: AtomicU64,
    /// Held by the request that announces a TTL, so that only one of many with the same TTL does.
    announcing: tokio::sync::Mutex<()>,
    last_health: Mutex<HealthCheck>,
    /// The pace of listings and counts.
    pace: Pace,
}

impl RedisStore {
    /// Opens the Redis at `address` and checks it. `lease_max` is the longest lease that may have been granted there.
    ///
    /// # Errors
    /// The Redis is configured in a way that would lose leases. One that does not answer is no error here.
    pub async fn open(
        address: &RedisAddress,
        config: &RedisConfig,
        lease_max: Duration,
    ) -> Result<Self, StoreError> {
        let fleet = Arc::new(FleetState::new(config.check_interval));
        let process = pool::request_id();
        let messages = PubSub::new(process, address.database, Arc::clone(&fleet));
        let messages = Arc::new(messages);
        let recovery = Recovery::new(config, lease_max, fleet, Arc::clone(&messages));
        let recovery = Arc::new(recovery);
        let pool = Pool::new(address, config, Arc::clone(&recovery))
            .map_err(|error| StoreError::unavailable(Fault::Refused, error))?;
        let store = Self {
            pool: Arc::new(pool),
            recovery,
            messages,
            mismatches: AtomicU64::new(0),
            announcing: tokio::sync::Mutex::default(),
            last_health: Mutex::default(),
            pace: Pace::default(),
        };
        let check = store.check().await;
        store.log_changes(&check);
        match store.recovery.findings() {
            Some((Some(refusal), ..)) => Err(StoreError::unavailable(Fault::Refused, refusal)),
            Some((None, ..)) | None => Ok(store),
        }
    }

    async fn inspect(&self, name: &LockName, deadline: Instant) -> Result<LockView, StoreError> {
        let (script, request) = (&scripts::INSPECT, pool::request_id());
        let command = || {
            let mut command = pool::call(script, &[&keys::lock(name)], request);
            command.arg(self.messages.channel());
            command
        };
        let (state, queue) = self
            .run(script, request, deadline, command, |reply, _| {
                views::inspected(reply)
            })
            .await?;
        Ok(LockView {
            name: name.clone(),
            state,
            queue,
        })
    }

    async fn evict(
        &self,
        name: &LockName,
        reason: &str,
        deadlines: Deadlines,
    ) -> Result<Evicted, StoreError> {
        let script = &scripts::EVICT;
        let lock = keys::lock(name);
        let mut room = AnswerRoom::for_locks(1);
        let (mut holders, mut next) = (Holders::none(), Some(0));
        while let Some(cursor) = next {
            let request = pool::request_id();
            let mark = keys::evicted(name, request);
            let (sent_at, deadline) = (Instant::now(), deadlines.of_step());
            let listed_max = AnswerRoom::HOLDERS_MAX - holders.listed.len();
            let command = |_| {
                let mut command = pool::call(script, &[&lock, &mark], request);
                command.arg(self.recovery.time.not_after_us(deadline));
                command.arg(reason).arg(cursor);
                command.arg(self.messages.evictions_channel());
                command.arg(self.messages.channel());
                command.arg(listed_max);
                command
            };
            let step = self
                .run_in_time(script, request, deadline, command, views::evicted)
                .await
                .map(|(step, _)| step);
            // The message on the channel may be lost or late, and after a lost answer the outcome is unknown.
            if step.as_ref().map_or(true, |step| step.count > 0) {
                self.messages.evicted(name);
            }
            let step = match step {
                Ok(step) => step,
                // Evictions that were done must be reported.
                Err(_) if holders.total > 0 => break,
                Err(error) => return Err(error),
            };
            holders.total += step.count;
            holders.listed.extend(room.take(step.listed.into_iter()));
            // The time that lock_delay keeps the lock closed counts from now.
            if step.count > 0
                && self
                    .check_time(step.at_ms, sent_at, deadline)
                    .await
                    .is_err()
            {
                break;
            }
            next = step.next;
        }
        holders.listed.sort_by_key(|holder| holder.expires_at);
        let is_complete = next.is_none();
        Ok(Evicted {
            holders,
            is_complete,
        })
    }

    async fn set_event_delivery(&self, wanted: bool) {
        // If the connection is lost, the listener gets `events_lost` once events arrive again.
        let _ = tokio::time::timeout(CHECK_TIMEOUT, self.messages.set_event_delivery(wanted)).await;
    }

    /// Checks the store once. The error says why that was not possible.
    async fn check(&self) -> Result<(), CheckFailure> {
        let deadline = Instant::now() + CHECK_TIMEOUT;
        // The address may lead to another Redis than before, which existing connections do not notice.
        if let Ok(mut connection) = self.pool.connect(deadline).await {
            self.pool.sweep();
            let probing = self.messages.probe(connection.socket());
            // Whether messages can be sent is independent of whether the store answers.
            let _ = tokio::time::timeout_at(deadline, probing).await;
            // Opens a pooled connection before a request needs one.
            let _ = self.pool.get(deadline).await;
            return Ok(());
        }
        let mut connection = self.pool.get(deadline).await?;
        let checking = async {
            let verified = self.recovery.verify(connection.socket()).await;
            self.messages.probe(connection.socket()).await;
            verified
        };
        let trouble = match tokio::time::timeout_at(deadline, checking).await {
            Ok(Ok(_)) => {
                // The address may lead to a suitable Redis by now, for example after a failover.
                if self.recovery.is_refused() {
                    connection.abandon();
                }
                return Ok(());
            }
            Ok(Err(error)) => Failure::of(&error),
            Err(_) => Failure::timed_out(),
        };
        connection.abandon();
        Err(trouble.into())
    }

    /// Why grants are refused, the findings, and the offset of the clocks; none before the first contact.
    fn findings(&self) -> Option<(Option<String>, Vec<Finding>, i64)> {
        let (refusal, mut findings, clock_offset_ms) = self.recovery.findings()?;
        findings.push(self.messages.finding());
        Some((refusal, findings, clock_offset_ms))
    }

    fn log_changes(&self, check: &Result<(), CheckFailure>) {
        let findings = self.findings().map(|(_, findings, _)| findings);
        let mut last_health = self
            .last_health
            .lock()
            .expect("nobody panics while holding it");
        last_health.log_changes(self.pool.address(), check, findings);
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RedisStore")
    }
}

#[async_trait]
impl LockStore for RedisStore {
    async fn acquire(
        &self,
        claim: &Claim,
        attempt: Attempt,
        request: Option<&QueueRequest>,
        deadline: Instant,
    ) -> StoreResult<Acquired> {
        self.acquire(claim, attempt, request, deadline).await
    }

    async fn suspend(
        &self,
        claim: &Claim,
        options: SuspendOptions,
        deadline: Instant,
    ) -> StoreResult<Suspended> {
        self.suspend(claim, options, deadline).await
    }

    async fn withdraw(
        &self,
        claim: &Claim,
        attempt: Attempt,
        rollback: Rollback,
        deadline: Instant,
    ) -> StoreResult<()> {
        self.withdraw(claim, attempt, rollback, deadline).await
    }

    async fn renew(
        &self,
        names: &LockNames,
        token: Token,
        change: RenewOptions,
        deadline: Instant,
    ) -> StoreResult<Renewed> {
        self.renew(names, token, change, deadline).await
    }

    async fn release(
        &self,
        names: &LockNames,
        token: Token,
        hold_count: Option<HoldCount>,
        deadline: Instant,
    ) -> StoreResult<Vec<Released>> {
        self.release(names, token, hold_count, deadline).await
    }

    async fn evict(
        &self,
        name: &LockName,
        reason: &str,
        deadlines: Deadlines,
    ) -> StoreResult<Evicted> {
        self.evict(name, reason, deadlines).await
    }

    async fn inspect(&self, name: &LockName, deadline: Instant) -> StoreResult<LockView> {
        self.inspect(name, deadline).await
    }

    async fn list(&self, query: &ListQuery, deadlines: Deadlines) -> StoreResult<Listing> {
        self.list(query, deadlines).await
    }

    async fn refresh_health(&self) {
        let check = self.check().await;
        self.log_changes(&check);
    }

    async fn sweep(&self) {
        self.sweep().await
    }

    fn health(&self) -> StoreHealth {
        let findings = self.findings();
        let last_health = self
            .last_health
            .lock()
            .expect("nobody panics while holding it");
        let contacted = findings.is_some();
        let (refused, findings, clock_offset_ms) = findings.unwrap_or_default();
        StoreHealth {
            contacted,
            up: matches!(last_health.last_check, Some(Ok(()))),
            trouble: match &last_health.last_check {
                Some(Err(trouble)) => Some(trouble.explanation.clone()),
                Some(Ok(())) | None => None,
            },
            refused,
            recovering_for: self.recovery.grace_left(),
            findings,
            held_locks: last_health.held_locks,
            clock_offset_ms: contacted.then_some(clock_offset_ms),
            pool: Some(self.pool.health()),
            response_mismatches: self.mismatches.load(Ordering::Relaxed),
        }
    }

    fn set_listener(&self, listener: Arc<dyn Listener>) {
        self.messages
            .set_listener(self.pool.client(), &self.pool, listener);
    }

    async fn set_event_delivery(&self, wanted: bool) {
        self.set_event_delivery(wanted).await
    }
}
