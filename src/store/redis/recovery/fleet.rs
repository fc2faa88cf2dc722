//! What the processes of the fleet report to each other about losses and leases, as this process knows it from messages
//! and exchanges with the store.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::clock::RedisClock;
use super::longest_ttl::LongestTtl;
use crate::store::redis::{UNPOISONED, constants};

/// Shared by the receiver of messages and the checks of the store.
#[derive(Debug)]
pub(in crate::store::redis) struct FleetState {
    base: Instant,
    pub(super) settle: Duration,
    pub(super) longest_ttl: LongestTtl,
    pub(super) clock: RedisClock,
    /// The epoch of the data; 0 before the first contact.
    data_epoch: AtomicU64,
    /// Grows whenever connections may lead elsewhere, or to other data, than before.
    generation: AtomicU64,
    /// Moments in milliseconds after `base`, 0 for none: when the last loss was noticed, and until when new grants
    /// wait.
    lost_ms: AtomicU64,
    grace_ms: AtomicU64,
    logged: Arc<Mutex<LoggedGrace>>,
}

/// What waits together.
#[derive(Clone, Debug, Default)]
enum StorePart {
    /// The whole store.
    #[default]
    All,
    /// Some partitions of a cluster.
    Partitions,
    /// The node of a quorum at this address. The others may grant meanwhile.
    Node(String),
}

/// What is logged of the times for which new grants wait. Shared by the partitions of a store, because a failover of one
/// primary makes many of them wait.
#[derive(Debug, Default)]
struct LoggedGrace {
    part: StorePart,
    /// Until when they wait, and why, if that is about to be logged.
    pending: Option<(Instant, String)>,
    /// When that was logged last, and for how long they waited then.
    last: Option<(Instant, Duration)>,
}

/// How long the partitions have to find out how long each of them waits.
const COLLECTED_FOR: Duration = Duration::from_millis(250);
/// Other waits are not logged for so long, unless they are longer by more than `LONGER`: a store may come and go.
const QUIET_FOR: Duration = Duration::from_secs(60);
const LONGER: Duration = Duration::from_secs(1);

/// How long the other processes get to report what they know after a loss.
fn settle(check_interval: Duration) -> Duration {
    check_interval + Duration::from_secs(1)
}

/// How long a store waits at most, unless leases may have been lost.
pub(super) fn pause_max(check_interval: Duration) -> Duration {
    settle(check_interval).max(Duration::from_millis(constants::POLL_AGAIN_MS))
}

impl LoggedGrace {
    /// Notes such a wait. Returns whether the caller has to have the longest one logged a little later.
    fn note(&mut self, left: Duration, why: &str) -> bool {
        let until = Instant::now() + left;
        if let Some((longest, reason)) = &mut self.pending {
            if *longest < until {
                (*longest, *reason) = (until, why.to_owned());
            }
            return false;
        }
        let is_quiet =
            |(at, before): (Instant, Duration)| at.elapsed() < QUIET_FOR && left <= before + LONGER;
        if self.last.is_some_and(is_quiet) {
            return false;
        }
        self.pending = Some((until, why.to_owned()));
        true
    }

    /// The longest wait that has been noted, which counts as logged from now on.
    fn take(&mut self) -> Option<(Duration, String)> {
        let (until, why) = self.pending.take()?;
        let left = until.saturating_duration_since(Instant::now());
        self.last = Some((Instant::now(), left));
        Some((left, why))
    }
}

impl FleetState {
    /// Those of as many partitions of a store. `check_interval` is how often each process checks the store.
    pub(in crate::store::redis) fn of_partitions(
        count: usize,
        check_interval: Duration,
    ) -> Vec<Arc<Self>> {
        let part = match count {
            1 => StorePart::All,
            _ => StorePart::Partitions,
        };
        let logged = Arc::new(Mutex::new(LoggedGrace {
            part,
            ..LoggedGrace::default()
        }));
        let fleet = || Arc::new(Self::new(check_interval, Arc::clone(&logged)));
        (0..count).map(|_| fleet()).collect()
    }

    fn new(check_interval: Duration, logged: Arc<Mutex<LoggedGrace>>) -> Self {
        Self {
            logged,
            base: Instant::now(),
            settle: settle(check_interval),
            longest_ttl: LongestTtl::default(),
            clock: RedisClock::new(),
            data_epoch: AtomicU64::new(0),
            generation: AtomicU64::new(0),
            lost_ms: AtomicU64::new(0),
            grace_ms: AtomicU64::new(0),
        }
    }

