//! Messages between processes through Redis' channels: reservations, the demand for events, events, and announcements
//! about losses. A process that reserves a lock for itself learns it from the answer to its release, which is sooner.
//!
//! Messages are lost whenever the connection is. Nothing depends on one: the listener gets `messages_lost` and checks
//! for itself. Before it gets `events_lost`, all processes know that this one wants events, so every event from then on
//! is delivered. A process that learns of it later says so, and then the listener gets `events_lost` once more.

mod finding;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, RedisResult};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::UNPOISONED;
use super::events::{DemandSource, EventDemand};
use super::keys::{self, RedisKeys};
use super::pool::Pool;
use super::recovery::FleetState;
use super::subscriber::Subscriber;
use crate::domain::{ClaimDigest, LockName, LockNames};
use crate::store::Listener;
use finding::{MissingRights, Unsubscribed};

/// This process's subscription to messages, and the demand for events.
pub(super) struct PubSub {
    shared: Arc<PubSubShared>,
    /// The listener, and the task that receives messages for it, which ends with the store.
    attached: OnceLock<(Arc<dyn Listener>, AbortOnDropHandle<()>)>,
}

/// Shared between the receiving task and the operations.
pub(super) struct PubSubShared {
    process: String,
    releaser: String,
    pub(super) wake: String,
    pub(super) events: String,
    pub(super) watch: String,
    pub(super) evictions: String,
    pub(super) releases: String,
    database: u32,
    /// What is known of the histories of the data: of one, or of each partition of a cluster.
    pub(super) fleets: Vec<Arc<FleetState>>,
    /// The channels of announcements about them, in the same order.
    pub(super) recovery: Vec<String>,
    /// Which of them must be verified, because another process has found out something.
    pub(super) unverified: Vec<AtomicBool>,
    may_have_others: Arc<AtomicBool>,
    /// When the current subscription connection was opened.
    pub(super) connected_at: Mutex<Option<Instant>>,
    /// The subscription connection leads elsewhere than those of the requests.
    pub(super) reconnect: Notify,
    /// Another process has found out something about Redis that this one must verify, too.
    pub(super) verify: Notify,
    pub(super) demand: EventDemand,
    pub(super) delivery: watch::Sender<EventDelivery>,
    pub(super) may_not_subscribe: AtomicBool,
    /// By partition, as was found out over its connections.
    missing: Vec<MissingRights>,
    unsubscribed: Mutex<Unsubscribed>,
}

/// The state of event delivery to this process.
#[derive(Clone, Copy, Default)]
pub(super) struct EventDelivery {
    pub(super) is_wanted: bool,
    /// Whether every event from now on is delivered.
    pub(super) is_sure: bool,
    /// Whether events may have been lost since the listener was last notified.
    pub(super) has_gap: bool,
}

impl PubSub {
    /// For the histories of the partitions of a cluster, in their order, or for the only one.
    pub(super) fn new(process: u64, database: u32, fleets: Vec<Arc<FleetState>>) -> Self {
        let keys = |partition| match fleets.len() {
            1 => RedisKeys::default(),
            _ => RedisKeys::of_partition(partition),
        };
        let recovery = (0..fleets.len()).map(|it| keys::recovery_channel(database, keys(it)));
        let process = format!("{process:016x}");
        let shared = PubSubShared {
            wake: keys::wake_channel(&process),
            releaser: format!("{process}{database}"),
            process,
            events: keys::events_channel(database),
            watch: keys::watch_channel(database),
            evictions: keys::evictions_channel(database),
            releases: keys::releases_channel(database),
            recovery: recovery.collect(),
            database,
            unverified: fleets.iter().map(|_| AtomicBool::new(false)).collect(),
            missing: fleets.iter().map(|_| MissingRights::default()).collect(),
            fleets,
            may_have_others: Arc::new(AtomicBool::new(true)),
            connected_at: Mutex::new(None),
            reconnect: Notify::new(),
            verify: Notify::new(),
            demand: EventDemand::default(),
            delivery: watch::Sender::default(),
            may_not_subscribe: AtomicBool::new(false),
            unsubscribed: Mutex::default(),
        };
        Self {
            shared: Arc::new(shared),
            attached: OnceLock::new(),
        }
    }

