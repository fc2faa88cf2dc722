//! A socket to a node of a Redis Cluster, and what the server behind it has reported about itself. `cluster` opens them.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::failure::Failure;
use super::info::ServerInfo;

/// How long what a server reports about itself is used for the partitions that are verified at the same time.
const REPORT_USED_FOR: Duration = Duration::from_millis(100);

/// A connection to a node, shared by the partitions that are there.
#[derive(Clone)]
pub(super) struct NodeSocket {
    pub(super) shared: MultiplexedConnection,
    pub(super) is_broken: Arc<AtomicBool>,
    report: Arc<Mutex<Option<(Instant, ServerInfo)>>>,
}

impl NodeSocket {
    pub(super) fn new(shared: MultiplexedConnection) -> Self {
        Self {
            shared,
            is_broken: Arc::default(),
            report: Arc::default(),
        }
    }

    /// What the server reports about itself.
    pub(super) async fn report(&mut self) -> Result<ServerInfo, Failure> {
        let mut report = self.report.lock().await;
        if let Some((read_at, server)) = &*report
            && read_at.elapsed() < REPORT_USED_FOR
        {
            return Ok(server.clone());
        }
        let reading = ServerInfo::read(&mut self.shared, true).await;
        let server = reading.map_err(|error| Failure::of(&error).before_any_command())?;
        *report = Some((Instant::now(), server.clone()));
        Ok(server)
    }
}
