//! The waiters of this process, queued per lock, and which of them polls the store next.
//!
//! Only the head waiter of a queue polls: because the lock was reserved for it, because something expires, or because
//! the poll interval is over. The others cost the store nothing. Nothing here waits or does I/O. Every step is short
//! and under one mutex; waiters are woken after it is released.

mod releases;

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::QueueFull;
use super::schedule::PollPace;
use super::waiter::{DeferredNotify, LockQueue, Places, QueueAnswer, Waiter};
use crate::config::half;
use crate::domain::{Claim, ClaimDigest, LockName, Token};
use crate::limits::{Budget, BudgetPermit, PeerLimits};
use crate::sync::{Mutex, MutexGuard};
pub(super) use releases::SentRelease;

/// A process is considered dead after this many poll intervals without a poll.
const LIVENESS_INTERVALS: u32 = 3;

/// The waiters of one process.
#[derive(Debug)]
pub(super) struct LocalWaiters {
    poll_interval: Duration,
    /// One for each lock of each waiter, because a waiter's load on the store is per lock.
    places: Budget,
    state: Mutex<WaiterTable>,
}

#[derive(Debug, Default)]
struct WaiterTable {
    queues: HashMap<LockName, LockQueue>,
    /// Waiting and arriving requests by token: a client may repeat a request before the first one has ended.
    attached: HashMap<Token, Vec<Arc<Waiter>>>,
    waiters: usize,
    /// The places of waiters for several locks.
    places_of_several: usize,
    next_number: u64,
}

/// The place of a waiter in its queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueuePlace {
    /// None yet: the store has not answered.
    Arriving,
    /// The place with this sequence number.
    At(u64),
    /// None any more: its client repeated the request at another process, where the claim waits or holds now.
    Superseded,
}

/// The consequences of a waiter's leaving.
pub(super) struct Departure {
    /// Whether no other request waits for the same claim.
    pub(super) is_last: bool,
    /// The new head waiters, which must follow the reservation and the poll interval.
    pub(super) wakes: DeferredNotify,
}

/// Numbers of waiters, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WaiterCounts {
    /// Waiting and arriving requests.
    pub(super) waiters: usize,
    /// Locks that they wait for.
    pub(super) locks: usize,
}

impl LocalWaiters {
    pub(super) fn new(poll_interval: Duration, waiters_max: usize) -> Self {
        Self {
            poll_interval,
            places: Budget::new(waiters_max),
            state: Mutex::default(),
        }
    }

