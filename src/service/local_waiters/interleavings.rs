//! Tests of the waiters in many orders of requests, answers and messages, with a store that reserves a lock for the
//! first in its queue. No waiter polls regularly here: one that misses its wake-up waits for ever, which fails the
//! test.

use std::collections::VecDeque;

use shuttle::future::block_on;
use shuttle::thread;

use super::tests::{HOUR, claim};
use super::*;
use crate::sync::explored::explore;

const ORDERS: usize = 500;

const WAITERS: usize = 3;

/// The lock as the store has it.
#[derive(Default)]
struct StoredLock {
    is_held: bool,
    queue: VecDeque<u64>,
    last_sequence: u64,
}

/// A process with its waiters, and the store.
struct OneProcess {
    waiters: LocalWaiters,
    lock: Mutex<StoredLock>,
}

impl OneProcess {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            waiters: LocalWaiters::new(HOUR, WAITERS),
            lock: Mutex::default(),
        })
    }

    fn store(&self) -> MutexGuard<'_, StoredLock> {
        self.lock.lock().expect("no test panics here")
    }

    /// Waits until the claim holds, as a request does, or leaves the queue at once.
    fn acquire(&self, claim: &Arc<Claim>, gives_up: bool) -> bool {
        let waiter = self
            .waiters
            .enter(claim, None, None)
            .expect("there is room");
        let mut sent = Instant::now();
        let Some(sequence) = self.store().ask() else {
            drop(self.waiters.leave(&waiter, QueuePlace::Arriving));
            return true;
        };
        // The answer is under way, and a message may overtake it.
        self.waiters
            .enqueue(&waiter, QueuePlace::Arriving, sequence, sent);
        loop {
            self.waiters.record_answer(&waiter, answer(sent));
            if gives_up {
                break;
            }
            let now = Instant::now();
            let poll_at = self.waiters.next_head_poll(&waiter, now);
            if poll_at.is_some_and(|at| at <= now) {
                sent = now;
                if self.store().grant(sequence) {
                    break;
                }
            } else {
                block_on(waiter.woken());
            }
        }
        self.store().queue.retain(|other| *other != sequence);
        if gives_up {
            // This process does not know yet that the waiter has left.
            self.reserve(claim);
        }
        drop(self.waiters.leave(&waiter, QueuePlace::At(sequence)));
        !gives_up
    }

    /// The holder releases the lock.
    fn release(&self, claim: &Claim) {
        self.store().is_held = false;
        self.reserve(claim);
    }

    /// If the lock is free, the store reserves it for the first waiter, all of which are of this process.
    fn reserve(&self, claim: &Claim) {
        let is_reserved = {
            let lock = self.store();
            !lock.is_held && !lock.queue.is_empty()
        };
        if is_reserved {
            drop(self.waiters.reserved(&claim.names[0]));
        }
    }
}

impl StoredLock {
    /// Grants the lock if it is free and not reserved, or returns a place in the queue.
    fn ask(&mut self) -> Option<u64> {
        if !self.is_held && self.queue.is_empty() {
            self.is_held = true;
            return None;
        }
        self.last_sequence += 1;
        self.queue.push_back(self.last_sequence);
        Some(self.last_sequence)
    }

    /// Grants the lock to the first in the queue.
    fn grant(&mut self, sequence: u64) -> bool {
        let is_granted = !self.is_held && self.queue.front() == Some(&sequence);
        self.is_held |= is_granted;
        is_granted
    }
}

fn answer(sent: Instant) -> QueueAnswer {
    QueueAnswer {
        sent,
        before: None,
        recheck_in: None,
        restored: false,
    }
}

/// Claims on a lock that another one holds, which releases it at any time.
fn assert_that_all_get_their_turn(gives_up: [bool; WAITERS]) {
    explore(ORDERS, move || {
        let process = OneProcess::new();
        process.store().is_held = true;
        let requests = gives_up.map(|gives_up| {
            let process = Arc::clone(&process);
            thread::spawn(move || {
                let claim = claim("a");
                if process.acquire(&claim, gives_up) {
                    process.release(&claim);
                }
            })
        });
        process.release(&claim("a"));
        for request in requests {
            request.join().expect("it gets its turn");
        }
        let counts = process.waiters.counts();
        assert_eq!((counts.waiters, counts.locks), (0, 0));
    });
}

#[test]
fn no_order_of_answers_and_messages_loses_a_wake_up() {
    assert_that_all_get_their_turn([false; WAITERS]);
}

#[test]
fn a_waiter_that_leaves_passes_a_reservation_on_in_any_order() {
    assert_that_all_get_their_turn([true, false, true]);
}
