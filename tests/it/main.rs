//! The one integration binary.
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on should stop where it stands"
)]

mod config;
mod secrets;
mod sockets;
mod telemetry;
