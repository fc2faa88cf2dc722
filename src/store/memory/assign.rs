//! Taking over the fencing tokens that a quorum has decided, of which this store is a node.

use async_trait::async_trait;
use tokio::time::Instant;

use super::MemoryStore;
use crate::domain::{Claim, Evicted, Fence, LockName};
use crate::store::assignment::{AssignFences, Assigned, FenceChange};
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

    async fn evict_until(
        &self,
        name: &LockName,
        reason: &str,
        last: Fence,
        deadlines: Deadlines,
    ) -> StoreResult<Evicted> {
        self.evict_some(name, reason, Some(last), deadlines).await
    }
}
