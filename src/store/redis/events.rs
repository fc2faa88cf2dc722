//! Events over Redis' channels: how one reads, and whether any process of the fleet may want them, as far as this process
//! can know. If in doubt, it assumes so.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::UNPOISONED;
use crate::domain::{EventKind, Fence, LockEvent, LockName, Owner, Timestamp};

/// How long events are published after the last sign of a process that wants them. A process that lost its connection
/// is not subscribed meanwhile, and must not find that all others have stopped publishing.
const PUBLISHED_AFTER: Duration = Duration::from_secs(60);

/// What this process knows about the demand for events.
#[derive(Default)]
pub(super) struct EventDemand {
    /// Read for each operation; the other fields change rarely.
    is_wanted: AtomicBool,
    state: Mutex<DemandState>,
    /// Notifies that this process learned of the demand only now, and has published nothing until now.
    pub(super) was_unknown: Notify,
}

#[derive(Default)]
struct DemandState {
    is_wanted_here: bool,
    /// The last sign that any process wants events.
    last_sign: Option<Instant>,
    source: DemandSource,
}

/// Whether this process receives the announcements of processes that want events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum DemandSource {
    /// Never, because it does not subscribe or may not: only subscriber counts show the demand.
    #[default]
    Never,
    /// Not at the moment. An announcement may just have been missed.
    Interrupted,
    /// Since this moment. A subscriber count taken after it covers earlier announcements.
    Since(Instant),
    /// Always: it has missed none.
    Always,
}

impl EventDemand {
    pub(super) fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Relaxed)
    }

    /// This process wants events, or no longer wants them.
    pub(super) fn set_here(&self, is_wanted: bool) {
        self.change(|state, now| {
            state.is_wanted_here = is_wanted;
            state.last_sign = Some(now);
        });
    }

    /// Another process has announced that it wants events.
    pub(super) fn announced(&self) {
        self.change(|state, now| state.last_sign = Some(now));
    }

    /// This many processes were subscribed to events, by a count that was requested at `sent_at`.
    pub(super) fn counted(&self, sent_at: Instant, subscribers: u64) {
        self.change(|state, now| {
            if subscribers > 0 {
                state.last_sign = Some(now);
            }
            if matches!(state.source, DemandSource::Since(since) if since <= sent_at) {
                state.source = DemandSource::Always;
            }
        });
    }

    pub(super) fn set_source(&self, source: DemandSource) {
        self.change(|state, _| state.source = source);
    }

    /// This process begins to receive announcements. It has done nothing yet that it would have published.
    pub(super) fn begin(&self) {
        self.is_wanted.store(true, Ordering::Relaxed);
        self.set_source(DemandSource::Interrupted);
    }

    fn change(&self, change: impl FnOnce(&mut DemandState, Instant)) {
        let mut state = self.state.lock().expect(UNPOISONED);
        let now = Instant::now();
        change(&mut state, now);
        let is_recent = |at: Instant| now.saturating_duration_since(at) < PUBLISHED_AFTER;
        let is_wanted = state.is_wanted_here
            || state.last_sign.is_some_and(is_recent)
            || matches!(
                state.source,
                DemandSource::Interrupted | DemandSource::Since(_)
            );
        let was_wanted = self.is_wanted.swap(is_wanted, Ordering::Relaxed);
        if is_wanted && !was_wanted {
            self.was_unknown.notify_one();
        }
    }
}

/// How a message begins that tells of events that its process has not published. The id of the process follows.
const UNPUBLISHED: &str = "unpublished ";

/// The message of this process.
pub(super) fn unpublished_by(process: &str) -> String {
    format!("{UNPUBLISHED}{process}")
}

/// Whether a message tells of events that another process than this one has not published.
pub(super) fn is_of_unpublished(text: &str, own_process: &str) -> bool {
    text.strip_prefix(UNPUBLISHED)
        .is_some_and(|process| process != own_process)
}

/// Parses a message of `publish_event` in `lua/ending.lua`.
pub(super) fn parse(text: &str) -> Option<LockEvent> {
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
    let continues = matches!(kind, EventKind::Acquired | EventKind::Renewed);
    Some(LockEvent {
        id: id.to_owned(),
        kind,
        name: LockName::parse(name.as_bytes()).ok()?,
        at: Timestamp::from_unix_ms(at_us / 1_000),
        fence: fence.parse().ok().and_then(Fence::new),
        // A lease that has ended has no future end.
        expires_at: until_ms.filter(|_| continues).map(Timestamp::from_unix_ms),
        owner: Owner::from_store(owner),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn events_are_published_for_a_minute_after_the_last_sign_of_a_subscriber() {
        for sign in [
            (|demand| demand.announced()) as fn(&EventDemand),
            |demand| demand.counted(Instant::now(), 1),
            |demand| {
                demand.set_here(true);
                demand.set_here(false);
            },
        ] {
            let demand = EventDemand::default();
            assert!(!demand.is_wanted());
            sign(&demand);
            tokio::time::advance(PUBLISHED_AFTER - MOMENT).await;
            demand.counted(Instant::now(), 0);
            assert!(demand.is_wanted());
            tokio::time::advance(MOMENT).await;
            demand.counted(Instant::now(), 0);
            assert!(!demand.is_wanted());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn events_are_published_while_this_process_wants_them() {
        let demand = EventDemand::default();
        demand.set_here(true);
        tokio::time::advance(PUBLISHED_AFTER * 2).await;
        demand.counted(Instant::now(), 0);
        assert!(demand.is_wanted());
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_may_have_missed_an_announcement_publishes_until_a_later_count() {
        let demand = EventDemand::default();
        demand.set_source(DemandSource::Interrupted);
        let before = Instant::now();
        demand.counted(before, 0);
        assert!(demand.is_wanted());
        tokio::time::advance(MOMENT).await;
        demand.set_source(DemandSource::Since(Instant::now()));
        demand.counted(before, 0);
        assert!(
            demand.is_wanted(),
            "the count was requested before the subscription"
        );
        demand.counted(Instant::now(), 0);
        assert!(!demand.is_wanted());
    }

    #[test]
    fn a_published_event_is_parsed() {
        let message = "1795219506257721.2 acquired a/b 1795219506257720 1795219536257 an owner";
        let event = parse(message).expect(message);
        assert_eq!(event.id, "1795219506257721.2");
        assert_eq!(event.kind, EventKind::Acquired);
        assert_eq!(event.name.as_str(), "a/b");
        assert_eq!(event.at.unix_ms(), 1_795_219_506_257);
        assert_eq!(event.owner.as_str(), "an owner");
        assert!(event.fence.is_some() && event.expires_at.is_some());
    }

    #[test]
    fn an_event_without_a_lease_has_no_fence() {
        let event = parse("1795219506257721.1 queued a - - ").expect("it is well formed");
        assert_eq!((event.fence, event.expires_at), (None, None));
        assert_eq!(event.owner.as_str(), "");
    }
}
