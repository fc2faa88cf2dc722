//! The directory of the file store: its lock, the database with the rows, and the [reserve](super::reserve). What the rows
//! mean, and when they are written, is not known here.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::{Builder, Database, ReadableDatabase as _, ReadableTable as _};

use super::super::state::is_referred_to;
use super::confirmed;
use super::identity::Identities;
use super::reserve::{self, Reserve};
use super::rows::{self, Clocks, ROWS, Rows, unusable, write};
use crate::regular_file;

/// The database, in the directory.
pub(super) const FILE: &str = "leases.redb";
/// A database that is being made. It gets its name when it is complete.
const NEW_FILE: &str = "leases.redb.new";
/// Locked as long as a process uses the directory. The lock of the database itself is not enough: it is released for a
/// moment when the database is opened again after an error.
pub(super) const LOCK_FILE: &str = "lock";

/// How much of the database is kept in memory. All rows are in the state already; this is for the pages around the rows
/// that are written.
const CACHE_BYTES: usize = 32 * 1024 * 1024;

/// Only the user of the process may read and write the files, whatever the directory permits.
const OWN_MODE: u32 = 0o600;

/// The unit in which the operating system says how much of a disk a file takes.
const BLOCK_BYTES: u64 = 512;

/// A database that takes this many bytes at most is compacted when the disk lacks room. All requests wait meanwhile.
const COMPACTED_MAX: u64 = 32 * 1024 * 1024;

/// How many rows a commit writes at first if all of them have no room in one.
const PART_MAX: usize = 256;

/// The directory, in use by this process.
pub(super) struct Disk {
    directory: PathBuf,
    /// None after an error: the database has to be opened again.
    database: Option<Database>,
    /// Whether the operating system may have lost pages that it was asked to write. It reports that once, and then takes
    /// the pages for written; so the file is copied before anything else is written.
    is_doubtful: bool,
    reserve: Reserve,
    identities: Arc<Identities>,
    /// Keeps the lock for as long as the directory is in use.
    lock: File,
}

