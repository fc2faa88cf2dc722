//! Which commit was confirmed last, in the file of the directory's lock.
//!
//! If the end of a database is damaged after a crash, redb cannot distinguish the last commit from one that was cut
//! short, and goes on from the commit before it. Whoever puts an older copy in its place does the same. In both cases
//! leases that were reported would be missing, as they would from the database of another directory. So each database has a
//! number of its own, and counts its commits, and a process that starts compares both with what is noted here.
//!
//! The note is written after the commit, and not synced. It survives the end of the process however that ends. After a loss
//! of power it may be that of an earlier commit, and never that of one that was not confirmed.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

/// How long the note is, in bytes.
pub(super) const LENGTH: usize = CommitId::LENGTH + size_of::<u64>();

/// Identifies a commit. The time of its last step would not do: several commits may have steps of one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CommitId {
    /// A random number, which is the same for all commits of a database.
    pub(super) database: u128,
    /// Larger than that of every commit before.
    pub(super) number: u64,
}

impl CommitId {
    pub(super) const LENGTH: usize = size_of::<u128>() + size_of::<u64>();

    /// The first commit of a new database.
    pub(super) fn first() -> Self {
        Self {
            database: uuid::Uuid::new_v4().as_u128(),
            number: 0,
        }
    }

    pub(super) fn next(self) -> Self {
        let number = self.number + 1;
        Self { number, ..self }
    }

    pub(super) fn to_bytes(self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        let (database, number) = bytes.split_at_mut(size_of::<u128>());
        database.copy_from_slice(&self.database.to_be_bytes());
        number.copy_from_slice(&self.number.to_be_bytes());
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8; Self::LENGTH]) -> Self {
        let (mut database, mut number) = ([0; size_of::<u128>()], [0; size_of::<u64>()]);
        let (first, last) = bytes.split_at(database.len());
        database.copy_from_slice(first);
        number.copy_from_slice(last);
        Self {
            database: u128::from_be_bytes(database),
            number: u64::from_be_bytes(number),
        }
    }

    /// By which a note that was damaged is recognised.
    fn check(self) -> [u8; 8] {
        (!self.number ^ self.database as u64).to_be_bytes()
    }
}

/// The commit that was noted last; none if none was noted, or a loss of power has left nothing of it.
///
/// # Errors
/// The note is damaged, or cannot be read.
pub(super) fn read(lock: &File) -> io::Result<Option<CommitId>> {
    let mut note = [0; LENGTH];
    match lock.read_at(&mut note, 0)? {
        LENGTH if note != [0; LENGTH] => {
            let (id, check) = note.split_first_chunk().expect("it is longer");
            let id = CommitId::from_bytes(id);
            match check == id.check() {
                true => Ok(Some(id)),
                false => Err(io::ErrorKind::InvalidData.into()),
            }
        }
        0 | LENGTH => Ok(None),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Notes a commit. A failure, such as a full disk, leaves an earlier one, which is true as well.
pub(super) fn write(lock: &File, commit: CommitId) {
    let note = [&commit.to_bytes()[..], &commit.check()].concat();
    let _ = lock.write_all_at(&note, 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_is_read_as_it_was_noted_and_no_other() {
        let file = tempfile::tempfile().unwrap();
        let noted = || read(&file).map_err(|error| error.kind());
        assert_eq!(noted(), Ok(None));
        let commit = CommitId::first().next();
        write(&file, commit);
        assert_eq!(noted(), Ok(Some(commit)));
        assert_eq!(file.metadata().unwrap().len(), LENGTH as u64);
        // Other bytes than those that are there.
        let mut byte = [0];
        file.read_exact_at(&mut byte, 17).unwrap();
        file.write_all_at(&[!byte[0]], 17).unwrap();
        assert_eq!(noted(), Err(io::ErrorKind::InvalidData));
        file.set_len(LENGTH as u64 - 1).unwrap();
        assert_eq!(noted(), Err(io::ErrorKind::InvalidData));
        // What a loss of power may leave.
        for length in [0, LENGTH as u64] {
            file.set_len(0).unwrap();
            file.set_len(length).unwrap();
            assert_eq!(noted(), Ok(None));
        }
    }
}
