//! Configuration errors: one line with the place, the key, the problem and how to write it correctly.

use std::fmt;
use std::path::{Path, PathBuf};

/// Where a setting was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// In the file of defaults that is compiled in.
    Default,
    /// In the TOML file, with the line counted from 1.
    File {
        /// The file as it was named.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
    },
    /// In an environment variable.
    Environment(String),
    /// In a flag, with its dashes.
    Flag(String),
}

impl Origin {
    /// The precedence of the layer: a higher one overrides a lower one.
    pub(super) fn layer(&self) -> u8 {
        match self {
            Self::Default => 0,
            Self::File { .. } => 1,
            Self::Environment(_) => 2,
            Self::Flag(_) => 3,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => formatter.write_str("default"),
            Self::File { path, line } => write!(formatter, "{}:{line}", path.display()),
            Self::Environment(variable) => write!(formatter, "environment {variable}"),
            Self::Flag(flag) => write!(formatter, "flag {flag}"),
        }
    }
}

/// Why the configuration cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("{}: cannot be read: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        reason: String,
    },
    /// The file is not TOML.
    #[error("{origin}: not valid TOML: {reason}")]
    Syntax {
        /// The place in the file.
        origin: Origin,
        /// The parser's error.
        reason: String,
    },
    /// The name of a key, variable or section that does not exist.
    #[error("{origin}: unknown {what} \"{name}\"{}", suggestion(nearest.as_deref()))]
    Unknown {
        /// The place.
        origin: Origin,
        /// What kind of name it is, such as "key".
        what: &'static str,
        /// The name as it was written.
        name: String,
        /// The most similar existing name.
        nearest: Option<String>,
    },
    /// A value that its key does not accept.
    #[error("{origin}: {key}: {problem}")]
    Invalid {
        /// The place.
        origin: Origin,
        /// The dotted key.
        key: String,
        /// What is wrong and how to write it. It never quotes a secret.
        problem: String,
    },
}

impl ConfigError {
    pub(super) fn unreadable(path: &Path, error: &std::io::Error) -> Self {
        Self::Unreadable {
            path: path.to_owned(),
            reason: error.to_string(),
        }
    }

    pub(super) fn invalid(origin: &Origin, key: &str, problem: impl Into<String>) -> Self {
        Self::Invalid {
            origin: origin.clone(),
            key: key.to_owned(),
            problem: problem.into(),
        }
    }
}

fn suggestion(nearest: Option<&str>) -> String {
    nearest.map_or_else(
        || "; `leasehold config print` lists every key".to_owned(),
        |name| format!("; did you mean \"{name}\"?"),
    )
}
