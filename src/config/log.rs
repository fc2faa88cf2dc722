//! What is logged and how. `telemetry` builds the subscriber.

use std::time::Duration;

use super::error::ConfigError;
use super::settings::{BYTES_MAX, Settings};
use super::suggestion::did_you_mean;

const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];

/// The modules below `leasehold::` that a level can be set for.
const MODULES: [&str; 10] = [
    "cli",
    "client",
    "config",
    "domain",
    "http",
    "limits",
    "server",
    "service",
    "store",
    "telemetry",
];

/// Logs.
#[derive(Debug, Clone)]
pub struct LogConfig {
    /// A filter in the syntax of `tracing_subscriber::EnvFilter`, checked.
    pub level: String,
    /// Text or JSON.
    pub format: LogFormat,
    /// Which requests are logged.
    pub requests: LogRequests,
    /// Requests that take at least this long count as slow.
    pub slow: Duration,
    /// The maximum size of the log buffer, in bytes.
    pub buffer_bytes_max: usize,
}

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    Auto,
    /// Always text.
    Text,
    /// Always JSON.
    Json,
}

/// Which requests are logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogRequests {
    /// Those that failed or were slow.
    Failed,
    /// All of them.
    All,
    /// None.
    Off,
}

impl LogConfig {
    pub(super) fn parse(settings: &Settings) -> Result<Self, ConfigError> {
        let formats = [
            ("auto", LogFormat::Auto),
            ("text", LogFormat::Text),
            ("json", LogFormat::Json),
        ];
        let requests = [
            ("failed", LogRequests::Failed),
            ("all", LogRequests::All),
            ("off", LogRequests::Off),
        ];
        Ok(Self {
            level: level(settings)?,
            format: settings.choice("log.format", &formats)?,
            requests: settings.choice("log.requests", &requests)?,
            slow: settings.duration("log.slow")?,
            buffer_bytes_max: settings.count("log.buffer_bytes_max", BYTES_MAX)?,
        })
    }
}

/// Checks the filter, because `EnvFilter` takes every bare word that is not a level for a module name: `inof` would
/// silence everything else, and so would a module that does not exist.
fn level(settings: &Settings) -> Result<String, ConfigError> {
    let text = settings.text("log.level");
    let invalid = |problem: String| settings.invalid("log.level", problem);
    for directive in text.split(',').map(str::trim) {
        let is_level = LEVELS
            .iter()
            .any(|level| directive.eq_ignore_ascii_case(level));
        if is_level {
            continue;
        }
        let Some((target, _)) = directive.split_once('=') else {
            let hint = did_you_mean(directive, LEVELS.into_iter())
                .map_or_else(String::new, |level| format!("did you mean {level}? "));
            return Err(invalid(format!(
                "\"{directive}\" is not a level; {hint}levels are {}; set one for a module as in info,leasehold::store=debug",
                LEVELS.join(", ")
            )));
        };
        let module = target.strip_prefix("leasehold::").unwrap_or(MODULES[0]);
        let module = module.split([':', '[']).next().unwrap_or(module);
        if !MODULES.contains(&module) {
            let hint = did_you_mean(module, MODULES.into_iter())
                .map_or_else(String::new, |module| {
                    format!("did you mean leasehold::{module}? ")
                });
            return Err(invalid(format!(
                "unknown module \"{target}\"; {hint}modules of leasehold are {}",
                MODULES.join(", ")
            )));
        }
    }
    tracing_subscriber::EnvFilter::try_new(text)
        .map_err(|error| invalid(format!("{error}; write like info,leasehold::store=debug")))?;
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_module_of_the_crate_can_be_named() {
        let modules = include_str!("../lib.rs")
            .lines()
            .filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'));
        assert!(modules.eq(MODULES));
    }
}
