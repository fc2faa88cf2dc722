//! The model of one lock: its holders, what keeps it closed, its queue, and its tombstones.

use std::collections::BTreeMap;

use super::receivers::{self, Receiver};
use super::{ClaimSpec, Part, Terms, What, Why};

/// How a lock is held. Without a limit, any number of claims hold together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Mode {
    Alone,
    Shared { limit: Option<u64>, permits: u64 },
}

#[derive(Clone, Debug, Default)]
pub(super) struct Lock {
    leases: Vec<Lease>,
    /// The permits that ended leases keep taken, and until when.
    closed: Vec<(u64, Mode)>,
    /// How long the last lease was held, if it expired.
    expired_after: Option<u64>,
    pub(super) ended: BTreeMap<usize, Ended>,
    /// By sequence.
    pub(super) queue: BTreeMap<u64, Ticket>,
}

#[derive(Clone, Debug)]
pub(super) struct Lease {
    token: usize,
    depth: u64,
    pub(super) mode: Mode,
    terms: Terms,
    acquired: u64,
    until: u64,
    /// Who has received the lease, in turn.
    received: Vec<Receiver>,
    /// Shared by the leases of one grant.
    text: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub(super) why: Why,
    held: Mode,
}

#[derive(Clone, Debug)]
pub(super) struct Ticket {
    pub(super) token: usize,
    pub(super) mode: Mode,
    /// Set if no request is connected for the place.
    pub(super) kept_until: Option<u64>,
    /// The text of the future lease.
    pub(super) text: u64,
}

impl Mode {
    /// A number for each mode.
    pub(in super::super) fn number(self) -> u64 {
        match self {
            Self::Alone => 0,
            Self::Shared { limit, permits } => limit.unwrap_or(0) * 100 + permits,
        }
    }
}

impl Lease {
    pub(super) fn new(spec: &ClaimSpec, attempt: u64, text: u64, now: u64) -> Self {
        let ceiling = spec.terms.max_hold.unwrap_or(u64::MAX);
        Self {
            token: spec.token,
            depth: spec.depth,
            mode: spec.mode,
            terms: spec.terms,
            acquired: now,
            until: now + spec.terms.ttl.min(ceiling),
            received: vec![Receiver::Attempt(attempt)],
            text,
        }
    }

    pub(super) fn seen(&self, what: What, now: u64) -> Part {
        what.of(0, &[self.depth, self.mode.number()], &[self.until - now])
    }
}

impl Lock {
    pub(super) fn lease_of(&self, token: usize) -> Option<&Lease> {
        self.leases.iter().find(|lease| lease.token == token)
    }

    fn lease_to_change(&mut self, token: usize) -> Option<&mut Lease> {
        let lease = self.leases.iter_mut().find(|lease| lease.token == token)?;
        lease.received.push(Receiver::Independent);
        Some(lease)
    }

    /// The place of a claim that waits or has waited.
    pub(super) fn ticket_of(&self, token: usize) -> Option<u64> {
        let found = self.queue.iter().find(|(_, ticket)| ticket.token == token);
        found.map(|(&sequence, _)| sequence)
    }

    pub(super) fn waits_otherwise(&self, token: usize, mode: Mode) -> bool {
        let mut tickets = self.queue.values();
        tickets.any(|ticket| ticket.token == token && ticket.mode != mode)
    }

    fn queued(&self) -> impl Iterator<Item = (u64, &Ticket)> {
        let queued = self
            .queue
            .iter()
            .filter(|(_, ticket)| ticket.kept_until.is_none());
        queued.map(|(&sequence, ticket)| (sequence, ticket))
    }

    pub(super) fn first(&self) -> Option<u64> {
        self.queued().next().map(|(sequence, _)| sequence)
    }

    pub(super) fn length(&self) -> u64 {
        self.queued().count() as u64
    }

    pub(super) fn before(&self, sequence: u64) -> u64 {
        self.queued().filter(|(other, _)| *other < sequence).count() as u64
    }

    /// The claim's request is gone; its place is kept until `kept_until`.
    pub(super) fn step_out(&mut self, token: usize, kept_until: u64) {
        let queued = self
            .queue
            .values_mut()
            .filter(|ticket| ticket.kept_until.is_none());
        for ticket in queued.filter(|ticket| ticket.token == token) {
            ticket.kept_until = Some(kept_until);
        }
    }

