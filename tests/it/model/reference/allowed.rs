//! The steps that are allowed in a state. The others have no defined meaning.

use super::{LOCKS, Model, Step};

impl Model {
    pub(in super::super) fn allows(&self, step: &Step) -> bool {
        match step {
            // A claim does not wait for other locks than before, nor on two processes. While it waits, a request that
            // does not wait must not be one that would only end the waiting.
            Step::Acquire { spec, waits_on } => {
                let place = |lock: usize| self.locks[lock].ticket_of(spec.token);
                let waits_for = |sequence: u64| -> Vec<usize> {
                    let locks = (0..LOCKS).filter(|&lock| place(lock) == Some(sequence));
                    locks.collect()
                };
                let mut places = spec.locks.iter().filter_map(|&lock| place(lock));
                let is_one_claim = places.all(|place| waits_for(place) == spec.locks);
                is_one_claim
                    && self.requests.get(&spec.token).is_none_or(|request| {
                        !self.is_waiting(request)
                            || match waits_on {
                                Some(process) => *process == request.process,
                                None => !spec
                                    .locks
                                    .iter()
                                    .any(|&lock| self.locks[lock].disagrees(spec.mode)),
                            } && request.spec.locks == spec.locks
                    })
            }
            // While it holds one of them, it is unclear whether this is a repetition.
            Step::Poll { token } => self.requests.get(token).is_some_and(|request| {
                let holds = |lock: &usize| self.locks[*lock].lease_of(*token).is_some();
                !request.spec.locks.iter().any(holds)
            }),
            Step::Suspend { token, .. } => self
                .requests
                .get(token)
                .is_some_and(|request| self.is_waiting(request)),
            // Its effect on a claim that waits or has ended is not specified.
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
            // A claim leaves all of its queues together.
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
