//! Space on the disk that is reserved for when the disk is full. Each commit writes changed pages to new places, so even
//! one that only deletes needs space. What may be written while there is no reserve is not known here.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::room;
use crate::regular_file;

const FILE: &str = Reserve::FILE;
/// A reserve that is being made. It gets its name when all of it is on the disk.
const NEW_FILE: &str = "reserve.new";

/// How much is kept: more than the largest usual commit needs, if each of its rows is on another page, and that twice,
/// because pages become free with the commit after the one that replaced them.
pub(super) const BYTES: u64 = 8 * 1024 * 1024;
/// The reserve, and room for claims beside it.
pub(super) const BYTES_AND_MORE: u64 = BYTES + 1024 * 1024;
const BLOCK: usize = 128 * 1024;

/// The reserve of one directory.
pub(super) struct Reserve {
    directory: PathBuf,
    is_there: bool,
}

impl Reserve {
    /// The name of the reserve, in the directory.
    pub(super) const FILE: &str = "reserve";

    /// Looks for the reserve, and removes an incomplete one that a process has left.
    ///
    /// # Errors
    /// What is in the place of the reserve, so that none can be made, and what to do.
    pub(super) fn find(directory: &Path) -> Result<Self, String> {
        let mut reserve = Self {
            directory: directory.to_owned(),
            is_there: false,
        };
        Self::check(directory)?;
        let found = fs::metadata(reserve.path(FILE));
        reserve.is_there = found.is_ok_and(|found| found.len() == BYTES);
        // It takes space. If it cannot be removed now, it is replaced later.
        let _ = fs::remove_file(reserve.path(NEW_FILE));
        Ok(reserve)
    }

    /// Fails if something is in the place of the reserve, so that none can be made.
    ///
    /// # Errors
    /// What it is, and what to do.
    pub(super) fn check(directory: &Path) -> Result<(), String> {
        for name in [FILE, NEW_FILE] {
            let path = directory.join(name);
            regular_file::find(&path).map_err(|error| {
                let shown = path.display();
                format!("{shown} cannot be used as the reserve of the disk: {error}")
            })?;
        }
        Ok(())
    }

    pub(super) fn is_there(&self) -> bool {
        self.is_there
    }

    /// Makes the reserve if it is missing, and if the disk has room for `room` bytes.
    ///
    /// # Errors
    /// Why there is none. Nothing is left of it on the disk.
    pub(super) fn make(&mut self, room: u64) -> io::Result<()> {
        if self.is_there {
            return Ok(());
        }
        let room = room.max(BYTES);
        let made = room::check(&self.directory, room, "the reserve");
        let made = made.and_then(|()| self.try_to_make(room));
        if made.is_err() {
            let _ = fs::remove_file(self.path(NEW_FILE));
        }
        self.is_there = made.is_ok();
        made
    }

    fn try_to_make(&self, room: u64) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let file = regular_file::open(&mut options, &self.path(NEW_FILE))?;
        // Random bytes take as much room on a file system that compresses what it can, or that keeps equal blocks once.
        let mut block = vec![0; BLOCK];
        for offset in (0..room).step_by(BLOCK) {
            fastrand::fill(&mut block);
            file.write_all_at(&block, offset)?;
        }
        // Some file systems notice only now that there is no room.
        file.sync_all()?;
        if room > BYTES {
            file.set_len(BYTES)?;
            file.sync_all()?;
        }
        fs::rename(self.path(NEW_FILE), self.path(FILE))?;
        File::open(&self.directory)?.sync_all()
    }

    /// Gives the room back to the disk. Returns whether there was a reserve.
    pub(super) fn give_up(&mut self) -> bool {
        if !std::mem::take(&mut self.is_there) {
            return false;
        }
        // The room of a file that is only removed may stay taken for a while.
        let emptied = regular_file::open(OpenOptions::new().write(true), &self.path(FILE));
        let emptied = emptied.and_then(|file| {
            file.set_len(0)?;
            file.sync_all()
        });
        let removed = fs::remove_file(self.path(FILE));
        if let Err(error) = emptied.and(removed) {
            tracing::warn!(%error, "the reserve on the disk cannot be removed");
        }
        true
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn a_reserve_takes_its_room_until_it_is_given_up() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut reserve = Reserve::find(directory.path()).expect("a file or none");
        assert!(!reserve.is_there() && !reserve.give_up());
        reserve.make(BYTES_AND_MORE).expect("there is room");
        let found = fs::metadata(directory.path().join(FILE)).expect("it is made");
        assert_eq!(found.len(), BYTES);
        assert!(found.blocks() * 512 >= BYTES);
        let mut reserve = Reserve::find(directory.path()).expect("a file or none");
        assert!(reserve.is_there() && reserve.give_up() && !reserve.is_there());
        let left = fs::read_dir(directory.path()).expect("a directory").count();
        assert_eq!(left, 0);
    }

    /// The process may end between any two steps, and power may be lost.
    #[test]
    fn what_is_left_of_a_reserve_is_none() {
        let directory = tempfile::tempdir().expect("a directory");
        for name in [FILE, NEW_FILE] {
            fs::write(directory.path().join(name), "part").expect("there is room");
        }
        let mut reserve = Reserve::find(directory.path()).expect("a file or none");
        assert!(!reserve.is_there());
        reserve.make(BYTES).expect("there is room");
        let reserve = Reserve::find(directory.path()).expect("a file");
        assert!(reserve.is_there());
        assert!(!directory.path().join(NEW_FILE).exists());
    }

    #[test]
    fn a_directory_in_the_place_of_the_reserve_is_refused() {
        for name in [FILE, NEW_FILE] {
            let directory = tempfile::tempdir().expect("a directory");
            fs::create_dir(directory.path().join(name)).expect("there is room");
            let refused = Reserve::find(directory.path())
                .err()
                .expect("it is refused");
            assert!(refused.contains("it is a directory") && refused.contains("move it away"));
        }
    }
}
