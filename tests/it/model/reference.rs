//! The meaning of claims as a pure model: no store, no I/O, and a number as the clock. `lock` models a single lock.
//!
//! Processes do not matter here: a queue is the same whichever process polls for its waiters, and none ever dies.

mod allowed;
mod lock;
mod receivers;
mod words;

use std::collections::{BTreeMap, BTreeSet};

pub(super) use lock::Mode;
use lock::{Lease, Lock, Ticket};
pub(super) use words::{ClaimSpec, Part, Seen, Step, Terms, What, Why};

/// The number of locks in a history.
pub(super) const LOCKS: usize = 3;
/// The number of tokens that claim them.
pub(super) const TOKENS: usize = 8;
/// How many waiters a queue may have.
pub(super) const WAITERS_MAX: u32 = 3;

/// A request that waits or has waited.
#[derive(Clone, Debug)]
struct Request {
    spec: ClaimSpec,
    process: usize,
    attempt: u64,
    sequence: u64,
}

/// The state of all locks, and the answer to the last step.
#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    now: u64,
    last_sequence: u64,
    last_text: u64,
    locks: [Lock; LOCKS],
    /// The last waiting request of each token, until it is granted.
    requests: BTreeMap<usize, Request>,
    /// The attempts of each token that were not rolled back, with their locks.
    attempts: BTreeMap<usize, Vec<(u64, Vec<usize>)>>,
    last_attempt: u64,
    /// The attempt that the last step made or rolled back, and its locks.
    pub(super) attempt: (u64, Vec<usize>),
    pub(super) answer: Seen,
    /// The waiters that polled after time had passed, with their answers.
    pub(super) polled: Vec<(usize, Seen)>,
}

impl Model {
    pub(super) fn step(&mut self, step: &Step) {
        self.polled.clear();
        self.answer = match step {
            Step::Acquire { spec, waits_on } => {
                self.last_attempt += 1;
                self.attempt = (self.last_attempt, spec.locks.clone());
                let attempts = self.attempts.entry(spec.token).or_default();
                attempts.push(self.attempt.clone());
                self.acquire(spec, self.last_attempt, *waits_on, None)
            }
            Step::Poll { token } => self.poll(*token),
            Step::Suspend { token, keep } => self.suspend(*token, *keep),
            Step::Withdraw {
                token,
                takes_first,
                is_closed,
            } => self.withdraw(*token, *takes_first, *is_closed),
            Step::Renew {
                locks,
                token,
                ttl,
                mode,
            } => self.renew(locks, *token, *ttl, *mode),
            Step::Release {
                locks,
                token,
                depth,
            } => {
                let released = locks
                    .iter()
                    .map(|&lock| self.locks[lock].release(*token, *depth, self.now).at(lock));
                released.collect()
            }
            Step::Evict { lock } => {
                let mut evicted = self.locks[*lock].evict(self.now);
                evicted.iter_mut().for_each(|part| part.lock = *lock);
                evicted
            }
            Step::Pass { ticks } => {
                self.pass(*ticks);
                Vec::new()
            }
        };
    }

    /// The public view of a lock.
    pub(super) fn view(&self, lock: usize) -> Seen {
        let seen = self.locks[lock].view(self.now).into_iter();
        seen.map(|part| part.at(lock)).collect()
    }

    /// The amount that is stored; `of_text` is the amount for the text of a token.
    pub(super) fn count(&self, of_text: impl Fn(usize) -> usize) -> usize {
        let texts: BTreeSet<_> = self.locks.iter().flat_map(Lock::texts).collect();
        let locks = self.locks.iter().map(|lock| lock.count(self.now));
        let texts = texts.into_iter().map(|(_, token)| of_text(token));
        locks.chain(texts).sum()
    }

    /// The tokens in a queue, in their order.
    pub(super) fn queued(&self) -> Vec<usize> {
        let mut queued: Vec<_> = self
            .requests
            .values()
            .filter(|request| self.is_waiting(request))
            .collect();
        queued.sort_by_key(|request| request.sequence);
        queued
            .into_iter()
            .map(|request| request.spec.token)
            .collect()
    }

    /// The claims that wait or have waited.
    pub(super) fn requests(&self) -> Vec<ClaimSpec> {
        let requests = self.requests.values();
        requests.map(|request| request.spec.clone()).collect()
    }

