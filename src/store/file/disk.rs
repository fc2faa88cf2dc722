//! The directory of the file store: its lock, the database with the rows, and the [reserve](super::reserve). What the rows
//! mean, and when they are written, is not known here.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::Database;

use super::confirmed::{self, CommitId};
use super::database::{self, BLOCK_BYTES, FILE, OWN_MODE, find_database};
use super::identity::Identities;
use super::open_error::OpenError;
use super::parts::write_in_parts;
use super::reserve::{self, Reserve};
use super::room::is_lack_of_room;
use super::rows::{self, Clocks, Commit, Rows, last_commit, write};
use super::sync_failure::SyncFailure;
use crate::regular_file;

/// Locked as long as a process uses the directory. The lock of the database itself is not enough: it is released for a
/// moment when the database is opened again after an error.
pub(super) const LOCK_FILE: &str = "lock";

/// A database that takes this many bytes at most is compacted when the disk lacks room. All requests wait meanwhile.
const COMPACTED_MAX: u64 = 32 * 1024 * 1024;

/// The directory, in use by this process.
pub(super) struct Disk {
    directory: PathBuf,
    /// None after an error: the database has to be opened again.
    database: Option<Database>,
    /// Whether the file may lack what was written. Then it is copied before anything else is written.
    sync_failure: Arc<SyncFailure>,
    /// The last commit that was tried.
    last_commit: CommitId,
    reserve: Reserve,
    identities: Arc<Identities>,
    /// Keeps the lock for as long as the directory is in use.
    lock: Arc<File>,
}

impl Disk {
    /// Opens the directory, and makes it if there is none. A new database has these clocks.
    ///
    /// # Errors
    /// Why this process cannot use the directory, and what to do.
    pub(super) fn open(directory: &Path, clocks: Clocks) -> Result<Self, OpenError> {
        let shown = directory.display();
        let refused = |error: io::Error| format!("cannot use the directory {shown}: {error}");
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder
            .create(directory)
            .map_err(|error| cannot_make(directory, &error))?;
        let lock = Arc::new(take_lock(directory)?);
        // What is left of an interrupted copy takes room that a full disk lacks. If it cannot be removed, the next copy
        // replaces it.
        let _ = database::remove_unfinished(directory);
        let mut reserve = Reserve::find(directory)?;
        let file = directory.join(FILE);
        let is_new = find_database(&file)?.is_none();
        if is_new {
            if !matches!(confirmed::read(&lock), Ok(None)) {
                tracing::warn!(
                    "{} is gone, so no lease from before is known",
                    file.display()
                );
            }
            // What is noted there was of another database.
            lock.set_len(0).map_err(refused)?;
        }
        let sync_failure = Arc::new(SyncFailure::find(Arc::clone(&lock)));
        if is_new {
            let id = CommitId::first();
            let commit = Some(Commit { id, clocks });
            database::create(directory, &sync_failure, |new| write(new, [], commit))
                .map_err(|error| OpenError::of(&file, error))?;
        }
        let open = || match sync_failure.is_noted() {
            true => database::copy(directory, &sync_failure),
            false => database::open_checked(directory, &sync_failure),
        };
        let mut opened = open();
        if opened.as_ref().is_err_and(is_lack_of_room)
            && !sync_failure.is_noted()
            && reserve.give_up()
        {
            opened = open();
        }
        let database = opened.map_err(|error| OpenError::of(&file, error))?;
        let last_commit = last_commit(&database, &file)?.id;
        let identities = Identities::of(directory, &[FILE, LOCK_FILE]).map_err(refused)?;
        Ok(Self {
            directory: directory.to_owned(),
            last_commit,
            database: Some(database),
            sync_failure,
            identities: Arc::new(identities),
            reserve,
            lock,
        })
    }

    /// Reads all rows, the clocks first.
    ///
    /// # Errors
    /// Why the file cannot be used, and what to do.
    pub(super) fn read<T>(
        &self,
        begin: impl FnOnce(Clocks) -> T,
        row: impl FnMut(&mut T, &[u8], &[u8]) -> Result<(), String>,
    ) -> Result<T, OpenError> {
        let closed = || "the database is closed".to_owned();
        let database = self.database.as_ref().ok_or_else(closed)?;
        let confirmed = confirmed_in(&self.lock, &self.directory)?;
        rows::read(database, &self.directory.join(FILE), confirmed, begin, row)
    }

    /// Writes rows and clocks. They are on the disk when this returns. If the disk is full, the reserve is given up for
    /// them. They are written in one commit, or in several if there is no room for one.
    ///
    /// # Errors
    /// They may be on the disk or not. The next call opens the database again.
    pub(super) fn write(&mut self, rows: &Rows, clocks: Clocks) -> Result<(), redb::Error> {
        let mut written = self.try_to_write(rows, Some(clocks));
        if self.lacks_room(&written) && self.reserve.give_up() {
            written = self.try_to_write(rows, Some(clocks));
        }
        if self.lacks_room(&written) {
            written = write_in_parts(rows, clocks, |part, clocks| {
                self.try_to_write(part.iter().copied(), clocks)
            });
        }
        written
    }

    /// Whether the rows could be written with less room. A copy that has to be made first could not.
    fn lacks_room(&self, written: &Result<(), redb::Error>) -> bool {
        written.as_ref().is_err_and(is_lack_of_room) && !self.sync_failure.is_noted()
    }

