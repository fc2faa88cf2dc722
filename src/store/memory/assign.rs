//! What this store does as a node of a quorum: it takes over the fencing tokens that the quorum has decided, and evicts
//! claims whose eviction it has missed.

use async_trait::async_trait;
use tokio::time::Instant;

use super::MemoryStore;
use crate::domain::{Claim, LockName};
use crate::store::assignment::{AssignFences, Assigned, FenceChange, MissedEviction};
use crate::store::state::KeyedClaim;
use crate::store::{Deadlines, StoreResult};

#[async_trait]
impl AssignFences for MemoryStore {
    async fn assign_fences(
        &self,
        claim: &Claim,
        changes: &[FenceChange],
        _: Instant,
    ) -> StoreResult<Assigned> {
        let claim = KeyedClaim::new(claim);
        Ok(self.step(|state, now| state.assign_fences(now, &claim, changes)))
    }

    async fn evict_missed(
        &self,
        name: &LockName,
        missed: &MissedEviction,
        deadlines: Deadlines,
    ) -> StoreResult<()> {
        self.evict_what_it_missed(name, missed, deadlines).await
    }
}