    /// The holders: their locks, their token, and their mode on the first lock.
    pub(super) fn held(&self) -> Vec<(Vec<usize>, usize, Mode)> {
        let held = (0..TOKENS).filter_map(|token| {
            let lease = |lock: usize| self.locks[lock].lease_of(token);
            let locks: Vec<_> = (0..LOCKS).filter(|&lock| lease(lock).is_some()).collect();
            let mode = lease(*locks.first()?)?.mode;
            Some((locks, token, mode))
        });
        held.collect()
    }

    /// The waiters at the head of their queues that would be granted if they polled.
    pub(super) fn due(&self) -> Vec<usize> {
        let mut due = self.queued();
        due.retain(|token| {
            let Request { spec, sequence, .. } = &self.requests[token];
            spec.locks.iter().all(|&lock| {
                let lock = &self.locks[lock];
                lock.first() == Some(*sequence) && lock.admits(spec.mode, self.now)
            })
        });
        due
    }

    fn is_waiting(&self, request: &Request) -> bool {
        let spec = &request.spec;
        spec.locks.iter().all(|&lock| {
            let ticket = self.locks[lock].queue.get(&request.sequence);
            ticket.is_some_and(|ticket| ticket.token == spec.token && ticket.kept_until.is_none())
        })
    }

    fn attempt_of(&self, token: usize, takes_first: bool) -> Option<&(u64, Vec<usize>)> {
        let attempts = self.attempts.get(&token)?;
        match takes_first {
            true => attempts.first(),
            false => attempts.last(),
        }
    }

    fn acquire(
        &mut self,
        spec: &ClaimSpec,
        attempt: u64,
        waits_on: Option<usize>,
        place: Option<u64>,
    ) -> Seen {
        let locks = spec.locks.iter().map(|&lock| (lock, &self.locks[lock]));
        for (lock, state) in locks.clone() {
            if let Some(ended) = state.ended.get(&spec.token) {
                return vec![What::Ended(ended.why).bare(lock)];
            }
        }
        let held = locks
            .clone()
            .filter(|(_, state)| state.lease_of(spec.token).is_some());
        let held = held.count();
        if held == spec.locks.len() {
            return self.again(spec, attempt);
        }
        for (lock, state) in locks.clone() {
            let misses = held > 0 && state.lease_of(spec.token).is_none();
            if misses || state.waits_otherwise(spec.token, spec.mode) {
                return vec![What::ContradictsClaim.bare(lock)];
            }
        }
        if let Some((lock, _)) = locks.clone().find(|(_, state)| state.disagrees(spec.mode)) {
            // Waiting would not help, so the claim leaves the queues.
            for &lock in &spec.locks {
                self.locks[lock].step_out(spec.token, u64::MAX);
            }
            return vec![What::ContradictsLimit.bare(lock)];
        }
        let place = place.or_else(|| {
            locks
                .clone()
                .find_map(|(_, state)| state.ticket_of(spec.token))
        });
        let in_the_way = locks.filter_map(|(lock, state)| {
            let part = state.in_the_way(spec.mode, spec.fair, place, self.now)?;
            Some(part.at(lock))
        });
        let in_the_way: Seen = in_the_way.collect();
        match waits_on {
            _ if in_the_way.is_empty() => self.grant(spec, attempt),
            None => in_the_way,
            Some(process) => self.enqueue(spec, attempt, process, place),
        }
    }

    /// The claim holds all its locks already.
    fn again(&mut self, spec: &ClaimSpec, attempt: u64) -> Seen {
        for &lock in &spec.locks {
            let lease = self.locks[lock].lease_of(spec.token).expect("it holds");
            match (lease.mode, spec.mode) {
                (has, wants) if has == wants => {}
                (Mode::Shared { .. }, Mode::Alone) => {
                    return vec![What::ContradictsUpgrade.bare(lock)];
                }
                _ => return vec![What::ContradictsClaim.bare(lock)],
            }
        }
        let mut what = What::Replayed;
        for &lock in &spec.locks {
            if self.locks[lock].deepen(spec, attempt) {
                what = What::Reentered;
            }
        }
        let leases = spec.locks.iter().map(|&lock| {
            let lease = self.locks[lock].lease_of(spec.token).expect("it holds");
            lease.seen(what, self.now).at(lock)
        });
        leases.collect()
    }

    fn grant(&mut self, spec: &ClaimSpec, attempt: u64) -> Seen {
        self.requests.remove(&spec.token);
        let text = self.text(spec);
        let grants = spec.locks.iter().map(|&lock| {
            let lease = Lease::new(spec, attempt, text, self.now);
            self.locks[lock].grant(lease, self.now).at(lock)
        });
        grants.collect()
    }

