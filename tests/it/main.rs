//! The one integration binary.
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on should stop where it stands"
)]

mod api;
mod cli;
mod config;
mod main_job;
mod openapi;
mod process;
mod readme;
mod secrets;
mod shutdown;
mod sockets;
mod telemetry;
mod tools;
