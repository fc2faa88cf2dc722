//! The queue of one lock. Whether the lock admits a waiter is not known here.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::StoreTime;
use super::claim::{Text, TicketNames};
use crate::domain::{Claim, ClaimDigest, HeadWaiter, Mode, Position, Queue, Timestamp};
use crate::store::{RESERVATION_EXTENSION, RESERVATION_TTL};

/// The queue of one lock. All waiters belong to this one process.
pub(super) struct WaitQueue {
    /// The claims with a waiting request, in the order of their sequence numbers.
    ///
    /// Claims arrive at the back and mostly leave at the front. One that leaves in the middle moves a few kilobytes; in
    /// return, a position is found by binary search.
    waiters: VecDeque<(u64, ClaimDigest)>,
    /// The tickets of all claims whose place is kept, with or without a waiting request.
    tickets: BTreeMap<ClaimDigest, QueueEntry>,
    /// Exactly one entry for each ticket.
    expiries: BTreeSet<(StoreTime, ClaimDigest)>,
    reservation: Reservation,
}

/// The ticket of a waiting claim.
#[derive(Debug)]
pub(super) struct QueueEntry {
    pub(super) sequence: u64,
    /// All locks of the claim.
    pub(super) names: TicketNames,
    pub(super) mode: Mode,
    /// The text of the lease to come, whose room is already counted.
    pub(super) text: Text,
    /// When the ticket expires.
    pub(super) until: StoreTime,
}

/// Whether the lock is reserved for this process.
#[derive(Clone, Copy)]
enum Reservation {
    None,
    /// For the waiter with this sequence number.
    Made {
        sequence: u64,
        until: StoreTime,
        is_extended: bool,
    },
    /// The process did not claim its reservation, and is passed over until it polls.
    Unclaimed,
}

impl QueueEntry {
    pub(super) fn new(
        claim: &Claim,
        names: TicketNames,
        text: Text,
        sequence: u64,
        until: StoreTime,
    ) -> Self {
        Self {
            sequence,
            names,
            mode: claim.mode,
            text,
            until,
        }
    }

    /// Whether the claim waits for exactly these locks, in this mode.
    pub(super) fn is_of(&self, claim: &Claim) -> bool {
        self.mode == claim.mode && *self.names == claim.names
    }
}

impl WaitQueue {
    pub(super) fn new() -> Self {
        Self {
            waiters: VecDeque::new(),
            tickets: BTreeMap::new(),
            expiries: BTreeSet::new(),
            reservation: Reservation::None,
        }
    }

    /// Whether there are no tickets.
    pub(super) fn is_empty(&self) -> bool {
        self.tickets.is_empty()
    }

    /// How many tickets there are, with or without a waiting request.
    pub(super) fn ticket_count(&self) -> usize {
        self.tickets.len()
    }

    /// All tickets, and whether they have a waiting request.
    #[cfg(test)]
    pub(super) fn tickets(&self) -> Vec<(ClaimDigest, String)> {
        let describe = |(claim, ticket): (&ClaimDigest, &QueueEntry)| {
            let waits = self.index(*claim).is_some();
            (*claim, format!("{ticket:?} {waits}"))
        };
        self.tickets.iter().map(describe).collect()
    }

    /// How many claims have a waiting request.
    pub(super) fn length(&self) -> u64 {
        self.waiters.len() as u64
    }

    pub(super) fn ticket(&self, claim: ClaimDigest) -> Option<&QueueEntry> {
        self.tickets.get(&claim)
    }

    /// The head waiter, unless its process is passed over.
    pub(super) fn first(&self) -> Option<&QueueEntry> {
        match self.reservation {
            Reservation::None | Reservation::Made { .. } => self.head(),
            Reservation::Unclaimed => None,
        }
    }

    fn head(&self) -> Option<&QueueEntry> {
        let (_, claim) = self.waiters.front()?;
        Some(&self.tickets[claim])
    }

