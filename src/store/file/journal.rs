//! The changes that are not on the disk yet, and the requests that wait for them. One task writes them: all changes since
//! the last commit are the next commit. How rows are written is not known here.

mod clocks;
mod recording;

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

use super::super::memory::deliver;
use super::super::state::{Downtime, StoreTime};
use super::super::{Fault, Listener, RESERVATION_EXTENSION, StoreError};
use super::disk::Disk;
use super::identity::Identities;
use super::room::is_lack_of_room;
use super::rows::{Batch, Clocks, Progress, Rows};
use crate::backoff::Backoff;
use crate::sync::{Mutex, MutexGuard, Notify};

/// After a failed commit, the next one is tried after this time, doubled up to [`PAUSE_MAX`].
pub(super) const PAUSE_MIN: Duration = Duration::from_millis(50);
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(1);

/// A commit that takes longer delays the notifications of its steps so that their receivers lack time to act.
const LATE: Duration = Duration::from_millis(100);

/// How often the reserve is tried to be made again.
const RESTORE_INTERVAL: Duration = Duration::from_secs(1);

/// The changes since the last commit.
pub(super) struct FileJournal {
    state: Mutex<JournalState>,
    changed: Notify,
    /// The disk was full: the reserve has been given up, and there is no room for another.
    is_full: AtomicBool,
    downtime: Downtime,
    pub(super) listener: OnceLock<Arc<dyn Listener>>,
    commits: AtomicU64,
    failed_commits: AtomicU64,
}

struct JournalState {
    batch: Batch,
    /// The commit in progress.
    committing: Option<watch::Receiver<Progress>>,
    /// When it began.
    committing_since: Instant,
    /// Until when notifications count as late, because a commit has taken long.
    late_until: Instant,
    /// Why the last commit failed. Until one succeeds, operations are refused: their changes could not be reported, and
    /// the state would get further and further ahead of the disk.
    trouble: Option<String>,
    /// Why there is no reserve, if it is not for lack of room.
    reserve_trouble: Option<String>,
    /// When clocks were written last.
    written_at: StoreTime,
    /// Whether they were written because they were old.
    has_written_clocks: bool,
    is_closed: bool,
    /// Whether what this process writes can no longer be relied on.
    is_broken: bool,
}

impl FileJournal {
    /// An empty journal of a store that was last written at this time.
    pub(super) fn new(downtime: Downtime, written_at: StoreTime) -> Self {
        Self {
            state: Mutex::new(JournalState {
                batch: Batch::new(written_at),
                committing: None,
                committing_since: Instant::now(),
                late_until: Instant::now(),
                trouble: None,
                reserve_trouble: None,
                written_at,
                has_written_clocks: false,
                is_closed: false,
                is_broken: false,
            }),
            changed: Notify::new(),
            is_full: AtomicBool::new(false),
            downtime,
            listener: OnceLock::new(),
            commits: AtomicU64::new(0),
            failed_commits: AtomicU64::new(0),
        }
    }

    /// Tries a commit and makes the reserve, so that a store that begins on a full disk knows it.
    pub(super) fn try_disk(&self, disk: &mut Disk, now: StoreTime) {
        match disk.write(&Rows::new(), self.clocks(now)) {
            // Without a reserve the disk counts as full, and is tried again.
            Ok(()) => self.note_reserve(disk.make_reserve()),
            Err(error) => self.failed(Batch::new(now), error.to_string()),
        }
    }

    /// Whether the disk has no room for more claims.
    pub(super) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// Notes whether the disk is full, and why it counts as such.
    fn set_full(&self, full: Option<String>) {
        let was_full = self.is_full.swap(full.is_some(), Ordering::Relaxed);
        match full {
            Some(error) if !was_full => tracing::warn!(
                error,
                "the disk is full; new claims are refused, renewals and releases go on"
            ),
            None if was_full => tracing::info!("the disk has room again; claims are admitted"),
            Some(_) | None => {}
        }
    }

    /// Fails if changes cannot be written at present.
    pub(super) fn accepts(&self) -> Result<(), StoreError> {
        let state = self.state();
        let unavailable = |detail: &dyn Display| StoreError::unavailable(Fault::ReadOnly, detail);
        match &state.trouble {
            Some(trouble) => Err(unavailable(trouble)),
            None if state.is_closed => Err(unavailable(&"the store is closed")),
            None => Ok(()),
        }
    }

