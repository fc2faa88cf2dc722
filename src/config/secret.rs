//! A text that must not be printed. It is not erased from memory on drop: an attacker who can read the process's memory
//! can read Redis too.

use std::fmt;
use std::path::Path;

/// A secret; `Debug` and `Display` print `***`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
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
    let mut contents = std::fs::read_to_string(path)
        .map_err(|error| format!("{shown}: cannot be read: {error}"))?;
    trim_newline(&mut contents);
    if contents.is_empty() {
        return Err(format!("{shown}: is empty; write the secret into it"));
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
