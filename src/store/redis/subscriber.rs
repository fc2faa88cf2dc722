//! The subscription connection of this process: the channels, their order, and recovery when the connection breaks.
//! `pubsub` interprets the messages.

use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::{Fuse, FusedFuture, join_all};
use futures_util::{FutureExt, StreamExt};
use redis::aio::{PubSub, PubSubSink};
use redis::{Cmd, FromRedisValue, RedisError, RedisResult};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use super::UNPOISONED;
use super::connector::Connector;
use super::events::{self, DemandSource};
use super::failure::Failure;
use super::keys;
use super::pool::Pool;
use super::pubsub::{PubSubShared, publish};
use crate::backoff::Backoff;
use crate::store::{Fault, Listener};

/// The pause between two attempts to connect or to announce; doubled up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How often an idle connection is pinged, and how long the answer may take.
const PING_EVERY: Duration = Duration::from_secs(5);
/// How long the other processes usually take to receive the announcement that this one wants events.
const WATCH_SPREADS: Duration = Duration::from_millis(50);
/// How long a command over the connections of operations may take.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(2);

/// The state of the receiving task.
pub(super) struct Subscriber {
    pub(super) shared: Arc<PubSubShared>,
    /// To the only Redis, or to the primary of each partition of a cluster.
    pub(super) connectors: Vec<Arc<Connector>>,
    pub(super) pools: Vec<Weak<Pool>>,
    pub(super) listener: Arc<dyn Listener>,
}

type Step<'a> = Fuse<Pin<Box<dyn Future<Output = ()> + Send + 'a>>>;

impl Subscriber {
    /// Receives messages for ever, over one connection after another.
    pub(super) async fn run(&self) {
        let mut backoff = Backoff::default();
        loop {
            let ended = match self.connect().await {
                Ok(pubsub) => {
                    backoff.reset();
                    let source = DemandSource::Since(Instant::now());
                    self.shared.demand.set_source(source);
                    self.shared
                        .may_not_subscribe
                        .store(false, Ordering::Relaxed);
                    *self.shared.connected_at.lock().expect(UNPOISONED) = Some(Instant::now());
                    let ended = self.read_loop(pubsub).await;
                    *self.shared.connected_at.lock().expect(UNPOISONED) = None;
                    ended.map_err(|error| Failure::of(&error))
                }
                Err(failure) => {
                    self.shared.not_subscribed(failure.explanation());
                    Err(failure)
                }
            };
            // Whatever ended the loop, the connection cannot be used again.
            let is_forbidden = |failure: &Failure| failure.fault == Fault::Permission;
            self.shared
                .lost(ended.as_ref().is_err_and(is_forbidden), &*self.listener);
            tokio::time::sleep(backoff.next(PAUSE_MIN, PAUSE_MAX)).await;
        }
    }

    async fn connect(&self) -> Result<PubSub, Failure> {
        // Every node of a cluster passes on all messages, so the next attempt may try another one.
        let connector = &self.connectors[fastrand::usize(..self.connectors.len())];
        let pubsub = connector.open_pubsub().await?;
        match timeout(connector.timeout(), self.subscribed(pubsub)).await {
            Ok(subscribed) => subscribed.map_err(|error| Failure::of(&error)),
            Err(_) => Err(Failure::timed_out()),
        }
    }

    async fn subscribed(&self, mut pubsub: PubSub) -> RedisResult<PubSub> {
        pubsub.subscribe(&self.shared.wake).await?;
        pubsub.subscribe(&self.shared.watch).await?;
        pubsub.subscribe(&self.shared.evictions).await?;
        pubsub.subscribe(&self.shared.releases).await?;
        pubsub.subscribe(keys::CLOCK_CHANNEL).await?;
        pubsub.subscribe(self.shared.recovery.as_slice()).await?;
        Ok(pubsub)
    }

