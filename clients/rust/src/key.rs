//! The key of the service. Nothing here sends anything.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use reqwest::header::HeaderValue;

/// Why there is no key, for people.
type Cause = Box<dyn std::error::Error + Send + Sync>;

pub(crate) type Source = Box<dyn Fn() -> Result<String, Cause> + Send + Sync>;

/// A key, which is read again for each request if it comes from a file or a function.
pub(crate) struct Key {
    source: Option<Source>,
    /// The header with the last one.
    last: Mutex<Option<HeaderValue>>,
}

impl Key {
    pub(crate) fn constant(key: &str) -> Result<Self, String> {
        Ok(Self {
            source: None,
            last: Mutex::new(Some(header(key)?)),
        })
    }

    pub(crate) fn from_file(path: PathBuf) -> Result<Self, String> {
        let key = Self::from_source(Box::new(move || Ok(read(&path)?)));
        key.current().map(|_| key)
    }

    /// A key that is not asked for before the first request.
    pub(crate) fn from_source(source: Source) -> Self {
        Self {
            source: Some(source),
            last: Mutex::new(None),
        }
    }

    /// The header with the key of now. While that cannot be had it is the one of before, so that no lease is lost
    /// meanwhile.
    pub(crate) fn current(&self) -> Result<HeaderValue, String> {
        let read = self.source.as_ref().map(|source| {
            let key = source().map_err(|cause| cause.to_string())?;
            header(&key)
        });
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match (read, &*last) {
            (Some(Ok(header)), _) => Ok(last.insert(header).clone()),
            (_, Some(header)) => Ok(header.clone()),
            (Some(Err(problem)), None) => Err(problem),
            (None, None) => Err("there is no API key".to_owned()),
        }
    }
}

fn read(path: &Path) -> Result<String, String> {
    let shown = path.display();
    let key = std::fs::read_to_string(path)
        .map_err(|error| format!("{shown}: the API key cannot be read: {error}"))?;
    match without_line_end(&key) {
        "" => Err(format!("{shown}: the API key is empty")),
        key => header(key)
            .map(|_| key.to_owned())
            .map_err(|error| format!("{shown}: {error}")),
    }
}

/// The error does not show the key, because errors are logged.
fn header(key: &str) -> Result<HeaderValue, String> {
    let key = without_line_end(key);
    let is_sendable = key.bytes().all(|byte| byte.is_ascii_graphic());
    let value = HeaderValue::from_str(&format!("Bearer {key}"));
    match value {
        Ok(mut value) if is_sendable => {
            value.set_sensitive(true);
            Ok(value)
        }
        _ => Err(
            "the API key has a character that is not allowed in a header; use visible ASCII without spaces"
                .to_owned(),
        ),
    }
}

fn without_line_end(text: &str) -> &str {
    match text.strip_suffix('\n') {
        Some(line) => line.strip_suffix('\r').unwrap_or(line),
        None => text,
    }
}
