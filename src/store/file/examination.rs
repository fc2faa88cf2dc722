//! Whether a server could start on a directory, checked without using it: nothing is written, and the lock of the
//! directory is taken for a moment only.

use std::fs::{self, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use redb::StorageBackend as _;
use redb::backends::InMemoryBackend;

use super::super::state::{Downtime, LoadTimes, Loading};
use super::confirmed::CommitId;
use super::database::{FILE, builder_of_databases, find_database};
use super::disk::{LOCK_FILE, confirmed_in, open_lock};
use super::open_error::unusable;
use super::reserve::Reserve;
use super::rows::{Clocks, read};

/// A larger file is not read into memory.
const BYTES_MAX: u64 = 256 * 1024 * 1024;

/// What others may do with a file. Its group is not among them: it may be that of a volume.
const OTHERS_MAY_READ_OR_WRITE: u32 = 0o006;
const OTHERS_MAY_WRITE: u32 = 0o002;

/// What is in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Examination {
    /// No process has used it yet.
    Unused,
    /// A process uses it, so its files change at present.
    InUse,
    /// It can be loaded, and has this many rows.
    Sound(u64),
    /// The file is larger than what is read here: its size in bytes.
    TooLarge(u64),
    /// Why a process could not use it, and what to do.
    Unusable(String),
}

/// Reads what a process would load from the directory when it starts. `locks_max` is that of the configuration.
#[must_use]
pub fn examine(directory: &Path, locks_max: usize) -> Examination {
    try_to_examine(directory, locks_max, |file| fs::read(file))
        .unwrap_or_else(Examination::Unusable)
}

/// Which rights other users have that let them read or change what is in the directory, and how to take them away.
#[must_use]
pub fn excessive_rights(directory: &Path) -> Vec<String> {
    let mode = |path: &Path| fs::metadata(path).map_or(0, |found| found.permissions().mode());
    let mut excessive = Vec::new();
    if mode(directory) & OTHERS_MAY_WRITE != 0 {
        let shown = directory.display();
        excessive.push(format!(
            "every user of the machine can replace the files in {shown}; run chmod 700 {shown}"
        ));
    }
    for name in [FILE, LOCK_FILE, Reserve::FILE] {
        let path = directory.join(name);
        if mode(&path) & OTHERS_MAY_READ_OR_WRITE != 0 {
            let shown = path.display();
            excessive.push(format!(
                "every user of the machine can read or change {shown}; run chmod 600 {shown}"
            ));
        }
    }
    excessive
}

/// `read_file` reads the database; in a test, something else happens there too.
fn try_to_examine(
    directory: &Path,
    locks_max: usize,
    read_file: impl FnOnce(&Path) -> io::Result<Vec<u8>>,
) -> Result<Examination, String> {
    let Some(confirmed) = last_confirmed(directory)? else {
        return Ok(Examination::InUse);
    };
    Reserve::check(directory)?;
    let file = directory.join(FILE);
    let Some(length) = find_database(&file)? else {
        return Ok(Examination::Unused);
    };
    if length > BYTES_MAX {
        return Ok(Examination::TooLarge(length));
    }
    let bytes = read_file(&file).map_err(|error| unusable(&file, error))?;
    // A process that has started meanwhile may have changed what was read.
    if last_confirmed(directory)? != Some(confirmed) {
        return Ok(Examination::InUse);
    }
    load(&file, &bytes, confirmed, locks_max).map(Examination::Sound)
}

/// The last commit that was confirmed, if it is known; `None` while a process uses the directory.
fn last_confirmed(directory: &Path) -> Result<Option<Option<CommitId>>, String> {
    let lock = match open_lock(OpenOptions::new().read(true), directory) {
        Ok(lock) => lock,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Some(None)),
        Err(error) => return Err(error.to_string()),
    };
    match lock.try_lock_shared() {
        Ok(()) => confirmed_in(&lock, directory).map(Some),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => {
            let shown = directory.display();
            Err(format!("cannot use the directory {shown}: {error}"))
        }
    }
}

/// Loads a copy of the file, which may need to be repaired after a crash. Returns how many rows it has.
fn load(
    file: &Path,
    bytes: &[u8],
    confirmed: Option<CommitId>,
    locks_max: usize,
) -> Result<u64, String> {
    let copy = InMemoryBackend::new();
    let copied = copy.set_len(bytes.len() as u64);
    copied
        .and_then(|()| copy.write(0, bytes))
        .map_err(|error| format!("{} cannot be copied: {error}", file.display()))?;
    let opened = builder_of_databases()
        .set_check_integrity_on_open(true)
        .create_with_backend(copy);
    let database = opened.map_err(|error| unusable(file, error))?;
    let begin = |clocks: Clocks| {
        // The times in the rows are on their clock.
        let times = LoadTimes {
            committed: clocks.store,
            now: clocks.rows,
        };
        (Loading::new(locks_max, Downtime::default(), times), 0)
    };
    let read = read(
        &database,
        file,
        confirmed,
        begin,
        |(loading, rows), key, value| {
            *rows += 1;
            loading
                .row(key, value)
                .map_err(|invalid| invalid.to_string())
        },
    );
    let (_, rows) = read.map_err(|error| error.to_string())?;
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::super::super::state::StoreTime;
    use super::super::disk::Disk;
    use super::super::rows::{Clocks, Rows};
    use super::*;

    /// Uses the directory as a process does, with one commit at this time.
    fn commit(directory: &Path, time_us: u64) -> Disk {
        let time = StoreTime::from_unix_us(time_us);
        let (store, rows) = (time, time);
        let mut disk = Disk::open(directory, Clocks { store, rows }).unwrap();
        disk.write(&Rows::new(), Clocks { store, rows }).unwrap();
        disk
    }

    /// Examines the directory, while something happens after its file was read.
    fn examine_while<T>(directory: &Path, happens: impl FnOnce() -> T) -> (Examination, T) {
        let mut happened = None;
        let examination = try_to_examine(directory, 10, |file| {
            let bytes = fs::read(file);
            happened = Some(happens());
            bytes
        });
        (examination.unwrap(), happened.expect("the file is read"))
    }

    /// What was read may be a part of the file from before a commit and another one from after it.
    #[test]
    fn a_directory_that_a_process_has_used_while_it_was_read_counts_as_in_use() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        drop(commit(directory, 1_000));
        let (unchanged, ()) = examine_while(directory, || ());
        assert_eq!(unchanged, Examination::Sound(0));
        let (ended, ()) = examine_while(directory, || drop(commit(directory, 2_000)));
        assert_eq!(ended, Examination::InUse);
        let (running, _disk) = examine_while(directory, || commit(directory, 3_000));
        assert_eq!(running, Examination::InUse);
    }
}
