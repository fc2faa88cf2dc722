//! A disk that loses power, fails, lies or is full, for the file store (`support/disk_shim.c`).

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::errno::Errno;

use crate::support::redis_server::preloaded;

/// What a disk writes or loses as a whole.
const SECTOR: usize = 512;
const HEADER_LEN: usize = 32;

/// The disk below one directory.
pub(crate) struct FaultyDisk {
    directory: PathBuf,
}

/// What a write to a file was about to replace.
struct Note {
    inode: u64,
    offset: u64,
    former: Vec<u8>,
    former_size: u64,
}

impl Note {
    /// Whether this says that what was written here is on the disk, whatever was lost before.
    fn is_on_disk(&self) -> bool {
        self.former_size == u64::MAX
    }
}

impl FaultyDisk {
    /// `directory` is for the disk's own records, not for the store.
    pub(crate) fn new(directory: &Path) -> Self {
        let directory = directory.to_owned();
        Self { directory }
    }

    /// The process that the command starts writes to this disk.
    pub(crate) fn attach(&self, command: &mut Command) {
        command
            .env("LD_PRELOAD", preloaded("disk_shim"))
            .env("DISK_FILES", "leases.redb")
            .env("DISK_UNDO", self.record("undo"))
            .env("DISK_LOST", self.record("lost"))
            .env("DISK_FAILS", self.record("fails"))
            .env("DISK_KILLS", self.record("kills"))
            .env("DISK_LIES", self.record("lies"));
    }

    /// The same for the store in this directory, whose disk can be [full](Self::limit). If `stop` is given, the process is
    /// killed at that step after the disk was full for the first time.
    pub(crate) fn attach_below(&self, command: &mut Command, store: &Path, stop: Option<usize>) {
        self.attach(command);
        command
            .env("DISK_DIRECTORY", store)
            .env("DISK_ROOM", self.record("room"))
            .env("DISK_COPIES", self.record("copies"));
        if let Some(stop) = stop {
            command.env("DISK_STOP", stop.to_string());
        }
    }

    /// From now on, the store's directory may use this many bytes.
    pub(crate) fn limit(&self, bytes: u64) {
        let next = self.record("room.next");
        fs::write(&next, bytes.to_string()).expect("a file of our own");
        fs::rename(next, self.record("room")).expect("a file of our own");
    }

    /// From now on, what a file has already needs room as well to be written again.
    pub(crate) fn copy_on_write(&self) {
        File::create(self.record("copies")).expect("a file of our own");
    }

    /// From now on, nothing can be synchronized.
    pub(crate) fn fail(&self) {
        self.fail_with(Errno::EIO);
    }

    /// The same with this error.
    pub(crate) fn fail_with(&self, error: Errno) {
        let (next, number) = (self.record("fails.next"), error as i32);
        fs::write(&next, number.to_string()).expect("a file of our own");
        fs::rename(next, self.record("fails")).expect("a file of our own");
    }

    /// Whether something has failed to be synchronized.
    pub(crate) fn has_failed(&self) -> bool {
        fs::metadata(self.record("lost")).is_ok_and(|lost| lost.len() > 0)
    }

    /// The process is killed when it is about to put another file in the place of the store's.
    pub(crate) fn kill_at_replacement(&self) {
        File::create(self.record("kills")).expect("a file of our own");
    }

    /// Ends [`kill_at_replacement`](Self::kill_at_replacement).
    pub(crate) fn kill_no_more(&self) {
        fs::remove_file(self.record("kills")).expect("it was asked for");
    }

    /// Ends [`fail`](Self::fail).
    pub(crate) fn repair(&self) {
        fs::remove_file(self.record("fails")).expect("the disk has failed");
    }

    /// From now on, it says that it has synchronized what it may still lose.
    pub(crate) fn lie(&self) {
        File::create(self.record("lies")).expect("a file of our own");
    }

    /// Loses power, after the process was killed: of each sector that was not synchronized, any of the contents that it
    /// had since may be there. `choose` returns a number below its argument. Returns how many sectors have changed.
    pub(crate) fn lose_power(&self, file: &Path, mut choose: impl FnMut(usize) -> usize) -> usize {
        let notes = ["lost", "undo"].map(|record| self.notes(record));
        let file = OpenOptions::new().write(true).open(file);
        let file = file.expect("the store has made it");
        let inode = file.metadata().expect("it is open").ino();
        let notes = notes.iter().flatten();
        let notes: Vec<_> = notes.filter(|note| note.inode == inode).collect();
        // What was lost of a former file with this number does not matter.
        let birth = notes.iter().rposition(|note| note.former_size == 0);
        let notes = &notes[birth.map_or(0, |birth| birth + 1)..];
        let mut former: BTreeMap<u64, Vec<&[u8]>> = BTreeMap::new();
        for note in notes {
            for (sector, content) in (note.offset..)
                .step_by(SECTOR)
                .zip(note.former.chunks(SECTOR))
            {
                match note.is_on_disk() {
                    true => drop(former.remove(&sector)),
                    false => former.entry(sector).or_default().push(content),
                }
            }
        }
        let on_disk = notes.iter().rposition(|note| note.is_on_disk());
        let notes = &notes[on_disk.map_or(0, |last| last + 1)..];
        let mut lost = 0;
        for (sector, contents) in &former {
            if let Some(content) = contents.get(choose(contents.len() + 1)) {
                file.write_all_at(content, *sector).expect("there is room");
                lost += 1;
            }
        }
        let is_shorter = notes.first().filter(|_| choose(4) == 0);
        if let Some(first) = is_shorter {
            file.set_len(first.former_size).expect("a size that it had");
        }
        for record in ["lost", "undo"] {
            fs::write(self.record(record), []).expect("a file of our own");
        }
        lost
    }

    fn notes(&self, record: &str) -> Vec<Note> {
        let bytes = fs::read(self.record(record)).unwrap_or_default();
        let (mut rest, mut notes) = (&bytes[..], Vec::new());
        // The process may have been killed within a note, before it wrote.
        while let Some((header, content)) = rest.split_at_checked(HEADER_LEN) {
            let number = |index: usize| {
                let bytes = header[index * 8..][..8].try_into();
                u64::from_ne_bytes(bytes.expect("eight bytes"))
            };
            let length = usize::try_from(number(2)).expect("it is a length");
            let Some((former, after)) = content.split_at_checked(length) else {
                break;
            };
            notes.push(Note {
                inode: number(0),
                offset: number(1),
                former: former.to_vec(),
                former_size: number(3),
            });
            rest = after;
        }
        notes
    }

    fn record(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}
