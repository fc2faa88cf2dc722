//! Evicting the holders of a lock, a bounded number in each step.

use tokio::time::{Instant, timeout_at};

use super::MemoryStore;
use super::journal::has_room;
use crate::domain::{AnswerRoom, Evicted, Holders, LockName};
use crate::store::assignment::MissedEviction;
use crate::store::{Deadlines, StoreResult};

/// How many holders one step evicts.
const EVICTED_PER_STEP: usize = 64;

impl MemoryStore {
    /// Evicts all holders, or those whose eviction it has missed.
    pub(super) async fn evict_some(
        &self,
        name: &LockName,
        reason: &str,
        missed: Option<&MissedEviction>,
        deadlines: Deadlines,
    ) -> StoreResult<Evicted> {
        let mut room = AnswerRoom::for_locks(1);
        let mut holders = Holders::none();
        let names = std::slice::from_ref(name);
        let claims = self
            .step_on(names, deadlines.end, |state, now| {
                state.begin_eviction(now, name, missed)
            })
            .await?;
        let mut is_complete = true;
        for (number, claims) in claims.chunks(EVICTED_PER_STEP).enumerate() {
            let evict =
                || self.step(|state, now| state.evict(now, name, claims, reason, missed.is_some()));
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
            let Ok(Some(evicted)) = timeout_at(deadlines.end, step).await else {
                is_complete = false;
                break;
            };
            holders.total += evicted.len() as u64;
            let left = AnswerRoom::HOLDERS_MAX - holders.listed.len();
            holders
                .listed
                .extend(room.take(evicted.into_iter().take(left)));
        }
        Ok(Evicted {
            holders,
            is_complete,
        })
    }
}
