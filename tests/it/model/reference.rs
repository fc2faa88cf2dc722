//! The meaning of claims, pure: no store, no clock but a number, no I/O. What one lock means is in `lock`.
//!
//! Processes have no meaning here: a queue is one, whoever looks after its waiters, and nobody is ever silent.

mod allowed;
mod lock;
mod words;

use std::collections::{BTreeMap, BTreeSet};

pub(super) use lock::Mode;
use lock::{Lease, Lock, Ticket};
pub(super) use words::{Ask, Part, Seen, Step, Terms, What, Why};

/// How many locks a history is about.
pub(super) const LOCKS: usize = 3;
/// How many tokens claim them.
pub(super) const TOKENS: usize = 8;
/// How many waiters a queue may have.
pub(super) const WAITERS_MAX: usize = 3;

/// A request that waits, or has waited.
#[derive(Clone, Debug)]
struct Request {
    ask: Ask,
    process: usize,
    attempt: u64,
    sequence: u64,
}

/// All locks at one moment, and what the last step was answered.
#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    now: u64,
    last_sequence: u64,
    last_text: u64,
    locks: [Lock; LOCKS],
    /// Each token's last request that came to wait, until it is granted.
    requests: BTreeMap<usize, Request>,
    /// Each token's attempts that were not withdrawn, and what they asked for.
    attempts: BTreeMap<usize, Vec<(u64, Vec<usize>)>>,
    last_attempt: u64,
    /// The attempt that the last step made or withdrew, and its locks.
    pub(super) attempt: (u64, Vec<usize>),
    pub(super) answer: Seen,
    /// Who looked again when time had passed, and what they were answered.
    pub(super) looked: Vec<(usize, Seen)>,
}

