//! Whether any process of the fleet may want to hear of events, as far as this one can know. In doubt it may.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// For how long events are published after the last sign of a process that wants them. One that was cut off is not
/// subscribed meanwhile, and must not find that everybody has stopped.
const PUBLISHED_AFTER: Duration = Duration::from_secs(60);

/// What this process knows of those who want events.
#[derive(Default)]
pub(super) struct EventDemand {
    /// Read for each operation; everything else changes seldom.
    is_there: AtomicBool,
    state: Mutex<DemandState>,
}

#[derive(Default)]
struct DemandState {
    is_wanted_here: bool,
    /// The last sign that any process wants events.
    last_sign: Option<Instant>,
    hearing: DemandSource,
}

/// Whether this process hears it when another one says that it wants events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum DemandSource {
    /// It never does, because it does not listen or may not: only counts of the subscribers tell.
    #[default]
    Never,
    /// Not at the moment. Somebody may have said so just now.
    Interrupted,
    /// From this moment on. What was said before is known once the subscribers were counted after it.
    Since(Instant),
    /// It has missed nothing.
    Always,
}

impl EventDemand {
    pub(super) fn is_there(&self) -> bool {
        self.is_there.load(Ordering::Relaxed)
    }

    /// This process wants events, or does not any more.
    pub(super) fn set_here(&self, is_wanted: bool) {
        self.change(|state, now| {
            state.is_wanted_here = is_wanted;
            state.last_sign = Some(now);
        });
    }

    /// A process has said that it wants events.
    pub(super) fn announced(&self) {
        self.change(|state, now| state.last_sign = Some(now));
    }

    /// So many processes were subscribed to events when Redis answered what was asked at `asked`.
    pub(super) fn counted(&self, asked: Instant, subscribers: u64) {
        self.change(|state, now| {
            if subscribers > 0 {
                state.last_sign = Some(now);
            }
            if matches!(state.hearing, DemandSource::Since(since) if since <= asked) {
                state.hearing = DemandSource::Always;
            }
        });
    }

    pub(super) fn set_hearing(&self, hearing: DemandSource) {
        self.change(|state, _| state.hearing = hearing);
    }

    fn change(&self, change: impl FnOnce(&mut DemandState, Instant)) {
        let mut state = self.state.lock().expect("nobody panics while holding it");
        let now = Instant::now();
        change(&mut state, now);
        let is_recent = |at: Instant| now.saturating_duration_since(at) < PUBLISHED_AFTER;
        let is_there = state.is_wanted_here
            || state.last_sign.is_some_and(is_recent)
            || matches!(
                state.hearing,
                DemandSource::Interrupted | DemandSource::Since(_)
            );
        self.is_there.store(is_there, Ordering::Relaxed);
    }
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
            assert!(!demand.is_there());
            sign(&demand);
            tokio::time::advance(PUBLISHED_AFTER - MOMENT).await;
            demand.counted(Instant::now(), 0);
            assert!(demand.is_there());
            tokio::time::advance(MOMENT).await;
            demand.counted(Instant::now(), 0);
            assert!(!demand.is_there());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn as_long_as_they_are_wanted_here_events_are_published() {
        let demand = EventDemand::default();
        demand.set_here(true);
        tokio::time::advance(PUBLISHED_AFTER * 2).await;
        demand.counted(Instant::now(), 0);
        assert!(demand.is_there());
    }

    #[tokio::test(start_paused = true)]
    async fn who_may_have_missed_an_announcement_publishes_until_a_count_after_it() {
        let demand = EventDemand::default();
        demand.set_hearing(DemandSource::Interrupted);
        let before = Instant::now();
        demand.counted(before, 0);
        assert!(demand.is_there());
        tokio::time::advance(MOMENT).await;
        demand.set_hearing(DemandSource::Since(Instant::now()));
        demand.counted(before, 0);
        assert!(demand.is_there(), "it was asked before this process heard");
        demand.counted(Instant::now(), 0);
        assert!(!demand.is_there());
    }
}
