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
//!   axum, except for the types of HTTP that [`server`] passes on. Of [`store`] it uses the errors, the health and the
//!   query of a listing, which the service passes on unchanged.
//!
//! Around them: [`config`] (one file of documented defaults), [`cli`] (the commands), [`client`] (the HTTP client of
//! the commands), [`limits`] (how much may be in use at once), `backoff` (pauses between attempts), `tls` (TLS to Redis
//! and, for the commands, to the service), [`telemetry`] (logs, metrics and traces), `sync` (mutexes and
//! notifications), `regular_file` (opens a path only if it is a regular file), and [`server`] (sockets, TLS, timeouts,
//! shutdown), which knows none of the layers and of which [`http`] knows only the peer of a request.
//!
//! # The way of a request
//!
//! A plain acquire goes through ten functions from the connection to Redis:
//!
//! 1. `server::connections`, `Protocol::answer`: the order of pipelined requests, and the limit on requests.
//! 2. `http::scope`, `RequestScope::call`: request id, span, problems, metrics, log.
//! 3. `http::routes`, `Routes::call`: the route, the key, and what is left of a quota.
//! 4. `http::locks::acquire`: from fields to a claim, and from the outcome to the response.
//! 5. [`service::LockService::acquire`]: whether to wait; from here on, the request completes without its client
//!    (`service::background`, `Detached`).
//! 6. `service::acquire`, `Request::acquire_now`: the deadline, the quota of locks, and the guard that rolls back an
//!    undelivered grant.
//! 7. [`store::LockStore::acquire`], which answers at once in the embedded stores, and chooses the node in a cluster.
//! 8. `store::redis::operations`, `Node::acquire`: refusals while data may be lost, and the command.
//! 9. `store::redis::node`, `Node::run_tracked`: retries until the deadline.
//! 10. `Node::try_once`: a connection, `EVALSHA`, and the check that the reply belongs to the request.
//!
//! The leases come back in three types, one of each layer: [`domain::Acquired`] from the store,
//! [`service::AcquireAnswer`] from the service, and `http::wire::GrantView` in the response. Two more types are known
//! only in the Redis store: `AskReply`, the answer of a partition of a cluster that is no outcome, and `ScriptTries`,
//! what the tries of a request leave behind.
//!
//! A request that waits goes from 5 to `service::wait_loop`, which polls the store whenever `service::schedule` says so.

mod backoff;
pub mod cli;
pub mod client;
pub mod config;
pub mod domain;
pub mod http;
pub mod limits;
mod regular_file;
pub mod server;
pub mod service;
pub mod store;
mod sync;
pub mod telemetry;
mod tls;
