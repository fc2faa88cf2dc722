//! Who waits on this process, lock by lock in the order of the queue, and who of them is to ask the store, and when.
//!
//! Only the first waiter of a line asks: because the lock was offered, because something runs out, or because it is time
//! to look. The others cost the store nothing. Nothing here waits or asks; every step is short and under one mutex, and
//! who has to look is woken when the mutex is free again.

mod deferred_notify;
mod lock_queue;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::QueueFull;
use super::jitter;
use super::waiter::{Places, Waiter};
use crate::config::half;
use crate::domain::{Claim, LockName, Token};
use crate::limits::{Budget, PeerLimits};
pub(super) use deferred_notify::DeferredNotify;
use lock_queue::LockQueue;
pub(super) use lock_queue::QueueAnswer;

/// A process asks about its lines so rarely that this much lies between two of its asks, and as many times as much where an
/// ask is about several locks.
const BETWEEN_ASKS: Duration = Duration::from_millis(1);
/// How often a waiter is told how far it has come, if it wants to know.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// After something ran out by the store's clock, so that it has run out by any clock.
const AFTER_END_MIN: Duration = Duration::from_millis(5);
const AFTER_END_SPREAD: Duration = Duration::from_millis(20);
/// A process that is silent for so many times of its looking around is taken for dead.
const LIVENESS_INTERVALS: u32 = 3;
/// Over what time the first waiters of all lines ask after messages may have been lost.
const RECHECK_SPREAD: Duration = Duration::from_millis(200);

/// The waiters of one process.
#[derive(Debug)]
pub(super) struct LocalWaiters {
    poll_interval: Duration,
    /// One for each lock of each waiter: so much is a waiter's work for the store.
    places: Budget,
    state: Mutex<WaiterTable>,
}

#[derive(Debug, Default)]
struct WaiterTable {
    lines: HashMap<LockName, LockQueue>,
    /// Those who wait or are about to, by their tokens: a client may ask again before its first request has ended.
    attached: HashMap<Token, Vec<Arc<Waiter>>>,
    waiters: usize,
    /// The places of those that wait for several locks.
    places_of_several: usize,
    next_number: u64,
}

/// Where a waiter stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueuePlace {
    /// Nowhere yet: the store has not answered.
    Arriving,
    /// At the place with this sequence number.
    At(u64),
    /// Nowhere any more: its client has asked again at another process, where the claim waits now.
    Aside,
}

/// What follows from a waiter's leaving.
pub(super) struct Departure {
    /// Whether no other request waits for the same claim.
    pub(super) is_last: bool,
    /// Those who are first now, and have the offer to follow and the time to watch.
    pub(super) wakes: DeferredNotify,
}

/// How many wait, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WaiterCounts {
    /// Requests that wait or are about to.
    pub(super) waiters: usize,
    /// Locks that they wait for.
    pub(super) lines: usize,
}

impl LocalWaiters {
    pub(super) fn new(poll_interval: Duration, waiters_max: usize) -> Self {
        Self {
            poll_interval,
            places: Budget::new(waiters_max),
            state: Mutex::default(),
        }
    }

    /// Lets a request in that is about to ask with a wish to wait, or says what keeps it out. One peer has half of the
    /// places at the most.
    pub(super) fn enter(
        &self,
        claim: &Arc<Claim>,
        peer: Option<&PeerLimits>,
    ) -> Result<Arc<Waiter>, QueueFull> {
        let locks = claim.names.len();
        let of_peer_max = half(self.places.max());
        let of_peer = peer.map(|peer| {
            peer.places
                .take_within(of_peer_max, locks)
                .ok_or(QueueFull::Peer)
        });
        let of_peer = of_peer.transpose()?;
        let waiters = self.places.used();
        let of_all = self.places.take(locks);
        let places = Places {
            of_all: of_all.ok_or(QueueFull::Process { waiters })?,
            of_peer,
        };
        let mut state = self.lock();
        state.waiters += 1;
        state.places_of_several += places_of_several(claim);
        state.next_number += 1;
        let waiter = Arc::new(Waiter::new(Arc::clone(claim), state.next_number, places));
        let same = state.attached.entry(claim.token).or_default();
        // Nearly always it is the only one.
        same.reserve_exact(1);
        same.push(Arc::clone(&waiter));
        for name in claim.names.iter() {
            state.lines.entry(name.clone()).or_default().arriving += 1;
        }
        Ok(waiter)
    }