impl Model {
    pub(super) fn step(&mut self, step: &Step) {
        self.looked.clear();
        self.answer = match step {
            Step::Acquire { ask, stands_on } => {
                self.last_attempt += 1;
                self.attempt = (self.last_attempt, ask.locks.clone());
                let attempts = self.attempts.entry(ask.token).or_default();
                attempts.push(self.attempt.clone());
                self.acquire(ask, self.last_attempt, *stands_on, None)
            }
            Step::Look { token } => self.look(*token),
            Step::Park { token, keep } => self.park(*token, *keep),
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

    /// What everybody may see of a lock.
    pub(super) fn view(&self, lock: usize) -> Seen {
        let seen = self.locks[lock].view(self.now).into_iter();
        seen.map(|part| part.at(lock)).collect()
    }

    /// How much is kept, of which a token's text is so much.
    pub(super) fn count(&self, of_text: impl Fn(usize) -> usize) -> usize {
        let texts: BTreeSet<_> = self.locks.iter().flat_map(Lock::texts).collect();
        let locks = self.locks.iter().map(|lock| lock.count(self.now));
        let texts = texts.into_iter().map(|(_, token)| of_text(token));
        locks.chain(texts).sum()
    }

    /// The tokens that stand in a queue, in their order.
    pub(super) fn standing(&self) -> Vec<usize> {
        let mut standing: Vec<_> = self
            .requests
            .values()
            .filter(|request| self.stands(request))
            .collect();
        standing.sort_by_key(|request| request.sequence);
        standing
            .into_iter()
            .map(|request| request.ask.token)
            .collect()
    }

    /// What those ask for that wait or have.
    pub(super) fn requests(&self) -> Vec<Ask> {
        let requests = self.requests.values();
        requests.map(|request| request.ask.clone()).collect()
    }

    /// Which tokens hold which locks, and how they hold the first of them.
    pub(super) fn held(&self) -> Vec<(Vec<usize>, usize, Mode)> {
        let held = (0..TOKENS).filter_map(|token| {
            let lease = |lock: usize| self.locks[lock].lease_of(token);
            let locks: Vec<_> = (0..LOCKS).filter(|&lock| lease(lock).is_some()).collect();
            let mode = lease(*locks.first()?)?.mode;
            Some((locks, token, mode))
        });
        held.collect()
    }

    /// Those who wait, would be granted if they asked, and whose turn it is.
    pub(super) fn due(&self) -> Vec<usize> {
        let mut due = self.standing();
        due.retain(|token| {
            let Request { ask, sequence, .. } = &self.requests[token];
            ask.locks.iter().all(|&lock| {
                let lock = &self.locks[lock];
                lock.first() == Some(*sequence) && lock.admits(ask.mode, self.now)
            })
        });
        due
    }

    fn stands(&self, request: &Request) -> bool {
        let ask = &request.ask;
        ask.locks.iter().all(|&lock| {
            let ticket = self.locks[lock].queue.get(&request.sequence);
            ticket.is_some_and(|ticket| ticket.token == ask.token && ticket.kept_until.is_none())
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
        ask: &Ask,
        attempt: u64,
        stands_on: Option<usize>,
        place: Option<u64>,
    ) -> Seen {
        let locks = ask.locks.iter().map(|&lock| (lock, &self.locks[lock]));
        for (lock, state) in locks.clone() {
            if let Some(ended) = state.ended.get(&ask.token) {
                return vec![What::Ended(ended.why).bare(lock)];
            }
        }
        let held = locks
            .clone()
            .filter(|(_, state)| state.lease_of(ask.token).is_some());
        let held = held.count();
        if held == ask.locks.len() {
            return self.again(ask, attempt);
        }
        for (lock, state) in locks.clone() {
            let misses = held > 0 && state.lease_of(ask.token).is_none();
            if misses || state.waits_otherwise(ask.token, ask.mode) {
                return vec![What::ContradictsClaim.bare(lock)];
            }
        }
        if let Some((lock, _)) = locks.clone().find(|(_, state)| state.disagrees(ask.mode)) {
            // To wait would not help, so it keeps nobody waiting.
            for &lock in &ask.locks {
                self.locks[lock].step_out(ask.token, u64::MAX);
            }
            return vec![What::ContradictsLimit.bare(lock)];
        }
        let place = place.or_else(|| {
            locks
                .clone()
                .find_map(|(_, state)| state.ticket_of(ask.token))
        });
        let in_the_way = locks.filter_map(|(lock, state)| {
            let part = state.in_the_way(ask.mode, ask.fair, place, self.now)?;
            Some(part.at(lock))
        });
        let in_the_way: Seen = in_the_way.collect();
        match stands_on {
            _ if in_the_way.is_empty() => self.grant(ask, attempt),
            None => in_the_way,
            Some(process) => self.stand(ask, attempt, process, place),
        }
    }

    /// The claim holds all its locks already.
    fn again(&mut self, ask: &Ask, attempt: u64) -> Seen {
        for &lock in &ask.locks {
            let lease = self.locks[lock].lease_of(ask.token).expect("it holds");
            match (lease.mode, ask.mode) {
                (has, wants) if has == wants => {}
                (Mode::Shared { .. }, Mode::Alone) => {
                    return vec![What::ContradictsUpgrade.bare(lock)];
                }
                _ => return vec![What::ContradictsClaim.bare(lock)],
            }
        }
        let mut what = What::Replayed;
        for &lock in &ask.locks {
            if self.locks[lock].deepen(ask, attempt) {
                what = What::Reentered;
            }
        }
        let leases = ask.locks.iter().map(|&lock| {
            let lease = self.locks[lock].lease_of(ask.token).expect("it holds");
            lease.seen(what, self.now).at(lock)
        });
        leases.collect()
    }

    fn grant(&mut self, ask: &Ask, attempt: u64) -> Seen {
        self.requests.remove(&ask.token);
        let text = self.text(ask);
        let grants = ask.locks.iter().map(|&lock| {
            let lease = Lease::new(ask, attempt, text, self.now);
            self.locks[lock].grant(lease, self.now).at(lock)
        });
        grants.collect()
    }

    fn stand(&mut self, ask: &Ask, attempt: u64, process: usize, place: Option<u64>) -> Seen {
        if place.is_none() {
            for &lock in &ask.locks {
                let length = self.locks[lock].length();
                if length >= WAITERS_MAX as u64 {
                    return vec![What::TooManyWaiters.of(lock, &[length], &[])];
                }
            }
        }
        let sequence = place.unwrap_or_else(|| {
            self.last_sequence += 1;
            self.last_sequence
        });
        let text = self.text(ask);
        for &lock in &ask.locks {
            let ticket = Ticket {
                token: ask.token,
                mode: ask.mode,
                kept_until: None,
                text,
            };
            self.locks[lock].queue.insert(sequence, ticket);
        }
        let request = Request {
            ask: ask.clone(),
            process,
            attempt,
            sequence,
        };
        self.requests.insert(ask.token, request);
        vec![What::Waiting.of(ask.locks[0], &self.position(ask, sequence), &[])]
    }

    /// The text that a claim waits with, or a new one.
    fn text(&mut self, ask: &Ask) -> u64 {
        let place = |&lock: &usize| {
            let lock = &self.locks[lock];
            Some(lock.queue[&lock.ticket_of(ask.token)?].text)
        };
        ask.locks.iter().find_map(place).unwrap_or_else(|| {
            self.last_text += 1;
            self.last_text
        })
    }

    /// How many are before a claim, in all of its queues, and how many there are.
    fn position(&self, ask: &Ask, sequence: u64) -> Vec<u64> {
        let Ok([lock]) = <[usize; 1]>::try_from(ask.locks.clone()) else {
            // Which of several queues is the longest is a matter of taste.
            return Vec::new();
        };
        let lock = &self.locks[lock];
        vec![lock.before(sequence) + 1, lock.length()]
    }

    fn look(&mut self, token: usize) -> Seen {
        let request = self.requests[&token].clone();
        let (ask, process) = (&request.ask, request.process);
        self.acquire(ask, request.attempt, Some(process), Some(request.sequence))
    }

    fn park(&mut self, token: usize, keep: u64) -> Seen {
        let request = &self.requests[&token];
        let position = self.position(&request.ask, request.sequence);
        for &lock in &request.ask.locks {
            self.locks[lock].step_out(token, self.now + keep);
        }
        vec![What::Parked.of(request.ask.locks[0], &position, &[])]
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
        for token in self.standing() {
            let seen = self.look(token);
            self.looked.push((token, seen));
        }
    }
}
