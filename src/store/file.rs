//! The embedded store on a disk: the [store in memory](super::memory), whose answers go out when everything that they may
//! have seen is on the disk.
//!
//! The state is in memory. The rows that steps change are written by one task, many steps in one commit. A restart loads
//! all rows: nothing that was reported is lost, and no lease, closed time, place or tombstone is shortened by the time
//! that the process was away, whatever the system's clock does. One process uses a directory at a time.

mod confirmed;
mod database;
mod disk;
mod examination;
mod identity;
mod journal;
mod open_error;
mod opening;
mod parts;
mod reserve;
mod room;
mod rows;
mod sync_failure;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::assignment::{AssignFences, Assigned, FenceChange, MissedEviction};
use super::memory::MemoryStore;
use super::{
    CountLeases, Deadlines, DiskHealth, Finding, ListQuery, Listener, LockStore, StoreError,
    StoreHealth, StoreResult,
};
use crate::domain::{
    Acquired, Attempt, Claim, CountOutcome, CountStep, Evicted, LeaseQuota, Listing, LockName,
    LockNames, LockView, QueueRequest, Released, RenewOptions, Renewed, Rollback, StepBack,
    SuspendOptions, Suspended, Token,
};
use database::FILE;
pub use examination::{Examination, examine, excessive_rights};
use identity::Identities;
use journal::FileJournal;
use opening::load_when_possible;

/// Leases and queues in a directory.
pub struct FileStore {
    memory: MemoryStore,
    journal: Arc<FileJournal>,
    directory: PathBuf,
    files: Arc<Identities>,
    writer: Mutex<Option<JoinHandle<()>>>,
    /// The size of the file at the last check.
    file_bytes: AtomicU64,
}

impl FileStore {
    /// Opens a directory, which is made if there is none, and continues from what is there. At most `locks_max` leases
    /// and tickets are kept, counted as the configuration says.
    ///
    /// Changes are written by a task on the present runtime, which has to outlast the store. While the disk fails, this
    /// tries again.
    ///
    /// # Errors
    /// Another process uses the directory, or what is there is not what a process has left there.
    pub async fn open(directory: &Path, locks_max: usize) -> Result<Self, StoreError> {
        let (memory, journal, disk) = load_when_possible(directory, locks_max).await?;
        let files = disk.identities();
        let writer = tokio::spawn(Arc::clone(&journal).write_to(disk));
        Ok(Self {
            memory,
            journal,
            directory: directory.to_owned(),
            files,
            writer: Mutex::new(Some(writer)),
            file_bytes: AtomicU64::new(0),
        })
    }

    /// How much of `locks_max` is used. Expired entries count until an operation or `refresh_health` finds them.
    #[must_use]
    pub fn count_kept(&self) -> usize {
        self.memory.count_kept()
    }

    /// Runs an operation, and returns its answer when everything that it may have seen is on the disk.
    async fn change<T>(
        &self,
        deadline: Instant,
        operation: impl Future<Output = StoreResult<T>>,
    ) -> StoreResult<T> {
        self.journal.accepts()?;
        let answer = operation.await;
        self.journal.written(deadline).await?;
        answer
    }

    /// The same for an operation that changes nothing.
    async fn read<T>(
        &self,
        deadline: Instant,
        operation: impl Future<Output = StoreResult<T>>,
    ) -> StoreResult<T> {
        let answer = self.change(deadline, operation).await;
        answer.map_err(|error| StoreError::unavailable(error.fault(), error.detail()))
    }
}

/// Whether the disk has room for more claims.
fn disk_room(is_full: bool, directory: &Path) -> Finding {
    let detail = match is_full {
        true => format!(
            "the disk is full, so new claims are refused until leases have ended or there is room in {}; renewals and \
             releases go on",
            directory.display()
        ),
        false => {
            "the disk has room, and a reserve for releases and renewals when it is full".to_owned()
        }
    };
    Finding {
        topic: "disk",
        is_fine: !is_full,
        detail,
    }
}

impl Drop for FileStore {
    fn drop(&mut self) {
        self.journal.close(self.memory.now());
    }
}

impl std::fmt::Debug for FileStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FileStore")
    }
}

#[async_trait]
impl LockStore for FileStore {
    async fn acquire(
        &self,
        claim: &Claim,
        attempt: Attempt,
        request: Option<&QueueRequest>,
        deadline: Instant,
    ) -> StoreResult<Acquired> {
        let acquired = self.memory.acquire(claim, attempt, request, deadline);
        self.change(deadline, acquired).await
    }

    async fn suspend(
        &self,
        claim: &Claim,
        options: SuspendOptions,
        deadline: Instant,
    ) -> StoreResult<Suspended> {
        let suspended = self.memory.suspend(claim, options, deadline);
        self.change(deadline, suspended).await
    }

    async fn withdraw(
        &self,
        claim: &Claim,
        attempt: Attempt,
        rollback: Rollback,
        deadline: Instant,
    ) -> StoreResult<usize> {
        let withdrawn = self.memory.withdraw(claim, attempt, rollback, deadline);
        self.change(deadline, withdrawn).await
    }

