//! Support for tests: a Redis of their own, a network that can fail, the stores under test, and polling.

pub(crate) mod certificates;
pub(crate) mod cluster;
pub(crate) mod disk;
pub(crate) mod fixture;
pub(crate) mod http2;
pub(crate) mod load;
pub(crate) mod monitor;
pub(crate) mod neighbour;
pub(crate) mod net;
mod polling;
pub(crate) mod proxy;
pub(crate) mod recording_listener;
pub(crate) mod redis_server;
pub(crate) mod replicas;
pub(crate) mod scripted_store;
pub(crate) mod sentinels;
pub(crate) mod single_connection;
pub(crate) mod stores;
pub(crate) mod tls_front;
pub(crate) mod tls_tunnel;

use tokio::sync::RwLock;

pub(crate) use polling::{EFFECT_TIMEOUT, eventually, eventually_within};

/// Written by tests that use the whole machine, so that they run one at a time; read by those that start many servers,
/// which mostly wait for them and may run side by side.
pub(crate) static TURN: RwLock<()> = RwLock::const_new(());
