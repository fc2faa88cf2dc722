//! The tests of the client, against real servers.

#![expect(clippy::unwrap_used, reason = "a test that finds none has failed")]

mod faults;
mod hostile;
mod scenarios;
mod service;
mod testbed;
