//! The rows in the database: one table, and the row of the clocks; and the batch of rows that one commit writes. What the
//! rows mean, and where the database is, is not known here.

use std::collections::BTreeMap;
use std::path::Path;

use redb::{Database, ReadOnlyTable, ReadableDatabase as _, ReadableTable as _, TableDefinition};
use tokio::sync::watch;

use super::super::state::{Notification, StoreTime};
use super::confirmed::CommitId;
use super::open_error::{OpenError, unusable};

pub(super) const ROWS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("rows");
/// The row of the last commit and its clocks. No other kind of row has a key that begins like this.
const COMMIT_KEY: &[u8] = b"k";
const COMMIT_VERSION: u8 = 2;

type RowTable = ReadOnlyTable<&'static [u8], &'static [u8]>;

/// Rows to write: the key, and the value or none if the row is gone.
pub(super) type Rows = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// What one commit writes, and the notifications that follow it.
pub(super) struct Batch {
    pub(super) rows: Rows,
    pub(super) notifications: Vec<Notification>,
    /// The time of the last step.
    pub(super) now: StoreTime,
    /// Whether there is something to do.
    pub(super) is_due: bool,
    /// How the requests that wait for the commit learn of its end.
    pub(super) progress: watch::Sender<Progress>,
}

/// How far the commit of a batch is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    Pending,
    Written,
    Failed,
}

impl Batch {
    /// Nothing to write yet.
    pub(super) fn new(now: StoreTime) -> Self {
        Self {
            rows: Rows::new(),
            notifications: Vec::new(),
            now,
            is_due: false,
            progress: watch::Sender::new(Progress::Pending),
        }
    }
}

/// What the two clocks showed when they were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Clocks {
    /// The store's clock, which no restart sets back.
    pub(super) store: StoreTime,
    /// The clock of the rows, which stops while no process runs.
    pub(super) rows: StoreTime,
}

/// A commit as its database has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Commit {
    pub(super) id: CommitId,
    pub(super) clocks: Clocks,
}

impl Commit {
    fn to_bytes(self) -> Vec<u8> {
        let clocks = [self.clocks.store, self.clocks.rows];
        let [store, rows] = clocks.map(|time| time.unix_us().to_be_bytes());
        [&[COMMIT_VERSION], &self.id.to_bytes()[..], &store, &rows].concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (version, rest) = bytes.split_first()?;
        let (id, times) = rest.split_first_chunk()?;
        let (store, rows) = times.split_first_chunk()?;
        let [store, rows] = [*store, rows.try_into().ok()?]
            .map(|time| StoreTime::from_unix_us(u64::from_be_bytes(time)));
        (*version == COMMIT_VERSION).then(|| Self {
            id: CommitId::from_bytes(id),
            clocks: Clocks { store, rows },
        })
    }

    /// Whether the database has all that was confirmed.
    ///
    /// # Errors
    /// What is wrong with it.
    fn check(self, confirmed: CommitId) -> Result<(), &'static str> {
        if self.id.database != confirmed.database {
            return Err("it is the database of another directory");
        }
        if self.id.number < confirmed.number {
            return Err(
                "it lacks changes that were reported: its end is damaged, or it is an older copy",
            );
        }
        Ok(())
    }
}

/// The last commit of the database in this file.
///
/// # Errors
/// Why the file cannot be used, and what to do.
pub(super) fn last_commit(database: &Database, file: &Path) -> Result<Commit, OpenError> {
    commit_in(&table_of(database, file)?, file)
}

/// Reads all rows of the database in this file, the clocks first. It has the commit that was confirmed.
///
/// # Errors
/// Why the file cannot be used, and what to do.
pub(super) fn read<T>(
    database: &Database,
    file: &Path,
    confirmed: Option<CommitId>,
    begin: impl FnOnce(Clocks) -> T,
    mut row: impl FnMut(&mut T, &[u8], &[u8]) -> Result<(), String>,
) -> Result<T, OpenError> {
    let failed = |error: redb::Error| OpenError::of(file, error);
    let table = table_of(database, file)?;
    let commit = commit_in(&table, file)?;
    if let Some(confirmed) = confirmed {
        let checked = commit.check(confirmed);
        checked.map_err(|problem| unusable(file, problem))?;
    }
    let mut taken = begin(commit.clocks);
    let entries = table.iter().map_err(|error| failed(error.into()))?;
    for entry in entries {
        let (key, value) = entry.map_err(|error| failed(error.into()))?;
        if key.value() != COMMIT_KEY {
            let taken = row(&mut taken, key.value(), value.value());
            taken.map_err(|error| unusable(file, error))?;
        }
    }
    Ok(taken)
}

/// The rows as of the last commit.
fn table_of(database: &Database, file: &Path) -> Result<RowTable, OpenError> {
    let open = || -> Result<_, redb::Error> { Ok(database.begin_read()?.open_table(ROWS)?) };
    open().map_err(|error| OpenError::of(file, error))
}

fn commit_in(table: &RowTable, file: &Path) -> Result<Commit, OpenError> {
    let commit = table.get(COMMIT_KEY);
    let commit = commit.map_err(|error| OpenError::of(file, error))?;
    let commit = commit.and_then(|commit| Commit::from_bytes(commit.value()));
    commit.ok_or_else(|| unusable(file, "it has no clocks that can be read").into())
}

/// One transaction. Without a commit to note, the one before stays noted. It has the default durability, which is that of
/// `fsync`. One phase is enough: the checksums distinguish a commit that was cut short from a complete one.
pub(super) fn write<'a>(
    database: &Database,
    rows: impl IntoIterator<Item = (&'a Vec<u8>, &'a Option<Vec<u8>>)>,
    commit: Option<Commit>,
) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    {
        let mut table = transaction.open_table(ROWS)?;
        for (key, value) in rows {
            match value {
                Some(value) => table.insert(&key[..], &value[..])?,
                None => table.remove(&key[..])?,
            };
        }
        if let Some(commit) = commit {
            table.insert(COMMIT_KEY, &commit.to_bytes()[..])?;
        }
    }
    Ok(transaction.commit()?)
}
