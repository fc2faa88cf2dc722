//! Who is the first in the queue, and what he is offered.

use super::{Ask, First, Lease, OFFER, Offer, Store, TTL};
use crate::ticket_queue::Mistake;

impl Store {
    pub(super) fn is_first(
        &mut self,
        process: usize,
        sequence: Option<u8>,
        mistake: Option<Mistake>,
    ) -> bool {
        let barges = mistake == Some(Mistake::NewcomersBarge) && sequence.is_none();
        let is_for_all = mistake == Some(Mistake::OffersToAll);
        if !self.is_waited_for || barges || is_for_all {
            return true;
        }
        if self.lapsed() == Some(process) {
            // It was taken for dead and is not.
            self.offer = None;
            self.index(process);
        }
        let first = self.first_waiter();
        first.is_none_or(|first| sequence.is_some_and(|sequence| first.sequence >= sequence))
    }

    /// Whether no lease keeps a claim out.
    pub(super) fn admits(&self, shared: bool) -> bool {
        let mut leases = self.leases.iter().flatten();
        leases.all(|lease| lease.shared && shared)
    }

    /// The first waiter of a process that is alive and did not let an offer lapse.
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
                self.offer = None;
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
            self.lines[process].sequences[claim] = None;
            self.index(process);
        }
    }

    /// Offers the lock to the first waiter if the lock admits it, once.
    pub(super) fn offer(&mut self, mistake: Option<Mistake>) {
        if !self.is_waited_for {
            return;
        }
        let Some(first) = self.first_waiter() else {
            return;
        };
        if !self.admits(first.shared) {
            // An earlier offer has come to nothing.
            self.offer = None;
            return;
        }
        if self
            .offer
            .is_some_and(|offer| offer.process == first.process)
        {
            return;
        }
        self.offer = Some(Offer {
            process: first.process,
            time_left: OFFER,
        });
        self.messages[first.process] = true;
        if mistake == Some(Mistake::HandsTheLockOver) {
            self.hand_over(&first);
        }
    }

    /// Grants the lock to a waiter that has not asked.
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
        let offer = self.offer.filter(|offer| offer.time_left == 0);
        offer.map(|offer| offer.process)
    }

    pub(super) fn first_of(&self, process: usize) -> Option<(u8, usize)> {
        let waiters = self.lines[process].sequences.iter().enumerate();
        let standing = waiters.filter_map(|(claim, sequence)| Some(((*sequence)?, claim)));
        standing.min()
    }

    /// Puts right where a process stands in the queue.
    pub(super) fn index(&mut self, process: usize) {
        self.queue[process] = self.first_of(process).map(|(sequence, _)| sequence);
    }

    /// Takes a claim out of the waiters of a process. What the process was offered was offered to the first of them.
    pub(super) fn leave(&mut self, process: usize, claim: usize) -> bool {
        let is_offered = self.offer.is_some_and(|offer| offer.process == process);
        if is_offered
            && self
                .first_of(process)
                .is_some_and(|(_, first)| first == claim)
        {
            self.offer = None;
        }
        let was_there = self.lines[process].sequences[claim].take().is_some();
        if was_there {
            self.index(process);
        }
        was_there
    }

    /// Takes a claim out of the line where it stood, if that is another process's. Says whether it is.
    pub(super) fn take_along(&mut self, ask: Ask) -> bool {
        let ticket = self.tickets[ask.claim];
        let elsewhere = ticket.filter(|ticket| ticket.process != ask.process);
        if let Some(ticket) = elsewhere {
            self.leave(ticket.process, ask.claim);
            // Who has no place yet has come later, as far as anybody can know.
            self.is_lost[ticket.process][ask.claim] |= ask.sequence.is_none();
        }
        elsewhere.is_some()
    }

    pub(super) fn forget_queue(&mut self) {
        self.is_waited_for = false;
        self.offer = None;
    }
}