impl Disk {
    /// Opens the directory, and makes it if there is none. A new database has these clocks.
    ///
    /// # Errors
    /// Why this process cannot use the directory, and what to do.
    pub(super) fn open(directory: &Path, clocks: Clocks) -> Result<Self, String> {
        let shown = directory.display();
        let refused = |error: io::Error| format!("cannot use the directory {shown}: {error}");
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(directory).map_err(refused)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let lock = open_lock(options.mode(OWN_MODE), directory).map_err(|it| it.to_string())?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(format!(
                    "another process uses the directory {shown}; stop it, or choose another directory"
                ));
            }
            Err(TryLockError::Error(error)) => return Err(refused(error)),
        }
        // The remains of an interrupted copy take space that a full disk lacks. If they cannot be removed, the next copy
        // replaces them.
        let _ = fs::remove_file(directory.join(NEW_FILE));
        let file = directory.join(FILE);
        if find_database(&file)?.is_none() {
            // What was confirmed was of another database.
            lock.set_len(0).map_err(refused)?;
            create(directory, clocks)
                .map_err(|error| format!("cannot create a database in {shown}: {error}"))?;
        }
        // Leasehold does not damage the file. If somebody else has, it is found now, before leases depend on it.
        let opened = builder_of_databases()
            .set_check_integrity_on_open(true)
            .open(&file);
        let database = opened.map_err(|error| unusable(&file, error))?;
        let identities = Identities::of(directory, &[FILE, LOCK_FILE]).map_err(refused)?;
        Ok(Self {
            directory: directory.to_owned(),
            database: Some(database),
            is_doubtful: false,
            identities: Arc::new(identities),
            reserve: Reserve::find(directory)?,
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
    ) -> Result<T, String> {
        let database = self.database.as_ref().ok_or("the database is closed")?;
        let confirmed = confirmed::read(&self.lock);
        rows::read(database, &self.directory.join(FILE), confirmed, begin, row)
    }

    /// Writes rows and clocks. They are on the disk when this returns. If the disk is full, the reserve is given up for
    /// them. They are written in one commit, or in several if there is no room for one.
    ///
    /// # Errors
    /// They may be on the disk or not. The next call opens the database again.
    pub(super) fn write(&mut self, rows: &Rows, clocks: Clocks) -> Result<(), redb::Error> {
        let mut written = self.try_to_write(rows, clocks);
        if written.as_ref().is_err_and(is_lack_of_room) && self.reserve.give_up() {
            written = self.try_to_write(rows, clocks);
        }
        if written.as_ref().is_err_and(is_lack_of_room) {
            written = self.write_in_parts(rows, clocks);
        }
        self.is_doubtful |= written.as_ref().is_err_and(|error| !is_lack_of_room(error));
        written
    }

    /// Writes rows in commits so small that each fits into the pages that the database does not use. A commit leaves as
    /// many of them behind as it took, for the second one after it.
    ///
    /// Between any two commits power may be lost, and none of the changes has been reported. So what an ended lease leaves
    /// is written before its row goes, which the order of the kinds of rows ensures, and no row refers to one that is
    /// missing.
    fn write_in_parts(&mut self, rows: &Rows, clocks: Clocks) -> Result<(), redb::Error> {
        let is_last = |key: &[u8], value: &Option<_>| value.is_none() && is_referred_to(key);
        let (last, first): (Vec<_>, Vec<_>) = rows
            .iter()
            .partition(|(key, value)| is_last(key.as_slice(), value));
        let rows = [first, last].concat();
        let (mut left, mut size) = (&rows[..], rows.len().min(PART_MAX));
        loop {
            // This makes the pages usable that the commit before it has replaced.
            self.try_to_write([], clocks)?;
            let (part, rest) = left.split_at(size.min(left.len()));
            match self.try_to_write(part.iter().copied(), clocks) {
                Ok(()) if rest.is_empty() => return Ok(()),
                Ok(()) => left = rest,
                Err(error) if is_lack_of_room(&error) && size > 1 => size /= 4,
                Err(error) => return Err(error),
            }
            size = size.max(1);
        }
    }

    fn try_to_write<'a>(
        &mut self,
        rows: impl IntoIterator<Item = (&'a Vec<u8>, &'a Option<Vec<u8>>)>,
        clocks: Clocks,
    ) -> Result<(), redb::Error> {
        let identities = Arc::clone(&self.identities);
        identities.change(|| {
            if self.is_doubtful {
                identities.replace(|| copy(&self.directory))?;
                self.is_doubtful = false;
            }
            let database = match self.database.take() {
                Some(database) => database,
                None => builder_of_databases().open(self.directory.join(FILE))?,
            };
            write(&database, rows, clocks)?;
            confirmed::write(&self.lock, clocks.store);
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

    fn compact(&mut self) -> Result<bool, redb::Error> {
        let compacted = self.try_to_compact();
        self.is_doubtful |= compacted
            .as_ref()
            .is_err_and(|error| !is_lack_of_room(error));
        compacted
    }

    /// Moves the pages of the database together and returns the end of the file to the disk, if that frees at least half
    /// of the file and does not take long. Returns whether it was done.
    fn try_to_compact(&mut self) -> Result<bool, redb::Error> {
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

/// Opens the file whose lock says that the directory is in use.
///
/// # Errors
/// It cannot be opened; the text names it.
pub(super) fn open_lock(options: &mut OpenOptions, directory: &Path) -> io::Result<File> {
    let path = directory.join(LOCK_FILE);
    regular_file::open(options, &path).map_err(|error| {
        let problem = format!("{} cannot be opened: {error}", path.display());
        io::Error::new(error.kind(), problem)
    })
}

/// The length of the database in bytes; `None` if there is none.
///
/// # Errors
/// What is there cannot be one, and what to do.
pub(super) fn find_database(file: &Path) -> Result<Option<u64>, String> {
    let found = regular_file::find(file).map_err(|error| match file.is_symlink() {
        // Whoever moves it away begins without the leases of the file that it leads to.
        true => format!(
            "{} is a symbolic link; name the directory of the file that it leads to, or put that file in its place",
            file.display()
        ),
        false => format!("{} cannot be used: {error}", file.display()),
    })?;
    match found.map(|found| found.len()) {
        Some(0) => Err(unusable(file, "it is empty")),
        length => Ok(length),
    }
}

pub(super) fn builder_of_databases() -> Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

/// A database without rows.
fn create(directory: &Path, clocks: Clocks) -> Result<(), redb::Error> {
    make(directory, |database| write(database, [], clocks))
}

/// A copy of the database in place of it.
fn copy(directory: &Path) -> Result<(), redb::Error> {
    let old = builder_of_databases().open(directory.join(FILE))?;
    let old_rows = old.begin_read()?.open_table(ROWS)?;
    make(directory, |new| {
        let transaction = new.begin_write()?;
        {
            let mut rows = transaction.open_table(ROWS)?;
            for row in old_rows.iter()? {
                let (key, value) = row?;
                rows.insert(key.value(), value.value())?;
            }
        }
        Ok(transaction.commit()?)
    })
}

/// Makes a database under another name first: a file of the right name is always complete.
fn make(
    directory: &Path,
    fill: impl FnOnce(&Database) -> Result<(), redb::Error>,
) -> Result<(), redb::Error> {
    let new = directory.join(NEW_FILE);
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        Ok(()) | Err(_) => {}
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(OWN_MODE);
    drop(options.open(&new)?);
    let database = builder_of_databases().create(&new)?;
    fill(&database)?;
    database.close()?;
    fs::rename(&new, directory.join(FILE))?;
    // The name of the file has to be on the disk, too.
    Ok(File::open(directory)?.sync_all()?)
}

/// Whether the operating system had no room for more, which it reports before it has taken the pages.
pub(super) fn is_lack_of_room(error: &redb::Error) -> bool {
    let redb::Error::Io(error) = error else {
        return false;
    };
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

#[cfg(test)]
mod tests;
