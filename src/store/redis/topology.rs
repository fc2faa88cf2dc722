//! Which Redis this is, whether it still has the data that it had, and how long new grants must wait if not.
//!
//! A Redis that came back without its data would grant locks that are still held. So each process remembers the latest
//! end of a lease that it reported, the processes share the latest of all through the store, and after a loss new
//! grants wait until then (Chubby's grace period; the delayed restart of Redlock). Renewals and releases go on.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::RedisResult;
use redis::aio::MultiplexedConnection;
use tokio::time::Instant;

use super::facts::Facts;
use super::messages::Messages;
use super::{keys, pool, scripts};
use crate::config::RedisConfig;
use crate::domain::{Bucket, Fence};
use crate::store::Finding;

/// By how much a published horizon may seem shorter than it should, for timers that are read at different moments.
const HORIZON_TOLERANCE: Duration = Duration::from_secs(1);

/// What all connections know together.
pub(super) struct Topology {
    base: Instant,
    messages: Arc<Messages>,
    accepted_policy: Option<String>,
    grace_on_empty_start: Option<Duration>,
    /// After a loss, how long the other processes get to tell what they know.
    settle: Duration,
    known: Mutex<Known>,
    /// Counts the times that the data were or may have been lost. Connections of an earlier epoch are not used again.
    epoch: AtomicU64,
    is_refused: AtomicBool,
    /// Moments as milliseconds after `base`; 0 for none.
    horizon_ms: AtomicU64,
    grace_ms: AtomicU64,
    /// By bucket, the last fencing token seen in this epoch: a counter that is behind it was lost.
    last_fences: Box<[AtomicU64]>,
}

#[derive(Default)]
struct Known {
    facts: Option<Facts>,
    clock_offset_ms: i64,
    /// Until when the shared horizon must be found in the store.
    published_until: Option<Instant>,
}

/// What the fleet's keys said, in time left.
struct Fleet {
    now_us: u64,
    is_marked: bool,
    horizon_before: Duration,
    horizon_after: Duration,
    grace_after: Duration,
    /// How many processes hear events.
    watchers: u64,
}

