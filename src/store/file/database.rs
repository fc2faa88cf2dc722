//! The file of the database in its directory: how it is opened, made and copied. What is in it, and when it is written, is
//! not known here.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;

use redb::{Builder, Database};

use super::open_error::unusable;
use super::room;
use super::sync_failure::{NotingFile, SyncFailure};
use crate::regular_file;

/// The database, in the directory.
pub(super) const FILE: &str = "leases.redb";
/// A database that is being made. It gets its name when it is complete.
const NEW_FILE: &str = "leases.redb.new";

/// How much of the database is kept in memory. All rows are in the state already; this is for the pages around the rows
/// that are written.
const CACHE_BYTES: usize = 32 * 1024 * 1024;

/// Only the user of the process may read and write the files, whatever the directory permits.
pub(super) const OWN_MODE: u32 = 0o600;

/// The unit in which the operating system says how much of a disk a file takes.
pub(super) const BLOCK_BYTES: u64 = 512;

/// How much is copied at a time.
const COPIED_BYTES: usize = 64 * 1024;

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

/// Opens the database of the directory.
pub(super) fn open(directory: &Path, failure: &Arc<SyncFailure>) -> Result<Database, redb::Error> {
    open_with(&builder_of_databases(), &directory.join(FILE), failure)
}

/// The same after a check of all pages. Leasehold does not damage the file. If somebody else has, it is found now, before
/// leases depend on it.
pub(super) fn open_checked(
    directory: &Path,
    failure: &Arc<SyncFailure>,
) -> Result<Database, redb::Error> {
    let mut builder = builder_of_databases();
    builder.set_check_integrity_on_open(true);
    open_with(&builder, &directory.join(FILE), failure)
}

fn open_with(
    builder: &Builder,
    file: &Path,
    failure: &Arc<SyncFailure>,
) -> Result<Database, redb::Error> {
    let file = OpenOptions::new().read(true).write(true).open(file)?;
    if file.metadata()?.len() == 0 {
        return Err(redb::Error::Corrupted("it is empty".to_owned()));
    }
    let file = NotingFile::new(file, Arc::clone(failure))?;
    Ok(builder.create_with_backend(file)?)
}

/// Makes a database with what `fill` writes.
pub(super) fn create(
    directory: &Path,
    failure: &Arc<SyncFailure>,
    fill: impl FnOnce(&Database) -> Result<(), redb::Error>,
) -> Result<(), redb::Error> {
    make(directory, |new| {
        let file = NotingFile::new(new, Arc::clone(failure))?;
        let database = builder_of_databases().create_with_backend(file)?;
        fill(&database)?;
        Ok(database.close()?)
    })
}

/// Puts a copy of the database in place of it, and opens the copy.
///
/// The file itself is only read: what is missing from it must not become the base of other changes before the copy is in
/// its place. And it is read byte by byte, because a copy by the operating system may share the blocks on the disk, which
/// are the ones to doubt.
pub(super) fn copy(directory: &Path, failure: &Arc<SyncFailure>) -> Result<Database, redb::Error> {
    let old = File::open(directory.join(FILE))?;
    let bytes = old.metadata()?.blocks() * BLOCK_BYTES;
    room::check(
        directory,
        bytes,
        "the file may lack what could not be synced, and a copy of it",
    )?;
    let database = make(directory, |new| {
        copy_bytes(&old, &new)?;
        new.sync_all()?;
        // The copy is whole, or has changes since the last commit that were cut short, which are undone now.
        let mut builder = builder_of_databases();
        builder.set_check_integrity_on_open(true);
        open_with(&builder, &directory.join(NEW_FILE), failure)
    })?;
    failure.clear();
    Ok(database)
}

fn copy_bytes(from: &File, to: &File) -> io::Result<()> {
    let length = from.metadata()?.len();
    to.set_len(length)?;
    let mut buffer = vec![0; COPIED_BYTES];
    let mut at = 0;
    while at < length {
        let count = from.read_at(&mut buffer, at)?;
        let bytes = &buffer[..count];
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // Pages that were never written take no room.
        if bytes.iter().any(|byte| *byte != 0) {
            to.write_all_at(bytes, at)?;
        }
        at += count as u64;
    }
    Ok(())
}

/// Makes a file under another name first: a file of the right name is always complete. Nothing is left of one that fails.
fn make<T>(
    directory: &Path,
    fill: impl FnOnce(File) -> Result<T, redb::Error>,
) -> Result<T, redb::Error> {
    remove_unfinished(directory)?;
    let new = directory.join(NEW_FILE);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    let file = options.mode(OWN_MODE).open(&new)?;
    let made = fill(file).and_then(|made| {
        fs::rename(&new, directory.join(FILE))?;
        // The name of the file has to be on the disk, too.
        File::open(directory)?.sync_all()?;
        Ok(made)
    });
    if made.is_err() {
        // It takes room. If it cannot be removed now, the next attempt does it.
        let _ = remove_unfinished(directory);
    }
    made
}

/// Removes what an interrupted attempt to make a database has left.
pub(super) fn remove_unfinished(directory: &Path) -> io::Result<()> {
    match fs::remove_file(directory.join(NEW_FILE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn nothing_is_left_of_a_database_that_cannot_be_made() {
        let directory = tempfile::tempdir().expect("a directory");
        let made = make(directory.path(), |mut file| {
            file.write_all(b"a part of it")?;
            Err::<(), _>(io::Error::other("the disk fails").into())
        });
        assert!(made.is_err());
        let left = fs::read_dir(directory.path()).expect("it is there");
        assert_eq!(left.count(), 0);
    }

    #[test]
    fn a_copy_has_the_same_bytes_and_takes_no_room_for_pages_that_were_never_written() {
        let [from, to] = [(); 2].map(|()| tempfile::tempfile().expect("there is room"));
        let length = 100 * COPIED_BYTES as u64 + 17;
        from.set_len(length).expect("there is room");
        for at in [0, 70 * COPIED_BYTES as u64 - 3, length - 6] {
            from.write_all_at(b"filled", at).expect("there is room");
        }
        copy_bytes(&from, &to).expect("there is room");
        let bytes = |file: &File| {
            let mut bytes = vec![0; usize::try_from(length).expect("it is small")];
            file.read_exact_at(&mut bytes, 0).expect("it is so long");
            bytes
        };
        assert!(bytes(&from) == bytes(&to));
        let found = to.metadata().expect("it is open");
        assert_eq!(found.len(), length);
        assert!(found.blocks() * BLOCK_BYTES < length / 10);
    }
}
