//! The directory of the file store: its lock, and the database with the rows. What the rows mean, and when they are
//! written, is not known here.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use redb::{Builder, Database, ReadableDatabase as _, ReadableTable as _, TableDefinition};

use super::super::state::StoreTime;

/// The database, in the directory.
pub(super) const FILE: &str = "leases.redb";
/// A database that is being made. It gets its name when it is complete.
const NEW_FILE: &str = "leases.redb.new";
/// Locked as long as a process uses the directory. The lock of the database itself is not enough: it is released for a
/// moment when the database is opened again after an error.
const LOCK_FILE: &str = "lock";

const ROWS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("rows");
/// The row of the clocks. No other kind of row has a key that begins like this.
const CLOCKS_KEY: &[u8] = b"k";
const CLOCKS_VERSION: u8 = 1;

/// How much of the database is kept in memory. All rows are in the state already; this is for the pages around the rows
/// that are written.
const CACHE_BYTES: usize = 32 * 1024 * 1024;

/// Rows to write: the key, and the value or none if the row is gone.
pub(super) type Rows = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// What the two clocks showed when they were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Clocks {
    /// The store's clock, which no restart sets back.
    pub(super) store: StoreTime,
    /// The clock of the rows, which stands still while no process runs.
    pub(super) rows: StoreTime,
}

/// The directory, in use by this process.
pub(super) struct Disk {
    directory: PathBuf,
    /// None after an error: the database has to be opened again.
    database: Option<Database>,
    /// Whether the operating system may have lost pages that it was asked to write. It reports that once, and then takes
    /// the pages for written; so the file is copied before anything else is written.
    is_doubtful: bool,
    /// Keeps the lock for as long as the directory is in use.
    _lock: File,
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
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(directory.join(LOCK_FILE))
            .map_err(refused)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(format!(
                    "another process uses the directory {shown}; stop it, or choose another directory"
                ));
            }
            Err(TryLockError::Error(error)) => return Err(refused(error)),
        }
        let file = directory.join(FILE);
        if !file.try_exists().map_err(refused)? {
            create(directory, clocks)
                .map_err(|error| format!("cannot create a database in {shown}: {error}"))?;
        }
        // A file that only somebody else can have damaged is found out now, and not while leases depend on it.
        let opened = builder_of_databases()
            .set_check_integrity_on_open(true)
            .open(&file);
        Ok(Self {
            directory: directory.to_owned(),
            database: Some(opened.map_err(|error| unusable(&file, error))?),
            is_doubtful: false,
            _lock: lock,
        })
    }

    /// Reads all rows, the clocks first.
    ///
    /// # Errors
    /// Why the file cannot be used, and what to do.
    pub(super) fn read<T>(
        &self,
        begin: impl FnOnce(Clocks) -> T,
        mut row: impl FnMut(&mut T, &[u8], &[u8]) -> Result<(), String>,
    ) -> Result<T, String> {
        let file = self.directory.join(FILE);
        let unusable = |error: &dyn Display| unusable(&file, error);
        let database = self.database.as_ref().ok_or("the database is closed")?;
        let transaction = database.begin_read().map_err(|error| unusable(&error))?;
        let table = transaction.open_table(ROWS);
        let table = table.map_err(|error| unusable(&error))?;
        let clocks = table.get(CLOCKS_KEY).map_err(|error| unusable(&error))?;
        let clocks = clocks.and_then(|clocks| Clocks::from_bytes(clocks.value()));
        let clocks = clocks.ok_or_else(|| unusable(&"it has no clocks that can be read"))?;
        let mut taken = begin(clocks);
        for entry in table.iter().map_err(|error| unusable(&error))? {
            let (key, value) = entry.map_err(|error| unusable(&error))?;
            if key.value() != CLOCKS_KEY {
                row(&mut taken, key.value(), value.value()).map_err(|error| unusable(&error))?;
            }
        }
        Ok(taken)
    }

    /// Writes rows and clocks, all or none. They are on the disk when this returns.
    ///
    /// # Errors
    /// They may be on the disk or not. The next call opens the database again.
    pub(super) fn write(&mut self, rows: &Rows, clocks: Clocks) -> Result<(), redb::Error> {
        let written = self.try_to_write(rows, clocks);
        self.is_doubtful |= written.as_ref().is_err_and(|error| !is_lack_of_room(error));
        written
    }

    fn try_to_write(&mut self, rows: &Rows, clocks: Clocks) -> Result<(), redb::Error> {
        if self.is_doubtful {
            copy(&self.directory)?;
            self.is_doubtful = false;
        }
        let database = match self.database.take() {
            Some(database) => database,
            None => builder_of_databases().open(self.directory.join(FILE))?,
        };
        write(&database, rows, clocks)?;
        self.database = Some(database);
        Ok(())
    }
}

