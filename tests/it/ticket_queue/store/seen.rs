//! Queries of the properties, and details that the store may drop without affecting them.

use super::{Poll, Store};
use crate::ticket_queue::Mistake;
use crate::ticket_queue::scenario::ATTEMPTS;

impl Store {
    pub(in crate::ticket_queue) fn place_of(&self, claim: usize) -> Option<u8> {
        self.tickets[claim].map(|ticket| ticket.sequence)
    }

    /// The claims in the queue of this process, in their order.
    pub(in crate::ticket_queue) fn waiters(&self, process: usize) -> Vec<usize> {
        let sequences = self.process_queues[process].sequences.iter().enumerate();
        let waiting = sequences.filter_map(|(claim, sequence)| Some(((*sequence)?, claim)));
        let mut waiting: Vec<_> = waiting.collect();
        waiting.sort_unstable();
        waiting.into_iter().map(|(_, claim)| claim).collect()
    }

    /// Whether a claim in the queue of this process would be granted the lock if it polled now.
    pub(in crate::ticket_queue) fn would_grant(
        mut self,
        claim: usize,
        process: usize,
        shared: bool,
        mistake: Option<Mistake>,
    ) -> bool {
        let sequence = self.process_queues[process].sequences[claim];
        sequence.is_some() && self.admits(shared) && self.is_first(process, sequence, mistake)
    }

    /// Whether the lock is open and has waiters, but no reservation.
    pub(in crate::ticket_queue) fn is_unreserved(mut self) -> bool {
        self.is_waited_for
            && self.reservation.is_none()
            && self
                .first_waiter()
                .is_some_and(|first| self.admits(first.shared))
    }

    /// Whether no later claim may be granted before this one.
    pub(in crate::ticket_queue) fn waits_for(&self, process: usize, claim: usize) -> bool {
        let is_passed_over = self.was_passed_over[process] || self.lapsed() == Some(process);
        !is_passed_over && !self.is_lost[process][claim]
    }

    pub(in crate::ticket_queue) fn has_passed_over(&self) -> bool {
        self.was_passed_over.contains(&true)
    }

    /// Drops details that matter only to a claim that polls again.
    pub(in crate::ticket_queue) fn forget_marks(&mut self, claim: usize) {
        self.has_ended[claim] = false;
        self.was_withdrawn[claim] = [false; ATTEMPTS];
        for is_lost in &mut self.is_lost {
            is_lost[claim] = false;
        }
    }

    /// Whether a poll would change nothing, now and later.
    pub(in crate::ticket_queue) fn refuses(&self, poll: &Poll) -> bool {
        let is_granted = self.leases[poll.claim].is_some();
        let is_refused = self.has_ended[poll.claim] || self.was_withdrawn[poll.claim][poll.attempt];
        is_refused && !is_granted
    }

    /// Renumbers the sequence numbers, here and `elsewhere`, to small ones: only their order matters.
    pub(in crate::ticket_queue) fn close_ranks<'a>(&'a mut self, mut elsewhere: Vec<&'a mut u8>) {
        let largest = &mut self.last_sequence;
        let tickets = self
            .tickets
            .iter_mut()
            .flatten()
            .map(|ticket| &mut ticket.sequence);
        let process_queues = self
            .process_queues
            .iter_mut()
            .flat_map(|queue| &mut queue.sequences)
            .flatten();
        let queue = self.queue.iter_mut().flatten();
        elsewhere.extend(tickets.chain(process_queues).chain(queue));
        let in_use = elsewhere
            .iter()
            .fold(0u32, |in_use, sequence| in_use | 1 << **sequence);
        for sequence in elsewhere {
            let smaller = in_use & ((1 << *sequence) - 1);
            *sequence = u8::try_from(smaller.count_ones() + 1).unwrap();
        }
        *largest = u8::try_from(in_use.count_ones()).unwrap();
    }
}
