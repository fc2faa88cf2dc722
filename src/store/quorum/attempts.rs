//! The attempts by which the nodes know an attempt of a client's request.
//!
//! What a minority has granted is rolled back, and a node refuses an attempt from then on that was rolled back. So the next
//! round needs another attempt at the nodes, while the request keeps its own.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

use crate::domain::{Attempt, Token, Ttl};
use crate::store::TOMBSTONE_TTL;

/// How many claims are remembered. For any other, an attempt keeps its name, which nodes refuse if they have rolled it
/// back.
const CLAIMS_MAX: usize = 100_000;

/// The most rounds of an attempt that are remembered.
const NAMES_MAX: usize = 32;

/// The attempts that have other names at the nodes; very few have.
#[derive(Debug, Default)]
pub(super) struct Attempts(Mutex<HashMap<Token, Renamed>>);

#[derive(Debug)]
struct Renamed {
    /// As long as a lease may last, or a node remembers that it has rolled back an attempt.
    kept_until: Instant,
    names: HashMap<Attempt, Vec<Attempt>>,
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
        let names = renamed.get(&token).and_then(|of| of.names.get(&attempt));
        names.cloned().unwrap_or_else(|| vec![attempt])
    }

    /// Gives the attempt another name at the nodes, because they refuse the last one from now on.
    pub(super) fn rename(&self, token: Token, attempt: Attempt, ttl: Ttl) {
        let mut renamed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if renamed.len() >= CLAIMS_MAX && !renamed.contains_key(&token) {
            return;
        }
        let of_claim = renamed.entry(token).or_insert_with(|| Renamed {
            kept_until: Instant::now(),
            names: HashMap::new(),
        });
        of_claim.keep(ttl);
        let names = of_claim
            .names
            .entry(attempt)
            .or_insert_with(|| vec![attempt]);
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
    fn keep(&mut self, ttl: Ttl) {
        self.kept_until = Instant::now() + ttl.get() + TOMBSTONE_TTL;
    }
}