    /// An announcement of another process on the common channel.
    pub(in crate::store::redis) fn on_message(&self, payload: &[u8]) {
        let Ok(text) = std::str::from_utf8(payload) else {
            return;
        };
        let mut words = text.split(' ');
        let kind = words.next();
        let mut number = || words.next()?.parse().ok();
        match (kind, number(), number()) {
            (Some("verify"), _, _) => {
                self.renew_connections();
            }
            (Some("ttl"), Some(epoch), Some(ttl_ms)) => self.on_ttl(epoch, ttl_ms),
            _ => {}
        }
    }

    /// A script found that the clock of Redis had been set back; it then showed this time, in milliseconds. Returns
    /// whether that is news to this process.
    pub(in crate::store::redis) fn is_news_of_clock(&self, payload: &[u8]) -> bool {
        let now_ms = std::str::from_utf8(payload)
            .ok()
            .and_then(|text| text.parse::<u64>().ok());
        // Rounded up, as Redis counts in milliseconds here.
        let redis_us = now_ms.map(|now_ms| now_ms.saturating_add(1).saturating_mul(1_000));
        redis_us.is_some_and(|redis_us| redis_us < self.clock.earliest_us(Instant::now()))
    }

    /// Leases this long are granted in an epoch.
    fn on_ttl(&self, epoch: u64, ttl_ms: u64) {
        let now = Instant::now();
        let known_epoch = self.data_epoch();
        if epoch > known_epoch {
            // This process has yet to learn of a loss. Only TTLs from before that loss count for it.
            self.renew_connections();
            return;
        }
        self.longest_ttl.note_shared(ttl_ms, now);
        if epoch == known_epoch {
            return;
        }
        let lost_ms = self.lost_ms.load(Ordering::SeqCst);
        let settle_ms = u64::try_from(self.settle.as_millis()).unwrap_or(u64::MAX);
        if lost_ms > 0 && self.ms_of(now) < lost_ms.saturating_add(settle_ms) {
            let until_ms = lost_ms.saturating_add(ttl_ms);
            self.grace_ms.fetch_max(until_ms, Ordering::SeqCst);
        }
    }

    /// The data were lost, or may have been, at this moment at the latest.
    pub(super) fn lost(&self, at: Instant) {
        self.lost_ms.store(self.ms_of(at).max(1), Ordering::SeqCst);
    }

    pub(super) fn wait_until(&self, moment: Instant) {
        self.grace_ms
            .fetch_max(self.ms_of(moment), Ordering::SeqCst);
    }

    /// How long new grants still wait.
    pub(super) fn grace_left(&self) -> Option<Duration> {
        let grace_ms = self.grace_ms.load(Ordering::Acquire);
        if grace_ms == 0 {
            return None;
        }
        let until = self.base + Duration::from_millis(grace_ms);
        until
            .checked_duration_since(Instant::now())
            .filter(|left| !left.is_zero())
    }

    /// The store is a node of a quorum, which operators know by this address.
    pub(in crate::store::redis) fn set_node(&self, address: String) {
        self.logged.lock().expect(UNPOISONED).part = StorePart::Node(address);
    }

    /// Has it logged that new grants wait, once for all partitions; `why` says what happened.
    pub(super) fn log_grace(&self, left: Duration, why: &str) {
        if !self.logged.lock().expect(UNPOISONED).note(left, why) {
            return;
        }
        let logged = Arc::clone(&self.logged);
        tokio::spawn(async move {
            sleep(COLLECTED_FOR).await;
            let (longest, part) = {
                let mut logged = logged.lock().expect(UNPOISONED);
                (logged.take(), logged.part.clone())
            };
            let Some((left, why)) = longest else {
                return;
            };
            let new_grants_wait_ms = left.as_millis() as u64;
            match part {
                StorePart::All => tracing::warn!(
                    new_grants_wait_ms,
                    "the store {why}; new grants wait, renewals and releases go on"
                ),
                StorePart::Partitions => tracing::warn!(
                    new_grants_wait_ms,
                    "a primary of the cluster {why}; new grants of its locks wait, renewals and releases go on"
                ),
                StorePart::Node(address) => tracing::warn!(
                    address,
                    has_no_vote_ms = new_grants_wait_ms,
                    "a node of the quorum {why}; it has no vote on new grants meanwhile"
                ),
            }
        });
    }

