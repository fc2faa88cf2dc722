//! What the process says about itself: [`logging`] and [`metrics`]. Which events and figures there are is decided
//! where they happen.

pub mod logging;
pub mod metrics;

pub use logging::{init_logging, is_text};
pub use metrics::Metrics;