    /// Why changes cannot be written at present.
    pub(super) fn trouble(&self) -> Option<String> {
        self.state().trouble.clone()
    }

    /// Why there is no reserve, if it is not for lack of room.
    pub(super) fn reserve_trouble(&self) -> Option<String> {
        self.state().reserve_trouble.clone()
    }

    /// Whether only a restart helps.
    pub(super) fn is_broken(&self) -> bool {
        self.state().is_broken
    }

    /// How many commits have succeeded, and how many have failed.
    pub(super) fn commits(&self) -> [u64; 2] {
        [&self.commits, &self.failed_commits].map(|count| count.load(Ordering::Relaxed))
    }

    /// Waits until everything that steps have changed so far is on the disk.
    ///
    /// # Errors
    /// A commit failed, or none has succeeded before the deadline. The changes may be on the disk or not.
    pub(super) async fn written(&self, deadline: Instant) -> Result<(), StoreError> {
        let progress = {
            let state = self.state();
            match state.batch.is_due || state.is_broken {
                true => Some(state.batch.progress.subscribe()),
                false => state.committing.clone(),
            }
        };
        let Some(mut progress) = progress else {
            return Ok(());
        };
        let over = async {
            let over = progress.wait_for(|progress| *progress != Progress::Pending);
            over.await.map(|progress| *progress)
        };
        match timeout_at(deadline, over).await {
            Ok(Ok(Progress::Written)) => Ok(()),
            Ok(_) => {
                let trouble = self.trouble();
                let detail = trouble.as_deref().unwrap_or("the commit failed");
                Err(StoreError::unknown(Fault::ReadOnly, detail))
            }
            Err(_) => {
                let detail = "the disk did not confirm the commit in time";
                Err(StoreError::unknown(Fault::Timeout, detail))
            }
        }
    }

    /// Ends the journal: what is not written yet is written, with these clocks, if that is possible.
    pub(super) fn close(&self, now: StoreTime) {
        let mut state = self.state();
        state.is_closed = true;
        state.batch.now = state.batch.now.max(now);
        state.batch.is_due = true;
        drop(state);
        self.changed.notify_one();
    }

    /// Writes batch after batch until the journal is closed.
    pub(super) async fn write_to(self: Arc<Self>, disk: Disk) {
        let disk = Arc::new(Mutex::new(disk));
        let mut backoff = Backoff::default();
        let mut restore_at = Instant::now() + RESTORE_INTERVAL;
        while let Some((batch, is_last)) = self.next(restore_at).await {
            // Cancellation safety: this task ends with its runtime only, and the commit then succeeds or not, unreported.
            let (this, disk) = (Arc::clone(&self), Arc::clone(&disk));
            let done = tokio::task::spawn_blocking(move || {
                let mut disk = disk.lock().unwrap_or_else(|panicked| panicked.into_inner());
                match batch {
                    Some(batch) => this.commit(&mut disk, batch),
                    None => this.restore(&mut disk),
                }
            });
            match done.await {
                Ok(true) => backoff.reset(),
                Ok(false) if is_last => return,
                Ok(false) => sleep(backoff.next(PAUSE_MIN, PAUSE_MAX)).await,
                // What was to be written is lost, so that nothing that follows could be relied on.
                Err(panicked) => {
                    return self.broken(format!("writing to the disk panicked: {panicked}"));
                }
            }
            if is_last {
                return;
            }
            if !self.is_full() || restore_at <= Instant::now() {
                restore_at = Instant::now() + RESTORE_INTERVAL;
            }
        }
    }

    /// The next batch that is due, and whether it is the last one. No batch if the reserve is to be made again first.
    async fn next(&self, restore_at: Instant) -> Option<(Option<Batch>, bool)> {
        loop {
            let mut restore_at = self.is_full().then_some(restore_at);
            {
                let mut state = self.state();
                let is_closed = state.is_closed;
                restore_at = restore_at.filter(|_| state.trouble.is_none() && !is_closed);
                if restore_at.is_some_and(|at| at <= Instant::now()) {
                    return Some((None, false));
                }
                if state.is_broken {
                    return None;
                }
                if state.batch.is_due {
                    let now = state.batch.now;
                    let batch = std::mem::replace(&mut state.batch, Batch::new(now));
                    state.committing = Some(batch.progress.subscribe());
                    state.committing_since = Instant::now();
                    return Some((Some(batch), is_closed));
                }
                if is_closed {
                    return None;
                }
            }
            let changed = self.changed.notified();
            match restore_at {
                // At this time or when something has changed, there is something to do.
                Some(at) => drop(timeout_at(at, changed).await),
                None => changed.await,
            }
        }
    }

