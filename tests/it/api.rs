//! The HTTP interface as clients use it: the form of every response, every kind of invalid request, and what must never
//! happen.
//!
//! Most tests call the router directly, because no code between it and a socket is ours; `sockets` has the rest.

mod accept;
mod bodies;
mod browsers;
mod delivery;
mod events;
mod fields;
mod flow_control;
mod guard;
mod health;
mod life;
mod limits;
mod listing;
mod log_sample;
mod logs;
mod names;
mod nonsense;
mod operators;
mod problems;
mod rules;
mod sentences;
mod several;
mod sharing;
mod sockets;
mod store_faults;
mod streams;
pub(crate) mod support;
mod terraform;
mod ui;
mod values;
mod vanished;
mod waiting;