    /// The waiter stands at this place, as the store has answered to what was sent at `sent`.
    pub(super) fn stand(
        &self,
        waiter: &Arc<Waiter>,
        before: QueuePlace,
        sequence: u64,
        sent: Instant,
    ) {
        let mut wakes = DeferredNotify::default();
        let mut state = self.lock();
        for name in waiter.claim.names.iter() {
            let line = state.lines.entry(name.clone()).or_default();
            match before {
                QueuePlace::At(before) if before == sequence => continue,
                QueuePlace::At(before) => line.step_out(before, waiter, &mut wakes),
                QueuePlace::Arriving => line.arriving -= 1,
                QueuePlace::Aside => {}
            }
            line.waiters
                .insert((sequence, waiter.number), Arc::clone(waiter));
            // An offer that overtook the answer may have found somebody else at the head, or nobody.
            if line.is_first(waiter) && line.reserved_at.is_some_and(|offered| offered >= sent) {
                line.is_reserved = true;
            }
        }
    }

    /// The waiter stands here no more; it may still be called. Where it was the first it may have asked because the lock was
    /// offered, so the next one asks at once.
    pub(super) fn step_out_early(&self, waiter: &Arc<Waiter>, standing: QueuePlace) {
        let now = Instant::now();
        let mut wakes = DeferredNotify::default();
        let mut state = self.lock();
        state.of_first(waiter, |line| line.due = now);
        state.step_out(waiter, standing, &mut wakes);
    }

    /// The store has answered the waiter. Only the first of a line speaks for it about when to ask again: the others hear
    /// less than it would.
    pub(super) fn record_answer(&self, waiter: &Waiter, answered: QueueAnswer) {
        let now = Instant::now();
        let mut wakes = DeferredNotify::default();
        let mut state = self.lock();
        let poll_interval = self.poll_interval_of(&state);
        let look = answered.sent + jitter::about(poll_interval);
        let end = answered.recheck_in.map(|look_in| {
            answered.sent + look_in + AFTER_END_MIN + jitter::up_to(AFTER_END_SPREAD)
        });
        for name in waiter.claim.names.iter() {
            let Some(line) = state.lines.get_mut(name) else {
                continue;
            };
            if line.is_first(waiter) {
                line.due = end.map_or(look, |end| end.min(look));
            }
            if line.is_lost(&answered, now, LIVENESS_INTERVALS * poll_interval) {
                line.restore(waiter, &answered, now, &mut wakes);
            }
        }
    }

    /// The store could not answer the waiter; it asks again at `again`.
    pub(super) fn record_failure(&self, waiter: &Waiter, again: Instant) {
        self.lock().of_first(waiter, |line| line.due = again);
    }

    /// Whether the waiter is the first of one of its lines.
    pub(super) fn is_first(&self, waiter: &Waiter) -> bool {
        let mut is_first = false;
        self.lock().of_first(waiter, |_| is_first = true);
        is_first
    }

    /// Whether nobody waits on this process before a waiter that waits for one lock alone, and nobody is about to.
    pub(super) fn is_head(&self, waiter: &Waiter) -> bool {
        let state = self.lock();
        let [name] = &waiter.claim.names[..] else {
            return false;
        };
        let line = state.lines.get(name);
        line.is_some_and(|line| line.arriving == 0 && line.is_first(waiter))
    }

    /// When the waiter is to ask; none as long as it is somebody else's turn to. An offer that it is told of here is its to
    /// follow.
    pub(super) fn next_poll(&self, waiter: &Waiter, now: Instant) -> Option<Instant> {
        let mut asks_at = waiter.take_poll(now);
        self.lock().of_first(waiter, |line| {
            let at = if std::mem::take(&mut line.is_reserved) {
                now
            } else {
                line.due
            };
            asks_at = Some(asks_at.map_or(at, |other| other.min(at)));
        });
        asks_at
    }

    /// The waiter leaves.
    pub(super) fn leave(&self, waiter: &Arc<Waiter>, standing: QueuePlace) -> Departure {
        let mut wakes = DeferredNotify::default();
        let mut state = self.lock();
        state.waiters -= 1;
        state.places_of_several -= places_of_several(&waiter.claim);
        state.step_out(waiter, standing, &mut wakes);
        let is_last = state.detach(waiter);
        Departure { is_last, wakes }
    }

