//! What this store does as a node of a quorum: it takes over the fencing tokens that the quorum has decided, and evicts
//! claims whose eviction it has missed.

use async_trait::async_trait;
use redis::Cmd;
use tokio::time::Instant;

use super::constants as lua;
use super::encode::{add_durations, digests};
use super::node::{Node, ScriptTries};
use super::reply::{Malformed, Reply};
use super::scripts::ScriptRequest;
use super::{RedisStore, record, scripts, views};
use crate::domain::{Claim, ClaimDigest, LockName, Metadata, Mode};
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
    ) -> StoreResult<()> {
        let node = self.node_for(name);
        for claims in missed.claims.chunks(lua::ENDED_AT_ONCE as usize) {
            node.evict_missed(name, claims, missed, deadlines.of_step())
                .await?;
        }
        Ok(())
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

    fn assign_command(
        &self,
        request: ScriptRequest,
        claim: &Claim,
        digests: &[ClaimDigest],
        changes: &[FenceChange],
    ) -> Cmd {
        let mut command = request.evalsha(2 * digests.len());
        for name in claim.names.iter() {
            command.arg(self.keys.lock(name));
            command.arg(self.keys.fence(name.bucket()));
        }
        let has_limit = matches!(claim.mode, Mode::Shared(share) if share.limit().is_some());
        let is_shared = matches!(claim.mode, Mode::Shared(_));
        let is_recorded = changes.iter().all(|change| change.is_recorded);
        command
            .arg(&request.id.to_be_bytes())
            .arg(self.messages.channel())
            .arg(u8::from(has_limit))
            .arg(u8::from(is_shared && !is_recorded));
        for (digest, change) in digests.iter().zip(changes) {
            command.arg(record::claim(digest));
            match change.attempt {
                Some(attempt) => command.arg(&attempt.0.to_be_bytes()),
                None => command.arg(""),
            };
            command.arg(change.proposed.get()).arg(change.decided.get());
            command.arg(u8::from(change.gives_options));
        }
        if changes.iter().any(|change| change.gives_options) {
            let metadata = claim.metadata.as_ref().map_or("", Metadata::as_json);
            command.arg(claim.owner.as_str()).arg(metadata);
            add_durations(&mut command, claim);
            command.arg(u8::from(claim.takes_over));
        }
        command
    }

    /// Evicts these of the missed claims.
    async fn evict_missed(
        &self,
        name: &LockName,
        claims: &[ClaimDigest],
        missed: &MissedEviction,
        deadline: Instant,
    ) -> StoreResult<()> {
        let request = ScriptRequest::new(&scripts::EVICT_MISSED);
        let digests: Vec<u8> = claims.iter().flat_map(|claim| claim.0).collect();
        let command = |_| {
            let mut command = request.command(&[&self.keys.lock(name)]);
            command.arg(self.recovery.time.not_after_us(deadline));
            command.arg(&missed.reason);
            command.arg(self.messages.evictions_channel());
            command.arg(self.messages.channel());
            command.arg(missed.at.elapsed().as_millis() as u64);
            command.arg(missed.closed_for.as_millis() as u64);
            command.arg(digests.as_slice());
            command
        };
        let sent_at = Instant::now();
        let run = self.run_in_time(request, deadline, command, views::evicted_missed);
        let run = run.await;
        // The message on the channel may be lost or late, and after a lost answer the outcome is unknown.
        if run.as_ref().map_or(true, |((_, count), _)| *count > 0) {
            self.messages.evicted(name);
        }
        let ((at_ms, _), generation) = run?;
        // The time for which it keeps the lock closed counts from now.
        self.check_time(at_ms, sent_at, deadline).await?;
        self.confirm(generation, deadline).await
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