impl Topology {
    /// Knows nothing yet. `lease_max` is the longest lease that any process of the fleet may have granted.
    pub(super) fn new(config: &RedisConfig, lease_max: Duration, messages: Arc<Messages>) -> Self {
        Self {
            base: Instant::now(),
            messages,
            accepted_policy: config.accept_eviction_policy.clone(),
            grace_on_empty_start: config.grace_on_empty_start.then_some(lease_max),
            settle: config.survey_interval + Duration::from_secs(1),
            known: Mutex::default(),
            epoch: AtomicU64::new(0),
            is_refused: AtomicBool::new(false),
            horizon_ms: AtomicU64::new(0),
            grace_ms: AtomicU64::new(0),
            last_fences: (0..Bucket::COUNT).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Looks at the Redis behind a connection before anything else is sent on it. Returns the epoch it belongs to.
    pub(super) async fn meet(&self, connection: &mut MultiplexedConnection) -> RedisResult<u64> {
        let facts = Facts::read(connection).await?;
        let fleet = self.consult(connection).await?;
        if self.judge(facts, &fleet) {
            // The others learn at once what this process knows of leases that may still be alive.
            self.consult(connection).await?;
        }
        Ok(self.epoch())
    }

    /// Takes note of what was found. Says whether the data were, or may have been, lost since the last look.
    fn judge(&self, facts: Facts, fleet: &Fleet) -> bool {
        let mut known = self.known.lock().expect("nobody panics while holding it");
        let now = Instant::now();
        // A horizon that went back is one of an older file, or of a file that was not loaded to its end.
        let is_missing = |until: Instant| until > now + fleet.horizon_before + HORIZON_TOLERANCE;
        let loss = match &known.facts {
            _ if !fleet.is_marked => self.wait_if_empty(known.facts.is_some()),
            None => None,
            Some(before) if before.run_id == facts.run_id && before.replid == facts.replid => None,
            // While others wait after a loss, this process has leases to tell of too.
            Some(_) if !fleet.grace_after.is_zero() => Some(self.settle),
            Some(_) if facts.is_durable() && !known.published_until.is_some_and(is_missing) => None,
            Some(_) => Some(self.settle),
        };
        self.is_refused.store(
            facts.refusal(self.accepted_policy.as_deref()).is_some(),
            Ordering::Relaxed,
        );
        let is_replaced = known
            .facts
            .as_ref()
            .is_some_and(|before| before.run_id != facts.run_id);
        known.facts = Some(facts);
        known.clock_offset_ms = clock_offset_ms(fleet.now_us);
        known.published_until = Some(now + fleet.horizon_after);
        drop(known);
        if let Some(at_least) = loss {
            self.lost(at_least);
        } else if is_replaced {
            self.epoch.fetch_add(1, Ordering::SeqCst);
        }
        loss.is_some()
    }

    /// How long new grants wait, at least, if the store turns out to be empty.
    fn wait_if_empty(&self, has_met_before: bool) -> Option<Duration> {
        if has_met_before {
            Some(self.settle)
        } else {
            self.grace_on_empty_start
        }
    }

    /// A counter went back under a live connection of this epoch: the data were lost.
    pub(super) fn forgotten(&self, epoch: u64) {
        // Of many requests that find out at the same time, the first one is enough.
        if epoch == self.epoch() {
            self.lost(self.settle);
        }
    }

    fn lost(&self, at_least: Duration) {
        self.wait_until(self.ms_of(Instant::now() + at_least));
        // First the epoch, then the horizon; `reported` does it the other way round. So of a lease that is reported at
        // this very moment, either this learns, or its reporter learns of the loss.
        self.epoch.fetch_add(1, Ordering::SeqCst);
        self.wait_until(self.horizon_ms.load(Ordering::SeqCst));
        for fence in &self.last_fences {
            fence.store(0, Ordering::Relaxed);
        }
        tracing::warn!(
            new_grants_wait_ms = self.grace_left().unwrap_or_default().as_millis() as u64,
            "the store may have lost leases that are still alive; renewals and releases go on"
        );
    }

    /// Exchanges horizon and grace with the fleet.
    async fn consult(&self, connection: &mut MultiplexedConnection) -> RedisResult<Fleet> {
        let request = pool::request_id();
        let horizon = self.left(&self.horizon_ms).unwrap_or_default();
        let grace = self.grace_left().unwrap_or_default();
        let has_met_before = self
            .known
            .lock()
            .expect("nobody panics while holding it")
            .facts
            .is_some();
        let if_empty = self
            .wait_if_empty(has_met_before)
            .map_or(Duration::ZERO, |wait| wait.max(horizon));
        let mut command = pool::call(
            &scripts::HORIZON,
            &[keys::HORIZON, keys::GRACE, keys::MARKER],
            request,
        );
        command
            .arg(horizon.as_millis() as u64)
            .arg(grace.as_millis() as u64)
            .arg(if_empty.as_millis() as u64)
            .arg(self.messages.events_channel());
        let asked = Instant::now();
        let value = pool::evaluate(connection, &scripts::HORIZON, &command).await?;
        let fleet = scripts::Reply::to(request, value).and_then(|reply| Fleet::read(reply).ok());
        let fleet = fleet.ok_or((
            redis::ErrorKind::Client,
            "the horizon script answered out of form",
        ))?;
        self.messages.surveyed(asked, fleet.watchers);
        self.horizon_ms
            .fetch_max(self.ms_of(asked + fleet.horizon_after), Ordering::AcqRel);
        if !fleet.grace_after.is_zero() {
            // Rounded up: a grant that comes early by a millisecond is too early.
            let until = Instant::now() + fleet.grace_after + Duration::from_millis(1);
            self.wait_until(self.ms_of(until));
        }
        Ok(fleet)
    }

    /// A lease is about to be reported that lasts for `expires_in` from now at most, over a connection of this epoch.
    pub(super) fn reported(&self, expires_in: Duration, epoch: u64) {
        let until_ms = self.ms_of(Instant::now() + expires_in) + 1;
        self.horizon_ms.fetch_max(until_ms, Ordering::SeqCst);
        // The data were lost while the answer was on its way: nobody has counted this lease among those to wait for.
        if epoch != self.epoch() && self.grace_left().is_some() {
            self.wait_until(until_ms);
        }
    }

    fn wait_until(&self, until_ms: u64) {
        self.grace_ms.fetch_max(until_ms, Ordering::AcqRel);
    }

    /// A grant was made in this bucket, over a connection of this epoch.
    pub(super) fn granted(&self, bucket: Bucket, fence: Fence, epoch: u64) {
        if epoch == self.epoch() {
            self.last_fences[bucket.index()].fetch_max(fence.get(), Ordering::AcqRel);
        }
    }

    pub(super) fn last_fence(&self, bucket: Bucket) -> u64 {
        self.last_fences[bucket.index()].load(Ordering::Acquire)
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    pub(super) fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Relaxed)
    }

    /// How long new grants still wait.
    pub(super) fn grace_left(&self) -> Option<Duration> {
        self.left(&self.grace_ms)
    }

    /// Why grants are refused, what was found, and the offset of the clocks; none before the first contact.
    pub(super) fn findings(&self) -> Option<(Option<String>, Vec<Finding>, i64)> {
        let known = self.known.lock().expect("nobody panics while holding it");
        let facts = known.facts.as_ref()?;
        let findings = facts.findings(self.accepted_policy.as_deref(), known.clock_offset_ms);
        Some((
            facts.refusal(self.accepted_policy.as_deref()),
            findings,
            known.clock_offset_ms,
        ))
    }

    fn ms_of(&self, moment: Instant) -> u64 {
        u64::try_from(moment.saturating_duration_since(self.base).as_millis()).unwrap_or(u64::MAX)
    }

    fn left(&self, moment_ms: &AtomicU64) -> Option<Duration> {
        let until = self.base + Duration::from_millis(moment_ms.load(Ordering::Acquire));
        until
            .checked_duration_since(Instant::now())
            .filter(|left| !left.is_zero())
    }
}

impl Fleet {
    fn read(mut reply: scripts::Reply) -> Result<Self, scripts::Malformed> {
        let (now_us, is_marked) = (reply.number()?, reply.number()? == 1);
        let (horizon_before, horizon_after) = (reply.millis()?, reply.millis()?);
        let grace_after = reply.millis()?;
        let watchers = reply.number()?;
        Ok(Self {
            now_us,
            is_marked,
            horizon_before,
            horizon_after,
            grace_after,
            watchers,
        })
    }
}

/// For people only: no decision is made by this machine's wall clock.
fn clock_offset_ms(now_us: u64) -> i64 {
    let here = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_micros();
    let (there, here) = (
        i64::try_from(now_us).unwrap_or(i64::MAX),
        i64::try_from(here).unwrap_or(i64::MAX),
    );
    there.saturating_sub(here) / 1_000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topology() -> Topology {
        let config = RedisConfig {
            connections: 1,
            connect_timeout: Duration::from_secs(1),
            username: None,
            password: None,
            accept_eviction_policy: None,
            grace_on_empty_start: false,
            survey_interval: Duration::from_secs(2),
        };
        let messages = Arc::new(Messages::new(1, 0));
        Topology::new(&config, Duration::from_secs(3600), messages)
    }

    const LEASE: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn after_a_loss_new_grants_wait_for_the_longest_lease_that_was_reported() {
        let topology = topology();
        topology.reported(LEASE, topology.epoch());
        topology.forgotten(topology.epoch());
        assert!(topology.grace_left().is_some_and(|left| left >= LEASE));
    }

    /// The answer was on its way when another connection found out about the loss.
    #[tokio::test(start_paused = true)]
    async fn a_lease_from_before_a_loss_that_is_reported_after_it_is_waited_for_too() {
        let topology = topology();
        let before = topology.epoch();
        topology.forgotten(before);
        topology.reported(LEASE, before);
        assert!(topology.grace_left().is_some_and(|left| left >= LEASE));
    }

    /// Renewals go on during the wait; it would never end if they made it longer.
    #[tokio::test(start_paused = true)]
    async fn a_lease_that_is_reported_during_the_wait_does_not_lengthen_it() {
        let topology = topology();
        topology.forgotten(topology.epoch());
        let left = topology.grace_left();
        topology.reported(LEASE, topology.epoch());
        assert_eq!(topology.grace_left(), left);
    }

    #[tokio::test(start_paused = true)]
    async fn of_many_requests_that_notice_a_loss_one_is_enough() {
        let topology = topology();
        let before = topology.epoch();
        topology.forgotten(before);
        topology.forgotten(before);
        assert_eq!(topology.epoch(), before + 1);
    }
}
