//! Those who wait for one lock. Whether the lock admits them is not known here.

use std::collections::{BTreeSet, HashMap, VecDeque};

use tokio::time::Instant;

use super::clock::StoreTime;
use super::leases::shrink;
use super::text::Text;
use crate::domain::{Claim, HeadWaiter, LockNames, Mode, Position, Queue, Timestamp, Token};
use crate::store::{LAST_CALL, RESERVATION_TTL};

/// The queue of one lock. All waiters belong to this one process.
pub(super) struct WaitQueue {
    /// Those whom somebody waits for, in the order of their sequence numbers.
    ///
    /// Claims come at one end and mostly leave at the other; one that leaves in the middle moves a few kilobytes, and
    /// in return a position is found by halving.
    standing: VecDeque<(u64, Token)>,
    /// Everybody whose place is known, standing or not.
    tickets: HashMap<Token, QueueEntry>,
    /// Exactly one entry for each ticket.
    forgotten: BTreeSet<(Instant, Token)>,
    offer: Reservation,
}

/// What is known of a waiting claim.
pub(super) struct QueueEntry {
    pub(super) sequence: u64,
    /// All locks that it waits for.
    pub(super) names: LockNames,
    pub(super) mode: Mode,
    /// That of the hold to come, for which there is room already.
    pub(super) text: Text,
    /// When its place is forgotten.
    until: Instant,
}

/// Whether the lock is offered to the process.
#[derive(Clone, Copy)]
enum Reservation {
    None,
    /// To the waiter with this sequence number.
    Made {
        sequence: u64,
        until: Instant,
        is_last_call: bool,
    },
    /// It did not take what it was offered, and is passed over until it asks again.
    Unclaimed,
}

impl QueueEntry {
    pub(super) fn new(claim: &Claim, text: Text, sequence: u64, until: Instant) -> Self {
        Self {
            sequence,
            names: claim.names.clone(),
            mode: claim.mode,
            text,
            until,
        }
    }

    /// Whether the claim waits for just these locks, and just so.
    pub(super) fn is_of(&self, claim: &Claim) -> bool {
        self.mode == claim.mode && self.names == claim.names
    }
}

impl WaitQueue {
    /// A queue with nobody in it.
    pub(super) fn new() -> Self {
        Self {
            standing: VecDeque::new(),
            tickets: HashMap::new(),
            forgotten: BTreeSet::new(),
            offer: Reservation::None,
        }
    }

    /// Whether no place is known here.
    pub(super) fn is_empty(&self) -> bool {
        self.tickets.is_empty()
    }

    /// How many places are known, those of claims that stand here included.
    pub(super) fn places(&self) -> usize {
        self.tickets.len()
    }

    /// How many stand here.
    pub(super) fn length(&self) -> u64 {
        self.standing.len() as u64
    }

    pub(super) fn ticket(&self, token: Token) -> Option<&QueueEntry> {
        self.tickets.get(&token)
    }

    /// The next in turn, unless its process is passed over.
    pub(super) fn first(&self) -> Option<&QueueEntry> {
        match self.offer {
            Reservation::None | Reservation::Made { .. } => self.head(),
            Reservation::Unclaimed => None,
        }
    }

    fn head(&self) -> Option<&QueueEntry> {
        let (_, token) = self.standing.front()?;
        Some(&self.tickets[token])
    }

    /// Whether nobody has to be granted before a claim with this place, or before one without.
    pub(super) fn is_turn_of(&self, sequence: Option<u64>) -> bool {
        self.first()
            .is_none_or(|first| sequence.is_some_and(|sequence| sequence <= first.sequence))
    }

    /// Until when the lock is kept for the first waiter.
    pub(super) fn reserved_until(&self) -> Option<Instant> {
        match self.offer {
            Reservation::Made { until, .. } => Some(until),
            Reservation::None | Reservation::Unclaimed => None,
        }
    }

    /// What everybody may see.
    pub(super) fn view(&self) -> Queue {
        Queue {
            length: self.length(),
            head: self.head().map(|ticket| HeadWaiter {
                owner: ticket.text.owner().clone(),
                mode: ticket.mode,
                // A sequence number is the time, unless many came within one microsecond.
                since: Timestamp::from_unix_ms(ticket.sequence / 1_000),
            }),
        }
    }

