//! The part of the contract of every store that counts the leases for which there is a quota.

use async_trait::async_trait;
use tokio::time::Instant;

use super::StoreResult;
use crate::domain::{CountOutcome, CountStep, LeaseQuota, LockName, Token};

/// A store that counts the leases of principals and of all, for all processes that use it.
///
/// The count is by quota and claim, and knows nothing of the locks: what it has to be told, and in which order, is in
/// [`CountStep`]. A lease that nobody keeps is no longer counted when it has run out by the store's clock.
#[async_trait]
pub trait CountLeases {
    /// Takes a step of the count of a quota: of the leases of the claim with this token on these locks.
    async fn count_leases(
        &self,
        quota: &LeaseQuota,
        step: CountStep,
        names: &[LockName],
        token: Token,
        deadline: Instant,
    ) -> StoreResult<CountOutcome>;
}
