//! The log: one line per event on stdout, as text or JSON. `http` logs the requests; nothing here knows about them.

mod writer;

use std::io::{self, IsTerminal as _};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::config::{LogConfig, LogFormat};
pub use writer::LogWriter;

/// Whether the log is text rather than JSON, which also means that a person probably reads it.
pub fn is_text(config: &LogConfig) -> bool {
    match config.format {
        LogFormat::Auto => io::stdout().is_terminal(),
        LogFormat::Text => true,
        LogFormat::Json => false,
    }
}

/// Applies a global level up to `info` to this crate only, and sets libraries to `error`. They warn about things that
/// any client can cause as often as it likes, such as too many reset streams; this crate counts and limits those that
/// matter.
fn with_quiet_libraries(level: &str) -> String {
    let directives = level.split(',').map(str::trim).map(|directive| {
        let is_for_all = ["error", "warn", "info"]
            .iter()
            .any(|level| directive.eq_ignore_ascii_case(level));
        match is_for_all {
            true => format!("error,leasehold={directive}"),
            false => directive.to_owned(),
        }
    });
    directives.collect::<Vec<_>>().join(",")
}

/// Installs the log for the whole process and returns its writer, which must be flushed before the process ends.
///
/// JSON lines are flat: `timestamp` (RFC 3339), `level`, `message`, the fields of the event, `target`.
///
/// # Errors
///
/// When the system cannot start the writer's thread.
///
/// # Panics
///
/// When the process already has a log.
pub fn init_logging(config: &LogConfig) -> io::Result<LogWriter> {
    let writer = LogWriter::start(io::stdout(), config.buffer_bytes_max)?;
    let level = with_quiet_libraries(&config.level);
    let filter = EnvFilter::try_new(level).expect("the configuration has parsed this filter");
    let registry = tracing_subscriber::registry().with(filter);
    let layer = tracing_subscriber::fmt::layer().with_writer(writer.clone());
    let installed = if is_text(config) {
        registry
            .with(layer.with_ansi(io::stdout().is_terminal()))
            .try_init()
    } else {
        let layer = layer
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false);
        registry.with(layer).try_init()
    };
    installed.expect("this is the only log of the process");
    Ok(writer)
}