    /// Whether no waiter precedes a claim with this sequence number, or a claim that has none.
    pub(super) fn is_turn_of(&self, sequence: Option<u64>) -> bool {
        self.first()
            .is_none_or(|first| sequence.is_some_and(|sequence| sequence <= first.sequence))
    }

    /// Until when the lock is reserved for the head waiter.
    pub(super) fn reserved_until(&self) -> Option<StoreTime> {
        match self.reservation {
            Reservation::Made { until, .. } => Some(until),
            Reservation::None | Reservation::Unclaimed => None,
        }
    }

    /// The public view.
    pub(super) fn view(&self) -> Queue {
        Queue {
            length: self.length(),
            head: self.head().map(|ticket| HeadWaiter {
                owner: ticket.text.owner().clone(),
                mode: ticket.mode,
                // A sequence number is the time in microseconds, unless many claims came within one microsecond.
                since: Timestamp::from_unix_ms(ticket.sequence / 1_000),
            }),
        }
    }

    /// The position of a claim in the queue.
    pub(super) fn position(&self, claim: ClaimDigest) -> Option<Position> {
        Some(Position {
            position: self.index(claim)? as u64 + 1,
            queue_length: self.length(),
        })
    }

    fn index(&self, claim: ClaimDigest) -> Option<usize> {
        let sequence = self.tickets.get(&claim)?.sequence;
        self.waiters.binary_search(&(sequence, claim)).ok()
    }

    /// A poll shows that the process is alive, so it is no longer passed over.
    pub(super) fn note_alive(&mut self) {
        if matches!(self.reservation, Reservation::Unclaimed) {
            self.reservation = Reservation::None;
        }
    }

    /// Enqueues a claim, keeps it queued, or puts it back into its place.
    pub(super) fn enqueue(&mut self, claim: ClaimDigest, ticket: QueueEntry) {
        let is_there = self
            .tickets
            .get(&claim)
            .is_some_and(|before| before.sequence == ticket.sequence)
            && self.index(claim).is_some();
        if !is_there {
            self.remove(claim);
            let place = (ticket.sequence, claim);
            let index = self.waiters.partition_point(|other| *other < place);
            self.waiters.insert(index, place);
        }
        let until = ticket.until;
        if let Some(before) = self.tickets.insert(claim, ticket) {
            self.expiries.remove(&(before.until, claim));
        }
        self.expiries.insert((until, claim));
    }

    /// Puts back a ticket that was loaded. Its claim does not wait until it asks again.
    pub(super) fn restore(&mut self, claim: ClaimDigest, ticket: QueueEntry) {
        self.expiries.insert((ticket.until, claim));
        self.tickets.insert(claim, ticket);
    }

    /// Removes a claim from the waiters; its ticket is kept until the given moment.
    pub(super) fn suspend(&mut self, claim: ClaimDigest, until: StoreTime) {
        self.leave(claim);
        if let Some(ticket) = self.tickets.get_mut(&claim) {
            self.expiries.remove(&(ticket.until, claim));
            self.expiries.insert((until, claim));
            ticket.until = until;
        }
    }

    /// Removes a claim from the waiters; its ticket expires as planned before.
    pub(super) fn leave(&mut self, claim: ClaimDigest) {
        if let Some(index) = self.index(claim) {
            self.waiters.remove(index);
        }
        // A reservation ends if its waiter has left; one for another waiter stays.
        let is_gone = |sequence| self.head().is_none_or(|head| head.sequence != sequence);
        if matches!(self.reservation, Reservation::Made { sequence, .. } if is_gone(sequence)) {
            self.reservation = Reservation::None;
        }
    }

    /// Removes a claim with its ticket.
    pub(super) fn remove(&mut self, claim: ClaimDigest) -> Option<QueueEntry> {
        self.leave(claim);
        let ticket = self.tickets.remove(&claim)?;
        self.expiries.remove(&(ticket.until, claim));
        if self.waiters.len() < self.waiters.capacity() / 4 {
            self.waiters.shrink_to(self.waiters.len() * 2);
        }
        Some(ticket)
    }

