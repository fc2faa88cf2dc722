//! The key that the commands send. One from a file is read for each request, because tokens that are mounted into a pod are
//! replaced there long before they end.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::secret::{self, Secret};

/// The longest file: the longest token that a service can accept, and the end of its line.
const FILE_BYTES_MAX: u64 = 32 * 1024 + 2;

/// The key of a client, or its token.
#[derive(Debug)]
pub struct ClientKey {
    file: Option<PathBuf>,
    /// What was read the last time.
    last: Mutex<Secret>,
}

impl ClientKey {
    /// A key that stays as it is.
    ///
    /// # Errors
    /// It cannot be sent in a header.
    pub fn new(secret: Secret) -> Result<Self, String> {
        Ok(Self {
            file: None,
            last: Mutex::new(sendable(secret)?),
        })
    }

    /// The key in a file.
    ///
    /// # Errors
    /// One line that says what is wrong with the file or the key.
    pub fn from_file(file: PathBuf) -> Result<Self, String> {
        let secret = read(&file)?;
        Ok(Self {
            file: Some(file),
            last: Mutex::new(secret),
        })
    }

    /// The key as it was read, which stays as it is.
    #[must_use]
    pub fn as_read(self) -> Self {
        Self {
            file: None,
            last: self.last,
        }
    }

    /// The key of now. While its file cannot be used, it is that of before: a lease should not be lost because a file is
    /// just being replaced.
    #[must_use]
    pub fn current(&self) -> Secret {
        let read = self.file.as_deref().map(read);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Ok(secret)) = read {
            *last = secret;
        }
        last.clone()
    }
}

fn read(path: &Path) -> Result<Secret, String> {
    let shown = path.display();
    let text = String::from_utf8(secret::bounded(path, FILE_BYTES_MAX)?)
        .map_err(|_| format!("{shown}: cannot be read: it is not UTF-8"))?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    let key = match line.len() == text.len() {
        true => line,
        false => line.strip_suffix('\r').unwrap_or(line),
    };
    if key.is_empty() {
        return Err(format!("{shown}: is empty; write the secret into it"));
    }
    sendable(Secret::new(key))
}

fn sendable(secret: Secret) -> Result<Secret, String> {
    match secret.expose().bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(secret),
        false => Err(
            "the API key has a character that is not allowed in a header; use visible ASCII without spaces".to_owned(),
        ),
    }
}
