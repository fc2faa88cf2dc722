//! Opening a directory and loading the state from it, when the disk permits that. The format of the rows is not known here.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::super::memory::{MemoryStore, wall_time};
use super::super::state::{Downtime, LoadTimes, Loading};
use super::super::{Fault, StoreError};
use super::disk::Disk;
use super::journal::{FileJournal, PAUSE_MAX, PAUSE_MIN};
use super::open_error::OpenError;
use super::rows::Clocks;
use crate::backoff::Backoff;

/// `leasehold doctor` has the lock of the directory for a moment.
const EXAMINED_MAX: Duration = Duration::from_millis(100);

/// What is loaded from a directory.
type Loaded = (MemoryStore, Arc<FileJournal>, Disk);

/// Loads the state as soon as the disk permits it.
///
/// # Errors
/// Another process uses the directory, or what is there is not what a process has left there.
pub(super) async fn load_when_possible(
    directory: &Path,
    locks_max: usize,
) -> Result<Loaded, StoreError> {
    let refused = |detail: String| StoreError::unavailable(Fault::Refused, detail);
    let examined_until = Instant::now() + EXAMINED_MAX;
    let mut backoff = Backoff::default();
    loop {
        let path = directory.to_owned();
        let loaded = tokio::task::spawn_blocking(move || load(&path, locks_max)).await;
        let loaded = loaded.map_err(|panicked| {
            refused(format!(
                "{} cannot be read: {panicked}",
                directory.display()
            ))
        })?;
        match loaded {
            Ok(loaded) => return Ok(loaded),
            Err(OpenError::InUse(_)) if Instant::now() < examined_until => {
                sleep(EXAMINED_MAX / 10).await;
            }
            Err(OpenError::InUse(detail) | OpenError::Refused(detail)) => {
                return Err(refused(detail));
            }
            Err(OpenError::Failing(error)) => {
                if backoff.last().is_none() {
                    tracing::error!(
                        error,
                        "the disk fails; the process starts when it can load the leases"
                    );
                }
                sleep(backoff.next(PAUSE_MIN, PAUSE_MAX)).await;
            }
        }
    }
}

/// Opens the directory and loads the state from it.
fn load(directory: &Path, locks_max: usize) -> Result<Loaded, OpenError> {
    let (wall, begun) = (wall_time(), Instant::now());
    let mut disk = Disk::open(
        directory,
        Clocks {
            store: wall,
            rows: wall,
        },
    )?;
    let begin = |clocks: Clocks| {
        // The store's clock never goes back, whatever the system's clock did.
        let now = wall.max(clocks.store);
        let downtime = Downtime::between(clocks.rows, now);
        let committed = clocks.store;
        let times = LoadTimes { committed, now };
        (now, downtime, Loading::new(locks_max, downtime, times))
    };
    let (now, downtime, loading) = disk.read(begin, |(_, _, loading), key, value| {
        let row = loading.row(key, value);
        row.map_err(|invalid| invalid.to_string())
    })?;
    let journal = Arc::new(FileJournal::new(downtime, now));
    let state = loading.finish(now);
    journal.try_disk(&mut disk, now);
    // A disk may be slow, and leases end by the clock of the system.
    let now = now + begun.elapsed();
    let memory = MemoryStore::journaled(state, now, Arc::clone(&journal) as _);
    Ok((memory, journal, disk))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::super::disk::LOCK_FILE;
    use super::*;

    /// Its clock stands still while a thread loads, and goes on by itself between two attempts.
    #[tokio::test(start_paused = true)]
    async fn an_examination_of_the_directory_keeps_no_process_from_opening_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let lock = File::create(directory.path().join(LOCK_FILE)).expect("there is room");
        lock.try_lock_shared().expect("nobody else has it");
        let opened = async || load_when_possible(directory.path(), 1).await;
        assert!(opened().await.is_err(), "another process has the lock");
        let examination = async {
            sleep(EXAMINED_MAX / 2).await;
            drop(lock);
        };
        let (opened, ()) = tokio::join!(opened(), examination);
        assert!(opened.is_ok());
    }
}