    async fn renew(
        &self,
        names: &LockNames,
        token: Token,
        change: RenewOptions,
        deadline: Instant,
    ) -> StoreResult<Renewed> {
        let renewed = self.memory.renew(names, token, change, deadline);
        self.change(deadline, renewed).await
    }

    async fn release(
        &self,
        names: &LockNames,
        token: Token,
        step_back: Option<StepBack>,
        deadline: Instant,
    ) -> StoreResult<Vec<Released>> {
        let released = self.memory.release(names, token, step_back, deadline);
        self.change(deadline, released).await
    }

    async fn evict(
        &self,
        name: &LockName,
        reason: &str,
        deadlines: Deadlines,
    ) -> StoreResult<Evicted> {
        let evicted = self.memory.evict(name, reason, deadlines);
        self.change(deadlines.end, evicted).await
    }

    async fn inspect(&self, name: &LockName, deadline: Instant) -> StoreResult<LockView> {
        let view = self.memory.inspect(name, deadline);
        self.read(deadline, view).await
    }

    async fn list(&self, query: &ListQuery, deadlines: Deadlines) -> StoreResult<Listing> {
        let listing = self.memory.list(query, deadlines);
        self.read(deadlines.end, listing).await
    }

    async fn refresh_health(&self) {
        let file = self.directory.join(FILE);
        let (journal, files) = (Arc::clone(&self.journal), Arc::clone(&self.files));
        let metadata = tokio::task::spawn_blocking(move || {
            journal.check_files(&files);
            std::fs::metadata(file)
        });
        // The next check tries again if this one cannot find out.
        if let Ok(Ok(metadata)) = metadata.await {
            self.file_bytes.store(metadata.len(), Ordering::Relaxed);
        }
        if self.journal.accepts().is_err() {
            return;
        }
        self.memory.refresh_health().await;
        if self.memory.count_kept() > 0 {
            self.journal.write_clocks(self.memory.now());
        }
    }

    async fn sweep(&self) {
        self.memory.sweep().await;
    }

    fn traced_as(&self) -> Option<&'static str> {
        Some("file")
    }

    fn health(&self) -> StoreHealth {
        let trouble = self.journal.trouble();
        let refused = trouble.as_ref().map(|trouble| {
            let directory = self.directory.display();
            match self.journal.is_broken() {
                true => trouble.clone(),
                false => format!("{trouble}; make room in {directory}, or repair it"),
            }
        });
        let refused = refused.or_else(|| {
            let trouble = self.journal.reserve_trouble()?;
            let directory = self.directory.display();
            Some(format!("{trouble}; see what is at {directory}/reserve, and whether this user may write there"))
        });
        let is_full = self.journal.is_full();
        let [commits, failed_commits] = self.journal.commits();
        StoreHealth {
            disk: Some(DiskHealth {
                file_bytes: self.file_bytes.load(Ordering::Relaxed),
                commits,
                failed_commits,
                has_reserve: !is_full,
            }),
            up: trouble.is_none(),
            trouble,
            refused,
            findings: vec![
                Finding {
                    topic: "durability",
                    is_fine: true,
                    detail: "leases are on the disk before they are reported, and survive a restart; no other process \
                             shares them"
                        .to_owned(),
                },
                self.memory.room(),
                disk_room(is_full, &self.directory),
            ],
            ..self.memory.health()
        }
    }

    fn set_listener(&self, listener: Arc<dyn Listener>) {
        self.journal.listener.get_or_init(|| listener);
    }

    async fn set_event_delivery(&self, wanted: bool) {
        self.memory.set_event_delivery(wanted).await;
    }

    async fn close(&self) {
        self.journal.close(self.memory.now());
        let writer = self.writer.lock().ok().and_then(|mut writer| writer.take());
        if let Some(writer) = writer {
            // It has logged its own failure.
            let _ = writer.await;
        }
    }
}

/// The count is not on the disk.
#[async_trait]
impl CountLeases for FileStore {
    async fn count_leases(
        &self,
        quota: &LeaseQuota,
        step: CountStep,
        names: &[LockName],
        token: Token,
        deadline: Instant,
    ) -> StoreResult<CountOutcome> {
        let counted = self
            .memory
            .count_leases(quota, step, names, token, deadline);
        counted.await
    }
}

#[async_trait]
impl AssignFences for FileStore {
    async fn assign_fences(
        &self,
        claim: &Claim,
        changes: &[FenceChange],
        deadline: Instant,
    ) -> StoreResult<Assigned> {
        let assigned = self.memory.assign_fences(claim, changes, deadline);
        self.change(deadline, assigned).await
    }

    async fn evict_missed(
        &self,
        name: &LockName,
        missed: &MissedEviction,
        deadlines: Deadlines,
    ) -> StoreResult<()> {
        let evicted = self.memory.evict_missed(name, missed, deadlines);
        self.change(deadlines.end, evicted).await
    }
}
