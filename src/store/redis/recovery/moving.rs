//! Checks the data of a partition whose slot is on its way from one node to another.
//!
//! Redis refuses a script of which a key is missing then, and that of a grace exists only while grants wait. But single
//! keys can be read, each at the node that has it. What they show one after the other is enough where the script would
//! change nothing but times: whatever is lost in between is lost like anything after a check. Everything else waits for
//! the script, until the slot has moved.

use std::collections::HashMap;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue};
use tokio::time::Instant;

use super::reply::RecoveryReply;
use super::{Recovery, UNPOISONED};
use crate::store::redis::connector::Connector;
use crate::store::redis::constants;
use crate::store::redis::failure::Failure;
use crate::store::redis::info::ServerInfo;

/// The fields of the hash that `lua/recovery.lua` describes.
const FIELDS: [&str; 8] = [
    "epoch",
    "run_id",
    "durable",
    "revision",
    "promoted_from",
    "looked_ms",
    "node_id",
    "replid",
];

/// What the keys of a history say.
struct History {
    now_us: u64,
    fields: HashMap<&'static str, Option<String>>,
    longest_ttl_ms: u64,
    grace_left: Duration,
}

impl Recovery {
    /// Checks the data behind a connection of this generation to the node that has the slot still. None if only the script
    /// can tell.
    pub(in crate::store::redis) async fn verify_moving(
        &self,
        connector: &Connector,
        connection: &mut MultiplexedConnection,
        server: &ServerInfo,
        generation: u64,
    ) -> Result<Option<u64>, Failure> {
        let sent_at = Instant::now();
        let history = self.read_history(connector, connection).await?;
        let reply = self.unchanged(&history, server);
        let times = [sent_at, Instant::now()];
        Ok(reply.and_then(|reply| self.apply(server, &reply, times, generation)))
    }

    async fn read_history(
        &self,
        connector: &Connector,
        connection: &mut MultiplexedConnection,
    ) -> Result<History, Failure> {
        let now = redis::cmd("TIME").query_async(connection).await;
        let (seconds, micros): (u64, u64) = now.map_err(|error| Failure::of(&error))?;
        let mut read = Reading {
            connector,
            connection,
        };
        // First, so that a grace that belongs to it is seen.
        let mut fields = redis::cmd("HMGET");
        fields.arg(self.keys.node()).arg(&FIELDS);
        let fields: [Option<String>; FIELDS.len()] = read.answer(&fields).await?;
        let longest_ttl = redis::cmd("GET").arg(self.keys.longest_ttl()).take();
        let longest_ttl_ms: Option<u64> = read.answer(&longest_ttl).await?;
        let grace = redis::cmd("PTTL").arg(self.keys.grace()).take();
        let grace_ms: i64 = read.answer(&grace).await?;
        Ok(History {
            now_us: seconds.saturating_mul(1_000_000).saturating_add(micros),
            fields: FIELDS.into_iter().zip(fields).collect(),
            longest_ttl_ms: longest_ttl_ms.unwrap_or_default(),
            grace_left: Duration::from_millis(u64::try_from(grace_ms).unwrap_or_default()),
        })
    }

    /// The answer that the script would give, if it would change nothing but the number of checks.
    fn unchanged(&self, history: &History, server: &ServerInfo) -> Option<RecoveryReply> {
        let text = |field: &str| {
            let value = history.fields.get(field).and_then(Option::as_deref);
            value.unwrap_or_default()
        };
        let number = |field: &str| text(field).parse::<u64>().ok();
        let (epoch, revision) = (number("epoch")?, number("revision")?);
        let is_same_server = text("run_id") == server.run_id
            && text("promoted_from") == server.promoted_from
            && text("durable") == if server.is_durable() { "1" } else { "0" }
            && text("node_id") == server.in_cluster.own_id
            && text("replid") == server.replid;
        let went_back =
            number("looked_ms")? > history.now_us / 1_000 + constants::CLOCK_STEP_MIN_MS;
        let has_used_more = self.fleet.longest_ttl.used_ms() > history.longest_ttl_ms;
        let known = self.known.lock().expect(UNPOISONED);
        let is_known_so = known.data_epoch.is_none_or(|known| known == epoch)
            && known.lost_epoch.is_none()
            && known.revision <= revision;
        let is_unchanged = is_same_server && is_known_so && !went_back && !has_used_more;
        // The waiters of this process get time to poll, whether or not others were cut off, too.
        let grace_left = match self.outage.is_long() {
            true => (history.grace_left).max(Duration::from_millis(constants::POLL_AGAIN_MS)),
            false => history.grace_left,
        };
        is_unchanged.then_some(RecoveryReply {
            now_us: history.now_us,
            epoch,
            begins: false,
            revision,
            longest_ttl_ms: history.longest_ttl_ms,
            grace_left,
            // Counted for all partitions together.
            watchers: 0,
            listeners: 0,
            may_count: true,
            went_back,
        })
    }
}

/// Reads single keys.
struct Reading<'a> {
    connector: &'a Connector,
    connection: &'a mut MultiplexedConnection,
}

impl Reading<'_> {
    async fn answer<T: FromRedisValue>(&mut self, command: &Cmd) -> Result<T, Failure> {
        self.connector.read(self.connection, command).await
    }
}
