//! The queue in the store: every method is one atomic step, and otherwise only time changes it.
//!
//! A step of time is the length of a reservation. Permits, fencing tokens and several locks at once are left out: they
//! do not affect the order.

mod queue;
mod seen;

use super::Mistake;
use super::scenario::{ATTEMPTS, CLAIMS, PROCESSES, WAIT};

/// The claim that holds the lock at the beginning.
pub(super) const OUTSIDER: usize = CLAIMS;
pub(super) const TTL: u8 = 2;
const RESERVATION_TTL: u8 = 1;
/// How long the queue of a process outlives its last poll (the liveness timeout).
const LIVENESS_TIMEOUT: u8 = 3;
/// How long a place is kept for a claim without a connected request.
const PLACE_KEPT: u8 = 2;
/// The value of a countdown that never ends.
pub(super) const FOREVER: u8 = u8::MAX;

/// One poll: a store operation for a claim that waits if it is not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Poll {
    pub(super) claim: usize,
    pub(super) attempt: usize,
    pub(super) process: usize,
    pub(super) shared: bool,
    /// Its known place, if it has one.
    pub(super) sequence: Option<u8>,
    /// How long it may still be granted from its place.
    pub(super) time_left: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Granted,
    Replayed,
    Waiting {
        sequence: u8,
        restored: bool,
    },
    Overdue,
    /// The claim has ended, or the attempt was rolled back before the poll arrived.
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Lease {
    pub(super) shared: bool,
    pub(super) time_left: u8,
    /// The attempt that was granted; `None` after a replay to another one.
    pub(super) attempt: Option<usize>,
}

/// The record of a claim while it waits, and for a while after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Ticket {
    sequence: u8,
    shared: bool,
    /// The process where it waited last.
    process: usize,
    time_left: u8,
}

/// The waiters of one process, by their sequence numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct ProcessQueue {
    sequences: [Option<u8>; CLAIMS],
    time_left: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Reservation {
    process: usize,
    time_left: u8,
}

/// The head of the queue.
struct First {
    claim: usize,
    process: usize,
    sequence: u8,
    shared: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Store {
    /// The leases of each claim and of the outsider.
    pub(super) leases: [Option<Lease>; CLAIMS + 1],
    has_ended: [bool; CLAIMS + 1],
    was_withdrawn: [[bool; ATTEMPTS]; CLAIMS],
    tickets: [Option<Ticket>; CLAIMS],
    process_queues: [ProcessQueue; PROCESSES],
    /// The sequence number of each process's first waiter, as last updated by the store.
    queue: [Option<u8>; PROCESSES],
    is_waited_for: bool,
    last_sequence: u8,
    reservation: Option<Reservation>,
    /// Notifications in flight to each process.
    pub(super) messages: [bool; PROCESSES],
    /// For the properties only: the process let a reservation lapse, and no claim has joined its queue since.
    was_passed_over: [bool; PROCESSES],
    /// For the properties only: places lost because the process was silent, or taken over by another request.
    is_lost: [[bool; CLAIMS]; PROCESSES],
}

impl Store {
    /// Grants the lock, or enqueues the claim.
    pub(super) fn acquire(&mut self, poll: Poll, mistake: Option<Mistake>) -> Answer {
        let (claim, process) = (poll.claim, poll.process);
        if let Some(answer) = self.known(poll) {
            if answer == Answer::Ended && self.leave(process, claim) {
                self.reserve(mistake);
            }
            return answer;
        }
        let is_overdue = poll.sequence.is_some() && poll.time_left == 0;
        if is_overdue && mistake != Some(Mistake::IgnoresTheTimeout) {
            self.leave(process, claim);
            self.reserve(mistake);
            return Answer::Overdue;
        }
        if let Some(sequence) = poll.sequence
            && self.waits_elsewhere(claim, process)
            && mistake != Some(Mistake::FormerRequestsContinue)
        {
            // A later request has taken the place over; this one will detect that its client is gone.
            return Answer::Waiting {
                sequence,
                restored: false,
            };
        }
        let place = poll.sequence.or(self.place_of(claim));
        if !self.admits(poll.shared) || !self.is_first(process, place, mistake) {
            return self.enqueue(poll, place, mistake);
        }
        self.grant(poll, mistake);
        Answer::Granted
    }

    /// The replies that depend on the state of the claim.
    fn known(&mut self, poll: Poll) -> Option<Answer> {
        let lease = &mut self.leases[poll.claim];
        if lease.is_some_and(|lease| lease.attempt == Some(poll.attempt)) {
            return Some(Answer::Granted);
        }
        if self.has_ended[poll.claim] || self.was_withdrawn[poll.claim][poll.attempt] {
            return Some(Answer::Ended);
        }
        lease.as_mut()?.attempt = None;
        Some(Answer::Replayed)
    }