    /// Removes the ticket of a claim if it has expired. Returns whether it had.
    pub(super) fn expire(&mut self, claim: ClaimDigest, now: StoreTime) -> bool {
        let ticket = self.tickets.get(&claim);
        ticket.is_some_and(|ticket| ticket.until <= now) && self.remove(claim).is_some()
    }

    /// Reserves the lock for the head waiter if a poll would end its wait (`ends_wait`), and cancels the reservation
    /// otherwise. Returns whether the process must be notified.
    pub(super) fn reserve(&mut self, ends_wait: bool, now: StoreTime) -> bool {
        let Some(sequence) = self.first().map(|first| first.sequence) else {
            return false;
        };
        let is_notified =
            matches!(self.reservation, Reservation::Made { sequence: to, .. } if to == sequence);
        if !ends_wait {
            self.reservation = Reservation::None;
        } else if !is_notified {
            let until = now + RESERVATION_TTL;
            self.reservation = Reservation::Made {
                sequence,
                until,
                is_extended: false,
            };
        }
        ends_wait && !is_notified
    }

    /// Processes what is due, but at most `left` tickets, which it counts down. Calls `expired` with each claim whose
    /// ticket has expired. While notifications are late (`is_late`), no reservation runs out.
    pub(super) fn advance(
        &mut self,
        now: StoreTime,
        left: &mut usize,
        is_late: bool,
        mut expired: impl FnMut(ClaimDigest),
    ) {
        if let Reservation::Made {
            sequence,
            until,
            is_extended,
        } = self.reservation
            && until <= now
        {
            self.reservation = match is_extended && !is_late {
                true => Reservation::Unclaimed,
                false => Reservation::Made {
                    sequence,
                    until: now + RESERVATION_EXTENSION,
                    is_extended: true,
                },
            };
        }
        while *left > 0
            && let Some(&(until, claim)) = self.expiries.first()
            && until <= now
        {
            self.remove(claim);
            expired(claim);
            *left -= 1;
        }
    }

    /// When something is due.
    pub(super) fn due(&self) -> Option<StoreTime> {
        let expiries = self.expiries.first().map(|(until, _)| *until);
        [expiries, self.reserved_until()]
            .into_iter()
            .flatten()
            .min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{LockName, LockNames, Token, Ttl};
    use crate::store::state::claim::NameLists;

    /// A lock may have very many waiters once.
    #[test]
    fn a_queue_that_was_once_long_gives_its_memory_back() {
        const WAITERS: u64 = 1_000;
        let name = LockName::parse(b"a").expect("a name");
        let names = LockNames::from(name.clone());
        let claims: Vec<_> = std::iter::repeat_with(|| Token::random().digest(&name))
            .take(WAITERS as usize)
            .collect();
        let ttl = Ttl::from_store(std::time::Duration::from_secs(1));
        let claim = Claim::plain(names.clone(), Token::random(), ttl);
        let mut queue = WaitQueue::new();
        for (sequence, digest) in (1..).zip(&claims) {
            let of_ticket = TicketNames::new(&names, &NameLists::default());
            let until = StoreTime::from_unix_us(sequence);
            let ticket = QueueEntry::new(&claim, of_ticket, Text::default(), sequence, until);
            queue.enqueue(*digest, ticket);
        }
        let mut moved = 0;
        for (digest, left) in claims.iter().zip((0..WAITERS).rev()) {
            let before = queue.waiters.capacity();
            queue.remove(*digest);
            let after = queue.waiters.capacity();
            moved += usize::from(after != before);
            assert!(after as u64 <= 4 * left + 3, "{after} for {left}");
        }
        assert!(moved < 12, "it is moved {moved} times");
    }
}
