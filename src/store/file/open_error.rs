//! Why a directory cannot be used, and what to do.

use std::fmt::{self, Display};
use std::io;
use std::path::Path;

/// Why a directory cannot be used at present.
#[derive(Debug)]
pub(super) enum OpenError {
    /// Another process uses it.
    InUse(String),
    /// The disk fails, which says nothing about what is there. Another attempt may succeed.
    Failing(String),
    /// What is there cannot be used.
    Refused(String),
}

impl OpenError {
    /// A database cannot be used.
    pub(super) fn of(file: &Path, error: impl Into<redb::Error>) -> Self {
        let (shown, error) = (file.display(), error.into());
        if matches!(error, redb::Error::DatabaseAlreadyOpen) {
            // The lock of the directory was removed while a process held it.
            Self::InUse(format!(
                "another process uses {shown}; stop it, or choose another directory"
            ))
        } else if is_of_disk(&error) {
            Self::Failing(format!("{shown} cannot be read or written: {error}"))
        } else {
            Self::Refused(unusable(file, error))
        }
    }
}

impl From<String> for OpenError {
    fn from(detail: String) -> Self {
        Self::Refused(detail)
    }
}

impl Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse(detail) | Self::Failing(detail) | Self::Refused(detail) => {
                f.write_str(detail)
            }
        }
    }
}

/// Why a database cannot be used, and what to do.
pub(super) fn unusable(file: &Path, error: impl Display) -> String {
    format!(
        "{} cannot be used: {error}. Restore the directory from a backup; or, if no lease from before may still be alive, \
         move the file away to start without any",
        file.display()
    )
}

/// Whether the disk has failed in a way that may pass.
fn is_of_disk(error: &redb::Error) -> bool {
    let redb::Error::Io(error) = error else {
        return false;
    };
    let is_lasting = matches!(
        error.kind(),
        io::ErrorKind::PermissionDenied
            | io::ErrorKind::ReadOnlyFilesystem
            | io::ErrorKind::NotFound
            | io::ErrorKind::NotADirectory
    );
    // What does not come from the operating system is about the content, such as an early end.
    let is_of_system = error.raw_os_error().is_some() || error.kind() == io::ErrorKind::StorageFull;
    is_of_system && !is_lasting
}
