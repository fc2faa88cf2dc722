//! Leasehold: leases on named locks over plain HTTP.
//!
//! # The map
//!
//! Four layers with one direction of dependency: [`http`] → [`service`] → [`store`], all based on [`domain`].
//!
//! - [`domain`]: the types (name, token, fencing token, claim, lease, outcome), without I/O.
//! - [`store`]: the state. The [`store::LockStore`] contract, and its implementations.
//! - [`service`]: timing. Deadlines, waiting in queues, streams, unclaimed grants, unknown outcomes.
//! - [`http`]: the wire. It parses requests into claims and encodes outcomes as responses and problems. Only it knows
//!   axum, except for the types of HTTP that [`server`] passes on.
//!
//! Around them: [`config`] (one file of documented defaults), [`cli`] (the commands), [`limits`] (what may be in use at
//! once), [`telemetry`] (logs and metrics), and [`server`] (sockets, timeouts, shutdown), which knows none of the layers
//! and of which [`http`] knows only the peer of a request.
//!
//! # The way of a request
//!
//! A plain acquire passes `server::connections`, `http::layers`, `http::routes`, `http::locks::acquire`,
//! [`service::LockService::acquire`], `service::acquire` and [`store::LockStore::acquire`]. The reply,
//! [`domain::Acquired`], becomes a [`service::AcquireAnswer`], which carries the guard that rolls the grant back until it
//! is delivered, and then a response.

pub mod cli;
pub mod client;
pub mod config;
pub mod domain;
pub mod http;
pub mod limits;
pub mod server;
pub mod service;
pub mod store;
pub mod telemetry;