    pub(super) fn data_epoch(&self) -> u64 {
        self.data_epoch.load(Ordering::SeqCst)
    }

    pub(super) fn begin_epoch(&self, epoch: u64) {
        self.data_epoch.store(epoch, Ordering::SeqCst);
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// Stops the use of all connections that are open now, or being opened. Returns the generation of later ones.
    pub(in crate::store::redis) fn renew_connections(&self) -> u64 {
        self.generation.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Rounded up: a grant that is early by a millisecond is too early.
    fn ms_of(&self, moment: Instant) -> u64 {
        let after = moment.saturating_duration_since(self.base);
        u64::try_from(after.as_millis()).map_or(u64::MAX, |ms| ms.saturating_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn fleet() -> FleetState {
        let fleet = FleetState::new(SECOND, Arc::default());
        fleet.begin_epoch(7);
        fleet
    }

    #[tokio::test(start_paused = true)]
    async fn a_ttl_from_before_a_loss_is_waited_for_if_it_arrives_right_after_it() {
        let fleet = fleet();
        fleet.lost(Instant::now());
        tokio::time::advance(SECOND).await;
        fleet.on_message(b"ttl 7 60000");
        assert_eq!(
            fleet.grace_left(),
            None,
            "leases this long were granted since"
        );
        fleet.on_message(b"ttl 6 30000");
        let left = fleet.grace_left().expect("new grants wait");
        assert!(left >= SECOND * 29 && left < SECOND * 30, "{left:?}");
        assert_eq!(fleet.longest_ttl.known_ms(Instant::now()), 60_000);
    }

    #[tokio::test(start_paused = true)]
    async fn a_ttl_from_before_a_loss_that_arrives_late_is_not_waited_for() {
        let fleet = fleet();
        fleet.lost(Instant::now());
        tokio::time::advance(SECOND * 3).await;
        fleet.on_message(b"ttl 6 60000");
        assert_eq!(fleet.grace_left(), None);
    }

    /// Otherwise it would be reported to the store as one from before the loss.
    #[test]
    fn a_ttl_of_an_unknown_epoch_makes_the_process_check_the_store() {
        let fleet = fleet();
        fleet.on_message(b"ttl 8 60000");
        assert_eq!(fleet.generation(), 1);
        assert_eq!(fleet.longest_ttl.known_ms(Instant::now()), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_back_is_news_until_the_process_has_checked_the_store() {
        let (fleet, now) = (fleet(), Instant::now());
        let noon_us = 1_795_219_506_257_721;
        fleet.clock.observe(noon_us, now, now);
        tokio::time::advance(SECOND).await;
        assert!(!fleet.is_news_of_clock(b"1795219507257"), "it runs");
        assert!(!fleet.is_news_of_clock(b"of a later version"));
        assert!(fleet.is_news_of_clock(b"1795215907257"));
        let now = Instant::now();
        fleet.clock.observe(noon_us - 3_599_000_000, now, now);
        assert!(!fleet.is_news_of_clock(b"1795215907257"), "it is known");
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_wait_of_the_partitions_is_logged_once() {
        let mut logged = LoggedGrace::default();
        assert!(logged.note(SECOND * 3, "short"));
        assert!(!logged.note(SECOND * 8, "long"));
        assert!(!logged.note(SECOND * 3, "short"));
        assert_eq!(logged.take(), Some((SECOND * 8, "long".to_owned())));
        assert_eq!(logged.take(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_comes_and_goes_is_logged_once_a_minute_unless_the_wait_is_longer() {
        let mut logged = LoggedGrace::default();
        let mut is_logged = |left| logged.note(left, "away") && logged.take().is_some();
        assert!(is_logged(SECOND * 3));
        sleep(QUIET_FOR - SECOND).await;
        assert!(!is_logged(SECOND * 3));
        assert!(is_logged(SECOND * 30), "it is longer");
        sleep(QUIET_FOR).await;
        assert!(is_logged(SECOND * 3));
    }

    #[test]
    fn connections_are_opened_anew_when_others_noticed_something() {
        let fleet = fleet();
        fleet.on_message(b"verify");
        fleet.on_message(b"of a later version");
        assert_eq!(fleet.generation(), 1);
    }
}