    /// Registers a request that may wait, or returns the limit that refuses it. One peer may have half of all places,
    /// and a principal those of its quota. All requests for one claim share its places, because a client may repeat a
    /// request whose connection has died before this process notices.
    pub(super) fn enter(
        &self,
        claim: &Arc<Claim>,
        peer: Option<&PeerLimits>,
        of_principal: Option<&Budget>,
    ) -> Result<Arc<Waiter>, QueueFull> {
        let locks = claim.names.len();
        let mut state = self.lock();
        // First, because it is the one that the client can do something about.
        let of_principal = of_principal.map(|places| {
            let shared = state.places_of_claim(claim, places);
            let taken = shared.or_else(|| places.take(locks).map(Arc::new));
            taken.ok_or(QueueFull::Principal)
        });
        let of_principal = of_principal.transpose()?;
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
            of_principal,
        };
        state.waiters += 1;
        state.places_of_several += places_of_several(claim);
        state.next_number += 1;
        let waiter = Arc::new(Waiter::new(Arc::clone(claim), state.next_number, places));
        let same = state.attached.entry(claim.token).or_default();
        // It is nearly always the only one.
        same.reserve_exact(1);
        same.push(Arc::clone(&waiter));
        for name in claim.names.iter() {
            state.queues.entry(name.clone()).or_default().arriving += 1;
        }
        Ok(waiter)
    }

    /// Moves the waiter to the place that the store returned for the request sent at `sent`.
    pub(super) fn enqueue(
        &self,
        waiter: &Arc<Waiter>,
        previous: QueuePlace,
        sequence: u64,
        sent: Instant,
    ) {
        let mut wakes = DeferredNotify::default();
        let mut state = self.lock();
        for name in waiter.claim.names.iter() {
            let queue = state.queues.entry(name.clone()).or_default();
            match previous {
                QueuePlace::At(previous) if previous == sequence => continue,
                QueuePlace::At(previous) => queue.dequeue(previous, waiter, &mut wakes),
                QueuePlace::Arriving => queue.arriving -= 1,
                QueuePlace::Superseded => {}
            }
            queue
                .waiters
                .insert((sequence, waiter.number), Arc::clone(waiter));
            if queue.is_first(waiter) {
                queue.head.new_head(sent);
            }
        }
    }

    /// Dequeues a waiter whose request continues. If it was the head, it may have polled because of a reservation, so
    /// the next waiter polls at once.
    pub(super) fn dequeue_early(&self, waiter: &Arc<Waiter>, place: QueuePlace) {
        let now = Instant::now();
        let mut wakes = DeferredNotify::default();
        let mut state = self.lock();
        state.of_first(waiter, |queue| queue.head.poll_at(now));
        state.dequeue(waiter, place, &mut wakes);
    }

    /// Records the store's answer. Only the head waiter's answer sets the queue's next poll; answers to others say
    /// less about the lock.
    pub(super) fn record_answer(&self, waiter: &Waiter, answer: QueueAnswer) {
        let now = Instant::now();
        let mut wakes = DeferredNotify::default();
        let mut state = self.lock();
        let pace = self.pace_of(&state);
        for name in waiter.claim.names.iter() {
            let Some(queue) = state.queues.get_mut(name) else {
                continue;
            };
            if queue.is_first(waiter) {
                queue.head.on_answer(answer.sent, answer.recheck_in, pace);
            }
            if queue.may_have_lost_places(&answer, now, LIVENESS_INTERVALS * pace.of_head) {
                queue.restore(waiter, &answer, now, &mut wakes);
            }
        }
    }

    /// The store failed; the waiter retries at `retry_at`.
    pub(super) fn record_failure(&self, waiter: &Waiter, retry_at: Instant) {
        self.lock()
            .of_first(waiter, |queue| queue.head.poll_at(retry_at));
    }

    /// Whether the waiter is the head of one of its queues.
    pub(super) fn is_first(&self, waiter: &Waiter) -> bool {
        let mut is_first = false;
        self.lock().of_first(waiter, |_| is_first = true);
        is_first
    }

    /// Whether a waiter for a single lock is the head of its queue on this process, and no request is arriving.
    pub(super) fn is_head(&self, waiter: &Waiter) -> bool {
        let state = self.lock();
        let [name] = &waiter.claim.names[..] else {
            return false;
        };
        let queue = state.queues.get(name);
        queue.is_some_and(|queue| queue.arriving == 0 && queue.is_first(waiter))
    }

    /// When the waiter polls as a head; `None` while only other waiters do. This takes a reservation: the waiter must
    /// then poll now.
    pub(super) fn next_head_poll(&self, waiter: &Waiter, now: Instant) -> Option<Instant> {
        let mut poll_at = None;
        self.lock().of_first(waiter, |queue| {
            let at = queue.head.next(now);
            poll_at = Some(poll_at.map_or(at, |other: Instant| other.min(at)));
        });
        poll_at
    }

    /// Removes the waiter.
    pub(super) fn leave(&self, waiter: &Arc<Waiter>, place: QueuePlace) -> Departure {
        let mut wakes = DeferredNotify::default();
        let mut state = self.lock();
        state.waiters -= 1;
        state.places_of_several -= places_of_several(&waiter.claim);
        state.dequeue(waiter, place, &mut wakes);
        let is_last = state.detach(waiter);
        Departure { is_last, wakes }
    }

    /// Whether a request waits for the claim, or is about to.
    pub(super) fn is_attached(&self, claim: &Claim) -> bool {
        self.lock().is_attached(claim)
    }

    /// The state of this claim changed: all its remaining waiters poll now.
    pub(super) fn recheck(&self, token: Token) {
        let now = Instant::now();
        let mut wakes = DeferredNotify::default();
        let state = self.lock();
        for waiter in state.attached.get(&token).into_iter().flatten() {
            waiter.schedule().recheck(now);
            wakes.add(waiter);
        }
    }

    /// The claim left the lock's queue by a request elsewhere: its waiters poll now.
    pub(super) fn recheck_claim(&self, name: &LockName, claim: ClaimDigest) {
        let now = Instant::now();
        let mut wakes = DeferredNotify::default();
        let state = self.lock();
        let waiters = state.queues.get(name).map(|queue| queue.waiters.values());
        for waiter in waiters.into_iter().flatten() {
            if waiter.digest_on(name) == Some(claim) {
                waiter.schedule().recheck(now);
                wakes.add(waiter);
            }
        }
    }

    /// The waiter's claim was granted: later requests for it may take the lease over, earlier ones may not. Returns the
    /// releases that this process has sent for its locks.
    pub(super) fn granted(&self, waiter: &Waiter) -> Vec<SentRelease> {
        let mut state = self.lock();
        let same = state
            .attached
            .get(&waiter.claim.token)
            .into_iter()
            .flatten();
        let later = same.filter(|other| {
            other.number > waiter.number && other.claim.names == waiter.claim.names
        });
        later.for_each(|other| other.allow_take_over());
        state.take_releases(&waiter.claim.names)
    }

    /// The store reserved the lock for the head waiter of this process.
    pub(super) fn reserved(&self, name: &LockName) -> DeferredNotify {
        let mut wakes = DeferredNotify::default();
        let mut state = self.lock();
        if let Some(queue) = state.queues.get_mut(name) {
            queue.head.reserve(Instant::now());
            queue.first().into_iter().for_each(|first| wakes.add(first));
        }
        wakes
    }

    /// Reservations may have been lost: all head waiters poll soon.
    pub(super) fn recheck_all(&self) {
        let now = Instant::now();
        let mut wakes = DeferredNotify::default();
        let mut state = self.lock();
        for queue in state.queues.values_mut() {
            queue.head.poll_soon(now);
            queue.first().into_iter().for_each(|first| wakes.add(first));
        }
    }

    /// How often waiters poll.
    pub(super) fn pace(&self) -> PollPace {
        self.pace_of(&self.lock())
    }

    pub(super) fn counts(&self) -> WaiterCounts {
        let state = self.lock();
        WaiterCounts {
            waiters: state.waiters,
            locks: state.queues.len(),
        }
    }

    fn pace_of(&self, state: &WaiterTable) -> PollPace {
        // One poll of a waiter for several locks costs as much as one for each.
        let polls = state.queues.len() + state.places_of_several;
        PollPace::new(self.poll_interval, polls, self.places.used())
    }

    fn lock(&self) -> MutexGuard<'_, WaiterTable> {
        // Poisoning is harmless: no step panics halfway through a change of the queues.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The number of places of a claim on several locks, else 0.
