//! Which steps may be tried at a moment. Whatever is left out has no meaning, or none that anybody could rely on.

use super::{LOCKS, Model, Step};

impl Model {
    pub(in super::super) fn allows(&self, step: &Step) -> bool {
        match step {
            // A claim does not wait for other locks than it waited for before, nor on two processes. While it waits,
            // who does not wait finds out nothing that only ends the waiting.
            Step::Acquire { ask, stands_on } => {
                let place = |lock: usize| self.locks[lock].ticket_of(ask.token);
                let waits_for = |sequence: u64| -> Vec<usize> {
                    let locks = (0..LOCKS).filter(|&lock| place(lock) == Some(sequence));
                    locks.collect()
                };
                let mut places = ask.locks.iter().filter_map(|&lock| place(lock));
                let is_one_claim = places.all(|place| waits_for(place) == ask.locks);
                is_one_claim
                    && self.requests.get(&ask.token).is_none_or(|request| {
                        !self.stands(request)
                            || match stands_on {
                                Some(process) => *process == request.process,
                                None => !ask
                                    .locks
                                    .iter()
                                    .any(|&lock| self.locks[lock].disagrees(ask.mode)),
                            } && request.ask.locks == ask.locks
                    })
            }
            // While it holds one of them, it is the question whether that is a repetition.
            Step::Look { token } => self.requests.get(token).is_some_and(|request| {
                let holds = |lock: &usize| self.locks[*lock].lease_of(*token).is_some();
                !request.ask.locks.iter().any(holds)
            }),
            Step::Park { token, .. } => self
                .requests
                .get(token)
                .is_some_and(|request| self.stands(request)),
            // What it does to a claim that waits or has ended is nobody's business.
            Step::Withdraw {
                token, takes_first, ..
            } => self
                .attempt_of(*token, *takes_first)
                .is_some_and(|(_, locks)| {
                    locks.iter().all(|&lock| {
                        let lock = &self.locks[lock];
                        !lock.ended.contains_key(token) && lock.ticket_of(*token).is_none()
                    })
                }),
            // A claim leaves all the queues that it waits in together.
            Step::Release { locks, token, .. } => {
                let place = |lock: usize| self.locks[lock].ticket_of(*token);
                let mut left = locks.iter().filter_map(|&lock| place(lock));
                left.all(|left| {
                    (0..LOCKS).all(|lock| locks.contains(&lock) || place(lock) != Some(left))
                })
            }
            Step::Renew { .. } | Step::Evict { .. } | Step::Pass { .. } => true,
        }
    }
}
