//! Which Redis this is, whether it still has the data that it had, and how long new grants must wait if not.
//!
//! A Redis that came back without its data would grant locks that are still held. So the processes share the longest TTL
//! in use: each knows it before the first lease that lasts so long is reported, and after a loss new grants wait for as
//! long (Chubby's grace period; the delayed restart of Redlock). Renewals and releases go on.
//!
//! A history of the data without a loss is an epoch. Which one it is is kept in the data, and judged there, in one step for
//! the whole fleet: see `lua/recovery.lua`.

mod clock;
mod deadline;
mod fleet;
mod longest_ttl;
mod outage;
mod reply;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::RedisResult;
use redis::aio::MultiplexedConnection;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::info::ServerInfo;
use super::pubsub::PubSub;
use super::{keys, pool, scripts};
use crate::config::RedisConfig;
use crate::domain::{Bucket, Fence};
use crate::store::Finding;
use deadline::RedisDeadline;
pub(super) use fleet::FleetState;
use outage::Outage;
use reply::RecoveryReply;

const UNPOISONED: &str = "nobody panics while holding it";

/// How often the store is asked in a row until there is nothing left to tell it.
const EXCHANGES_MAX: usize = 5;

/// What all connections know together.
pub(super) struct Recovery {
    messages: Arc<PubSub>,
    fleet: Arc<FleetState>,
    deadline: RedisDeadline,
    outage: Outage,
    accepted_policy: Option<String>,
    grace_on_empty_start: Duration,
    known: Mutex<KnownData>,
    is_refused: AtomicBool,
    /// This process was the first to find that the clock of Redis was set back, and puts all locks right.
    pub(super) went_back: Notify,
    /// By bucket, the last fencing token seen in this epoch: a counter that is behind it was lost.
    last_fences: Box<[AtomicU64]>,
}

#[derive(Default)]
struct KnownData {
    facts: Option<ServerInfo>,
    clock_offset_ms: i64,
    data_epoch: Option<u64>,
    /// Grows with every exchange of any process.
    revision: u64,
    /// The epoch whose data this process has found lost and the store has not been told of.
    lost_epoch: Option<u64>,
    /// When another epoch or another Redis was found. What was asked before says nothing about it.
    changed_at: Option<Instant>,
    /// When the data were looked at last.
    looked_at: Option<Instant>,
}

