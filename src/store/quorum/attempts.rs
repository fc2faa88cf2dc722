//! The attempts by which the nodes know an attempt of a client's request.
//!
//! What a minority has granted is rolled back, and a node refuses an attempt from then on that was rolled back. So the next
//! round needs another attempt at the nodes, while the request keeps its own.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::{Attempt, Token};
use crate::store::TOMBSTONE_TTL;

/// How many claims are remembered. One more takes the place of the one that would be forgotten first: that one was not asked
/// for lately, as each request of a claim has it remembered anew. If it is asked for after all, its attempts have their own
/// names at the nodes again, which nodes that have rolled them back refuse for a minute.
const CLAIMS_MAX: usize = 100_000;

/// How many attempts of a claim are remembered, the last ones: each request of a client makes one, as often as it likes.
const ATTEMPTS_MAX: usize = 32;

/// The most rounds of an attempt that are remembered.
const NAMES_MAX: usize = 32;

/// The attempts that have other names at the nodes; very few have. Cloning is cheap.
#[derive(Clone, Debug, Default)]
pub(super) struct Attempts(Arc<Mutex<RenamedClaims>>);

#[derive(Debug, Default)]
struct RenamedClaims {
    by_token: HashMap<Token, Renamed>,
    /// The same claims, by when they are forgotten.
    by_end: BTreeSet<(Instant, Token)>,
}

#[derive(Debug)]
struct Renamed {
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
        let renamed = self.lock();
        let names = renamed
            .by_token
            .get(&token)
            .and_then(|of| of.names(attempt));
        names.cloned().unwrap_or_else(|| vec![attempt])
    }

    /// Gives the attempt another name at the nodes, because some of them refuse this one from now on; unless it has another
    /// one already.
    pub(super) fn rename(&self, token: Token, attempt: Attempt, refused: Attempt) {
        let mut renamed = self.lock();
        let names = renamed.of(token).names_mut(attempt);
        if names.last() != Some(&refused) {
            return;
        }
        if names.len() == NAMES_MAX {
            names.remove(0);
        }
        names.push(Attempt::random());
    }

    /// Notes that the claim is still asked for, or may be until this time is over.
    pub(super) fn keep(&self, token: Token, lasts: Duration) {
        self.lock().keep(token, lasts);
    }

    /// Forgets what is not needed any more.
    pub(super) fn forget_old(&self) {
        let (mut renamed, now) = (self.lock(), Instant::now());
        while renamed.by_end.first().is_some_and(|(end, _)| *end <= now) {
            renamed.forget_first();
        }
    }

    fn lock(&self) -> MutexGuard<'_, RenamedClaims> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RenamedClaims {
    /// The claim, from now on remembered for as long as a node remembers that it has rolled back an attempt. The TTL does not
    /// count: a claim that is not granted has none, and very many are not.
    fn of(&mut self, token: Token) -> &mut Renamed {
        if !self.by_token.contains_key(&token) {
            if self.by_token.len() == CLAIMS_MAX {
                self.forget_first();
            }
            let renamed = Renamed {
                kept_until: Instant::now(),
                attempts: VecDeque::new(),
            };
            self.by_end.insert((renamed.kept_until, token));
            self.by_token.insert(token, renamed);
        }
        self.keep(token, Duration::ZERO);
        self.by_token.get_mut(&token).expect("it was just inserted")
    }

    fn keep(&mut self, token: Token, lasts: Duration) {
        let until = Instant::now() + lasts + TOMBSTONE_TTL;
        if let Some(renamed) = self.by_token.get_mut(&token)
            && renamed.kept_until < until
        {
            self.by_end.remove(&(renamed.kept_until, token));
            self.by_end.insert((until, token));
            renamed.kept_until = until;
        }
    }

    fn forget_first(&mut self) {
        if let Some((_, token)) = self.by_end.pop_first() {
            self.by_token.remove(&token);
        }
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_claim_that_is_requested_for_ever_keeps_its_last_attempts() {
        let attempts = Attempts::default();
        let token = Token::random();
        let requested: Vec<_> = std::iter::repeat_with(Attempt::random)
            .take(1_000)
            .collect();
        for attempt in &requested {
            attempts.rename(token, *attempt, *attempt);
            attempts.rename(token, *attempt, *attempt);
            assert_eq!(attempts.all_at_nodes(token, *attempt).len(), 2);
        }
        let is_known = |attempt: &&Attempt| attempts.at_nodes(token, **attempt) != **attempt;
        let known: Vec<_> = requested.iter().filter(is_known).collect();
        let last: Vec<_> = requested[1_000 - ATTEMPTS_MAX..].iter().collect();
        assert_eq!(known, last);
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_gets_another_name_however_many_were_refused_before() {
        let attempts = Attempts::default();
        let rename = |(token, attempt)| {
            attempts.rename(token, attempt, attempt);
            attempts.at_nodes(token, attempt) != attempt
        };
        let refused = || (Token::random(), Attempt::random());
        for _ in 0..CLAIMS_MAX {
            rename(refused());
        }
        assert!(rename(refused()));
        tokio::time::advance(TOMBSTONE_TTL).await;
        attempts.forget_old();
        let renamed = attempts.lock();
        assert!(renamed.by_token.is_empty() && renamed.by_end.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn the_claim_that_was_asked_for_last_is_forgotten_last() {
        let attempts = Attempts::default();
        let [first, second] = [(); 2].map(|()| (Token::random(), Attempt::random()));
        let is_known = |(token, attempt)| attempts.at_nodes(token, attempt) != attempt;
        for (token, attempt) in [first, second] {
            attempts.rename(token, attempt, attempt);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        attempts.keep(first.0, Duration::ZERO);
        for _ in 2..=CLAIMS_MAX {
            let attempt = Attempt::random();
            attempts.rename(Token::random(), attempt, attempt);
        }
        assert_eq!([first, second].map(is_known), [true, false]);
        // A lease lasts, however soon the claim is asked for again.
        attempts.keep(first.0, TOMBSTONE_TTL);
        attempts.keep(first.0, Duration::ZERO);
        tokio::time::advance(TOMBSTONE_TTL).await;
        attempts.forget_old();
        assert!(is_known(first));
    }
}
