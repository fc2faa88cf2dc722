//! The one integration binary.
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on should stop where it stands"
)]

mod api;
mod cli;
mod config;
mod openapi;
mod process;
mod secrets;
mod shutdown;
mod sockets;
mod telemetry;