    /// Whether the holders have another limit.
    pub(super) fn disagrees(&self, mode: Mode) -> bool {
        self.leases.iter().any(|lease| match (lease.mode, mode) {
            (
                Mode::Shared {
                    limit: in_force, ..
                },
                Mode::Shared { limit, .. },
            ) => in_force != limit,
            _ => false,
        })
    }

    /// Whether the lock could be granted, not considering the queue.
    pub(super) fn admits(&self, mode: Mode, now: u64) -> bool {
        let leases = self.leases.iter().map(|lease| lease.mode);
        let closed = self.closed.iter().filter(|(until, _)| *until > now);
        let taken: Vec<_> = leases.chain(closed.map(|(_, mode)| *mode)).collect();
        let Mode::Shared { limit, permits } = mode else {
            return taken.is_empty();
        };
        let mut sum = permits;
        for taken in taken {
            match taken {
                Mode::Shared {
                    limit: other,
                    permits,
                } if other == limit => sum += permits,
                _ => return false,
            }
        }
        limit.is_none_or(|limit| sum <= limit)
    }

    pub(super) fn in_the_way(
        &self,
        mode: Mode,
        fair: bool,
        place: Option<u64>,
        now: u64,
    ) -> Option<Part> {
        let is_behind = self
            .first()
            .is_some_and(|first| place.is_none_or(|place| first < place));
        if self.admits(mode, now) && !(fair && is_behind) {
            return None;
        }
        let mut part = match self.admits(mode, now) {
            true => What::Behind.bare(0),
            false => self.state(now).swap_remove(0),
        };
        part.counts.push(self.length());
        Some(part)
    }

    fn state(&self, now: u64) -> Vec<Part> {
        let closed_until = self.closed.iter().map(|(until, _)| *until).max();
        if self.leases.is_empty() {
            let cooling = closed_until.filter(|until| *until > now);
            return vec![cooling.map_or(What::Free.bare(0), |until| {
                What::Cooling.of(0, &[], &[until - now])
            })];
        }
        let mut holders: Vec<_> = self
            .leases
            .iter()
            .map(|lease| lease.seen(What::Holder, now))
            .collect();
        holders.sort();
        let held = What::Held.of(0, &[holders.len() as u64], &[]);
        std::iter::once(held).chain(holders).collect()
    }

    pub(super) fn view(&self, now: u64) -> Vec<Part> {
        let mut seen = self.state(now);
        let head = self.queued().next();
        let head = head.map(|(_, ticket)| [ticket.token as u64, ticket.mode.number()]);
        let counts: Vec<_> = std::iter::once(self.length())
            .chain(head.into_iter().flatten())
            .collect();
        seen.push(What::Queue.of(0, &counts, &[]));
        seen
    }

    pub(super) fn grant(&mut self, lease: Lease, now: u64) -> Part {
        self.queue.retain(|_, ticket| ticket.token != lease.token);
        for ended in self.ended.values_mut() {
            if ended.why == Why::Expired && ended.held == Mode::Alone {
                ended.why = Why::Lost;
            }
        }
        let mut seen = lease.seen(What::Granted, now);
        seen.ticks.extend(self.expired_after.take());
        self.leases.push(lease);
        seen
    }

    /// The amount that is stored for the lock.
    pub(super) fn count(&self, now: u64) -> usize {
        let closed = self.closed.iter().filter(|(until, _)| *until > now);
        let count = self.leases.len() + closed.count() + self.queue.len();
        // The record of an expired lease takes the place of that lease.
        count.max(usize::from(self.expired_after.is_some()))
    }

    /// The texts that are stored.
    pub(super) fn texts(&self) -> impl Iterator<Item = (u64, usize)> {
        let leases = self.leases.iter().map(|lease| (lease.text, lease.token));
        let tickets = self.queue.values();
        leases.chain(tickets.map(|ticket| (ticket.text, ticket.token)))
    }

    /// Reports the lease to an attempt. Returns whether the hold count increased.
    pub(super) fn deepen(&mut self, spec: &ClaimSpec, attempt: u64) -> bool {
        let mut leases = self.leases.iter_mut();
        let lease = leases.find(|lease| lease.token == spec.token);
        let lease = lease.expect("it holds");
        lease.received.push(Receiver::Attempt(attempt));
        let is_deeper = spec.depth > lease.depth;
        lease.depth = lease.depth.max(spec.depth);
        is_deeper
    }

