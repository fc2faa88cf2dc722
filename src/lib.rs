//! Leasehold: leases on named locks over plain HTTP.
//!
//! # The map
//!
//! Four rooms, one direction: [`http`] → [`service`] → [`store`], all resting on [`domain`].
//!
//! - [`domain`] has the words (name, token, fencing token, claim, lease, outcome) and no I/O.
//! - [`store`] decides truth: the [`store::LockStore`] contract, and one file per store that keeps it.
//! - [`service`] decides time: deadlines, waiting in line, streams, grants that nobody received, outcomes that are unknown.
//! - [`http`] decides words: requests into claims, outcomes into answers and problems. Only it knows axum, but for the
//!   router that [`server`] serves.
//!
//! Around them: [`config`] (one file of documented defaults), [`cli`] (the commands), [`server`] (sockets,
//! timeouts, shutdown), [`limits`] (what may be in use at once) and [`telemetry`] (logs and metrics).

pub mod cli;
pub mod config;
pub mod domain;
pub mod http;
pub mod limits;
pub mod server;
pub mod service;
pub mod store;
pub mod telemetry;
