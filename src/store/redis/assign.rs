//! Taking over the fencing tokens that a quorum has decided, of which this store is a node.

use async_trait::async_trait;
use tokio::time::Instant;

use super::encode::digests;
use super::node::{Node, ScriptTries};
use super::scripts::ScriptRequest;
use super::{RedisStore, decode, scripts};
use crate::domain::Claim;
use crate::store::assignment::{AssignFences, Assigned, FenceChange};
use crate::store::{Fault, StoreError, StoreResult};

#[async_trait]
impl AssignFences for RedisStore {
    async fn assign_fences(
        &self,
        claim: &Claim,
        changes: &[FenceChange],
        deadline: Instant,
    ) -> StoreResult<Assigned> {
        match self.node_of(&claim.names) {
            Some(node) => node.assign_fences(claim, changes, deadline).await,
            None => {
                let detail = "the locks are in several partitions of a cluster, which cannot be a node of a quorum";
                Err(StoreError::unavailable(Fault::Corrupt, detail))
            }
        }
    }
}

impl Node {
    async fn assign_fences(
        &self,
        claim: &Claim,
        changes: &[FenceChange],
        deadline: Instant,
    ) -> StoreResult<Assigned> {
        let request = ScriptRequest::new(&scripts::ASSIGN);
        let digests = digests(&claim.names, claim.token);
        let command = |_| self.assign_command(request, claim, &digests, changes);
        let mut tries = ScriptTries::default();
        let run = self.run(request, deadline, &mut tries, command, decode::assigned);
        let assigned = run.await?;
        if matches!(assigned, Assigned::Held(_)) {
            // A counter that is behind these later has lost data.
            for (name, change) in claim.names.iter().zip(changes) {
                let bucket = name.bucket();
                self.recovery
                    .granted(bucket, change.decided, tries.generation);
            }
            self.confirm(tries.generation, deadline).await?;
        }
        Ok(assigned)
    }
}