    /// Something became of this claim: whoever still waits for it is to ask.
    pub(super) fn recheck(&self, token: Token) {
        let now = Instant::now();
        let mut wakes = DeferredNotify::default();
        let state = self.lock();
        for waiter in state.attached.get(&token).into_iter().flatten() {
            waiter.recheck(now);
            wakes.add(waiter);
        }
    }

    /// The waiter was granted its claim: later requests for it take the lease over, and earlier ones leave it alone.
    pub(super) fn granted(&self, waiter: &Waiter) {
        let state = self.lock();
        let same = state
            .attached
            .get(&waiter.claim.token)
            .into_iter()
            .flatten();
        let later = same.filter(|other| {
            other.number > waiter.number && other.claim.names == waiter.claim.names
        });
        later.for_each(|other| other.inherit());
    }

    /// The lock is offered to its first waiter here.
    pub(super) fn reserved(&self, name: &LockName) -> DeferredNotify {
        let mut wakes = DeferredNotify::default();
        let mut state = self.lock();
        if let Some(line) = state.lines.get_mut(name) {
            line.is_reserved = true;
            line.reserved_at = Some(Instant::now());
            line.first().into_iter().for_each(|first| wakes.add(first));
        }
        wakes
    }

    /// Offers may have been lost: the first of each line looks soon.
    pub(super) fn recheck_all(&self) {
        let now = Instant::now();
        let mut wakes = DeferredNotify::default();
        let mut state = self.lock();
        for line in state.lines.values_mut() {
            line.due = line.due.min(now + jitter::up_to(RECHECK_SPREAD));
            line.first().into_iter().for_each(|first| wakes.add(first));
        }
    }

    /// How often the first waiter of a line looks at the least. With very many lines it is less often than configured.
    pub(super) fn poll_interval(&self) -> Duration {
        self.poll_interval_of(&self.lock())
    }

    /// How often waiters may ask who want to know how far they have come, each for itself.
    pub(super) fn progress_interval(&self) -> Duration {
        let places = u32::try_from(self.places.used()).unwrap_or(u32::MAX);
        PROGRESS_INTERVAL.max(BETWEEN_ASKS * places)
    }

    pub(super) fn counts(&self) -> WaiterCounts {
        let state = self.lock();
        WaiterCounts {
            waiters: state.waiters,
            lines: state.lines.len(),
        }
    }

    fn poll_interval_of(&self, state: &WaiterTable) -> Duration {
        // The first of one line may ask about many others, too.
        let asks = state.lines.len() + state.places_of_several;
        let asks = u32::try_from(asks).unwrap_or(u32::MAX);
        self.poll_interval.max(BETWEEN_ASKS * asks)
    }

    fn lock(&self) -> MutexGuard<'_, WaiterTable> {
        // Each step leaves the lines whole, whatever its caller does afterwards.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The places of a claim if it waits for several locks.
fn places_of_several(claim: &Claim) -> usize {
    match claim.names.len() {
        0 | 1 => 0,
        several => several,
    }
}

impl WaiterTable {
    /// The waiter stands nowhere any more. Lines that nobody is left in are dropped.
    fn step_out(&mut self, waiter: &Arc<Waiter>, standing: QueuePlace, wakes: &mut DeferredNotify) {
        for name in waiter.claim.names.iter() {
            let Some(line) = self.lines.get_mut(name) else {
                continue;
            };
            match standing {
                QueuePlace::Arriving => line.arriving -= 1,
                QueuePlace::At(sequence) => line.step_out(sequence, waiter, wakes),
                QueuePlace::Aside => {}
            }
            if line.waiters.is_empty() && line.arriving == 0 {
                self.lines.remove(name);
            }
        }
    }

    /// The waiter is not among those of its token any more. Says whether no other request waits for the same claim.
    fn detach(&mut self, waiter: &Waiter) -> bool {
        let Some(same) = self.attached.get_mut(&waiter.claim.token) else {
            return true;
        };
        same.retain(|other| other.number != waiter.number);
        let is_last = !same
            .iter()
            .any(|other| other.claim.names == waiter.claim.names);
        if same.is_empty() {
            self.attached.remove(&waiter.claim.token);
        }
        is_last
    }

    /// Does something with each line that the waiter is the first of.
    fn of_first(&mut self, waiter: &Waiter, mut act: impl FnMut(&mut LockQueue)) {
        for name in waiter.claim.names.iter() {
            if let Some(line) = self.lines.get_mut(name)
                && line.is_first(waiter)
            {
                act(line);
            }
        }
    }
}

#[cfg(test)]
mod tests;