    /// Writes the batch. Returns whether it is on the disk.
    fn commit(&self, disk: &mut Disk, batch: Batch) -> bool {
        let written = disk.write(&batch.rows, self.clocks(batch.now));
        if !disk.has_reserve() && !self.is_full() {
            self.set_full(Some("its reserve was needed for a commit".to_owned()));
        }
        // What is written to a file without a name is gone with this process.
        if !self.check_files(&disk.identities()) {
            return false;
        }
        let is_written = written.is_ok();
        match written {
            Ok(()) => self.succeeded(batch),
            Err(error) => self.failed(batch, error.to_string()),
        }
        is_written
    }

    /// Makes the reserve again if the disk has room.
    fn restore(&self, disk: &mut Disk) -> bool {
        self.note_reserve(disk.restore_reserve());
        true
    }

    /// Notes whether there is a reserve. Without one, claims are refused. If the disk lacks room, ended leases will make
    /// some; any other cause has to be repaired.
    fn note_reserve(&self, made: Result<(), redb::Error>) {
        let error = made.as_ref().err();
        let trouble = error.filter(|error| !is_lack_of_room(error)).map(|error| {
            format!("the reserve on the disk cannot be made, so new claims are refused: {error}")
        });
        self.set_full(error.map(ToString::to_string));
        let mut state = self.state();
        if trouble.is_some() && state.reserve_trouble.is_none() {
            tracing::error!(trouble, "the store needs repair");
        }
        state.reserve_trouble = trouble;
    }

    /// Ends the journal if one of the files was removed or replaced. Returns whether they are in their places.
    pub(super) fn check_files(&self, files: &Identities) -> bool {
        let checked = files.check();
        checked.map_err(|error| self.broken(error)).is_ok()
    }

    fn succeeded(&self, batch: Batch) {
        self.commits.fetch_add(1, Ordering::Relaxed);
        {
            let mut state = self.state();
            if state.is_broken {
                return;
            }
            let had_trouble = state.trouble.take().is_some();
            if had_trouble {
                tracing::info!("the store writes to its disk again");
            }
            if had_trouble || state.committing_since.elapsed() >= LATE {
                // The processes that are told now have as long to answer as after a first silence.
                state.late_until = Instant::now() + RESERVATION_EXTENSION;
            }
            state.written_at = batch.now;
            state.committing = None;
        }
        // Before the answers: who is told that a lock is free does not learn it later than whoever has released it.
        if let Some(listener) = self.listener.get() {
            deliver(batch.notifications, listener.as_ref());
        }
        batch.progress.send_replace(Progress::Written);
    }

    /// Puts the batch back before what came since, so that the next commit writes both.
    fn failed(&self, mut batch: Batch, error: String) {
        self.failed_commits.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state();
        if state.is_broken {
            batch.progress.send_replace(Progress::Failed);
            return;
        }
        if state.trouble.is_none() {
            tracing::error!(
                error,
                "the store cannot write to its disk; nothing is granted until it can"
            );
        }
        state.trouble = Some(format!("cannot write to the disk: {error}"));
        state.committing = None;
        let since = &mut state.batch;
        batch.rows.append(&mut since.rows);
        batch.notifications.append(&mut since.notifications);
        since.rows = std::mem::take(&mut batch.rows);
        since.notifications = std::mem::take(&mut batch.notifications);
        since.is_due = true;
        drop(state);
        batch.progress.send_replace(Progress::Failed);
    }

    fn broken(&self, error: String) {
        let mut state = self.state();
        if !std::mem::replace(&mut state.is_broken, true) {
            tracing::error!(error, "the store is closed; restart the process");
        }
        state.trouble = Some(format!("{error}; restart the process"));
        state.is_closed = true;
        state.committing = None;
        // The requests that wait for it need not wait until their deadlines.
        state.batch.progress.send_replace(Progress::Failed);
        drop(state);
        self.changed.notify_one();
    }

    fn clocks(&self, store: StoreTime) -> Clocks {
        let rows = self.downtime.clock_of_rows(store);
        Clocks { store, rows }
    }

    fn state(&self) -> MutexGuard<'_, JournalState> {
        self.state
            .lock()
            .expect("nothing panics while it holds the journal")
    }
}

#[cfg(test)]
mod interleavings;
#[cfg(test)]
mod tests;
