//! A text that must not be printed. It is not erased from memory on drop: an attacker who can read the process's memory
//! can read Redis too.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;

/// The longest file of a secret. A URL of a store is the longest thing in such a file.
const FILE_BYTES_MAX: u64 = 4096;
/// The longest file of certificates: those of all public authorities fit.
const PEM_BYTES_MAX: u64 = 1 << 20;

/// A secret; `Debug` and `Display` print `***`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Reads a secret from its file.
    ///
    /// # Errors
    /// One line that says what is wrong with the file.
    pub fn from_file(path: &Path) -> Result<Self, String> {
        read(path).map(Self)
    }

    /// A secret in an environment variable. As in a file, one newline at its end is not part of it.
    pub fn from_variable(mut text: String) -> Self {
        trim_newline(&mut text);
        Self(text)
    }

    /// The text itself, for the code that sends or compares it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("***")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("***")
    }
}

/// Reads a secret from its file; one newline at its end is not part of it.
///
/// # Errors
///
/// One line that says what is wrong with the file.
pub(super) fn read(path: &Path) -> Result<String, String> {
    let shown = path.display();
    let mut contents = String::from_utf8(bounded(path, FILE_BYTES_MAX)?)
        .map_err(|_| format!("{shown}: cannot be read: it is not UTF-8"))?;
    trim_newline(&mut contents);
    if contents.is_empty() {
        return Err(format!("{shown}: is empty; write the secret into it"));
    }
    Ok(contents)
}

/// Reads a file of certificates, or of a private key.
///
/// # Errors
///
/// One line that says what is wrong with the file.
pub(super) fn read_pem(path: &Path) -> Result<Vec<u8>, String> {
    bounded(path, PEM_BYTES_MAX)
}

/// Reads a file of at most this many bytes. Only regular files are read, because key files are read again while the
/// service runs: a pipe or a device could block that, or go on without end.
///
/// # Errors
///
/// One line that says what is wrong with the file.
pub(super) fn bounded(path: &Path, bytes_max: u64) -> Result<Vec<u8>, String> {
    let shown = path.display();
    let unreadable = |error: io::Error| format!("{shown}: cannot be read: {error}");
    // Before it is opened, because opening a pipe waits for its other end.
    if !fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(format!("{shown}: is not a regular file"));
    }
    let mut contents = Vec::new();
    let mut bounded = File::open(path).map_err(unreadable)?.take(bytes_max + 1);
    bounded.read_to_end(&mut contents).map_err(unreadable)?;
    if contents.len() as u64 > bytes_max {
        return Err(format!("{shown}: has more than {bytes_max} bytes"));
    }
    Ok(contents)
}

fn trim_newline(text: &mut String) {
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
}