    /// How far a claim has come that stands here.
    pub(super) fn position(&self, token: Token) -> Option<Position> {
        Some(Position {
            position: self.index(token)? as u64 + 1,
            queue_length: self.length(),
        })
    }

    fn index(&self, token: Token) -> Option<usize> {
        let sequence = self.tickets.get(&token)?.sequence;
        self.standing.binary_search(&(sequence, token)).ok()
    }

    /// The process asks for the lock, so it is alive.
    pub(super) fn heard(&mut self) {
        if matches!(self.offer, Reservation::Unclaimed) {
            self.offer = Reservation::None;
        }
    }

    /// A claim comes to stand here, or goes on standing, or stands again.
    pub(super) fn stand(&mut self, token: Token, ticket: QueueEntry) {
        let is_there = self
            .tickets
            .get(&token)
            .is_some_and(|before| before.sequence == ticket.sequence)
            && self.index(token).is_some();
        if !is_there {
            self.remove(token);
            let place = (ticket.sequence, token);
            let index = self.standing.partition_point(|other| *other < place);
            self.standing.insert(index, place);
        }
        let until = ticket.until;
        if let Some(before) = self.tickets.insert(token, ticket) {
            self.forgotten.remove(&(before.until, token));
        }
        self.forgotten.insert((until, token));
    }

    /// A claim stands here no more; its place is kept until a moment.
    pub(super) fn park(&mut self, token: Token, until: Instant) {
        self.step_out(token);
        if let Some(ticket) = self.tickets.get_mut(&token) {
            self.forgotten.remove(&(ticket.until, token));
            self.forgotten.insert((until, token));
            ticket.until = until;
        }
    }

    /// A claim stands here no more; its place is kept as long as it was to be kept anyhow.
    pub(super) fn step_out(&mut self, token: Token) {
        if let Some(index) = self.index(token) {
            self.standing.remove(index);
        }
        // An offer to a waiter who is gone is none; one to the rest stays as it is.
        let is_gone = |sequence| self.head().is_none_or(|head| head.sequence != sequence);
        if matches!(self.offer, Reservation::Made { sequence, .. } if is_gone(sequence)) {
            self.offer = Reservation::None;
        }
    }

    /// A claim has nothing to do here any more.
    pub(super) fn remove(&mut self, token: Token) -> Option<QueueEntry> {
        self.step_out(token);
        let ticket = self.tickets.remove(&token)?;
        self.forgotten.remove(&(ticket.until, token));
        shrink(&mut self.tickets);
        if self.standing.len() < self.standing.capacity() / 4 {
            self.standing.shrink_to(self.standing.len() * 2);
        }
        Some(ticket)
    }

    /// Offers the lock to the first waiter if there is `something` for it, and takes the offer back otherwise. Says
    /// whether its process must be told.
    pub(super) fn reserve(&mut self, something: bool, now: StoreTime) -> bool {
        let Some(sequence) = self.first().map(|first| first.sequence) else {
            return false;
        };
        let is_told =
            matches!(self.offer, Reservation::Made { sequence: to, .. } if to == sequence);
        if !something {
            self.offer = Reservation::None;
        } else if !is_told {
            let until = now.instant + RESERVATION_TTL;
            self.offer = Reservation::Made {
                sequence,
                until,
                is_last_call: false,
            };
        }
        something && !is_told
    }

    /// Lets happen what is due.
    pub(super) fn advance(&mut self, now: StoreTime) {
        if let Reservation::Made {
            sequence,
            until,
            is_last_call,
        } = self.offer
            && until <= now.instant
        {
            self.offer = match is_last_call {
                true => Reservation::Unclaimed,
                false => Reservation::Made {
                    sequence,
                    until: now.instant + LAST_CALL,
                    is_last_call: true,
                },
            };
        }
        while let Some(&(until, token)) = self.forgotten.first()
            && until <= now.instant
        {
            self.remove(token);
        }
    }

    /// When something is due.
    pub(super) fn due(&self) -> Option<Instant> {
        let forgotten = self.forgotten.first().map(|(until, _)| *until);
        [forgotten, self.reserved_until()]
            .into_iter()
            .flatten()
            .min()
    }
}
