//! The meaning of an exclusive claim, pure: no store, no clock but a number, no I/O.

use std::collections::BTreeMap;

/// How many locks a history is about.
pub(super) const LOCKS: usize = 2;
/// How many tokens claim them.
pub(super) const TOKENS: usize = 3;

/// One step of a history. `lock` and `token` are indices.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Acquire {
        lock: usize,
        token: usize,
        depth: u64,
        terms: Terms,
    },
    /// Takes back the first or the last of the token's attempts.
    Withdraw {
        lock: usize,
        token: usize,
        takes_first: bool,
    },
    Renew {
        lock: usize,
        token: usize,
        ttl: Option<u64>,
    },
    Release {
        lock: usize,
        token: usize,
        depth: Option<u64>,
    },
    Evict {
        lock: usize,
    },
    Pass {
        ticks: u64,
    },
}

/// The durations that a claim asks for, in ticks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) ttl: u64,
    pub(super) min_hold: Option<u64>,
    pub(super) max_hold: Option<u64>,
    pub(super) lock_delay: Option<u64>,
}

/// An answer or a view: what it says, at which depth, and the durations that it reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) what: What,
    pub(super) depth: u64,
    pub(super) ticks: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Granted,
    Reentered,
    Replayed,
    Held,
    Cooling,
    Free,
    Ended(Why),
    Extended,
    SteppedBack,
    Freed,
    Repeated,
    NotHolder(Why),
    Evicted,
    NobodyEvicted,
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    Expired,
    Lost,
    Evicted,
    Released,
    Unknown,
}

impl What {
    pub(super) fn seen(self, depth: u64, ticks: &[u64]) -> Seen {
        let ticks = ticks.to_vec();
        Seen {
            what: self,
            depth,
            ticks,
        }
    }

    pub(super) fn bare(self) -> Seen {
        self.seen(0, &[])
    }
}

#[derive(Clone, Debug)]
struct Grant {
    token: usize,
    depth: u64,
    terms: Terms,
    acquired: u64,
    until: u64,
    untold: Option<u64>,
}

#[derive(Clone, Debug, Default)]
struct Lock {
    grant: Option<Grant>,
    closed_until: u64,
    /// How long the last lease was held, if it ran out.
    expired_after: Option<u64>,
    ended: BTreeMap<usize, Why>,
    /// The attempts of each token that were not withdrawn.
    attempts: BTreeMap<usize, Vec<u64>>,
}

/// All locks at one moment, and what the last step was answered.
#[derive(Clone, Debug)]
pub(super) struct Model {
    now: u64,
    locks: [Lock; LOCKS],
    attempts: u64,
    /// The attempt that the last step made or withdrew.
    pub(super) attempt: u64,
    pub(super) answer: Seen,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            now: 0,
            locks: [(); LOCKS].map(|()| Lock::default()),
            attempts: 0,
            attempt: 0,
            answer: What::Nothing.bare(),
        }
    }
}

impl Model {
    /// A withdrawal is of something that was attempted. What it does to a claim that has ended is nobody's business.
    pub(super) fn allows(&self, step: &Step) -> bool {
        let Step::Withdraw { lock, token, .. } = step else {
            return true;
        };
        let lock = &self.locks[*lock];
        let attempted = lock
            .attempts
            .get(token)
            .is_some_and(|made| !made.is_empty());
        attempted && !lock.ended.contains_key(token)
    }

    pub(super) fn step(&mut self, step: &Step) {
        self.answer = match *step {
            Step::Acquire {
                lock,
                token,
                depth,
                terms,
            } => {
                self.attempts += 1;
                self.attempt = self.attempts;
                self.locks[lock].acquire(token, depth, terms, self.attempt, self.now)
            }
            Step::Withdraw {
                lock,
                token,
                takes_first,
            } => {
                let made = &self.locks[lock].attempts[&token];
                let attempt = if takes_first {
                    made.first()
                } else {
                    made.last()
                };
                self.attempt = *attempt.expect("it was attempted");
                self.locks[lock].withdraw(token, self.attempt)
            }
            Step::Renew { lock, token, ttl } => self.locks[lock].renew(token, ttl, self.now),
            Step::Release { lock, token, depth } => {
                self.locks[lock].release(token, depth, self.now)
            }
            Step::Evict { lock } => self.locks[lock].evict(self.now),
            Step::Pass { ticks } => {
                self.now += ticks;
                let now = self.now;
                self.locks.iter_mut().for_each(|lock| lock.expire(now));
                What::Nothing.bare()
            }
        };
    }