    fn waits_elsewhere(&self, claim: usize, process: usize) -> bool {
        self.tickets[claim].is_some_and(|ticket| {
            ticket.process != process
                && self.process_queues[ticket.process].sequences[claim].is_some()
        })
    }

    fn enqueue(&mut self, poll: Poll, place: Option<u8>, mistake: Option<Mistake>) -> Answer {
        let (claim, process) = (poll.claim, poll.process);
        let sequence = place.unwrap_or(self.last_sequence + 1);
        self.last_sequence = self.last_sequence.max(sequence);
        let moves = self.take_over(poll);
        self.tickets[claim] = Some(Ticket {
            sequence,
            shared: poll.shared,
            process,
            time_left: match poll.time_left {
                FOREVER => FOREVER,
                _ => WAIT + PLACE_KEPT,
            },
        });
        let queue = &mut self.process_queues[process];
        let was_there = queue.sequences[claim].replace(sequence).is_some();
        queue.time_left = LIVENESS_TIMEOUT;
        self.was_passed_over[process] = false;
        self.is_lost[process][claim] = false;
        self.index(process);
        self.is_waited_for = true;
        self.reserve(mistake);
        Answer::Waiting {
            sequence,
            restored: !was_there && !moves && poll.sequence.is_some(),
        }
    }

    fn grant(&mut self, poll: Poll, mistake: Option<Mistake>) {
        let (claim, process) = (poll.claim, poll.process);
        self.take_over(poll);
        self.leave(process, claim);
        self.tickets[claim] = None;
        if self.first_of(process).is_some() {
            self.process_queues[process].time_left = LIVENESS_TIMEOUT;
        }
        if self.queue == [None; PROCESSES] {
            self.forget_queue();
        }
        self.leases[claim] = Some(Lease {
            shared: poll.shared,
            time_left: TTL,
            attempt: Some(poll.attempt),
        });
        if poll.shared {
            self.reserve(mistake);
        } else {
            self.reservation = None;
        }
    }

    /// Ends a claim that holds.
    pub(super) fn release(&mut self, claim: usize, mistake: Option<Mistake>) {
        self.has_ended[claim] = true;
        self.open(claim, mistake);
    }

    /// Rolls back the grant of an attempt, and prevents another one should a poll of it arrive late.
    pub(super) fn withdraw(&mut self, claim: usize, attempt: usize, mistake: Option<Mistake>) {
        let lease = self.leases[claim];
        let is_undelivered = lease.is_some_and(|lease| lease.attempt == Some(attempt));
        if is_undelivered {
            self.open(claim, mistake);
        }
        if !is_undelivered || mistake != Some(Mistake::UndoneIsForgotten) {
            self.was_withdrawn[claim][attempt] = true;
        }
    }

    /// Removes a claim from the waiters of a process and keeps its place for a while.
    pub(super) fn suspend(&mut self, claim: usize, process: usize, mistake: Option<Mistake>) {
        if !self.leave(process, claim) {
            return;
        }
        if let Some(ticket) = &mut self.tickets[claim] {
            ticket.time_left = PLACE_KEPT;
        }
        if mistake != Some(Mistake::SuspendKeepsTheReservation) {
            self.reserve(mistake);
        }
    }

    /// Advances time by one step: expired records are removed, without notifications.
    pub(super) fn tick(&mut self) {
        for (lease, has_ended) in self.leases.iter_mut().zip(&mut self.has_ended) {
            *has_ended |= lease.is_some_and(|lease| lease.time_left == 1);
            *lease = lease.filter(|lease| lease.time_left > 1);
            if let Some(lease) = lease {
                lease.time_left -= 1;
            }
        }
        for ticket in &mut self.tickets {
            *ticket = ticket.filter(|ticket| ticket.time_left > 1);
            if let Some(ticket) = ticket {
                count_down(&mut ticket.time_left);
            }
        }
        for (queue, is_lost) in self.process_queues.iter_mut().zip(&mut self.is_lost) {
            count_down(&mut queue.time_left);
            if queue.time_left == 0 {
                for (sequence, is_lost) in queue.sequences.iter_mut().zip(is_lost) {
                    *is_lost |= sequence.take().is_some();
                }
            }
        }
        if let Some(reservation) = &mut self.reservation {
            count_down(&mut reservation.time_left);
        }
    }

    fn open(&mut self, claim: usize, mistake: Option<Mistake>) {
        if self.leases[claim].take().is_some_and(|lease| !lease.shared) {
            self.reservation = None;
        }
        self.reserve(mistake);
    }
}

/// Decrements a countdown, if it ends at all.
pub(super) fn count_down(time_left: &mut u8) {
    if *time_left != FOREVER {
        *time_left = time_left.saturating_sub(1);
    }
}
