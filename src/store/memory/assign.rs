//! Taking over the fencing tokens that a quorum has decided, of which this store is a node.

use async_trait::async_trait;
use tokio::time::Instant;

use super::MemoryStore;
use crate::domain::{Claim, Evicted, LockName};
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
    ) -> StoreResult<Evicted> {
        let evicting = self.evict_some(name, &missed.reason, Some(missed), deadlines);
        evicting.await
    }
}
