//! Which Redis this is, whether it still has its data, and how long new grants must wait if not.
//!
//! A Redis that came back without its data would grant locks that are still held. So the processes share the longest
//! TTL in use: each knows it before the first lease of that length is reported, and after a loss new grants wait that
//! long (Chubby's grace period; the delayed restart of Redlock). Renewals and releases continue.
//!
//! A history of the data without a loss is an epoch. It is stored with the data, and a script judges it in one step for
//! the whole fleet: see `lua/recovery.lua`.

mod clock;
mod contact;
mod fleet;
mod longest_ttl;
pub(super) mod members;
mod moving;
mod outage;
mod redis_time;
mod reply;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::RedisResult;
use redis::aio::MultiplexedConnection;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::UNPOISONED;
use super::info::ServerInfo;
use super::keys::RedisKeys;
use super::pubsub::PubSub;
use super::reply::Reply;
use super::scripts::{self, ScriptRequest};
use crate::config::RedisConfig;
use crate::domain::{Bucket, Fence};
use crate::store::{Fault, Finding};
pub(super) use fleet::FleetState;
pub(super) use members::QuorumMember;
use outage::Outage;
pub(super) use outage::verified_for;
use redis_time::RedisTime;
use reply::RecoveryReply;

/// The most exchanges in a row before [`Recovery::verify`] gives up, because there is always more to report.
const EXCHANGES_MAX: usize = 5;

/// State shared by all connections.
pub(super) struct Recovery {
    messages: Arc<PubSub>,
    fleet: Arc<FleetState>,
    pub(super) time: RedisTime,
    pub(super) outage: Outage,
    /// What the data of this history are kept under.
    keys: RedisKeys,
    /// The channel of announcements about losses and longest TTLs.
    channel: String,
    /// Whether other processes may know more about data of which the store and this process know nothing. They are
    /// counted by a store whose nodes cannot.
    may_have_others: Arc<AtomicBool>,
    accepted_policy: Option<String>,
    grace_on_empty_start: Duration,
    /// The other nodes, if it is a node of a quorum.
    member: Option<QuorumMember>,
    known: Mutex<KnownData>,
    is_refused: AtomicBool,
    /// Wakes the correction of all locks, if this process was the first to find that the clock was set back.
    pub(super) went_back: Notify,
    /// By bucket, the last fencing token seen in this epoch: a counter behind it shows a loss.
    last_fences: Box<[AtomicU64]>,
}

#[derive(Default)]
struct KnownData {
    server: Option<ServerInfo>,
    clock_offset_ms: i64,
    data_epoch: Option<u64>,
    /// Grows with every exchange of any process.
    revision: u64,
    /// The epoch whose data this process has found lost, until the store knows it.
    lost_epoch: Option<u64>,
    /// When another epoch or another Redis was found. Answers to earlier requests say nothing about it.
    changed_at: Option<Instant>,
    checked_at: Option<Instant>,
}

