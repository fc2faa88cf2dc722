//! What processes tell each other through Redis' channels: that a lock is offered, that somebody watches, and what happens.
//! A process that offers a lock to itself hears of it in the answer to its release, which is sooner.
//!
//! A message may be lost whenever the connection is. Nothing depends on one: the listener is told that messages may have
//! been missed, and looks for itself.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use futures_util::StreamExt;
use redis::aio::PubSub;
use redis::{Client, Msg, RedisResult};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::keys;
use crate::domain::{EventKind, Fence, LockEvent, LockName, LockNames, Owner, Timestamp};
use crate::store::Listener;

/// Between two tries to connect; doubled up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How often a connection on which nothing arrives is asked for a sign of life, and how long that may take.
const PING_EVERY: Duration = Duration::from_secs(5);

/// This process's ear, and what it knows of those who watch.
pub(super) struct Messages {
    shared: Arc<Shared>,
    /// Who is told, and the task that hears for it, which ends with the store.
    attached: OnceLock<(Arc<dyn Listener>, AbortOnDropHandle<()>)>,
}

/// What the task that hears and those who ask know together.
struct Shared {
    process: String,
    wake: String,
    events: String,
    watch: String,
    wants_events: watch::Sender<bool>,
    /// Whether the channel of events is subscribed to, as far as this process wants it.
    hears_events: watch::Sender<bool>,
    /// Whether any process watches, and when that was heard last.
    is_watched: AtomicBool,
    watched_at: Mutex<Option<Instant>>,
}

impl Messages {
    pub(super) fn new(process: u64, database: u32) -> Self {
        let process = format!("{process:016x}");
        let shared = Shared {
            wake: keys::wake_channel(&process),
            process,
            events: keys::events_channel(database),
            watch: keys::watch_channel(database),
            wants_events: watch::Sender::new(false),
            hears_events: watch::Sender::new(false),
            is_watched: AtomicBool::new(false),
            watched_at: Mutex::new(None),
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

    /// The channel on which scripts tell events; empty while nobody watches.
    pub(super) fn channel(&self) -> &str {
        match self.shared.is_watched.load(Ordering::Relaxed) {
            true => &self.shared.events,
            false => "",
        }
    }

    /// The channel of events, whether or not anybody watches.
    pub(super) fn events_channel(&self) -> &str {
        &self.shared.events
    }

    /// The channel on which processes say that somebody has come to watch.
    pub(super) fn watch_channel(&self) -> &str {
        &self.shared.watch
    }

    /// Begins to hear, for as long as this lives.
    pub(super) fn attach(
        &self,
        client: Client,
        connect_timeout: Duration,
        listener: Arc<dyn Listener>,
    ) {
        let (shared, told) = (Arc::clone(&self.shared), Arc::clone(&listener));
        let task = tokio::spawn(async move {
            hear(shared, client, connect_timeout, told).await;
        });
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
            names.iter().for_each(|name| listener.offered(name));
        }
    }

    /// Says whether this process wants to hear of events, and waits until it does.
    pub(super) async fn want_events(&self, wanted: bool) {
        self.shared.wants_events.send_replace(wanted);
        if wanted {
            self.shared.heard_of_watchers();
            let mut hears = self.shared.hears_events.subscribe();
            // The sender lives as long as self.
            let _ = hears.wait_for(|hears| *hears).await;
        }
    }

    /// A survey that was sent at `asked` found so many who hear events.
    pub(super) fn surveyed(&self, asked: Instant, watchers: u64) {
        let at = *self
            .shared
            .watched_at
            .lock()
            .expect("nobody panics while holding it");
        if watchers > 0 {
            self.shared.is_watched.store(true, Ordering::Relaxed);
        } else if at.is_none_or(|at| at < asked) && !*self.shared.wants_events.borrow() {
            self.shared.is_watched.store(false, Ordering::Relaxed);
        }
    }
}

impl Shared {
    fn heard_of_watchers(&self) {
        *self
            .watched_at
            .lock()
            .expect("nobody panics while holding it") = Some(Instant::now());
        self.is_watched.store(true, Ordering::Relaxed);
    }

