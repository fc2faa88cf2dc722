//! Whether the files of the directory are still the ones that this process has opened. A file stays open when its name is
//! removed or given to another one: what is written to it then is gone with the process, and another process can use the
//! directory at the same time.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The identities of some files of a directory.
pub(super) struct Identities {
    paths: Vec<PathBuf>,
    /// The device and the number of each file.
    known: Mutex<Vec<(u64, u64)>>,
}

impl Identities {
    /// Notes which files have these names at present.
    ///
    /// # Errors
    /// One of them cannot be found.
    pub(super) fn of(directory: &Path, names: &[&str]) -> io::Result<Self> {
        let paths: Vec<_> = names.iter().map(|name| directory.join(name)).collect();
        let known = Mutex::new(find_all(&paths)?);
        Ok(Self { paths, known })
    }

    /// Fails if one of the files is gone, or another file has its name. An error of the disk says neither.
    ///
    /// # Errors
    /// Which file it is, and what to do.
    pub(super) fn check(&self) -> Result<(), String> {
        let known = self.known();
        let is_other = |(path, known): &(&PathBuf, &(u64, u64))| match find(path) {
            Ok(found) => found != **known,
            Err(error) => is_gone(&error),
        };
        let mut files = self.paths.iter().zip(known.iter());
        files.find(is_other).map_or(Ok(()), |(path, _)| {
            Err(format!(
                "{} was removed or replaced while this process used it",
                path.display()
            ))
        })
    }

    /// Replaces files by others of the same names, which are the known ones from then on. Nothing is checked meanwhile.
    pub(super) fn replace<T, E>(&self, replace: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let mut known = self.known();
        let replaced = replace();
        // Even an attempt that failed may have replaced a file.
        if let Ok(found) = find_all(&self.paths) {
            *known = found;
        }
        replaced
    }

    fn known(&self) -> MutexGuard<'_, Vec<(u64, u64)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn find_all(paths: &[PathBuf]) -> io::Result<Vec<(u64, u64)>> {
    paths.iter().map(|path| find(path)).collect()
}

fn find(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::metadata(path)?;
    Ok((found.dev(), found.ino()))
}

fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}
