//! The key that the commands send. One from a file is read for each request, because tokens that are mounted into a pod are
//! replaced there long before they end.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use super::secret::Secret;

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
        let secret = sendable(Secret::from_file(&file)?)?;
        Ok(Self {
            file: Some(file),
            last: Mutex::new(secret),
        })
    }

    /// The key of now. While its file cannot be used, it is that of before: a lease should not be lost because a file is
    /// just being replaced.
    #[must_use]
    pub fn current(&self) -> Secret {
        let read = self.file.as_deref().map(Secret::from_file);
        let read = read.and_then(Result::ok).map(sendable);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Ok(secret)) = read {
            *last = secret;
        }
        last.clone()
    }
}

fn sendable(secret: Secret) -> Result<Secret, String> {
    match secret.expose().bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(secret),
        false => Err(
            "the API key has a character that is not allowed in a header; use visible ASCII without spaces".to_owned(),
        ),
    }
}
