//! Work that visits every lock: listings, the count of held locks, and corrections after a clock that was set back. It
//! runs in small steps, at a pace that leaves nearly all of Redis' time to other requests. `scanning` visits the keys,
//! `step_size` decides how many at once, and `progress` knows when they are too many.

mod progress;
mod scanning;
mod snapshots;
mod step_size;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::select_all;
use redis::Cmd;
use tokio::time::Instant;

use scanning::Scan;
pub(super) use snapshots::Snapshots;
use snapshots::{Snapshot, SnapshotNames};

use super::cluster::partitions;
use super::keys::{self, RedisKeys};
use super::node::Node;
use super::scripts::ScriptRequest;
use super::views::{self, Shifted};
use super::{RedisStore, UNPOISONED, scripts};
use crate::domain::{Listing, LockName, LockState, LockView, PageRoom};
use crate::store::{Deadlines, ListQuery, StoreError};

/// How often a scan begins anew because slots of a cluster have moved meanwhile.
const ROUNDS_MAX: usize = 5;
/// How long a scan waits for the slots of locks that are on their way, and how often it looks.
const MOVE_TIMEOUT: Duration = Duration::from_secs(5);
const MOVE_PAUSE: Duration = Duration::from_millis(100);
/// How many locks one step reads in full: about a tenth of a millisecond.
const PAGE_STEP: usize = 8;
/// Held locks are counted at most this often.
const COUNT_EVERY: Duration = Duration::from_secs(30);
/// How long a count may take: at its pace, some hundred million keys.
const COUNT_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
/// How many keys or holders one step checks after the clock was set back; each may take a few commands.
const SHIFT_STEP: usize = 50;
/// How long one step of background work on all locks may take, and all steps of a correction together.
const STEP_TIMEOUT: Duration = Duration::from_secs(2);
const SWEEP_TIMEOUT: Duration = Duration::from_secs(600);

impl RedisStore {
    /// A page of the snapshot that the page before was taken from, if this process still has it.
    pub(super) async fn list_page(
        &self,
        query: &ListQuery,
        deadlines: Deadlines,
    ) -> Result<Listing, StoreError> {
        let snapshot = match self.snapshots.continued(query) {
            Some(snapshot) => snapshot,
            None => Arc::new(self.snapshot(query, deadlines).await?),
        };
        let names = snapshot.names_after(query.after.as_ref());
        let is_last = snapshot.is_complete() && names.len() <= query.page_size;
        let names = &names[..names.len().min(query.page_size)];
        let mut listing = self.page(names, is_last, deadlines).await?;
        if listing.next_after.is_some() {
            listing.snapshot = Some(snapshot.id());
            self.snapshots.keep(snapshot);
        }
        Ok(listing)
    }

    /// Visits every lock once. SCAN returns every key that stays, some of them twice.
    async fn snapshot(
        &self,
        query: &ListQuery,
        deadlines: Deadlines,
    ) -> Result<Snapshot, StoreError> {
        let mut found = SnapshotNames::new(query);
        let find = |key: &[u8]| {
            if let Some(name) = keys::name_of(key).filter(|name| query.has(name)) {
                found.add(name);
            }
        };
        let scan = Scan {
            prefix: &query.prefix,
            pace: &self.pace,
            deadlines,
        };
        self.scan(scan, find).await?;
        Ok(found.snapshot())
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
                        return Ok(page(locks, next_after));
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
        Ok(page(locks, next_after))
    }

    /// The first of these locks, as many as one step returns.
    async fn views(
        &self,
        names: &[LockName],
        deadlines: Deadlines,
    ) -> Result<Vec<LockView>, StoreError> {
        // Those of one node at a time; all of a cluster's partitions in between would keep the order waiting.
        let number = self.number_for(&names[0]);
        let same = names.iter().take_while(|it| self.number_for(it) == number);
        let names = &names[..same.count()];
        let node = &self.nodes[number];
        let request = ScriptRequest::new(&scripts::PAGE);
        let locks: Vec<_> = names.iter().map(|name| node.keys.lock(name)).collect();
        let locks: Vec<_> = locks.iter().map(String::as_str).collect();
        let step = async {
            let command = |_| request.command(&locks);
            let read = |reply| views::page(reply, names);
            node.run(request, deadlines.of_step(), command, read).await
        };
        self.pace.step(deadlines.end, step).await
    }

