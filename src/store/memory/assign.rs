//! Taking over the fencing tokens that a quorum has decided, of which this store is a node.

use async_trait::async_trait;
use tokio::time::Instant;

use super::MemoryStore;
use crate::domain::Claim;
use crate::store::StoreResult;
use crate::store::assignment::{AssignFences, Assigned, FenceChange};
use crate::store::state::KeyedClaim;

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
}
