//! The rows in the database: one table, and the row of the clocks; and the batch of rows that one commit writes. What the
//! rows mean, and where the database is, is not known here.

use std::collections::BTreeMap;
use std::path::Path;

use redb::{Database, ReadableDatabase as _, ReadableTable as _, TableDefinition};
use tokio::sync::watch;

use super::super::state::{Notification, StoreTime};
use super::open_error::{OpenError, unusable};

pub(super) const ROWS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("rows");
/// The row of the clocks. No other kind of row has a key that begins like this.
const CLOCKS_KEY: &[u8] = b"k";
const CLOCKS_VERSION: u8 = 1;

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

/// Reads all rows of the database in this file, the clocks first. The last commit was not before the time that was
/// confirmed.
///
/// # Errors
/// Why the file cannot be used, and what to do.
pub(super) fn read<T>(
    database: &Database,
    file: &Path,
    confirmed: Option<StoreTime>,
    begin: impl FnOnce(Clocks) -> T,
    mut row: impl FnMut(&mut T, &[u8], &[u8]) -> Result<(), String>,
) -> Result<T, OpenError> {
    let failed = |error: redb::Error| OpenError::of(file, error);
    let transaction = database
        .begin_read()
        .map_err(|error| failed(error.into()))?;
    let table = transaction.open_table(ROWS);
    let table = table.map_err(|error| failed(error.into()))?;
    let clocks = table.get(CLOCKS_KEY);
    let clocks = clocks.map_err(|error| failed(error.into()))?;
    let clocks = clocks.and_then(|clocks| Clocks::from_bytes(clocks.value()));
    let clocks = clocks.ok_or_else(|| unusable(file, "it has no clocks that can be read"))?;
    if confirmed.is_some_and(|confirmed| clocks.store < confirmed) {
        let lacks =
            "it lacks changes that were reported: its end is damaged, or it is an older copy";
        return Err(unusable(file, lacks).into());
    }
    let mut taken = begin(clocks);
    let entries = table.iter().map_err(|error| failed(error.into()))?;
    for entry in entries {
        let (key, value) = entry.map_err(|error| failed(error.into()))?;
        if key.value() != CLOCKS_KEY {
            let taken = row(&mut taken, key.value(), value.value());
            taken.map_err(|error| unusable(file, error))?;
        }
    }
    Ok(taken)
}

/// One transaction. Without clocks, those of the transaction before stay. It has the default durability, which is that of `fsync`. One phase is enough: the checksums
/// distinguish a commit that was cut short from a complete one.
pub(super) fn write<'a>(
    database: &Database,
    rows: impl IntoIterator<Item = (&'a Vec<u8>, &'a Option<Vec<u8>>)>,
    clocks: Option<Clocks>,
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
        if let Some(clocks) = clocks {
            table.insert(CLOCKS_KEY, &clocks.to_bytes()[..])?;
        }
    }
    Ok(transaction.commit()?)
}