    /// Does the work that visits every lock, if it is due.
    pub(super) async fn sweep_if_due(&self) {
        tokio::select! {
            biased;
            number = self.went_back() => {
                if self.shift_locks(&self.nodes[number]).await.is_err() {
                    self.nodes[number].recovery.went_back.notify_one();
                }
            }
            // Cancellation safety: an interrupted count starts anew the next time.
            () = self.count_if_due() => {}
        }
    }

    /// The number of a node whose clock was set back, once there is one.
    async fn went_back(&self) -> usize {
        let waiting = self
            .nodes
            .iter()
            .map(|node| node.recovery.went_back.notified().boxed());
        select_all(waiting).await.1
    }

    /// Counts the held locks if the last count is long enough ago.
    async fn count_if_due(&self) {
        let started = Instant::now();
        if self
            .last_health
            .lock()
            .expect(UNPOISONED)
            .next_count
            .is_some_and(|at| at > started)
        {
            return;
        }
        let scan = Scan {
            prefix: "",
            pace: &self.count_pace,
            deadlines: deadlines_within(COUNT_TIMEOUT),
        };
        let counted = self.scan(scan, |_| {}).await;
        let mut last_health = self.last_health.lock().expect(UNPOISONED);
        last_health.next_count = Some(started + COUNT_EVERY);
        last_health.held_locks = counted.ok();
    }

    /// Corrects all locks after the clock of Redis was set back, even those without requests.
    async fn shift_locks(&self, node: &Node) -> Result<(), StoreError> {
        let pattern = RedisKeys::default().lock_pattern("");
        let deadlines = deadlines_within(SWEEP_TIMEOUT);
        let mut cursor = 0;
        loop {
            let request = ScriptRequest::new(&scripts::SHIFT);
            let command = |_| {
                let mut command = request.command(&[&node.keys.node()]);
                command.arg(cursor).arg(SHIFT_STEP).arg(&pattern);
                command
            };
            let step = self.shift_step(node, request, command, deadlines).await?;
            for lock in step.shared {
                let tag = keys::tag_of(&lock).and_then(partitions::with_tag);
                let number = tag.filter(|number| *number < self.nodes.len());
                let node = number.map_or(node, |number| &self.nodes[number]);
                self.shift_holders(node, &lock, deadlines).await?;
            }
            if step.next == 0 {
                return Ok(());
            }
            cursor = step.next;
        }
    }

    async fn shift_holders(
        &self,
        node: &Node,
        lock: &[u8],
        deadlines: Deadlines,
    ) -> Result<(), StoreError> {
        let mut cursor = 0;
        loop {
            let request = ScriptRequest::new(&scripts::SHIFT);
            let command = |_| {
                let mut command = request.evalsha(1);
                command.arg(lock).arg(&request.id.to_be_bytes());
                command.arg(cursor).arg(SHIFT_STEP).arg("");
                command
            };
            let step = self.shift_step(node, request, command, deadlines).await?;
            if step.next == 0 {
                return Ok(());
            }
            cursor = step.next;
        }
    }

    async fn shift_step(
        &self,
        node: &Node,
        request: ScriptRequest,
        command: impl Fn(bool) -> Cmd,
        deadlines: Deadlines,
    ) -> Result<Shifted, StoreError> {
        let step = async {
            node.run(request, deadlines.of_step(), command, views::shifted)
                .await
        };
        self.pace.step(deadlines.end, step).await
    }
}

fn page(locks: Vec<LockView>, next_after: Option<LockName>) -> Listing {
    let snapshot = None;
    Listing {
        locks,
        next_after,
        snapshot,
    }
}

fn deadlines_within(timeout: Duration) -> Deadlines {
    Deadlines {
        step: STEP_TIMEOUT,
        end: Instant::now() + timeout,
    }
}
