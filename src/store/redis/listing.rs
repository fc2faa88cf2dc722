//! Work that visits every lock: listings, the count of held locks, and corrections after a clock that was set back. It
//! runs in small steps, at a pace that leaves nearly all of Redis' time to other requests.

use std::collections::BTreeSet;
use std::time::Duration;

use redis::Cmd;
use tokio::time::Instant;

use super::scripts::ScriptRequest;
use super::views::{self, Scanned, Shifted};
use super::{RedisStore, keys, scripts};
use crate::domain::{Listing, LockName, LockState, LockView, PageRoom};
use crate::store::{Deadlines, ListQuery, StoreError, StoreResult};

/// How many keys one step of a scan visits; a step keeps Redis busy for less than half a millisecond.
const SCAN_STEP: usize = 200;
/// How many locks one step reads in full.
const PAGE_STEP: usize = 32;
/// Held locks are counted at most this often, and so rarely that counting takes at most a hundredth of Redis' time.
const COUNT_EVERY: Duration = Duration::from_secs(30);
/// A count has a tenth of Redis' time while it lasts, and runs at most a tenth of the time.
const COUNT_SHARE: u32 = 10;
/// How many keys or holders one step checks after the clock was set back; each may take a few commands.
const SHIFT_STEP: usize = 50;
/// How long one step of background work on all locks may take, and all steps together if there are very many locks.
const STEP_TIMEOUT: Duration = Duration::from_secs(2);
const SWEEP_TIMEOUT: Duration = Duration::from_secs(600);

impl RedisStore {
    /// Visits every lock once. SCAN returns every key that stays, some of them twice; the set of the smallest names
    /// after the page's start sorts them and drops duplicates.
    pub(super) async fn list_page(
        &self,
        query: &ListQuery,
        deadlines: Deadlines,
    ) -> Result<Listing, StoreError> {
        let mut names = BTreeSet::new();
        self.scan(&query.prefix, deadlines, |key| {
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
        self.page(&names, is_last, deadlines).await
    }

    /// The page with these locks, as many as it has room for.
    async fn page(
        &self,
        mut names: &[LockName],
        is_last: bool,
        deadlines: Deadlines,
    ) -> Result<Listing, StoreError> {
        let mut room = PageRoom::for_locks(names.len());
        let (mut locks, mut next_after) = (Vec::new(), None);
        while !names.is_empty() {
            let views = self
                .views(&names[..names.len().min(PAGE_STEP)], deadlines)
                .await?;
            names = &names[views.len()..];
            for view in views {
                if matches!(view.state, LockState::Held(_)) || view.queue.length > 0 {
                    if !room.take(&view) {
                        return Ok(Listing { locks, next_after });
                    }
                    next_after = Some(view.name.clone());
                    locks.push(view);
                } else {
                    next_after = Some(view.name);
                }
            }
        }
        if is_last {
            next_after = None;
        }
        Ok(Listing { locks, next_after })
    }

    /// The first of these locks, as many as one step returns.
    async fn views(
        &self,
        names: &[LockName],
        deadlines: Deadlines,
    ) -> Result<Vec<LockView>, StoreError> {
        let request = ScriptRequest::new(&scripts::PAGE);
        let locks: Vec<_> = names.iter().map(keys::lock).collect();
        let locks: Vec<_> = locks.iter().map(String::as_str).collect();
        let step = async {
            let command = |_| request.command(&locks);
            let read = |reply| views::page(reply, names);
            let run = self.node.run(request, deadlines.of_step(), command, read);
            StoreResult::Ok(run.await?.answer)
        };
        self.pace.step(deadlines.end, step).await
    }

    /// Passes on the key of every lock that is held or waited for, some of them twice. Returns how many are held.
    async fn scan(
        &self,
        prefix: &str,
        deadlines: Deadlines,
        mut each: impl FnMut(&[u8]),
    ) -> Result<u64, StoreError> {
        let pattern = keys::lock_pattern(prefix);
        let (mut cursor, mut held) = (0, 0);
        loop {
            let request = ScriptRequest::new(&scripts::SCAN);
            let step = async {
                let command = |_| {
                    let mut command = request.command(&[]);
                    command.arg(cursor).arg(&pattern).arg(SCAN_STEP);
                    command
                };
                let deadline = deadlines.of_step();
                let run = self.node.run(request, deadline, command, views::scanned);
                StoreResult::Ok(run.await?.answer)
            };
            let scanned: Scanned = self.pace.step(deadlines.end, step).await?;
            held += scanned.held;
            scanned.keys.iter().for_each(|key| each(key));
            if scanned.next == 0 {
                return Ok(held);
            }
            cursor = scanned.next;
        }
    }

    /// Does the work that visits every lock, if it is due.
    pub(super) async fn sweep_if_due(&self) {
        tokio::select! {
            biased;
            () = self.node.recovery.went_back.notified() => {
                if self.shift_locks().await.is_err() {
                    self.node.recovery.went_back.notify_one();
                }
            }
            // Cancellation safety: an interrupted count starts anew the next time.
            () = self.count_if_due() => {}
        }
    }

    /// Counts the held locks if the last count is long enough ago.
    async fn count_if_due(&self) {
        let started = Instant::now();
        if self
            .last_health
            .lock()
            .expect("nobody panics while holding it")
            .next_count
            .is_some_and(|at| at > started)
        {
            return;
        }
        let counted = self.scan("", sweep_deadlines(), |_| {}).await;
        let mut last_health = self
            .last_health
            .lock()
            .expect("nobody panics while holding it");
        last_health.next_count = Some(started + COUNT_EVERY.max(started.elapsed() * COUNT_SHARE));
        last_health.held_locks = counted.ok();
    }

    /// Corrects all locks after the clock of Redis was set back, even those without requests.
    async fn shift_locks(&self) -> Result<(), StoreError> {
        let pattern = keys::lock_pattern("");
        let deadlines = sweep_deadlines();
        let mut cursor = 0;
        loop {
            let request = ScriptRequest::new(&scripts::SHIFT);
            let command = |_| {
                let mut command = request.command(&[]);
                command.arg(cursor).arg(&pattern).arg(SHIFT_STEP);
                command
            };
            let step = self.shift_step(request, command, deadlines).await?;
            for lock in step.shared {
                self.shift_holders(&lock, deadlines).await?;
            }
            if step.next == 0 {
                return Ok(());
            }
            cursor = step.next;
        }
    }

    async fn shift_holders(&self, lock: &[u8], deadlines: Deadlines) -> Result<(), StoreError> {
        let mut cursor = 0;
        loop {
            let request = ScriptRequest::new(&scripts::SHIFT_HOLDERS);
            let command = |_| {
                let mut command = request.evalsha(1);
                command.arg(lock).arg(&request.id.to_be_bytes());
                command.arg(cursor).arg(SHIFT_STEP);
                command
            };
            let step = self.shift_step(request, command, deadlines).await?;
            if step.next == 0 {
                return Ok(());
            }
            cursor = step.next;
        }
    }

    async fn shift_step(
        &self,
        request: ScriptRequest,
        command: impl Fn(bool) -> Cmd,
        deadlines: Deadlines,
    ) -> Result<Shifted, StoreError> {
        let step = async {
            let deadline = deadlines.of_step();
            let run = self.node.run(request, deadline, command, views::shifted);
            StoreResult::Ok(run.await?.answer)
        };
        self.pace.step(deadlines.end, step).await
    }
}

fn sweep_deadlines() -> Deadlines {
    Deadlines {
        step: STEP_TIMEOUT,
        end: Instant::now() + SWEEP_TIMEOUT,
    }
}
