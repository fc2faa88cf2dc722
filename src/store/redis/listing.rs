//! What needs a look at every lock: pages of names, and the count of held locks.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::stream::{FuturesOrdered, StreamExt};
use tokio::time::Instant;

use super::pool;
use super::{RedisStore, answers, keys, scripts};
use crate::domain::{Listing, LockState};
use crate::store::{ListQuery, StoreError};

/// How many keys one step of a scan looks at; a step keeps Redis busy for about a millisecond.
const SCAN_STEP: usize = 1_000;
/// Held locks are counted at most this often, and so rarely that counting takes at most a hundredth of Redis' time.
const COUNT_EVERY: Duration = Duration::from_secs(30);
const COUNT_SHARE: u32 = 100;

impl RedisStore {
    /// Looks at every lock once. SCAN returns all that stays, some of it twice; the set of the smallest names after the
    /// page's start puts them in order and drops what came twice.
    pub(super) async fn list(
        &self,
        query: &ListQuery,
        deadline: Instant,
    ) -> Result<Listing, StoreError> {
        let mut names = BTreeSet::new();
        self.scan(&query.prefix, deadline, |key| {
            let Some(name) = keys::name_of(key) else {
                return;
            };
            if query.after.as_ref().is_none_or(|after| name > *after) {
                names.insert(name);
                if names.len() > query.page_size + 1 {
                    names.pop_last();
                }
            }
        })
        .await?;
        let is_last = names.len() <= query.page_size;
        let names: Vec<_> = names.into_iter().take(query.page_size).collect();
        let next_after = if is_last { None } else { names.last().cloned() };
        let mut views: FuturesOrdered<_> = names
            .iter()
            .map(|name| self.inspect(name, deadline))
            .collect();
        let mut locks = Vec::with_capacity(names.len());
        while let Some(view) = views.next().await {
            let view = view?;
            if matches!(view.state, LockState::Held(_)) || view.queue.length > 0 {
                locks.push(view);
            }
        }
        Ok(Listing { locks, next_after })
    }

    /// Hands over the key of every lock that is held or waited for, some of them twice. Says how many are held.
    async fn scan(
        &self,
        prefix: &str,
        deadline: Instant,
        mut each: impl FnMut(&[u8]),
    ) -> Result<u64, StoreError> {
        let pattern = keys::lock_pattern(prefix);
        let (mut cursor, mut held) = (0, 0);
        loop {
            let request = pool::request_id();
            let command = || {
                let mut command = pool::call(&scripts::SCAN, &[], request);
                command.arg(cursor).arg(&pattern).arg(SCAN_STEP);
                command
            };
            let (next, held_here, found) = self
                .run(&scripts::SCAN, request, deadline, command, |reply, _| {
                    answers::scanned(reply)
                })
                .await?;
            held += held_here;
            found.iter().for_each(|key| each(key));
            if next == 0 {
                return Ok(held);
            }
            cursor = next;
        }
    }

    /// Counts the held locks if the last count is long enough ago.
    pub(super) async fn count_if_due(&self) {
        let started = Instant::now();
        if self
            .survey
            .lock()
            .expect("nobody panics while holding it")
            .next_count
            .is_some_and(|at| at > started)
        {
            return;
        }
        let counted = self.scan("", started + COUNT_EVERY, |_| {}).await;
        let mut survey = self.survey.lock().expect("nobody panics while holding it");
        survey.next_count = Some(started + COUNT_EVERY.max(started.elapsed() * COUNT_SHARE));
        survey.held_locks = counted.ok();
    }
}
