//! Whether the files of the directory are still the ones that this process has opened, and as long as it left them. A file
//! stays open when its name is removed or given to another one: what is written to it then is gone with the process, and
//! another process can use the directory at the same time. A file that somebody cuts off has lost what was reported.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The identities of some files of a directory.
pub(super) struct Identities {
    paths: Vec<PathBuf>,
    known: Mutex<KnownFiles>,
}

struct KnownFiles {
    files: Vec<KnownFile>,
    /// Whether this process changes them at present, which may change their lengths.
    is_changing: bool,
}

#[derive(Clone, Copy)]
struct KnownFile {
    device_and_number: (u64, u64),
    /// In bytes.
    length: u64,
}

impl Identities {
    /// Notes which files have these names at present.
    ///
    /// # Errors
    /// One of them cannot be found.
    pub(super) fn of(directory: &Path, names: &[&str]) -> io::Result<Self> {
        let paths: Vec<_> = names.iter().map(|name| directory.join(name)).collect();
        let known = Mutex::new(KnownFiles {
            files: find_all(&paths)?,
            is_changing: false,
        });
        Ok(Self { paths, known })
    }

    /// Fails if one of the files is gone, another file has its name, or it is shorter than this process has left it. An
    /// error of the disk says none of these.
    ///
    /// # Errors
    /// Which file it is, and what to do.
    pub(super) fn check(&self) -> Result<(), String> {
        let known = self.known();
        let what_happened = |(path, before): (&PathBuf, &KnownFile)| {
            let happened = match find(path) {
                Ok(found) if found.device_and_number != before.device_and_number => {
                    "removed or replaced"
                }
                Ok(found) if found.length < before.length && !known.is_changing => "cut off",
                Err(error) if is_gone(&error) => "removed or replaced",
                Ok(_) | Err(_) => return None,
            };
            let path = path.display();
            Some(format!("{path} was {happened} while this process used it"))
        };
        let mut files = self.paths.iter().zip(&known.files);
        files.find_map(what_happened).map_or(Ok(()), Err)
    }

    /// Changes the files, after a check: what is written behind the end of a file hides that it was cut off.
    ///
    /// # Errors
    /// The check or the change failed.
    pub(super) fn change<T, E: From<io::Error>>(
        &self,
        change: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        self.check().map_err(io::Error::other)?;
        self.known().is_changing = true;
        let changed = change();
        let mut known = self.known();
        known.is_changing = false;
        for (path, before) in self.paths.iter().zip(&mut known.files) {
            // Another file that has the name by now must not become the known one.
            if let Ok(found) = find(path)
                && found.device_and_number == before.device_and_number
            {
                before.length = found.length;
            }
        }
        changed
    }

    /// Replaces files by others of the same names, which are the known ones from then on. Nothing is checked meanwhile.
    pub(super) fn replace<T, E>(&self, replace: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let mut known = self.known();
        let replaced = replace();
        // Even an attempt that failed may have replaced a file.
        if let Ok(found) = find_all(&self.paths) {
            known.files = found;
        }
        replaced
    }

    fn known(&self) -> MutexGuard<'_, KnownFiles> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn find_all(paths: &[PathBuf]) -> io::Result<Vec<KnownFile>> {
    paths.iter().map(|path| find(path)).collect()
}

fn find(path: &Path) -> io::Result<KnownFile> {
    let found = fs::metadata(path)?;
    Ok(KnownFile {
        device_and_number: (found.dev(), found.ino()),
        length: found.len(),
    })
}

fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_cut_off_is_noticed_however_it_grew() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        let write = |length: usize| fs::write(&path, vec![0; length]);
        write(10).expect("there is room");
        let files = Identities::of(directory.path(), &["file"]).expect("it is there");
        files.change(|| write(30)).expect("it is whole");
        files
            .change(|| write(20))
            .expect("this process may cut it off");
        assert_eq!(files.check(), Ok(()));
        write(40).expect("there is room");
        assert_eq!(files.check(), Ok(()));
        write(19).expect("there is room");
        let refused = files.check().expect_err("it is shorter");
        assert!(refused.ends_with("file was cut off while this process used it"));
        // The next change would write behind the end.
        assert!(files.change(|| write(30)).is_err());
        assert!(files.check().is_err());
    }
}
