//! What processes tell each other through Redis' channels: that a lock is offered, that somebody watches, what happens, and
//! what all must know about losses.
//! A process that offers a lock to itself hears of it in the answer to its release, which is sooner.
//!
//! A message may be lost whenever the connection is. Nothing depends on one: the listener is told that messages may have
//! been lost, and looks for itself. Before it is told so of events, everybody knows that this process wants them, so that
//! all that begins afterwards is delivered.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use redis::aio::MultiplexedConnection;
use redis::{Client, Cmd, Msg, RedisError, RedisResult};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::event_demand::{DemandSource, EventDemand};
use super::keys;
use super::pool::Pool;
use super::recovery::FleetState;
use super::subscriber::Subscriber;
use crate::domain::{
    ClaimDigest, EventKind, Fence, LockEvent, LockName, LockNames, Owner, Timestamp,
};
use crate::store::{Finding, Listener};

pub(super) const UNPOISONED: &str = "nobody panics while holding it";

/// This process's ear, and what it knows of those who watch.
pub(super) struct PubSub {
    shared: Arc<PubSubShared>,
    /// Who is told, and the task that hears for it, which ends with the store.
    attached: OnceLock<(Arc<dyn Listener>, AbortOnDropHandle<()>)>,
}

/// What the task that hears and those who ask know together.
pub(super) struct PubSubShared {
    process: String,
    releaser: String,
    pub(super) wake: String,
    pub(super) events: String,
    pub(super) watch: String,
    pub(super) evictions: String,
    pub(super) releases: String,
    pub(super) recovery: String,
    fleet: Arc<FleetState>,
    /// Since when this process hears, over the connection that it has.
    pub(super) connected_at: Mutex<Option<Instant>>,
    /// The connection leads elsewhere than those of the requests.
    pub(super) reconnect: Notify,
    /// Another process has found something out about Redis, which is to be looked at here, too.
    pub(super) look: Notify,
    pub(super) demand: EventDemand,
    pub(super) delivery: watch::Sender<EventDelivery>,
    pub(super) may_not_subscribe: AtomicBool,
    pub(super) may_not_publish: AtomicBool,
    may_not_count: AtomicBool,
}

/// How events come to this process.
#[derive(Clone, Copy, Default)]
pub(super) struct EventDelivery {
    pub(super) is_wanted: bool,
    /// Whether this process hears of every event that begins from now on.
    pub(super) is_sure: bool,
    /// Whether events may have been lost of which the listener was not told.
    pub(super) has_gap: bool,
}

impl PubSub {
    pub(super) fn new(process: u64, database: u32, fleet: Arc<FleetState>) -> Self {
        let process = format!("{process:016x}");
        let shared = PubSubShared {
            wake: keys::wake_channel(&process),
            releaser: format!("{process}{database}"),
            process,
            events: keys::events_channel(database),
            watch: keys::watch_channel(database),
            evictions: keys::evictions_channel(database),
            releases: keys::releases_channel(database),
            recovery: keys::recovery_channel(database),
            fleet,
            connected_at: Mutex::new(None),
            reconnect: Notify::new(),
            look: Notify::new(),
            demand: EventDemand::default(),
            delivery: watch::Sender::default(),
            may_not_subscribe: AtomicBool::new(false),
            may_not_publish: AtomicBool::new(false),
            may_not_count: AtomicBool::new(false),
        };
        Self {
            shared: Arc::new(shared),
            attached: OnceLock::new(),
        }
    }

    /// The name under which this process waits.
    pub(super) fn process(&self) -> &str {
        &self.shared.process
    }

    /// What a release has to know of this process: the name under which it waits, and the number of the database, by which
    /// the script finds the channel of releases.
    pub(super) fn releaser(&self) -> &str {
        &self.shared.releaser
    }

    /// The channel on which scripts tell events; empty while nobody watches.
    pub(super) fn channel(&self) -> &str {
        match self.shared.demand.is_there() {
            true => &self.shared.events,
            false => "",
        }
    }

    /// The channel of events, whether or not anybody watches.
    pub(super) fn events_channel(&self) -> &str {
        &self.shared.events
    }

    /// The channel on which scripts tell of evictions.
    pub(super) fn evictions_channel(&self) -> &str {
        &self.shared.evictions
    }

    /// This process has evicted whoever held the lock, or may have.
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

    /// The channel on which processes announce what all must know about losses.
    pub(super) fn recovery_channel(&self) -> &str {
        &self.shared.recovery
    }

