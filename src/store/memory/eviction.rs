//! Evicting the holders of a lock, a bounded number in each step.

use tokio::time::{Instant, timeout_at};

use super::MemoryStore;
use super::journal::has_room;
use crate::domain::{AnswerRoom, Evicted, Holders, LockName};
use crate::store::assignment::MissedEviction;
use crate::store::{Deadlines, Fault, StoreError, StoreResult};

/// How many holders one step evicts.
const EVICTED_PER_STEP: usize = 64;

impl MemoryStore {
    /// Evicts all holders.
    pub(super) async fn evict_holders(
        &self,
        name: &LockName,
        reason: &str,
        deadlines: Deadlines,
    ) -> StoreResult<Evicted> {
        let mut room = AnswerRoom::for_locks(1);
        let (mut holders, mut claims) = (Holders::none(), Vec::new());
        let names = std::slice::from_ref(name);
        let (held, closed_for) = self
            .step_on(names, deadlines.end, |state, now| {
                state.begin_eviction(now, name)
            })
            .await?;
        let mut is_complete = true;
        for (number, held) in held.chunks(EVICTED_PER_STEP).enumerate() {
            let evict = || self.step(|state, now| state.evict(now, name, held, reason));
            let Some(evicted) = self.evicting_step(number, deadlines, evict).await else {
                is_complete = false;
                break;
            };
            holders.total += evicted.len() as u64;
            claims.extend(evicted.iter().map(|holder| holder.claim));
            claims.truncate(Evicted::CLAIMS_MAX);
            let left = AnswerRoom::HOLDERS_MAX - holders.listed.len();
            holders
                .listed
                .extend(room.take(evicted.into_iter().take(left)));
        }
        Ok(Evicted {
            holders,
            claims,
            closed_for,
            is_complete,
        })
    }

    /// Evicts what it has missed.
    pub(super) async fn evict_what_it_missed(
        &self,
        name: &LockName,
        missed: &MissedEviction,
        deadlines: Deadlines,
    ) -> StoreResult<()> {
        for (number, claims) in missed.claims.chunks(EVICTED_PER_STEP).enumerate() {
            let evict = || {
                self.step(|state, now| {
                    let (reason, ago) = (&missed.reason, missed.at.elapsed());
                    state.evict_missed(now, name, claims, reason, ago, missed.closed_for)
                })
            };
            if self.evicting_step(number, deadlines, evict).await.is_none() {
                let detail = "an eviction that was missed took too long";
                return Err(StoreError::unknown(Fault::Timeout, detail));
            }
        }
        Ok(())
    }

    /// One step of an eviction; none if it is too late for it.
    async fn evicting_step<T>(
        &self,
        number: usize,
        deadlines: Deadlines,
        evict: impl Fn() -> T,
    ) -> Option<T> {
        let step = async {
            // Another eviction must not take the room between the check and the step.
            let _alone = self.evicting.lock().await;
            if Instant::now() > deadlines.end || !has_room(self.journal.as_deref()).await {
                return None;
            }
            Some(match number {
                0 => evict(),
                _ => self.in_turn(evict).await,
            })
        };
        timeout_at(deadlines.end, step).await.ok()?
    }
}
