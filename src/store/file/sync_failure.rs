//! Whether the operating system may have lost pages of the database that it was asked to write. It reports that once, by a
//! sync that fails, and takes the pages for written from then on: whoever reads the file finds them as long as they are in
//! memory. So the failure is noted in the file of the directory's lock, where the next process finds it, too. What is done
//! about it is not known here.

use std::fs::File;
use std::io;
use std::ops::Bound;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::backends::FileBackend;
use redb::{BackendError, StorageBackend};

use super::confirmed;

/// Where the note is: behind that of the last confirmed commit. It is not synced, because a loss of power takes both the
/// note and what it is about.
const OFFSET: u64 = confirmed::LENGTH as u64;

/// The note about the database of one directory.
#[derive(Debug)]
pub(super) struct SyncFailure {
    lock: Arc<File>,
    is_noted: AtomicBool,
}

impl SyncFailure {
    /// Finds out whether a process has left a note in this file.
    pub(super) fn find(lock: Arc<File>) -> Self {
        let mut noted = [0];
        let is_there = lock.read_exact_at(&mut noted, OFFSET).is_ok();
        Self {
            lock,
            is_noted: AtomicBool::new(is_there && noted != [0]),
        }
    }

    pub(super) fn is_noted(&self) -> bool {
        self.is_noted.load(Ordering::Relaxed)
    }

    /// Notes that something may be lost.
    pub(super) fn note(&self) {
        self.set(true);
    }

    /// Removes the note, because nothing depends any more on what may be lost.
    pub(super) fn clear(&self) {
        self.set(false);
    }

    fn set(&self, noted: bool) {
        self.is_noted.store(noted, Ordering::Relaxed);
        // If a note stays, the next process copies once more. If none can be written, this process still knows.
        let _ = self.lock.write_all_at(&[u8::from(noted)], OFFSET);
    }
}

/// The file of a database, which notes that a sync has failed.
#[derive(Debug)]
pub(super) struct NotingFile {
    file: FileBackend,
    failure: Arc<SyncFailure>,
}

impl NotingFile {
    pub(super) fn new(file: File, failure: Arc<SyncFailure>) -> Result<Self, redb::Error> {
        let file = FileBackend::new(file)?;
        Ok(Self { file, failure })
    }
}

impl StorageBackend for NotingFile {
    fn sync_data(&self) -> io::Result<()> {
        let synced = self.file.sync_data();
        if synced.is_err() {
            self.failure.note();
        }
        synced
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write(offset, data)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.file.set_len(length)
    }

    fn close(&self) -> io::Result<()> {
        self.file.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_range(start, end)
    }

    fn try_lock_shared_range(
        &self,
        start: Bound<u64>,
        end: Bound<u64>,
    ) -> Result<bool, BackendError> {
        self.file.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.query_lock_range(start, end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_found_by_the_next_process_until_it_is_removed() {
        let lock = Arc::new(tempfile::tempfile().unwrap());
        let find = || SyncFailure::find(Arc::clone(&lock));
        assert!(!find().is_noted());
        find().note();
        assert!(find().is_noted());
        find().clear();
        assert!(!find().is_noted());
    }
}