    /// The id of this process in queues.
    pub(super) fn process(&self) -> &str {
        self.shared.process()
    }

    /// The caller's part of a release: the id of this process in queues, and the database number, from which the script
    /// builds the channel of releases.
    pub(super) fn releaser(&self) -> &str {
        &self.shared.releaser
    }

    /// The channel to publish events on; empty while no process wants events.
    pub(super) fn channel(&self) -> &str {
        match self.shared.demand.is_wanted() {
            true => &self.shared.events,
            false => "",
        }
    }

    /// The channel of events, whether or not any process wants events.
    pub(super) fn events_channel(&self) -> &str {
        &self.shared.events
    }

    /// The channel of evictions.
    pub(super) fn evictions_channel(&self) -> &str {
        &self.shared.evictions
    }

    /// This process has evicted the lock's holders, or may have.
    pub(super) fn evicted(&self, name: &LockName) {
        if let Some((listener, _)) = self.attached.get() {
            listener.evicted(name);
        }
    }

    /// This process has released claims that streams may hold, or may have.
    pub(super) fn released(&self, names: &LockNames, claims: &[ClaimDigest]) {
        if let Some((listener, _)) = self.attached.get() {
            let claims = names.iter().zip(claims);
            claims.for_each(|(name, claim)| listener.released(name, *claim));
        }
    }

    /// The channel of announcements about losses and longest TTLs of the data under these keys.
    pub(super) fn recovery_channel(&self, keys: RedisKeys) -> String {
        keys::recovery_channel(self.shared.database, keys)
    }

    /// Whether there may be other processes, as far as this one has counted.
    pub(super) fn may_have_others(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.shared.may_have_others)
    }

    /// The channel to which only this process subscribes.
    pub(super) fn wake_channel(&self) -> &str {
        &self.shared.wake
    }

    /// Starts to receive messages, for as long as this lives.
    pub(super) fn set_listener(&self, pools: &[&Arc<Pool>], listener: Arc<dyn Listener>) {
        self.shared.demand.begin();
        let subscriber = Subscriber {
            shared: Arc::clone(&self.shared),
            connectors: pools.iter().map(|pool| pool.connector()).collect(),
            // The pools refer to this object, and must not be kept alive by it.
            pools: pools.iter().map(|pool| Arc::downgrade(pool)).collect(),
            listener: Arc::clone(&listener),
        };
        let task = tokio::spawn(async move { subscriber.run().await });
        if self
            .attached
            .set((listener, AbortOnDropHandle::new(task)))
            .is_err()
        {
            panic!("the listener is set once");
        }
    }

    /// These locks may be reserved for this process without a message.
    pub(super) fn may_be_reserved(&self, names: &LockNames) {
        if let Some((listener, _)) = self.attached.get() {
            names.iter().for_each(|name| listener.reserved(name));
        }
    }

    /// Sets whether this process wants events, and waits until every event from now on is delivered.
    ///
    /// # Cancel safety
    /// If the future is dropped, the listener gets `events_lost` once all events are delivered.
    pub(super) async fn set_event_delivery(&self, is_wanted: bool) {
        let PubSubShared {
            demand, delivery, ..
        } = &*self.shared;
        demand.set_here(is_wanted);
        delivery.send_modify(|delivery| {
            delivery.is_wanted = is_wanted;
            delivery.is_sure &= is_wanted;
        });
        if is_wanted {
            // Cancellation safety: if the wait is given up, the listener learns of the gap later.
            let _unsure = GapGuard(delivery);
            // The sender lives as long as self.
            let _ = delivery.subscribe().wait_for(|now| now.is_sure).await;
        }
    }

    /// The result of a health check sent at `sent_at`: how many processes receive events, and how many subscribe
    /// to this process's own channel.
    pub(super) fn on_health_check(&self, sent_at: Instant, subscribers: u64, listeners: u64) {
        if self.shared.is_cluster() {
            // A node counts only its own subscribers.
            if subscribers > 0 {
                self.shared.demand.announced();
            }
            return;
        }
        let connected_at = *self.shared.connected_at.lock().expect(UNPOISONED);
        if listeners == 0 && connected_at.is_some_and(|at| at < sent_at) {
            // The address leads to another Redis now.
            self.shared.reconnect.notify_waiters();
        }
        self.shared.demand.counted(sent_at, subscribers);
    }

    /// This many processes are subscribed to events and to announcements, by counts on all nodes of a cluster that were
    /// requested at `sent_at`.
    pub(super) fn on_count(&self, sent_at: Instant, watchers: u64, others: u64) {
        self.shared.demand.counted(sent_at, watchers);
        self.shared
            .may_have_others
            .store(others > 0, Ordering::Relaxed);
    }

    /// The channels whose subscribers are counted on all nodes of a cluster: that of events, and one to which every
    /// process subscribes.
    pub(super) fn counted_channels(&self) -> [&str; 2] {
        [&self.shared.events, &self.shared.recovery[0]]
    }

    /// Redis lost data, or a node joined that may not have passed on messages: events may be missing.
    pub(super) fn data_lost(&self) {
        if let Some((listener, _)) = self.attached.get() {
            self.shared.interrupt_delivery(&**listener);
        }
    }

    /// A health check found whether the user may count subscribers over a connection of this partition.
    pub(super) fn may_count(&self, partition: usize, may_count: bool) {
        let missing = &self.shared.missing[partition];
        missing.count.store(!may_count, Ordering::Relaxed);
    }

    /// Finds out whether this process may publish over a connection of this partition, by a message that repeats its demand
    /// for events or has no effect.
    pub(super) async fn probe(&self, partition: usize, connection: &mut MultiplexedConnection) {
        let shared = &*self.shared;
        let channel = match shared.delivery.borrow().is_wanted {
            true => &shared.watch,
            false => &shared.wake,
        };
        let published: RedisResult<u64> = publish(channel).query_async(connection).await;
        shared.note_published(partition, published.err().as_ref());
    }
}

