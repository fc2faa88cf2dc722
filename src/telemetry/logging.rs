//! The log: one line for each event on stdout, text for people and JSON for machines. The request line is made in
//! `http`; nothing here knows requests.

use std::io::{self, IsTerminal as _};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::util::TryInitError;

use crate::config::{LogConfig, LogFormat};

/// Whether lines will be text, which is also whether a person is probably looking.
pub fn is_text(config: &LogConfig) -> bool {
    match config.format {
        LogFormat::Auto => io::stdout().is_terminal(),
        LogFormat::Text => true,
        LogFormat::Json => false,
    }
}

/// Installs the log for the whole process.
///
/// JSON lines are flat: `timestamp` (RFC 3339), `level`, `message`, the fields of the event, `target`.
///
/// # Errors
///
/// When the process already has a log.
pub fn init_logging(config: &LogConfig) -> Result<(), TryInitError> {
    let filter =
        EnvFilter::try_new(&config.level).expect("the configuration has parsed this filter");
    let registry = tracing_subscriber::registry().with(filter);
    let layer = tracing_subscriber::fmt::layer().with_writer(io::stdout);
    if is_text(config) {
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
    }
}