    pub(super) fn view(&self, lock: usize) -> Seen {
        let lock = &self.locks[lock];
        match &lock.grant {
            Some(grant) => What::Held.seen(grant.depth, &[grant.until - self.now]),
            None if lock.closed_until > self.now => {
                What::Cooling.seen(0, &[lock.closed_until - self.now])
            }
            None => What::Free.bare(),
        }
    }
}

impl Lock {
    fn acquire(&mut self, token: usize, depth: u64, terms: Terms, attempt: u64, now: u64) -> Seen {
        self.attempts.entry(token).or_default().push(attempt);
        if let Some(grant) = self.held_by(token) {
            grant.untold = None;
            let what = match depth > grant.depth {
                true => What::Reentered,
                false => What::Replayed,
            };
            grant.depth = grant.depth.max(depth);
            return what.seen(grant.depth, &[grant.until - now]);
        }
        if let Some(&why) = self.ended.get(&token) {
            return What::Ended(why).bare();
        }
        if let Some(grant) = &self.grant {
            return What::Held.seen(grant.depth, &[grant.until - now]);
        }
        if self.closed_until > now {
            return What::Cooling.seen(0, &[self.closed_until - now]);
        }
        let expired = self.ended.values_mut().filter(|why| **why == Why::Expired);
        expired.for_each(|why| *why = Why::Lost);
        let lasts = terms.ttl.min(terms.max_hold.unwrap_or(terms.ttl));
        self.grant = Some(Grant {
            token,
            depth,
            terms,
            acquired: now,
            until: now + lasts,
            untold: Some(attempt),
        });
        let reported: Vec<_> = std::iter::once(lasts)
            .chain(self.expired_after.take())
            .collect();
        What::Granted.seen(depth, &reported)
    }

    fn withdraw(&mut self, token: usize, attempt: u64) -> Seen {
        let made = self.attempts.entry(token).or_default();
        made.retain(|made| *made != attempt);
        self.grant
            .take_if(|grant| grant.token == token && grant.untold == Some(attempt));
        What::Nothing.bare()
    }

    fn renew(&mut self, token: usize, ttl: Option<u64>, now: u64) -> Seen {
        let why = self.why_not(token);
        let Some(grant) = self.held_by(token) else {
            return What::NotHolder(why).bare();
        };
        let slack = grant.until - now;
        grant.untold = None;
        grant.terms.ttl = ttl.unwrap_or(grant.terms.ttl);
        let ceiling = grant
            .terms
            .max_hold
            .map_or(u64::MAX, |max_hold| grant.acquired + max_hold);
        grant.until = ceiling.min(now + grant.terms.ttl);
        What::Extended.seen(grant.depth, &[grant.until - now, slack])
    }

    fn release(&mut self, token: usize, depth: Option<u64>, now: u64) -> Seen {
        let why = self.why_not(token);
        let Some(grant) = self.held_by(token) else {
            return match why {
                Why::Released => What::Repeated.bare(),
                why => What::NotHolder(why).bare(),
            };
        };
        if let Some(depth) = depth {
            grant.untold = None;
            grant.depth = grant.depth.min(depth);
            return What::SteppedBack.seen(grant.depth, &[grant.until - now]);
        }
        let (acquired, min_hold) = (grant.acquired, grant.terms.min_hold.unwrap_or(0));
        self.end(Why::Released, acquired + min_hold);
        What::Freed.seen(0, &[now - acquired])
    }

    fn evict(&mut self, now: u64) -> Seen {
        let Some(grant) = self.grant.clone() else {
            return What::NobodyEvicted.bare();
        };
        self.end(Why::Evicted, now + grant.terms.lock_delay.unwrap_or(0));
        What::Evicted.seen(grant.depth, &[grant.until - now])
    }

    fn expire(&mut self, now: u64) {
        let Some(grant) = self.grant.clone().filter(|grant| grant.until <= now) else {
            return;
        };
        self.expired_after = Some(grant.until - grant.acquired);
        let delayed = grant.until + grant.terms.lock_delay.unwrap_or(0);
        let held_least = grant.acquired + grant.terms.min_hold.unwrap_or(0);
        self.end(Why::Expired, delayed.max(held_least));
    }

    fn end(&mut self, why: Why, closed_until: u64) {
        let grant = self.grant.take().expect("only a held lock ends");
        self.ended.insert(grant.token, why);
        self.closed_until = closed_until;
    }

    fn held_by(&mut self, token: usize) -> Option<&mut Grant> {
        self.grant.as_mut().filter(|grant| grant.token == token)
    }

    fn why_not(&self, token: usize) -> Why {
        self.ended.get(&token).copied().unwrap_or(Why::Unknown)
    }
}
