//! The one integration binary: the contract on every store, the model, the faults, the fences, and the house rules.
//!
//! Unit tests live in their files and only for pure things; everything that needs a store, a clock or a process is
//! here. Nothing waits by sleeping for something to have happened: it polls with a deadline (`support::eventually`).

#![allow(
    clippy::wildcard_enum_match_arm,
    reason = "a test names the answer that it expects; every other fails it, also those that are added later"
)]

mod contract;
mod faults;
mod fencing;
mod model;
mod support;
mod tidy;