    fn try_to_write<'a>(
        &mut self,
        rows: impl IntoIterator<Item = (&'a Vec<u8>, &'a Option<Vec<u8>>)>,
        clocks: Option<Clocks>,
    ) -> Result<(), redb::Error> {
        let identities = Arc::clone(&self.identities);
        identities.change(|| {
            let database = match self.database.take() {
                _ if self.sync_failure.is_noted() => {
                    identities.replace(|| database::copy(&self.directory, &self.sync_failure))?
                }
                Some(database) => database,
                None => database::open(&self.directory, &self.sync_failure)?,
            };
            // A commit that has failed may be on the disk, so its number is not used again.
            self.last_commit = self.last_commit.next();
            let id = self.last_commit;
            write(&database, rows, clocks.map(|clocks| Commit { id, clocks }))?;
            if clocks.is_some() {
                confirmed::write(&self.lock, id);
            }
            self.database = Some(database);
            Ok(())
        })
    }
}

impl Disk {
    /// Closes the database, which may make its file shorter.
    pub(super) fn close_database(&mut self) {
        let identities = Arc::clone(&self.identities);
        // The file is closed even if it is no longer the known one.
        let _ = identities.change(|| {
            self.database = None;
            io::Result::Ok(())
        });
    }

    /// The files that were opened, for checks at any time.
    pub(super) fn identities(&self) -> Arc<Identities> {
        Arc::clone(&self.identities)
    }

    /// Whether there is a reserve. While there is none, only rows that need no more space are written.
    pub(super) fn has_reserve(&self) -> bool {
        self.reserve.is_there()
    }

    /// Makes a reserve if the disk has room for it.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn make_reserve(&mut self) -> Result<(), redb::Error> {
        Ok(self.reserve.make(reserve::BYTES)?)
    }

    /// Makes a reserve again if the disk has room for more than that; otherwise it would be given up at once. If the disk
    /// has too little, returns to it the space that the database no longer uses.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn restore_reserve(&mut self) -> Result<(), redb::Error> {
        match self
            .reserve
            .make(2 * reserve::BYTES)
            .map_err(redb::Error::from)
        {
            Err(error) if is_lack_of_room(&error) && self.compact()? => {
                Ok(self.reserve.make(reserve::BYTES_AND_MORE)?)
            }
            made => made,
        }
    }

    /// Moves the pages of the database together and returns the end of the file to the disk, if that frees at least half
    /// of the file and does not take long. Returns whether it was done.
    fn compact(&mut self) -> Result<bool, redb::Error> {
        let identities = Arc::clone(&self.identities);
        identities.change(|| self.compact_if_worthwhile())
    }

    fn compact_if_worthwhile(&mut self) -> Result<bool, redb::Error> {
        let Some(mut database) = self.database.take() else {
            return Ok(false);
        };
        let file = fs::metadata(self.directory.join(FILE))?;
        let transaction = database.begin_write()?;
        let stats = transaction.stats()?;
        transaction.abort()?;
        let used = stats.allocated_pages() * stats.page_size() as u64;
        let is_worthwhile = used <= COMPACTED_MAX && used * 2 <= file.blocks() * BLOCK_BYTES;
        if is_worthwhile {
            database.compact()?;
        }
        self.database = Some(database);
        Ok(is_worthwhile)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.close_database();
    }
}

/// Why there is no directory, and none can be made.
fn cannot_make(directory: &Path, error: &io::Error) -> String {
    let shown = directory.display();
    let (kind, begin) = (error.kind(), "cannot make the directory");
    if matches!(
        kind,
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory
    ) {
        format!(
            "cannot use the directory {shown}: a file is in its place; remove it, or choose another directory"
        )
    } else if kind == io::ErrorKind::PermissionDenied {
        format!("{begin} {shown}: {error}; make it, and give it to the user of this process")
    } else {
        format!("{begin} {shown}: {error}")
    }
}

/// Takes the lock of the directory.
fn take_lock(directory: &Path) -> Result<File, OpenError> {
    let shown = directory.display();
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let lock = open_lock(options.mode(OWN_MODE), directory).map_err(|error| error.to_string())?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse(format!(
            "another process uses the directory {shown}; stop it, or choose another directory"
        ))),
        Err(TryLockError::Error(error)) => {
            Err(format!("cannot use the directory {shown}: {error}").into())
        }
    }
}

/// The last commit that was confirmed, if it is known.
///
/// # Errors
/// Nobody can tell whether the database has all that was reported; the text says what to do.
pub(super) fn confirmed_in(lock: &File, directory: &Path) -> Result<Option<CommitId>, String> {
    confirmed::read(lock).map_err(|error| {
        let shown = directory.join(LOCK_FILE);
        format!(
            "{} cannot be used: {error}. So it is not known whether {FILE} beside it has all leases that were reported. If it is \
             the file that was used last, remove {LOCK_FILE}; else restore the directory from a backup",
            shown.display()
        )
    })
}

/// Opens the file whose lock says that the directory is in use.
///
/// # Errors
/// It cannot be opened; the text names it.
pub(super) fn open_lock(options: &mut OpenOptions, directory: &Path) -> io::Result<File> {
    let path = directory.join(LOCK_FILE);
    regular_file::open(options, &path).map_err(|error| {
        let what_to_do = match error.kind() == io::ErrorKind::PermissionDenied {
            true => "; give the directory and all that is in it to the user of this process",
            false => "",
        };
        let problem = format!("{} cannot be opened: {error}{what_to_do}", path.display());
        io::Error::new(error.kind(), problem)
    })
}

#[cfg(test)]
mod tests;