    /// The channel on which this process alone hears.
    pub(super) fn wake_channel(&self) -> &str {
        &self.shared.wake
    }

    /// Begins to hear, for as long as this lives.
    pub(super) fn set_listener(
        &self,
        client: Client,
        pool: &Arc<Pool>,
        listener: Arc<dyn Listener>,
    ) {
        self.shared.demand.set_hearing(DemandSource::Interrupted);
        let listening = Subscriber {
            shared: Arc::clone(&self.shared),
            client,
            // The pool knows this object, which must not keep it alive.
            pool: Arc::downgrade(pool),
            connect_timeout: pool.connect_timeout(),
            listener: Arc::clone(&listener),
        };
        let task = tokio::spawn(async move { listening.run().await });
        if self
            .attached
            .set((listener, AbortOnDropHandle::new(task)))
            .is_err()
        {
            panic!("a store is attached to once");
        }
    }

    /// This process may have been offered these locks without a message.
    pub(super) fn may_be_offered(&self, names: &LockNames) {
        if let Some((listener, _)) = self.attached.get() {
            names.iter().for_each(|name| listener.reserved(name));
        }
    }

    /// Says whether this process wants to hear of events, and waits until it hears of all that begin from now on.
    ///
    /// # Cancel safety
    /// When the future is dropped, the listener is told that events may have been lost once it hears of all.
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
            // Cancellation safety: whoever gives up waiting is told of the gap later.
            let _unsure = Unsure(delivery);
            // The sender lives as long as self.
            let _ = delivery.subscribe().wait_for(|now| now.is_sure).await;
        }
    }

    /// A survey that was sent at `asked` found so many who hear events, and so many who hear what is for this process.
    pub(super) fn surveyed(&self, asked: Instant, subscribers: u64, listeners: u64) {
        let connected_at = *self.shared.connected_at.lock().expect(UNPOISONED);
        if listeners == 0 && connected_at.is_some_and(|at| at < asked) {
            // The address points to another Redis now.
            self.shared.reconnect.notify_waiters();
        }
        self.shared.demand.counted(asked, subscribers);
    }

    /// A survey found whether the user may count who hears.
    pub(super) fn may_count(&self, may_count: bool) {
        self.shared
            .may_not_count
            .store(!may_count, Ordering::Relaxed);
    }

    /// Finds out whether this process may publish, by a message that repeats what it wants or that says nothing.
    pub(super) async fn probe(&self, connection: &mut MultiplexedConnection) {
        let shared = &*self.shared;
        let channel = match shared.delivery.borrow().is_wanted {
            true => &shared.watch,
            false => &shared.wake,
        };
        let published: RedisResult<u64> = publish(channel).query_async(connection).await;
        shared.may_publish(published.err().as_ref());
    }

    /// Whether this process may use the channels.
    pub(super) fn finding(&self) -> Finding {
        const RIGHTS: &str = "grant &lh:1:* +publish +subscribe +unsubscribe +pubsub|numsub";
        let shared = &*self.shared;
        let lacks = [
            (&shared.may_not_subscribe, "subscribe"),
            (&shared.may_not_publish, "publish"),
        ];
        let lacking = lacks
            .iter()
            .filter(|(lacks, _)| lacks.load(Ordering::Relaxed));
        let lacking: Vec<_> = lacking.map(|(_, right)| *right).collect();
        let is_fine = lacking.is_empty();
        let may_count = !shared.may_not_count.load(Ordering::Relaxed);
        let detail = match (is_fine, may_count) {
            (true, true) => "the channels may be used".to_owned(),
            (true, false) => format!(
                "the user may not run PUBSUB NUMSUB, so events are published also when nobody watches; {RIGHTS}"
            ),
            (false, _) => format!(
                "the user may not {} on the channels lh:1:*, so waiters notice a free lock up to a second late, and \
                 events are not told; {RIGHTS}",
                lacking.join(" or ")
            ),
        };
        let is_fine = is_fine && may_count;
        Finding {
            topic: "channels",
            is_fine,
            detail,
        }
    }
}

/// That somebody waits for events to be delivered for sure. Whatever ends the wait before, a gap is left.
struct Unsure<'a>(&'a watch::Sender<EventDelivery>);

impl Drop for Unsure<'_> {
    fn drop(&mut self) {
        self.0
            .send_modify(|delivery| delivery.has_gap |= !delivery.is_sure);
    }
}