impl Recovery {
    /// Knows nothing yet. `lease_max` is the longest lease that any process of the fleet may have granted.
    pub(super) fn new(
        config: &RedisConfig,
        lease_max: Duration,
        fleet: Arc<FleetState>,
        messages: Arc<PubSub>,
    ) -> Self {
        let wait = config.grace_on_empty_start.then_some(lease_max);
        Self {
            messages,
            fleet,
            deadline: RedisDeadline::new(),
            outage: Outage::new(),
            accepted_policy: config.accept_eviction_policy.clone(),
            grace_on_empty_start: wait.unwrap_or_default(),
            known: Mutex::default(),
            is_refused: AtomicBool::new(false),
            went_back: Notify::new(),
            last_fences: (0..Bucket::COUNT).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Looks at the Redis behind a connection before anything else is sent on it. Returns the connection epoch that it
    /// belongs to.
    pub(super) async fn verify(&self, connection: &mut MultiplexedConnection) -> RedisResult<u64> {
        let facts = ServerInfo::read(connection).await?;
        if !facts.is_primary() {
            // Nothing can be written there, and nothing is granted.
            self.is_refused.store(true, Ordering::Relaxed);
            self.known.lock().expect(UNPOISONED).facts = Some(facts);
            return Ok(self.epoch());
        }
        for _ in 0..EXCHANGES_MAX {
            if let Some(epoch) = self.exchange(connection, &facts).await? {
                return Ok(epoch);
            }
        }
        Err((
            redis::ErrorKind::Client,
            "the data change as often as they are looked at",
        )
            .into())
    }

    /// Tells the store what this process knows, and learns what the data and the other processes say. None if there is
    /// more to tell.
    async fn exchange(
        &self,
        connection: &mut MultiplexedConnection,
        facts: &ServerInfo,
    ) -> RedisResult<Option<u64>> {
        let (script, request) = (&scripts::RECOVERY, pool::request_id());
        let node = [keys::NODE, keys::LONGEST_TTL, keys::GRACE];
        let used_ms = self.fleet.longest_ttl.used_ms();
        let asked = Instant::now();
        let mut command = pool::call(script, &node, request);
        command
            .arg(&facts.run_id)
            .arg(u8::from(facts.is_durable()))
            .arg(&facts.promoted_from);
        {
            let known = self.known.lock().expect(UNPOISONED);
            match known.data_epoch {
                Some(epoch) => command.arg(epoch),
                None => command.arg(""),
            };
            let is_lost = known.lost_epoch.is_some() && known.lost_epoch == known.data_epoch;
            command.arg(known.revision).arg(u8::from(is_lost));
        }
        command.arg(u8::from(self.outage.is_long()));
        let known_ms = self.fleet.longest_ttl.known_ms(Instant::now());
        command
            .arg(used_ms)
            .arg(known_ms)
            .arg(self.fleet.settle.as_millis() as u64)
            .arg(self.grace_on_empty_start.as_millis() as u64)
            .arg(self.messages.events_channel())
            .arg(self.messages.recovery_channel())
            .arg(self.messages.wake_channel())
            .arg(self.fleet.clock.unset_us(asked));
        let value = pool::evaluate(connection, script, &command).await?;
        let answered = Instant::now();
        let answer =
            scripts::Reply::to(request, value).and_then(|reply| RecoveryReply::read(reply).ok());
        let answer = answer.ok_or((
            redis::ErrorKind::Client,
            "the recovery script answered out of form",
        ))?;
        if answer.went_back {
            tracing::warn!("the clock of the store was set back; all locks are looked at once");
            self.went_back.notify_one();
        }
        self.fleet.longest_ttl.announced(used_ms);
        self.messages.may_count(answer.may_count);
        self.messages
            .surveyed(asked, answer.watchers, answer.listeners);
        Ok(self.apply(facts, &answer, asked, answered))
    }

    /// Takes in what the store said. Returns the connection epoch unless the store must be asked again.
    fn apply(
        &self,
        facts: &ServerInfo,
        answer: &RecoveryReply,
        asked: Instant,
        answered: Instant,
    ) -> Option<u64> {
        let mut known = self.known.lock().expect(UNPOISONED);
        let is_new_epoch = known.data_epoch != Some(answer.epoch);
        let is_other_redis =
            (known.facts.as_ref()).is_none_or(|before| before.run_id != facts.run_id);
        let is_overtaken = known.changed_at.is_some_and(|at| asked < at);
        if (is_new_epoch || is_other_redis) && is_overtaken {
            return None;
        }
        if !answer.grace_left.is_zero() {
            if !is_new_epoch && self.grace_left().is_none() {
                grants_wait(answer.grace_left, "the store was away");
            }
            self.fleet.wait_until(answered + answer.grace_left);
        }
        let latest_us = self.fleet.clock.observe(answer.now_us, asked, answered);
        self.deadline.observe(answer.now_us, asked, answered);
        if is_new_epoch {
            self.begin_epoch(answer, known.data_epoch.is_some(), answered);
            known.revision = 0;
            known.lost_epoch = None;
        }
        self.fleet.longest_ttl.hear(answer.longest_ttl_ms, answered);
        if is_new_epoch || is_other_redis {
            known.changed_at = Some(answered);
            self.fleet.renew_connections();
        }
        // An epoch that began with the clock as it is now has taken the step into account.
        let takes_into_account = |latest_us| is_new_epoch && answer.epoch > latest_us;
        if latest_us.is_some_and(|latest_us| !takes_into_account(latest_us)) {
            tracing::warn!("the clock of the store was set forward; leases may have ended early");
            known.lost_epoch = Some(answer.epoch);
        }
        let looked_at = known.looked_at.replace(asked).filter(|_| !answer.begins);
        let since = looked_at.unwrap_or(asked);
        if is_new_epoch
            && self
                .fleet
                .clock
                .is_too_low(answer.epoch, answer.now_us, since)
        {
            known.lost_epoch = Some(answer.epoch);
        }
        known.data_epoch = Some(answer.epoch);
        known.revision = known.revision.max(answer.revision);
        known.clock_offset_ms = clock::offset_ms(answer.now_us);
        known.facts = Some(facts.clone());
        let refusal = facts.refusal(self.accepted_policy.as_deref());
        self.is_refused.store(refusal.is_some(), Ordering::Relaxed);
        let is_settled = known.lost_epoch != known.data_epoch;
        is_settled.then(|| self.epoch())
    }

    fn begin_epoch(&self, answer: &RecoveryReply, knew_another: bool, answered: Instant) {
        let age = Duration::from_micros(answer.now_us.saturating_sub(answer.epoch));
        if let Some(began) = answered.checked_sub(age)
            && knew_another
        {
            self.fleet.lost(began);
        }
        self.fleet.begin_epoch(answer.epoch);
        self.fleet.longest_ttl.lost(answered);
        for fence in &self.last_fences {
            fence.store(0, Ordering::Relaxed);
        }
        if knew_another || !answer.grace_left.is_zero() {
            let left = self.grace_left().unwrap_or_default();
            grants_wait(
                left,
                "the store was away, or may have lost leases that are still alive",
            );
        }
    }

    /// The data behind connections of this epoch were lost: a counter went back, or leases ended early because the clock
    /// was set forward. The store is told before any connection is used again.
    pub(super) fn declare_lost(&self, epoch: u64) {
        let mut known = self.known.lock().expect(UNPOISONED);
        // Of many requests that find out at the same time, the first one is enough.
        if epoch == self.epoch() {
            known.lost_epoch = known.data_epoch;
            self.fleet.renew_connections();
        }
    }

    /// Redis did not answer what was begun at `since`.
    pub(super) fn is_away(&self, since: Instant) {
        self.outage.noticed(since);
    }

    /// Redis has answered.
    pub(super) fn is_back(&self) {
        self.outage.is_over();
    }

    /// A connection was opened, and what is behind it was looked at.
    pub(super) fn is_connected(&self) {
        self.outage.verified();
        self.outage.is_over();
    }

    /// No connection could be opened. Those that there are may lead to a Redis that the address does not lead to any more.
    pub(super) fn is_not_connected(&self, since: Instant) {
        self.outage.noticed(since);
        if self.outage.is_unverifiable(since) {
            self.fleet.renew_connections();
        }
    }

    /// After a long outage no connection is used that may be left from before: only a new one is asked whether all were away.
    pub(super) fn renew_if_long_away(&self) {
        if self.outage.distrusts() {
            self.fleet.renew_connections();
        }
    }

    /// Whether waiters that cannot be heard may be passed over: Redis was not away of late, so they could have been.
    pub(super) fn passes_over(&self) -> bool {
        !self.outage.is_recent()
    }

    /// Whether Redis's clock, which showed this time when it answered what was asked at that moment, was set back.
    pub(super) fn is_behind(&self, redis_us: u64, asked: Instant) -> bool {
        redis_us < self.fleet.clock.earliest_us(asked)
    }

    /// Whether Redis's clock, which showed this time just now, was set forward.
    pub(super) fn is_ahead(&self, redis_us: u64) -> bool {
        redis_us > self.fleet.clock.latest_us(Instant::now())
    }

    /// The latest time of Redis at which a request may be carried out that is answered by `deadline`, and not afterwards.
    pub(super) fn not_after_us(&self, deadline: Instant) -> u64 {
        self.deadline.not_after_us(deadline)
    }

    /// By how much Redis's clock was set since the first contact, in milliseconds.
    pub(super) fn clock_shift_ms(&self) -> i64 {
        self.fleet.clock.shift_ms()
    }

    /// A lease with this TTL is about to be reported. Says whether the other processes know that leases last so long; if
    /// not, it must be announced first.
    pub(super) fn use_ttl(&self, ttl: Duration) -> bool {
        self.fleet.longest_ttl.use_ttl(ttl)
    }

    /// All processes know of leases that last so long.
    pub(super) fn announced(&self, ttl: Duration) {
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        self.fleet.longest_ttl.hear(ttl_ms, Instant::now());
    }

    /// A grant was made in this bucket, over a connection of this epoch.
    pub(super) fn granted(&self, bucket: Bucket, fence: Fence, epoch: u64) {
        if epoch == self.epoch() {
            self.last_fences[bucket.index()].fetch_max(fence.get(), Ordering::AcqRel);
        }
    }

    /// What a bucket's counter was last, as the scripts know it: a fencing token, or the negated epoch if this process has
    /// seen none.
    pub(super) fn last_fence(&self, bucket: Bucket) -> i64 {
        let fence = self.last_fences[bucket.index()].load(Ordering::Acquire);
        let epoch = self.data_epoch();
        // A fence of an earlier epoch may have been noted a moment too late.
        if fence > epoch {
            fence.cast_signed()
        } else {
            -epoch.cast_signed()
        }
    }

    /// The epoch of the data.
    pub(super) fn data_epoch(&self) -> u64 {
        self.fleet.data_epoch()
    }

    /// The epoch of the connections: those of an earlier one are not used again.
    pub(super) fn epoch(&self) -> u64 {
        self.fleet.connection_epoch()
    }

    pub(super) fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Relaxed)
    }

    /// How long new grants still wait.
    pub(super) fn grace_left(&self) -> Option<Duration> {
        self.fleet.grace_left()
    }

    /// Why grants are refused, what was found, and the offset of the clocks; none before the first contact.
    pub(super) fn findings(&self) -> Option<(Option<String>, Vec<Finding>, i64)> {
        let known = self.known.lock().expect(UNPOISONED);
        let facts = known.facts.as_ref()?;
        let findings = facts.findings(self.accepted_policy.as_deref(), known.clock_offset_ms);
        Some((
            facts.refusal(self.accepted_policy.as_deref()),
            findings,
            known.clock_offset_ms,
        ))
    }
}

fn grants_wait(left: Duration, why: &str) {
    tracing::warn!(
        new_grants_wait_ms = left.as_millis() as u64,
        "{why}; new grants wait, renewals and releases go on"
    );
}

#[cfg(test)]
mod tests;