impl Recovery {
    /// Knows nothing of the data under these keys yet. `lease_max` is the longest lease that any process of the fleet may have granted.
    pub(super) fn new(
        config: &RedisConfig,
        lease_max: Duration,
        keys: RedisKeys,
        fleet: Arc<FleetState>,
        messages: Arc<PubSub>,
        member: Option<QuorumMember>,
    ) -> Self {
        let wait = config.grace_on_empty_start.then_some(lease_max);
        Self {
            channel: messages.recovery_channel(keys),
            may_have_others: messages.may_have_others(),
            keys,
            messages,
            fleet,
            time: RedisTime::new(),
            outage: Outage::new(config.check_interval),
            accepted_policy: config.accept_eviction_policy.clone(),
            grace_on_empty_start: wait.unwrap_or_default(),
            member,
            known: Mutex::default(),
            is_refused: AtomicBool::new(false),
            went_back: Notify::new(),
            last_fences: (0..keys.counters()).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Checks the data behind a connection before anything else is sent on it, whose Redis has just reported this about
    /// itself. It was opened in this generation. Returns the generation that it belongs to: a later one if this check was
    /// the first to find what makes it another.
    pub(super) async fn verify(
        &self,
        connection: &mut MultiplexedConnection,
        server: ServerInfo,
        mut generation: u64,
    ) -> RedisResult<u64> {
        if !server.runs_scripts() {
            // So nothing is granted.
            self.is_refused.store(true, Ordering::Relaxed);
            let mut known = self.known.lock().expect(UNPOISONED);
            // Connections of one generation all lead to one Redis.
            let before = known.server.as_ref();
            if before.is_some_and(|before| before.run_id != server.run_id) {
                generation = self.fleet.renew_connections();
            }
            known.server = Some(server);
            return Ok(generation);
        }
        for _ in 0..EXCHANGES_MAX {
            let exchange = self.exchange(connection, &server, generation);
            if let Some(generation) = exchange.await? {
                return Ok(generation);
            }
        }
        Err((
            redis::ErrorKind::Client,
            "the data changed at each of several checks",
        )
            .into())
    }

    /// Reports to the store what this process knows, and learns the state of the data and what other processes have
    /// reported. None if there is more to report.
    async fn exchange(
        &self,
        connection: &mut MultiplexedConnection,
        server: &ServerInfo,
        generation: u64,
    ) -> RedisResult<Option<u64>> {
        let empty_start = self.wait_if_empty(connection, server).await?;
        let request = ScriptRequest::new(&scripts::RECOVERY);
        let keys = self.keys;
        let node = [keys.node(), keys.longest_ttl(), keys.grace()];
        let node = node.each_ref().map(String::as_str);
        let used_ms = self.fleet.longest_ttl.used_ms();
        let sent_at = Instant::now();
        let mut command = request.command(&node);
        command
            .arg(&server.run_id)
            .arg(u8::from(server.is_durable()))
            .arg(&server.promoted_from);
        let known_ms = self.longest_ttl_ms(sent_at);
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
        command
            .arg(used_ms)
            .arg(known_ms)
            .arg(self.fleet.settle.as_millis() as u64)
            .arg(empty_start.as_millis() as u64)
            .arg(self.messages.events_channel())
            .arg(&self.channel)
            .arg(self.messages.wake_channel())
            .arg(self.fleet.clock.unset_us(sent_at))
            .arg(&server.in_cluster.own_id)
            .arg(&server.replid)
            .arg(&server.in_cluster.primaries)
            .arg(u8::from(self.may_have_others.load(Ordering::Relaxed)))
            .arg(keys.only_tag());
        let answer = connection.send_packed_command(&command).await;
        let value = request.with_text_if_unknown(connection, &command, answer);
        let value = value
            .await
            .inspect_err(|error| self.note_failed_check(error))?;
        let answered_at = Instant::now();
        let answer = Reply::to(request.id, value).and_then(|reply| RecoveryReply::read(reply).ok());
        let answer = answer.ok_or((
            redis::ErrorKind::Client,
            "the recovery script gave an invalid answer",
        ))?;
        if answer.went_back {
            tracing::warn!("the clock of the store was set back; every lock is checked");
            self.went_back.notify_one();
        }
        self.outage.note_check(sent_at, answer.revision > 0);
        if answer.longest_ttl_ms >= used_ms {
            self.fleet.longest_ttl.announced(used_ms);
        }
        let partition = self.keys.partition().unwrap_or(0);
        self.messages.may_count(partition, answer.may_count);
        self.messages
            .on_health_check(sent_at, answer.watchers, answer.listeners);
        Ok(self.apply(server, &answer, [sent_at, answered_at], generation))
    }

    /// Applies the store's answer over a connection of this generation. Returns the generation that it belongs to now, or none
    /// if another exchange is needed.
    fn apply(
        &self,
        server: &ServerInfo,
        answer: &RecoveryReply,
        [sent_at, answered_at]: [Instant; 2],
        mut generation: u64,
    ) -> Option<u64> {
        let mut known = self.known.lock().expect(UNPOISONED);
        let is_new_epoch = known.data_epoch != Some(answer.epoch);
        let is_other_redis =
            (known.server.as_ref()).is_none_or(|before| before.run_id != server.run_id);
        let is_overtaken = known.changed_at.is_some_and(|at| sent_at < at);
        if (is_new_epoch || is_other_redis) && is_overtaken {
            return None;
        }
        if !answer.grace_left.is_zero() {
            if !is_new_epoch && self.grace_left().is_none() {
                self.fleet.log_grace(answer.grace_left, "was away");
            }
            self.fleet.wait_until(answered_at + answer.grace_left);
        }
        if let Some(member) = &self.member {
            member.note(sent_at, answer.grace_left, answer.longest_ttl_ms);
        }
        let latest_us = self
            .fleet
            .clock
            .observe(answer.now_us, sent_at, answered_at);
        self.time.observe(answer.now_us, sent_at, answered_at);
        if is_new_epoch {
            self.begin_epoch(answer, known.data_epoch.is_some(), answered_at);
            known.revision = 0;
            known.lost_epoch = None;
        }
        self.fleet
            .longest_ttl
            .note_shared(answer.longest_ttl_ms, answered_at);
        if is_new_epoch || is_other_redis {
            known.changed_at = Some(answered_at);
            generation = self.fleet.renew_connections();
        }
        // An epoch that began after the clock was set already accounts for the step.
        let takes_into_account = |latest_us| is_new_epoch && answer.epoch > latest_us;
        if latest_us.is_some_and(|latest_us| !takes_into_account(latest_us)) {
            tracing::warn!("the clock of the store was set forward; leases may have ended early");
            known.lost_epoch = Some(answer.epoch);
        }
        let checked_at = known.checked_at.replace(sent_at).filter(|_| !answer.begins);
        let since = checked_at.unwrap_or(sent_at);
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
        known.clock_offset_ms = clock::offset_ms(answer.now_us, sent_at);
        known.server = Some(server.clone());
        let refusal = server.refusal(self.accepted_policy.as_deref());
        self.is_refused.store(refusal.is_some(), Ordering::Relaxed);
        (known.lost_epoch != known.data_epoch).then_some(generation)
    }

    fn begin_epoch(&self, answer: &RecoveryReply, knew_another: bool, answered_at: Instant) {
        let age = Duration::from_micros(answer.now_us.saturating_sub(answer.epoch));
        if let Some(began) = answered_at.checked_sub(age)
            && knew_another
        {
            self.fleet.lost(began);
            self.messages.data_lost();
        }
        self.fleet.begin_epoch(answer.epoch);
        self.fleet.longest_ttl.lost(answered_at);
        for fence in &self.last_fences {
            fence.store(0, Ordering::Relaxed);
        }
        if knew_another || !answer.grace_left.is_zero() {
            let left = self.grace_left().unwrap_or_default();
            self.fleet.log_grace(
                left,
                "was away, or may have lost leases that are still alive",
            );
        }
    }

    /// Notes that a lease with this TTL is about to be reported. Returns whether the other processes know of leases
    /// this long; if not, it must be announced first.
    pub(super) fn use_ttl(&self, ttl: Duration) -> bool {
        self.fleet.longest_ttl.use_ttl(ttl)
    }

    /// All processes know of leases this long.
    pub(super) fn announced(&self, ttl: Duration) {
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        self.fleet.longest_ttl.note_shared(ttl_ms, Instant::now());
    }

    /// A grant was made in this bucket, over a connection of this generation.
    pub(super) fn granted(&self, bucket: Bucket, fence: Fence, generation: u64) {
        if generation == self.generation() {
            self.last_fences[self.counter(bucket)].fetch_max(fence.get(), Ordering::AcqRel);
        }
    }

    /// The last known counter of a bucket, in the form of the scripts: a fencing token, or the negated epoch if this
    /// process has seen none.
    pub(super) fn last_fence(&self, bucket: Bucket) -> i64 {
        let fence = self.last_fences[self.counter(bucket)].load(Ordering::Acquire);
        let epoch = self.data_epoch();
        // A fence of an earlier epoch may have been noted a moment too late.
        if fence > epoch {
            fence.cast_signed()
        } else {
            -epoch.cast_signed()
        }
    }

    fn counter(&self, bucket: Bucket) -> usize {
        bucket.index() % self.last_fences.len()
    }

    /// The channel of announcements about losses and longest TTLs.
    pub(super) fn channel(&self) -> &str {
        &self.channel
    }

    /// Connections may lead elsewhere than before, as far as a request over a connection of this generation has found out.
    pub(super) fn moved(&self, generation: u64) {
        if generation == self.generation() {
            self.fleet.renew_connections();
        }
    }

    /// Whether the history is that of a partition of a cluster.
    pub(super) fn is_of_cluster(&self) -> bool {
        self.keys.partition().is_some()
    }

    /// The epoch of the data.
    pub(super) fn data_epoch(&self) -> u64 {
        self.fleet.data_epoch()
    }

    /// The generation of the connections: those of an earlier one are not used again.
    pub(super) fn generation(&self) -> u64 {
        self.fleet.generation()
    }

    pub(super) fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Relaxed)
    }

    /// How long new grants still wait.
    pub(super) fn grace_left(&self) -> Option<Duration> {
        self.fleet.grace_left()
    }

    /// Why grants are refused; none if they are not.
    pub(super) fn refusal(&self) -> Option<(Fault, String)> {
        let known = self.known.lock().expect(UNPOISONED);
        let server = known.server.as_ref()?;
        server.refusal(self.accepted_policy.as_deref())
    }

    /// The findings, and the offset of the clocks; none before the first contact.
    pub(super) fn findings(&self) -> Option<(Vec<Finding>, i64)> {
        let known = self.known.lock().expect(UNPOISONED);
        let server = known.server.as_ref()?;
        let findings = server.findings(self.accepted_policy.as_deref(), known.clock_offset_ms);
        Some((findings, known.clock_offset_ms))
    }
}

#[cfg(test)]
pub(super) mod tests;