    /// Receives until the connection ends or shows no sign of life.
    async fn read_loop(&self, pubsub: PubSub) -> RedisResult<()> {
        let (mut sink, mut messages) = pubsub.split();
        let mut delivery = self.shared.delivery.subscribe();
        delivery.mark_changed();
        let mut is_subscribed = false;
        let mut counting: Step<'_> = self.count().boxed().fuse();
        let mut announcing: Step<'_> = Fuse::terminated();
        let mut telling: Step<'_> = Fuse::terminated();
        let mut is_alive = true;
        let mut pings = tokio::time::interval(PING_EVERY);
        let mut verifying: Fuse<JoinHandle<()>> = Fuse::terminated();
        loop {
            tokio::select! {
                message = messages.next() => match message {
                    Some(message) => {
                        is_alive = true;
                        self.shared.dispatch(&message, &*self.listener);
                    }
                    None => return Ok(()),
                },
                () = self.shared.reconnect.notified() => return Ok(()),
                // One check covers all notifications that arrive before it begins.
                () = self.shared.verify.notified(), if verifying.is_terminated() => verifying = self.verify().fuse(),
                _ = &mut verifying, if !verifying.is_terminated() => {}
                changed = delivery.changed() => {
                    let Ok(()) = changed else { return Ok(()) };
                    let now = *delivery.borrow_and_update();
                    if now.is_wanted != is_subscribed {
                        self.subscribe(&mut sink, now.is_wanted).await?;
                        is_subscribed = now.is_wanted;
                        announcing = Fuse::terminated();
                    }
                    if now.is_wanted && !now.is_sure && announcing.is_terminated() {
                        announcing = self.announce().boxed().fuse();
                    }
                }
                () = &mut announcing, if !announcing.is_terminated() => {
                    if self.shared.delivers() {
                        self.listener.events_lost();
                    }
                }
                () = self.shared.demand.was_unknown.notified(), if telling.is_terminated() => {
                    telling = self.tell_of_unpublished().boxed().fuse();
                }
                () = &mut telling, if !telling.is_terminated() => {}
                () = &mut counting, if !counting.is_terminated() => {
                    // Messages published while this process was not subscribed are lost. Now it is subscribed, so a
                    // check from now on misses nothing (subscribe, wait for the answer, then check).
                    self.listener.messages_lost();
                }
                _ = pings.tick() => {
                    if !std::mem::take(&mut is_alive)
                        && !matches!(timeout(PING_EVERY, sink.ping::<redis::Value>()).await, Ok(Ok(_)))
                    {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Checks Redis at once: what was found may be gone by the next request, such as a step of the clock that was
    /// corrected.
    fn verify(&self) -> JoinHandle<()> {
        let numbers = self.shared.take_unverified().into_iter();
        let pools: Vec<_> = numbers.filter_map(|it| self.pools[it].upgrade()).collect();
        tokio::spawn(async move {
            let deadline = Instant::now() + COMMAND_TIMEOUT;
            // If Redis is unreachable, the next connection checks it.
            join_all(pools.iter().map(|pool| pool.connect(deadline))).await;
        })
    }

    async fn subscribe(&self, sink: &mut PubSubSink, is_wanted: bool) -> RedisResult<()> {
        let events = &self.shared.events;
        let subscribing = async {
            match is_wanted {
                true => sink.subscribe(events).await,
                false => sink.unsubscribe(events).await,
            }
        };
        let answer = timeout(PING_EVERY, subscribing).await;
        answer.unwrap_or_else(|_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()))
    }

    /// Announces that this process wants events, and gives the others time to receive it. A process that misses it
    /// publishes events anyway, as long as it does not know whether they are wanted.
    async fn announce(&self) {
        self.publish(&publish(&self.shared.watch)).await;
        tokio::time::sleep(WATCH_SPREADS).await;
    }

    /// Tells the processes that want events that this one has published none until now. Those that begin to want them, and
    /// wait for the others to learn of it, ignore that.
    async fn tell_of_unpublished(&self) {
        let message = events::unpublished_by(self.shared.process());
        let command = redis::cmd("PUBLISH")
            .arg(&self.shared.events)
            .arg(message)
            .to_owned();
        self.publish(&command).await;
    }

    /// Publishes a message, unless this process may not.
    async fn publish(&self, command: &Cmd) {
        let mut backoff = Backoff::default();
        loop {
            let partition = fastrand::usize(..self.pools.len());
            match self.command::<u64>(partition, command).await {
                Some((_, Ok(_))) => break,
                // The others learn it by their health checks.
                Some((_, Err(error))) if self.shared.note_published(partition, Some(&error)) => {
                    break;
                }
                Some((_, Err(_))) | None => {}
            }
            tokio::time::sleep(backoff.next(PAUSE_MIN, PAUSE_MAX)).await;
        }
    }

    /// Counts the processes that wanted events before this one subscribed. If that fails, the next health check does.
    async fn count(&self) {
        if self.shared.is_cluster() {
            // The health checks count on all nodes.
            return;
        }
        let count = redis::cmd("PUBSUB")
            .arg("NUMSUB")
            .arg(&self.shared.events)
            .to_owned();
        if let Some((sent_at, Ok((_, subscribers)))) =
            self.command::<(String, u64)>(0, &count).await
        {
            self.shared.demand.counted(sent_at, subscribers);
        }
    }

    /// Runs a command over a connection of the operations on a partition. Also returns when it was sent; none without an
    /// answer.
    async fn command<T: FromRedisValue>(
        &self,
        partition: usize,
        command: &Cmd,
    ) -> Option<(Instant, RedisResult<T>)> {
        let deadline = Instant::now() + COMMAND_TIMEOUT;
        let pool = self.pools[partition].upgrade()?;
        let mut connection = pool.get(deadline).await.ok()?;
        let sent_at = Instant::now();
        let answer = timeout_at(deadline, command.query_async(connection.socket())).await;
        // Anything but an answer of Redis itself leaves the connection doubtful.
        let is_answered = answer.as_ref().is_ok_and(|answer| {
            let code = answer.as_ref().err().map(RedisError::code);
            code.is_none_or(|code| code.is_some())
        });
        if !is_answered {
            connection.abandon();
        }
        answer.ok().map(|answer| (sent_at, answer))
    }
}
