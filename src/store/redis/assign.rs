//! Taking over the fencing tokens that a quorum has decided, of which this store is a node.

use async_trait::async_trait;
use tokio::time::Instant;

use super::constants as lua;
use super::encode::digests;
use super::node::{Node, ScriptTries};
use super::reply::{Malformed, Reply};
use super::scripts::ScriptRequest;
use super::{RedisStore, scripts};
use crate::domain::{Claim, Evicted, LockName};
use crate::store::assignment::{AssignFences, Assigned, FenceChange, MissedEviction, PermitUse};
use crate::store::{Deadlines, Fault, StoreError, StoreResult};

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

    async fn evict_missed(
        &self,
        name: &LockName,
        missed: &MissedEviction,
        deadlines: Deadlines,
    ) -> StoreResult<Evicted> {
        let node = self.node_for(name);
        let evicting = node.evict(name, &missed.reason, Some(missed), deadlines);
        evicting.await
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
        let run = self.run_tracked(request, deadline, &mut tries, command, decode);
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

fn decode(mut reply: Reply) -> Result<Assigned, Malformed> {
    match reply.number()? {
        lua::NOT_HELD => return Ok(Assigned::NotHeld),
        lua::TAKEN => return counters(reply).map(Assigned::Taken),
        _ => {}
    }
    let mut of_locks = Vec::new();
    while !reply.is_read() {
        let mut users = reply.list()?;
        let mut of_lock = Vec::new();
        while !users.is_read() {
            of_lock.push(PermitUse {
                user: users.bytes()?.try_into().map_err(|_| Malformed)?,
                permits: u32::try_from(users.number()?).map_err(|_| Malformed)?,
            });
        }
        of_locks.push(of_lock);
    }
    Ok(Assigned::Held(of_locks))
}

fn counters(mut reply: Reply) -> Result<Vec<u64>, Malformed> {
    let mut counters = Vec::new();
    while !reply.is_read() {
        counters.push(reply.number()?);
    }
    Ok(counters)
}
