//! The head of the queue, and its reservation.

use super::{First, Lease, Poll, RESERVATION_TTL, Reservation, Store, TTL};
use crate::ticket_queue::Mistake;

impl Store {
    pub(super) fn is_first(
        &mut self,
        process: usize,
        sequence: Option<u8>,
        mistake: Option<Mistake>,
    ) -> bool {
        let barges = mistake == Some(Mistake::NewcomersBarge) && sequence.is_none();
        let is_for_all = mistake == Some(Mistake::NoReservation);
        if !self.is_waited_for || barges || is_for_all {
            return true;
        }
        if self.lapsed() == Some(process) {
            // The process was considered dead, but is alive.
            self.reservation = None;
            self.index(process);
        }
        let first = self.first_waiter();
        first.is_none_or(|first| sequence.is_some_and(|sequence| first.sequence >= sequence))
    }

    /// Whether no lease conflicts with the claim.
    pub(super) fn admits(&self, shared: bool) -> bool {
        let mut leases = self.leases.iter().flatten();
        leases.all(|lease| lease.shared && shared)
    }

    /// The head waiter: the first one on a process that is alive and did not let a reservation lapse.
    pub(super) fn first_waiter(&mut self) -> Option<First> {
        loop {
            let processes = self.queue.iter().enumerate();
            let listed = processes.filter_map(|(process, score)| Some(((*score)?, process)));
            let Some((score, process)) = listed.min() else {
                self.forget_queue();
                return None;
            };
            let first = self.first_of(process);
            let Some((sequence, claim)) = first.filter(|(sequence, _)| *sequence == score) else {
                self.index(process);
                continue;
            };
            if self.lapsed() == Some(process) {
                self.queue[process] = None;
                self.reservation = None;
                self.was_passed_over[process] = true;
                continue;
            }
            if let Some(ticket) = self.tickets[claim].filter(|ticket| ticket.process == process) {
                return Some(First {
                    claim,
                    process,
                    sequence,
                    shared: ticket.shared,
                });
            }
            self.process_queues[process].sequences[claim] = None;
            self.index(process);
        }
    }

    /// Reserves the lock for the head waiter if the leases permit it, once.
    pub(super) fn reserve(&mut self, mistake: Option<Mistake>) {
        if !self.is_waited_for {
            return;
        }
        let Some(first) = self.first_waiter() else {
            return;
        };
        if !self.admits(first.shared) {
            // An earlier reservation was not claimed.
            self.reservation = None;
            return;
        }
        if self
            .reservation
            .is_some_and(|reservation| reservation.process == first.process)
        {
            return;
        }
        self.reservation = Some(Reservation {
            process: first.process,
            time_left: RESERVATION_TTL,
        });
        self.messages[first.process] = true;
        if mistake == Some(Mistake::HandsTheLockOver) {
            self.hand_over(&first);
        }
    }

    /// Grants the lock to a waiter without a poll.
    fn hand_over(&mut self, first: &First) {
        self.tickets[first.claim] = None;
        self.leave(first.process, first.claim);
        self.leases[first.claim] = Some(Lease {
            shared: first.shared,
            time_left: TTL,
            attempt: Some(0),
        });
    }

    pub(super) fn lapsed(&self) -> Option<usize> {
        let reservation = self
            .reservation
            .filter(|reservation| reservation.time_left == 0);
        reservation.map(|reservation| reservation.process)
    }

    pub(super) fn first_of(&self, process: usize) -> Option<(u8, usize)> {
        let waiters = self.process_queues[process].sequences.iter().enumerate();
        let waiting = waiters.filter_map(|(claim, sequence)| Some(((*sequence)?, claim)));
        waiting.min()
    }

    /// Updates the place of a process in the queue.
    pub(super) fn index(&mut self, process: usize) {
        self.queue[process] = self.first_of(process).map(|(sequence, _)| sequence);
    }

    /// Removes a claim from the waiters of a process. A reservation of the process is that of its first waiter.
    pub(super) fn leave(&mut self, process: usize, claim: usize) -> bool {
        let is_reserved = self
            .reservation
            .is_some_and(|reservation| reservation.process == process);
        if is_reserved
            && self
                .first_of(process)
                .is_some_and(|(_, first)| first == claim)
        {
            self.reservation = None;
        }
        let was_there = self.process_queues[process].sequences[claim]
            .take()
            .is_some();
        if was_there {
            self.index(process);
        }
        was_there
    }

    /// Removes a claim from the queue of another process, if it waited there. Returns whether it did.
    pub(super) fn take_over(&mut self, poll: Poll) -> bool {
        let ticket = self.tickets[poll.claim];
        let elsewhere = ticket.filter(|ticket| ticket.process != poll.process);
        if let Some(ticket) = elsewhere {
            self.leave(ticket.process, poll.claim);
            // A request without a known place counts as a later one.
            self.is_lost[ticket.process][poll.claim] |= poll.sequence.is_none();
        }
        elsewhere.is_some()
    }

    pub(super) fn forget_queue(&mut self) {
        self.is_waited_for = false;
        self.reservation = None;
    }
}
