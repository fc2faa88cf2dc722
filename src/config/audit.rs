//! Where the audit stream goes. `telemetry` writes it, `http` says what is in it.

use std::path::PathBuf;

use super::error::ConfigError;
use super::settings::{BYTES_MAX, Settings};

/// The audit stream.
#[derive(Debug, Clone)]
pub struct AuditConfig {
    /// Where the lines go; `None` for no stream.
    pub output: Option<AuditOutput>,
    /// The maximum size of its buffer, in bytes.
    pub buffer_bytes_max: usize,
}

/// Where the lines go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuditOutput {
    /// To standard output, between the lines of the log.
    Stdout,
    /// To the end of this file.
    File(PathBuf),
}

impl AuditConfig {
    pub(super) fn parse(settings: &Settings) -> Result<Self, ConfigError> {
        Ok(Self {
            output: match settings.text("audit.output") {
                "" => None,
                "stdout" => Some(AuditOutput::Stdout),
                path => Some(AuditOutput::File(path.into())),
            },
            buffer_bytes_max: settings.count("audit.buffer_bytes_max", BYTES_MAX)?,
        })
    }
}