impl PubSubShared {
    pub(super) fn dispatch(&self, message: &Msg, listener: &dyn Listener) {
        let (channel, payload) = (message.get_channel_name(), message.get_payload_bytes());
        if channel == self.wake {
            if let Ok(name) = LockName::parse(payload) {
                listener.reserved(&name);
            }
        } else if channel == self.events {
            // What arrives before everybody knows that this process wants events again may have gaps. A reset is about it.
            if !self.delivery.borrow().is_sure {
                return;
            }
            if let Some(event) = std::str::from_utf8(payload).ok().and_then(event) {
                listener.event(event);
            }
        } else if channel == self.evictions {
            if let Ok(name) = LockName::parse(payload) {
                listener.evicted(&name);
            }
        } else if channel == self.releases {
            if let Some((claim, name)) = payload.split_first_chunk()
                && let Ok(name) = LockName::parse(name)
            {
                listener.released(&name, ClaimDigest(*claim));
            }
        } else if channel == self.watch {
            self.demand.announced();
        } else if channel == self.recovery {
            self.fleet.on_message(payload);
            if payload == b"verify" {
                self.look.notify_one();
            }
        } else if channel == keys::CLOCK_CHANNEL && self.fleet.is_news_of_clock(payload) {
            self.look.notify_one();
        }
    }

    /// Messages are lost until the next connection.
    pub(super) fn lost(&self, why: Option<&RedisError>) {
        let is_forbidden = why.is_some_and(|error| error.code() == Some("NOPERM"));
        self.may_not_subscribe
            .store(is_forbidden, Ordering::Relaxed);
        self.demand.set_hearing(match is_forbidden {
            true => DemandSource::Never,
            false => DemandSource::Interrupted,
        });
        self.delivery.send_modify(|delivery| {
            delivery.has_gap |= delivery.is_sure;
            delivery.is_sure = false;
        });
    }

    pub(super) fn may_publish(&self, error: Option<&RedisError>) {
        let is_forbidden = error.is_some_and(|error| error.code() == Some("NOPERM"));
        self.may_not_publish.store(is_forbidden, Ordering::Relaxed);
    }

    /// All that begins from now on is heard of. Says whether something before was not.
    pub(super) fn delivers(&self) -> bool {
        let mut had_gap = false;
        self.delivery.send_modify(|delivery| {
            delivery.is_sure = delivery.is_wanted;
            had_gap = delivery.is_sure && std::mem::take(&mut delivery.has_gap);
        });
        had_gap
    }
}

/// A message that says nothing but that it was sent.
pub(super) fn publish(channel: &str) -> Cmd {
    redis::cmd("PUBLISH").arg(channel).arg("").to_owned()
}

/// Reads what `publish_event` in `lua/ending.lua` writes.
fn event(text: &str) -> Option<LockEvent> {
    let mut words = text.splitn(6, ' ');
    let id = words.next()?;
    let kind_label = words.next()?;
    let name = words.next()?;
    let (fence, until_ms, owner) = (words.next()?, words.next()?, words.next()?);
    let at_us: u64 = id.split('.').next()?.parse().ok()?;
    let until_ms: Option<u64> = until_ms.parse().ok();
    let kind = EventKind::ALL
        .into_iter()
        .find(|kind| kind.label() == kind_label)?;
    let goes_on = matches!(kind, EventKind::Acquired | EventKind::Renewed);
    Some(LockEvent {
        id: id.to_owned(),
        kind,
        name: LockName::parse(name.as_bytes()).ok()?,
        at: Timestamp::from_unix_ms(at_us / 1_000),
        fence: fence.parse().ok().and_then(Fence::new),
        // A lease that is over has no end to come.
        expires_at: until_ms.filter(|_| goes_on).map(Timestamp::from_unix_ms),
        owner: Owner::from_store(owner),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_reads_as_it_was_told() {
        let told = "1795219506257721.2 acquired a/b 1795219506257720 1795219536257 an owner";
        let event = event(told).expect(told);
        assert_eq!(event.id, "1795219506257721.2");
        assert_eq!(event.kind, EventKind::Acquired);
        assert_eq!(event.name.as_str(), "a/b");
        assert_eq!(event.at.unix_ms(), 1_795_219_506_257);
        assert_eq!(event.owner.as_str(), "an owner");
        assert!(event.fence.is_some() && event.expires_at.is_some());
    }

    #[test]
    fn an_event_without_a_lease_has_no_fence() {
        let event = event("1795219506257721.1 queued a - - ").expect("it is well formed");
        assert_eq!((event.fence, event.expires_at), (None, None));
        assert_eq!(event.owner.as_str(), "");
    }
}
