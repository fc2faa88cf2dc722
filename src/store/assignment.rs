//! What a store must be able to do besides [`LockStore`] to be a node of a quorum: take over the fencing tokens that the
//! quorum has decided and what else a majority has of a lease, and follow an eviction that it has missed.
//!
//! A node that grants a lock can only propose a fencing token, because another node may have granted the lock before with
//! a larger one. The quorum decides on the largest proposal of a majority, and has it recorded by a majority.

use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use super::{Deadlines, LockStore, StoreResult};
use crate::domain::{Attempt, Claim, ClaimDigest, Fence, LockName};

/// The fencing tokens of one lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FenceChange {
    /// The one that the store has reported for the lease.
    pub proposed: Fence,
    /// The one that the lease has from now on.
    pub decided: Fence,
    /// Whether a majority has recorded it already. Then no other lease has it.
    pub is_recorded: bool,
    /// The attempt that was granted or replayed the lease with the proposed token, if it asks for the change.
    pub attempt: Option<Attempt>,
    /// Whether the lease also gets what the claim asks for: its owner, its metadata, what is left of `min_hold` and `max_hold`,
    /// and `lock_delay`. It is a stream's from then on if the claim is. For a lease that was granted with something else.
    pub gives_options: bool,
}

/// The outcome of an assignment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Assigned {
    /// All leases have the decided tokens. For each lock that the claim holds with a limit, in the order of names, who takes
    /// permits of it.
    Held(Vec<Vec<PermitUse>>),
    /// The claim does not hold all of its locks by the leases that were reported, or a later attempt has received them;
    /// nothing changed.
    NotHeld,
    /// A token may have been given to another claim that shares the lock; nothing changed. For each lock, in the order of
    /// names, the largest token that the store has given to any lease.
    Taken(Vec<u64>),
}

/// The permits of a lock that one lease takes, or has taken and keeps for a while after its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PermitUse {
    /// Identifies the lease: the same on all nodes.
    pub user: [u8; 16],
    /// How many permits.
    pub permits: u32,
}

/// Whom a majority has evicted from a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissedEviction {
    /// The claims.
    pub claims: Vec<ClaimDigest>,
    /// When the others had evicted them.
    pub at: Instant,
    /// For how long from then on `lock_delay` keeps the lock closed, if one of them held it alone.
    pub closed_for: Duration,
    /// Why, as the client said it.
    pub reason: String,
}

/// A store that can be a node of a quorum.
#[async_trait]
pub trait AssignFences: LockStore {
    /// Gives the leases of the claim their decided fencing tokens, in the order of names, and raises the counters to them; and
    /// the options of the claim where a change says so.
    ///
    /// Changes nothing unless the claim still holds all of its locks, each with its proposed or its decided token. Without
    /// that condition, a request that was delayed past the end of its leases would succeed with tokens that are larger than
    /// those of the claims that were granted the locks meanwhile.
    ///
    /// That does not order claims that share a lock, since they hold it together. To such a lease, the store gives only a
    /// token that it has already, or one that is larger than all that the store has given; so no two leases have the same
    /// token at one store, nor at a majority.
    ///
    /// Changes nothing for an attempt after which another one has received a lease that may still be rolled back: the process
    /// of that one has learned which token the lease has there, and may have decided on it. So may that of one that was
    /// followed by a renewal, after which no attempt may roll the lease back: so a token is lowered only for the attempt that
    /// has received the lease last.
    async fn assign_fences(
        &self,
        claim: &Claim,
        changes: &[FenceChange],
        deadline: Instant,
    ) -> StoreResult<Assigned>;

    /// Evicts these claims whatever tokens they have, and refuses them from then on: a grant may arrive after its eviction,
    /// and gets a token of the store then. Nobody else loses the lock, so it does not matter when this arrives.
    ///
    /// What they held stays closed for as long as it does at the other nodes: they may be too few for that without this one.
    /// So does a lock that nobody has here and that one of the claims held alone.
    async fn evict_missed(
        &self,
        name: &LockName,
        missed: &MissedEviction,
        deadlines: Deadlines,
    ) -> StoreResult<()>;
}
