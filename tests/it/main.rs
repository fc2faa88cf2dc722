//! The one integration test binary: the contract on every store, the model, the faults, the fences, the process, and
//! the house rules.
//!
//! Unit tests are in the source files and only test pure code; everything that needs a store, a clock or a process is
//! here. Tests never sleep to wait for an effect: they poll with a deadline (`support::eventually`).

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on should stop where it stands"
)]
#![allow(
    clippy::wildcard_enum_match_arm,
    reason = "a test names the answer that it expects; every other fails it, also those that are added later"
)]

mod abuse;
mod admin_listen;
mod again;
mod api;
mod audit;
mod cli;
mod commands;
mod config;
mod contract;
mod docs;
mod examples;
mod faults;
mod fencing;
mod file;
mod fuzzing;
mod generated;
mod history;
mod jwt;
mod key_reload;
mod late_answers;
mod lease_quota;
mod limits;
mod main_job;
mod manifests;
mod model;
mod monitoring;
mod openapi;
mod process;
mod quorum;
mod readme;
mod records;
mod round_trips;
mod run;
mod scripts;
mod secrets;
mod server_tls;
mod shutdown;
mod sockets;
mod support;
mod telemetry;
mod terraform;
mod ticket_queue;
mod tidy;
mod tools;
mod traces;
mod waiters;
mod waiting;
