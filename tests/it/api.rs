//! The HTTP interface, asked as clients ask it: every answer's shape, every wrong request, and what never may happen.
//!
//! Most tests call the router directly, because nothing between it and a socket is ours; `sockets` is for the rest.

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
mod problems;
mod several;
mod sharing;
mod sockets;
mod store_faults;
mod streams;
pub(crate) mod support;
mod values;
mod vanished;
mod waiting;