    pub(super) fn renew(
        &mut self,
        token: usize,
        ttl: Option<u64>,
        mode: Option<Mode>,
        now: u64,
    ) -> Part {
        let lease = self.lease_to_change(token).expect("it holds");
        let slack = lease.until - now;
        lease.terms.ttl = ttl.unwrap_or(lease.terms.ttl);
        let ceiling = lease
            .terms
            .max_hold
            .map_or(u64::MAX, |max_hold| lease.acquired + max_hold);
        lease.until = ceiling.min(now + lease.terms.ttl);
        lease.mode = mode.unwrap_or(lease.mode);
        let mut seen = lease.seen(What::Extended, now);
        seen.ticks.push(slack);
        seen
    }

    pub(super) fn release(&mut self, token: usize, depth: Option<u64>, now: u64) -> Part {
        if let Some(sequence) = self.ticket_of(token) {
            let ticket = self.queue.remove(&sequence).expect("it was found there");
            self.remember(token, Why::Released, ticket.mode);
            return What::LeftQueue.bare(0);
        }
        let why = self.why_not(token);
        let Some(lease) = self.lease_of(token) else {
            return match why {
                Why::Released => What::Repeated.bare(0),
                why => What::NotHolder(why).bare(0),
            };
        };
        let Some(depth) = depth else {
            let (held, keep) = (
                now - lease.acquired,
                lease.acquired + lease.terms.min_hold.unwrap_or(0),
            );
            self.end(token, Why::Released, keep, now);
            return What::Freed.of(0, &[], &[held]);
        };
        let lease = self.lease_to_change(token).expect("it holds");
        lease.depth = lease.depth.min(depth);
        lease.seen(What::SteppedBack, now)
    }

    pub(super) fn evict(&mut self, now: u64) -> Vec<Part> {
        let mut evicted = Vec::new();
        for lease in self.leases.clone() {
            evicted.push(lease.seen(What::Evicted, now));
            let keep = now + lease.terms.lock_delay.unwrap_or(0);
            self.end(lease.token, Why::Evicted, keep, now);
        }
        evicted.sort();
        evicted
    }

    pub(super) fn withdraw(&mut self, token: usize, attempt: u64, is_closed: bool, now: u64) {
        let mut leases = self.leases.iter_mut();
        let Some(lease) = leases.find(|lease| lease.token == token) else {
            return;
        };
        let Some(was_in_use) = receivers::roll_back(&mut lease.received, attempt, is_closed) else {
            return;
        };
        let lease = lease.clone();
        self.leases.retain(|lease| lease.token != token);
        if was_in_use {
            let keep = lease.acquired + lease.terms.min_hold.unwrap_or(0);
            self.close(keep, lease.mode, now);
        }
    }

    /// Advances the time to `now`: leases expire, and places that were kept long enough are dropped.
    pub(super) fn pass(&mut self, now: u64) {
        self.queue
            .retain(|_, ticket| ticket.kept_until.is_none_or(|until| until > now));
        let (over, rest) = self
            .leases
            .clone()
            .into_iter()
            .partition(|lease| lease.until <= now);
        let over: Vec<Lease> = over;
        self.leases = rest;
        for lease in over {
            if lease.mode == Mode::Alone {
                self.expired_after = Some(lease.until - lease.acquired);
            }
            let delayed = lease.until + lease.terms.lock_delay.unwrap_or(0);
            let held_least = lease.acquired + lease.terms.min_hold.unwrap_or(0);
            self.close(delayed.max(held_least), lease.mode, now);
            self.remember(lease.token, Why::Expired, lease.mode);
        }
    }

    /// Why a token does not hold.
    pub(super) fn why_not(&self, token: usize) -> Why {
        self.ended
            .get(&token)
            .map_or(Why::Unknown, |ended| ended.why)
    }

    fn end(&mut self, token: usize, why: Why, closed_until: u64, now: u64) {
        let held = self.lease_of(token).expect("only what is held ends").mode;
        self.leases.retain(|lease| lease.token != token);
        self.close(closed_until, held, now);
        self.remember(token, why, held);
    }

    fn close(&mut self, until: u64, mode: Mode, now: u64) {
        if until > now {
            self.closed.push((until, mode));
        }
    }

    fn remember(&mut self, token: usize, why: Why, held: Mode) {
        self.ended.insert(token, Ended { why, held });
    }
}
