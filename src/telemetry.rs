//! Observability: [`logging`], [`metrics`] and [`traces`]. The other modules decide what to log, to measure and to trace.

pub mod logging;
pub mod metrics;
pub mod traces;

pub use logging::{LineKind, LogWriter, init_logging, is_text};
pub use metrics::Metrics;

/// The build information, for metrics and `/version`.
#[derive(Clone, Copy, Debug)]
pub struct Build {
    /// The version of the release.
    pub version: &'static str,
    /// The revision of the source, or `unknown` outside of a release build.
    pub revision: &'static str,
    /// The compiler, or `unknown` outside of a release build.
    pub rustc: &'static str,
}

/// This build.
pub const BUILD: Build = Build {
    version: env!("CARGO_PKG_VERSION"),
    revision: match option_env!("LEASEHOLD_REVISION") {
        Some(revision) => revision,
        None => "unknown",
    },
    rustc: match option_env!("LEASEHOLD_RUSTC") {
        Some(rustc) => rustc,
        None => "unknown",
    },
};
