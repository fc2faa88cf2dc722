//! The attempts by which the nodes know an attempt of a client's request.
//!
//! What a minority has granted is rolled back, and a node refuses an attempt from then on that was rolled back. So the next
//! round needs another attempt at the nodes, while the request keeps its own.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::{Attempt, Token};

/// How long an attempt is remembered after the last operation of its claim. A lease that nobody renews for so long has
/// ended.
const KEPT: Duration = Duration::from_secs(2 * 3_600);

/// The most rounds of an attempt that are remembered.
const NAMES_MAX: usize = 32;

/// The attempts that have other names at the nodes; very few have.
#[derive(Debug, Default)]
pub(super) struct Attempts(Mutex<HashMap<Token, Renamed>>);

#[derive(Debug)]
struct Renamed {
    last_used: Instant,
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
    pub(super) fn rename(&self, token: Token, attempt: Attempt) {
        let mut renamed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_claim = renamed.entry(token).or_insert_with(|| Renamed {
            last_used: Instant::now(),
            names: HashMap::new(),
        });
        of_claim.last_used = Instant::now();
        let names = of_claim
            .names
            .entry(attempt)
            .or_insert_with(|| vec![attempt]);
        if names.len() == NAMES_MAX {
            names.remove(0);
        }
        names.push(Attempt::random());
    }

    /// Notes that the claim goes on.
    pub(super) fn keep(&self, token: Token) {
        let mut renamed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(of_claim) = renamed.get_mut(&token) {
            of_claim.last_used = Instant::now();
        }
    }

    /// Forgets what is not needed any more.
    pub(super) fn forget_old(&self) {
        let mut renamed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        renamed.retain(|_, of_claim| of_claim.last_used.elapsed() < KEPT);
    }
}
