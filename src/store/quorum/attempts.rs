//! The attempts by which the nodes know an attempt of a client's request.
//!
//! What a minority has granted is rolled back, and a node refuses an attempt from then on that was rolled back. So the next
//! round needs another attempt at the nodes, while the request keeps its own.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::time::Instant;

use crate::domain::{Attempt, Token, Ttl};
use crate::store::TOMBSTONE_TTL;

/// How many claims are remembered. For any other, an attempt keeps its name, which nodes refuse if they have rolled it
/// back.
const CLAIMS_MAX: usize = 100_000;

/// How many attempts of a claim are remembered, the last ones: each request of a client makes one, as often as it likes.
const ATTEMPTS_MAX: usize = 32;

/// The most rounds of an attempt that are remembered.
const NAMES_MAX: usize = 32;

/// The attempts that have other names at the nodes; very few have. Cloning is cheap.
#[derive(Clone, Debug, Default)]
pub(super) struct Attempts(Arc<Mutex<HashMap<Token, Renamed>>>);

#[derive(Debug)]
struct Renamed {
    /// As long as a lease may last, or a node remembers that it has rolled back an attempt.
    kept_until: Instant,
    /// In the order in which they were first renamed.
    attempts: VecDeque<(Attempt, Vec<Attempt>)>,
}

impl Attempts {
    /// The attempt in the next round.
    pub(super) fn at_nodes(&self, token: Token, attempt: Attempt) -> Attempt {
        let names = self.all_at_nodes(token, attempt);
        names.last().copied().unwrap_or(attempt)
    }

    /// The attempt in all rounds, each of which may have left leases.
    pub(super) fn all_at_nodes(&self, token: Token, attempt: Attempt) -> Vec<Attempt> {
        let renamed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let names = renamed.get(&token).and_then(|of| of.names(attempt));
        names.cloned().unwrap_or_else(|| vec![attempt])
    }

    /// Gives the attempt another name at the nodes, because some of them refuse this one from now on; unless it has another
    /// one already.
    pub(super) fn rename(&self, token: Token, attempt: Attempt, refused: Attempt, ttl: Ttl) {
        let mut renamed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if renamed.len() >= CLAIMS_MAX && !renamed.contains_key(&token) {
            return;
        }
        let of_claim = renamed.entry(token).or_insert_with(|| Renamed {
            kept_until: Instant::now(),
            attempts: VecDeque::new(),
        });
        of_claim.keep(ttl);
        let names = of_claim.names_mut(attempt);
        if names.last() != Some(&refused) {
            return;
        }
        if names.len() == NAMES_MAX {
            names.remove(0);
        }
        names.push(Attempt::random());
    }

    /// Notes that the claim goes on, with a lease of this length.
    pub(super) fn keep(&self, token: Token, ttl: Ttl) {
        let mut renamed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(of_claim) = renamed.get_mut(&token) {
            of_claim.keep(ttl);
        }
    }

    /// Forgets what is not needed any more.
    pub(super) fn forget_old(&self) {
        let mut renamed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        renamed.retain(|_, of_claim| of_claim.kept_until > Instant::now());
    }
}

impl Renamed {
    fn names(&self, attempt: Attempt) -> Option<&Vec<Attempt>> {
        let mut attempts = self.attempts.iter();
        attempts.find_map(|(of, names)| (*of == attempt).then_some(names))
    }

    fn names_mut(&mut self, attempt: Attempt) -> &mut Vec<Attempt> {
        let known = self.attempts.iter().position(|(of, _)| *of == attempt);
        let index = known.unwrap_or_else(|| {
            if self.attempts.len() == ATTEMPTS_MAX {
                self.attempts.pop_front();
            }
            self.attempts.push_back((attempt, vec![attempt]));
            self.attempts.len() - 1
        });
        &mut self.attempts[index].1
    }

    fn keep(&mut self, ttl: Ttl) {
        self.kept_until = Instant::now() + ttl.get() + TOMBSTONE_TTL;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_claim_that_is_requested_for_ever_keeps_its_last_attempts() {
        let attempts = Attempts::default();
        let (token, ttl) = (Token::random(), Ttl::from_store(Duration::from_secs(10)));
        let requested: Vec<_> = std::iter::repeat_with(Attempt::random)
            .take(1_000)
            .collect();
        for attempt in &requested {
            attempts.rename(token, *attempt, *attempt, ttl);
            attempts.rename(token, *attempt, *attempt, ttl);
            assert_eq!(attempts.all_at_nodes(token, *attempt).len(), 2);
        }
        let is_known = |attempt: &&Attempt| attempts.at_nodes(token, **attempt) != **attempt;
        let known: Vec<_> = requested.iter().filter(is_known).collect();
        let last: Vec<_> = requested[1_000 - ATTEMPTS_MAX..].iter().collect();
        assert_eq!(known, last);
    }
}