    fn enqueue(
        &mut self,
        spec: &ClaimSpec,
        attempt: u64,
        process: usize,
        place: Option<u64>,
    ) -> Seen {
        if place.is_none() {
            for &lock in &spec.locks {
                let length = self.locks[lock].length();
                if length >= u64::from(WAITERS_MAX) {
                    return vec![What::TooManyWaiters.of(lock, &[length], &[])];
                }
            }
        }
        let sequence = place.unwrap_or_else(|| {
            self.last_sequence += 1;
            self.last_sequence
        });
        let text = self.text(spec);
        for &lock in &spec.locks {
            let ticket = Ticket {
                token: spec.token,
                mode: spec.mode,
                kept_until: None,
                text,
            };
            self.locks[lock].queue.insert(sequence, ticket);
        }
        let request = Request {
            spec: spec.clone(),
            process,
            attempt,
            sequence,
        };
        self.requests.insert(spec.token, request);
        vec![What::Waiting.of(spec.locks[0], &self.position(spec, sequence), &[])]
    }

    /// The text of the waiting claim, or a new one.
    fn text(&mut self, spec: &ClaimSpec) -> u64 {
        let place = |&lock: &usize| {
            let lock = &self.locks[lock];
            Some(lock.queue[&lock.ticket_of(spec.token)?].text)
        };
        spec.locks.iter().find_map(place).unwrap_or_else(|| {
            self.last_text += 1;
            self.last_text
        })
    }

    /// The position of a claim over all of its queues, and the length of the queue.
    fn position(&self, spec: &ClaimSpec, sequence: u64) -> Vec<u64> {
        let Ok([lock]) = <[usize; 1]>::try_from(spec.locks.clone()) else {
            // For several queues, the choice of the longest one is not specified.
            return Vec::new();
        };
        let lock = &self.locks[lock];
        vec![lock.before(sequence) + 1, lock.length()]
    }

    fn poll(&mut self, token: usize) -> Seen {
        let request = self.requests[&token].clone();
        let (spec, process) = (&request.spec, request.process);
        self.acquire(spec, request.attempt, Some(process), Some(request.sequence))
    }

    fn suspend(&mut self, token: usize, keep: u64) -> Seen {
        let request = &self.requests[&token];
        let position = self.position(&request.spec, request.sequence);
        for &lock in &request.spec.locks {
            self.locks[lock].step_out(token, self.now + keep);
        }
        vec![What::Suspended.of(request.spec.locks[0], &position, &[])]
    }

    fn withdraw(&mut self, token: usize, takes_first: bool, is_closed: bool) -> Seen {
        let attempt = self.attempt_of(token, takes_first);
        self.attempt = attempt.expect("it was attempted").clone();
        let (attempt, locks) = &self.attempt;
        for &lock in locks {
            self.locks[lock].withdraw(token, *attempt, is_closed, self.now);
        }
        let made = self.attempts.get_mut(&token).expect("it was attempted");
        made.retain(|(made, _)| made != attempt);
        Vec::new()
    }

    fn renew(
        &mut self,
        locks: &[usize],
        token: usize,
        ttl: Option<u64>,
        mode: Option<Mode>,
    ) -> Seen {
        let lost: Seen = locks
            .iter()
            .filter(|&&lock| self.locks[lock].lease_of(token).is_none())
            .map(|&lock| What::NotHolder(self.locks[lock].why_not(token)).bare(lock))
            .collect();
        if !lost.is_empty() {
            return lost;
        }
        for &lock in locks {
            let has = self.locks[lock].lease_of(token).expect("it holds").mode;
            match (has, mode) {
                (Mode::Shared { .. }, Some(Mode::Alone)) => {
                    return vec![What::ContradictsUpgrade.bare(lock)];
                }
                (Mode::Shared { .. }, Some(other)) if other != has => {
                    return vec![What::ContradictsClaim.bare(lock)];
                }
                (Mode::Alone | Mode::Shared { .. }, _) => {}
            }
        }
        let renewed = locks
            .iter()
            .map(|&lock| self.locks[lock].renew(token, ttl, mode, self.now).at(lock));
        renewed.collect()
    }

    fn pass(&mut self, ticks: u64) {
        self.now += ticks;
        let now = self.now;
        self.locks.iter_mut().for_each(|lock| lock.pass(now));
        for token in self.queued() {
            let seen = self.poll(token);
            self.polled.push((token, seen));
        }
    }
}
