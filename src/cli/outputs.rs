//! The outputs of a server besides its answers: the log and the audit stream. `http` decides what is in them.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use crate::config::{AuditConfig, AuditOutput, Config};
use crate::http::Audit;
use crate::telemetry::{self, LineKind, LogWriter, Metrics};

/// How long the process waits at its end for the last lines to be taken.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Why there is no output.
#[derive(Debug, thiserror::Error)]
pub(super) enum OutputError {
    #[error("cannot open the audit stream {}: {error}", path.display())]
    File { path: PathBuf, error: io::Error },
    #[error("the operating system refused a resource that the log needs: {0}")]
    System(#[from] io::Error),
}

/// The writers of a server.
pub(super) struct Outputs {
    pub(super) log: LogWriter,
    audit: Option<LogWriter>,
}

impl Outputs {
    /// Installs the log and opens the audit stream.
    pub(super) fn open(config: &Config) -> Result<Self, OutputError> {
        let log = telemetry::init_logging(&config.log)?;
        let audit = open_audit(&config.audit)?;
        Ok(Self { log, audit })
    }

    /// Where `http` writes audit lines.
    pub(super) fn audit(&self) -> Audit {
        let writer = self.audit.clone();
        writer.map_or_else(Audit::default, Audit::to)
    }

    /// Counts the lines that are dropped. Both series are exported with and without an audit stream.
    pub(super) fn count_dropped_lines(&self, metrics: &Metrics) {
        let log = self.log.clone();
        metrics.sampled_counter(
            "leasehold_log_lines_dropped_total",
            "Log lines dropped because stdout was read too slowly.",
            move || log.dropped(),
        );
        let audit = self.audit.clone();
        metrics.sampled_counter(
            "leasehold_audit_lines_dropped_total",
            "Audit lines dropped because their output was too slow or failed.",
            move || audit.as_ref().map_or(0, LogWriter::dropped),
        );
    }

    /// Waits for the last lines, at the end of the process.
    pub(super) fn flush(&self) {
        let writers = self.audit.iter().chain([&self.log]);
        writers.for_each(|writer| writer.flush(FLUSH_TIMEOUT));
    }
}

fn open_audit(config: &AuditConfig) -> Result<Option<LogWriter>, OutputError> {
    let (kind, bytes_max) = (LineKind::Audit, config.buffer_bytes_max);
    Ok(match &config.output {
        None => None,
        Some(AuditOutput::Stdout) => Some(LogWriter::start(kind, io::stdout(), bytes_max)?),
        Some(AuditOutput::File(path)) => {
            let file = append_to(path).map_err(|error| OutputError::File {
                path: path.clone(),
                error,
            })?;
            Some(LogWriter::start(kind, file, bytes_max)?)
        }
    })
}

/// Whether it is a socket, as the standard output of a unit of systemd is.
fn is_socket(path: &Path) -> bool {
    let found = path.metadata();
    found.is_ok_and(|found| found.file_type().is_socket())
}

/// Opens a file, or a FIFO with a reader: opening a FIFO without one would wait.
fn append_to(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600);
    let opened = options.custom_flags(OFlag::O_NONBLOCK.bits()).open(path);
    let file = opened.map_err(|error| match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENXIO) if is_socket(path) => {
            io::Error::other("it is a socket; name a file, or write to the standard output")
        }
        Some(Errno::ENXIO) => {
            io::Error::other("it is a FIFO that nobody reads; start its reader first")
        }
        _ => error,
    })?;
    // The thread that writes may wait.
    fcntl(&file, FcntlArg::F_SETFL(OFlag::O_APPEND))?;
    Ok(file)
}