impl Clocks {
    fn to_bytes(self) -> Vec<u8> {
        let [store, rows] = [self.store, self.rows].map(|time| time.unix_us().to_be_bytes());
        [&[CLOCKS_VERSION], &store[..], &rows[..]].concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (version, times) = bytes.split_first()?;
        let (store, rows) = times.split_first_chunk()?;
        let [store, rows] = [*store, rows.try_into().ok()?].map(u64::from_be_bytes);
        (*version == CLOCKS_VERSION).then(|| Self {
            store: StoreTime::from_unix_us(store),
            rows: StoreTime::from_unix_us(rows),
        })
    }
}

fn builder_of_databases() -> Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

/// A database without rows.
fn create(directory: &Path, clocks: Clocks) -> Result<(), redb::Error> {
    make(directory, |database| write(database, &Rows::new(), clocks))
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
    let database = builder_of_databases().create(&new)?;
    fill(&database)?;
    database.close()?;
    fs::rename(&new, directory.join(FILE))?;
    // The name of the file has to be on the disk, too.
    Ok(File::open(directory)?.sync_all()?)
}

/// Whether the operating system had no room for more, which it reports before it has taken the pages.
fn is_lack_of_room(error: &redb::Error) -> bool {
    let redb::Error::Io(error) = error else {
        return false;
    };
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

/// One transaction. It has the default durability, which is that of `fsync`. One phase is enough: the checksums tell a
/// commit that was cut short from a complete one.
fn write(database: &Database, rows: &Rows, clocks: Clocks) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    {
        let mut table = transaction.open_table(ROWS)?;
        for (key, value) in rows {
            match value {
                Some(value) => table.insert(&key[..], &value[..])?,
                None => table.remove(&key[..])?,
            };
        }
        table.insert(CLOCKS_KEY, &clocks.to_bytes()[..])?;
    }
    Ok(transaction.commit()?)
}

fn unusable(file: &Path, error: impl Display) -> String {
    format!(
        "{} cannot be used: {error}. Restore the directory from a backup; or, if no lease from before may still be alive, \
         move the file away to start without any",
        file.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows_of(disk: &Disk) -> Vec<(Vec<u8>, Vec<u8>)> {
        let take = |rows: &mut Vec<_>, key: &[u8], value: &[u8]| {
            rows.push((key.to_vec(), value.to_vec()));
            Ok(())
        };
        disk.read(|_| Vec::new(), take).expect("the file is whole")
    }

    #[test]
    fn after_an_error_of_the_disk_all_rows_are_in_another_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let time = StoreTime::from_unix_us(1_000);
        let clocks = Clocks {
            store: time,
            rows: time,
        };
        let mut disk = Disk::open(directory.path(), clocks).expect("it is empty");
        let row = |number: u8| (vec![b'l', number], Some(vec![number]));
        let first = (0..100).map(row).collect();
        disk.write(&first, clocks).expect("there is room");
        let old = File::open(directory.path().join(FILE)).expect("it is there");
        (disk.database, disk.is_doubtful) = (None, true);
        disk.write(&[row(100)].into(), clocks)
            .expect("there is room");
        assert!(!disk.is_doubtful);
        let expected: Vec<_> = (0..=100)
            .map(|number| (vec![b'l', number], vec![number]))
            .collect();
        assert_eq!(rows_of(&disk), expected);
        use std::os::unix::fs::MetadataExt as _;
        let inode = |file: &File| file.metadata().expect("it is open").ino();
        let new = File::open(directory.path().join(FILE)).expect("it is there");
        assert_ne!(inode(&new), inode(&old));
        drop(disk);
        let disk = Disk::open(directory.path(), clocks).expect("it is whole");
        assert_eq!(rows_of(&disk), expected);
    }
}
