//! Leasehold: leases on named locks over plain HTTP.
//!
//! # The map
//!
//! Four layers with one direction of dependency: [`http`] → [`service`] → [`store`], all based on [`domain`].
//!
//! - [`domain`]: the types (name, token, fencing token, claim, lease, outcome), without I/O.
//! - [`store`]: the state. The [`store::LockStore`] contract, and its implementations.
//! - [`service`]: timing. Deadlines, waiting in queues, streams, undelivered grants, unknown outcomes.
//! - [`http`]: the wire. It parses requests into claims and encodes outcomes as responses and problems. Only it knows
//!   axum, except for the router that [`server`] serves.
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