/// Marks a wait for `is_sure`. If the wait ends early, it records a gap.
struct GapGuard<'a>(&'a watch::Sender<EventDelivery>);

impl Drop for GapGuard<'_> {
    fn drop(&mut self) {
        self.0
            .send_modify(|delivery| delivery.has_gap |= !delivery.is_sure);
    }
}

impl PubSubShared {
    /// The id of this process in queues.
    pub(super) fn process(&self) -> &str {
        &self.process
    }

    /// Whether the store is a cluster, whose nodes pass messages on to each other.
    pub(super) fn is_cluster(&self) -> bool {
        self.fleets.len() > 1
    }

    /// Messages are lost until the next connection.
    pub(super) fn lost(&self, is_forbidden: bool, listener: &dyn Listener) {
        self.may_not_subscribe
            .store(is_forbidden, Ordering::Relaxed);
        self.demand.set_source(match is_forbidden {
            true => DemandSource::Never,
            false => DemandSource::Interrupted,
        });
        self.interrupt_delivery(listener);
    }

    /// Events may be missing. Once all processes know again that this one wants them, the listener gets `events_lost`.
    fn interrupt_delivery(&self, listener: &dyn Listener) {
        let mut is_interrupted = false;
        self.delivery.send_modify(|delivery| {
            is_interrupted = std::mem::take(&mut delivery.is_sure);
            delivery.has_gap |= is_interrupted;
        });
        if is_interrupted {
            listener.events_interrupted();
        }
    }

    /// Notes the outcome of publishing over a connection of this partition. Returns whether the user may not.
    pub(super) fn note_published(&self, partition: usize, error: Option<&RedisError>) -> bool {
        let is_forbidden = error.is_some_and(|error| error.code() == Some("NOPERM"));
        let missing = &self.missing[partition];
        missing.publish.store(is_forbidden, Ordering::Relaxed);
        is_forbidden
    }

    /// From now on every event is delivered. Returns whether earlier ones may be missing.
    pub(super) fn delivers(&self) -> bool {
        let mut had_gap = false;
        self.delivery.send_modify(|delivery| {
            delivery.is_sure = delivery.is_wanted;
            had_gap = delivery.is_sure && std::mem::take(&mut delivery.has_gap);
        });
        had_gap
    }
}

/// A message without content.
pub(super) fn publish(channel: &str) -> Cmd {
    redis::cmd("PUBLISH").arg(channel).arg("").to_owned()
}