fn places_of_several(claim: &Claim) -> usize {
    match claim.names.len() {
        0 | 1 => 0,
        several => several,
    }
}

impl WaiterTable {
    /// What a request for the same claim has taken of this budget.
    fn places_of_claim(&self, claim: &Claim, budget: &Budget) -> Option<Arc<BudgetPermit>> {
        let mut same = self.attached.get(&claim.token).into_iter().flatten();
        same.find_map(|other| {
            let places = other.places.of_principal.as_ref()?;
            let is_shared = other.claim.names == claim.names && places.is_of(budget);
            is_shared.then(|| Arc::clone(places))
        })
    }

    /// Removes the waiter from its queues, and removes empty queues.
    fn dequeue(&mut self, waiter: &Arc<Waiter>, place: QueuePlace, wakes: &mut DeferredNotify) {
        for name in waiter.claim.names.iter() {
            let Some(queue) = self.queues.get_mut(name) else {
                continue;
            };
            match place {
                QueuePlace::Arriving => queue.arriving -= 1,
                QueuePlace::At(sequence) => queue.dequeue(sequence, waiter, wakes),
                QueuePlace::Superseded => {}
            }
            if queue.waiters.is_empty() && queue.arriving == 0 {
                self.queues.remove(name);
            }
        }
    }

    /// Removes the waiter from those of its token. Returns whether no other request waits for the same claim.
    fn detach(&mut self, waiter: &Waiter) -> bool {
        let Some(same) = self.attached.get_mut(&waiter.claim.token) else {
            return true;
        };
        same.retain(|other| other.number != waiter.number);
        if same.is_empty() {
            self.attached.remove(&waiter.claim.token);
        }
        !self.is_attached(&waiter.claim)
    }

    fn is_attached(&self, claim: &Claim) -> bool {
        let mut same = self.attached.get(&claim.token).into_iter().flatten();
        same.any(|other| other.claim.names == claim.names)
    }

    /// Calls `act` with each queue whose head the waiter is.
    fn of_first(&mut self, waiter: &Waiter, mut act: impl FnMut(&mut LockQueue)) {
        for name in waiter.claim.names.iter() {
            if let Some(queue) = self.queues.get_mut(name)
                && queue.is_first(waiter)
            {
                act(queue);
            }
        }
    }
}

#[cfg(test)]
mod interleavings;
#[cfg(test)]
mod tests;