    fn dispatch(&self, message: &Msg, listener: &dyn Listener) {
        let (channel, payload) = (message.get_channel_name(), message.get_payload_bytes());
        if channel == self.wake {
            if let Ok(name) = LockName::parse(payload) {
                listener.offered(&name);
            }
        } else if channel == self.events {
            if let Some(event) = std::str::from_utf8(payload).ok().and_then(event) {
                listener.event(event);
            }
        } else if channel == self.watch {
            self.heard_of_watchers();
        }
    }
}

/// Hears for ever, over one connection after another.
async fn hear(
    shared: Arc<Shared>,
    client: Client,
    connect_timeout: Duration,
    listener: Arc<dyn Listener>,
) {
    let mut pause = PAUSE_MIN;
    loop {
        if let Ok(Ok(pubsub)) = timeout(connect_timeout, connect(&shared, &client)).await {
            pause = PAUSE_MIN;
            // What was said while nobody heard is lost. The subscription is there now, so whoever looks from now on
            // misses nothing (subscribe, wait for the answer, then look).
            listener.missed();
            // Whatever ends it, the connection is of no more use.
            let _ = hear_on(&shared, pubsub, &*listener).await;
            shared.hears_events.send_replace(false);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

async fn connect(shared: &Shared, client: &Client) -> RedisResult<PubSub> {
    let mut pubsub = client.get_async_pubsub().await?;
    pubsub.subscribe(&shared.wake).await?;
    pubsub.subscribe(&shared.watch).await?;
    Ok(pubsub)
}

/// Hears until the connection ends or gives no more sign of life.
async fn hear_on(shared: &Shared, pubsub: PubSub, listener: &dyn Listener) -> RedisResult<()> {
    let (mut sink, mut messages) = pubsub.split();
    let mut wants_events = shared.wants_events.subscribe();
    wants_events.mark_changed();
    let mut has_heard = true;
    let mut pings = tokio::time::interval(PING_EVERY);
    loop {
        tokio::select! {
            message = messages.next() => match message {
                Some(message) => {
                    has_heard = true;
                    shared.dispatch(&message, listener);
                }
                None => return Ok(()),
            },
            changed = wants_events.changed() => {
                let Ok(()) = changed else { return Ok(()) };
                let wants = *wants_events.borrow_and_update();
                if wants {
                    sink.subscribe(&shared.events).await?;
                } else {
                    sink.unsubscribe(&shared.events).await?;
                }
                shared.hears_events.send_replace(wants);
            }
            _ = pings.tick() => {
                if !std::mem::take(&mut has_heard)
                    && !matches!(timeout(PING_EVERY, sink.ping::<redis::Value>()).await, Ok(Ok(_)))
                {
                    return Ok(());
                }
            }
        }
    }
}

/// Reads what `tell` in `lua/lease.lua` writes.
fn event(text: &str) -> Option<LockEvent> {
    let mut words = text.splitn(6, ' ');
    let id = words.next()?;
    let kind_label = words.next()?;
    let name = words.next()?;
    let (fence, until_ms, owner) = (words.next()?, words.next()?, words.next()?);
    let at_us: u64 = id.split('.').next()?.parse().ok()?;
    let until_ms: Option<u64> = until_ms.parse().ok();
    Some(LockEvent {
        id: id.to_owned(),
        kind: EventKind::ALL
            .into_iter()
            .find(|kind| kind.label() == kind_label)?,
        name: LockName::parse(name.as_bytes()).ok()?,
        at: Timestamp::from_unix_ms(at_us / 1_000),
        fence: fence.parse().ok().and_then(Fence::new),
        expires_at: until_ms.map(Timestamp::from_unix_ms),
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
