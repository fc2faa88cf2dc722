//! What the properties ask of the store, and what it may forget without their noticing.

use super::{Ask, Store};
use crate::ticket_queue::Mistake;
use crate::ticket_queue::scenario::ATTEMPTS;

impl Store {
    pub(in crate::ticket_queue) fn place_of(&self, claim: usize) -> Option<u8> {
        self.tickets[claim].map(|ticket| ticket.sequence)
    }

    /// Whether a claim that stands in this line would be granted the lock if it asked now.
    pub(in crate::ticket_queue) fn would_grant(
        mut self,
        claim: usize,
        process: usize,
        shared: bool,
        mistake: Option<Mistake>,
    ) -> bool {
        let sequence = self.lines[process].sequences[claim];
        sequence.is_some() && self.admits(shared) && self.is_first(process, sequence, mistake)
    }

    /// Whether the lock is open and waited for, and was offered to nobody.
    pub(in crate::ticket_queue) fn is_kept_secret(mut self) -> bool {
        self.is_waited_for
            && self.offer.is_none()
            && self
                .first_waiter()
                .is_some_and(|first| self.admits(first.shared))
    }

    /// Whether nobody may overtake a claim that stands here.
    pub(in crate::ticket_queue) fn waits_for(&self, process: usize, claim: usize) -> bool {
        let is_passed_over = self.was_passed_over[process] || self.lapsed() == Some(process);
        !is_passed_over && !self.is_lost[process][claim]
    }

    pub(in crate::ticket_queue) fn has_passed_over(&self) -> bool {
        self.was_passed_over.contains(&true)
    }

    /// Forgets what only matters to a claim that will ask again.
    pub(in crate::ticket_queue) fn forget_marks(&mut self, claim: usize) {
        self.has_ended[claim] = false;
        self.was_withdrawn[claim] = [false; ATTEMPTS];
        for is_lost in &mut self.is_lost {
            is_lost[claim] = false;
        }
    }

    /// Whether an ask would change nothing, now and later.
    pub(in crate::ticket_queue) fn refuses(&self, ask: &Ask) -> bool {
        let is_granted = self.leases[ask.claim].is_some();
        let is_refused = self.has_ended[ask.claim] || self.was_withdrawn[ask.claim][ask.attempt];
        is_refused && !is_granted
    }

    /// Makes the sequence numbers small, here and `elsewhere`: only their order matters.
    pub(in crate::ticket_queue) fn close_ranks<'a>(&'a mut self, mut elsewhere: Vec<&'a mut u8>) {
        let largest = &mut self.last_sequence;
        let tickets = self
            .tickets
            .iter_mut()
            .flatten()
            .map(|ticket| &mut ticket.sequence);
        let lines = self
            .lines
            .iter_mut()
            .flat_map(|line| &mut line.sequences)
            .flatten();
        let queue = self.queue.iter_mut().flatten();
        elsewhere.extend(tickets.chain(lines).chain(queue));
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
