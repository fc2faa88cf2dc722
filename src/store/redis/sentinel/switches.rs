//! Subscribes to the messages of the Sentinels about a new primary, so that this process does not find out only at its
//! next check.
//!
//! Until then it uses the former primary, which may still run. A message is only a hint: the new connections that follow
//! it ask most of the Sentinels, as every connection does. So a lost message costs time, and a wrong one costs a few
//! connections.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use redis::RedisResult;
use redis::aio::PubSub;
use tokio::time::{Instant, interval, sleep, timeout};

use crate::backoff::Backoff;
use crate::store::redis::connector::Connector;
use crate::store::redis::pool::Pool;
use crate::store::redis::recovery::FleetState;

/// The channel on which a Sentinel announces a primary that it has learned of. The message begins with the name under
/// which it watches the primary.
const CHANNEL: &str = "+switch-master";
/// The pause between two attempts to connect to a Sentinel; doubled up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How often a connection is pinged, and how long the answer may take.
const PING_EVERY: Duration = Duration::from_secs(5);
/// How long the first check of another primary may take.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// What is to be done when another Redis is the primary.
struct Switch<'a> {
    /// How the messages about it begin.
    prefix: String,
    fleet: &'a FleetState,
    pool: &'a Weak<Pool>,
}

/// Listens to all Sentinels of the URL, if there are any, again and again.
pub(in crate::store::redis) async fn run(
    connector: Arc<Connector>,
    fleet: Arc<FleetState>,
    pool: Weak<Pool>,
) {
    let Some((sentinels, transport)) = connector.sentinels() else {
        return;
    };
    let switch = Switch {
        prefix: format!("{} ", sentinels.name()),
        fleet: &fleet,
        pool: &pool,
    };
    let listening = sentinels.seeds().iter().map(async |endpoint| {
        let mut backoff = Backoff::default();
        loop {
            if let Ok(pubsub) = sentinels.open_pubsub(transport, endpoint).await {
                // However it ended, the connection cannot be used again.
                drop(switch.listen(pubsub, &mut backoff).await);
            }
            sleep(backoff.next(PAUSE_MIN, PAUSE_MAX)).await;
        }
    });
    join_all(listening).await;
}

impl Switch<'_> {
    /// Receives until the connection ends or shows no sign of life.
    async fn listen(&self, pubsub: PubSub, backoff: &mut Backoff) -> RedisResult<()> {
        let (mut sink, mut messages) = pubsub.split();
        match timeout(PING_EVERY, sink.subscribe(CHANNEL)).await {
            Ok(subscribed) => subscribed?,
            Err(_) => return Ok(()),
        }
        backoff.reset();
        let mut pings = interval(PING_EVERY);
        loop {
            tokio::select! {
                message = messages.next() => match message {
                    Some(message) => self.on_message(message.get_payload_bytes()).await,
                    None => return Ok(()),
                },
                _ = pings.tick() => {
                    let ping = timeout(PING_EVERY, sink.ping::<redis::Value>()).await;
                    if !matches!(ping, Ok(Ok(_))) {
                        return Ok(());
                    }
                }
            }
        }
    }

    async fn on_message(&self, payload: &[u8]) {
        if !payload.starts_with(self.prefix.as_bytes()) {
            return;
        }
        tracing::info!("a Sentinel announces another primary");
        self.fleet.renew_connections();
        if let Some(pool) = self.pool.upgrade() {
            // Begins the grace, if the new primary answers. Otherwise the next request or check does.
            let _ = pool.connect(Instant::now() + CHECK_TIMEOUT).await;
        }
    }
}
