//! The connection on which this process hears messages: what is subscribed to, in which order, and what is looked after
//! when it breaks. What a message means is in `messages`.

use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::{Fuse, FusedFuture};
use futures_util::{FutureExt, StreamExt};
use redis::aio::{PubSub, PubSubSink};
use redis::{Client, Cmd, FromRedisValue, RedisError, RedisResult};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use super::event_demand::DemandSource;
use super::keys;
use super::pool::Pool;
use super::pubsub::{PubSubShared, UNPOISONED, publish};
use crate::store::Listener;

/// Between two tries to connect, or to announce; doubled up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How often a connection on which nothing arrives is asked for a sign of life, and how long that may take.
const PING_EVERY: Duration = Duration::from_secs(5);
/// How long the others take, as a rule, to hear that somebody has come to watch.
const WATCH_SPREADS: Duration = Duration::from_millis(50);
/// How long a command may take that goes over the connections of operations.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(2);

/// What the task that hears needs.
pub(super) struct Subscriber {
    pub(super) shared: Arc<PubSubShared>,
    pub(super) client: Client,
    pub(super) pool: Weak<Pool>,
    pub(super) connect_timeout: Duration,
    pub(super) listener: Arc<dyn Listener>,
}

type Step<'a> = Fuse<Pin<Box<dyn Future<Output = ()> + Send + 'a>>>;

impl Subscriber {
    /// Hears for ever, over one connection after another.
    pub(super) async fn run(&self) {
        let mut pause = PAUSE_MIN;
        loop {
            let ended = match timeout(self.connect_timeout, self.connect()).await {
                Ok(Ok(pubsub)) => {
                    pause = PAUSE_MIN;
                    let hearing = DemandSource::Since(Instant::now());
                    self.shared.demand.set_hearing(hearing);
                    self.shared
                        .may_not_subscribe
                        .store(false, Ordering::Relaxed);
                    *self.shared.connected_at.lock().expect(UNPOISONED) = Some(Instant::now());
                    let ended = self.read_loop(pubsub).await;
                    *self.shared.connected_at.lock().expect(UNPOISONED) = None;
                    ended
                }
                Ok(Err(error)) => Err(error),
                Err(_) => Ok(()),
            };
            // Whatever ended it, the connection is of no more use.
            self.shared.lost(ended.as_ref().err());
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    async fn connect(&self) -> RedisResult<PubSub> {
        let mut pubsub = self.client.get_async_pubsub().await?;
        pubsub.subscribe(&self.shared.wake).await?;
        pubsub.subscribe(&self.shared.watch).await?;
        pubsub.subscribe(&self.shared.evictions).await?;
        pubsub.subscribe(&self.shared.releases).await?;
        pubsub.subscribe(keys::CLOCK_CHANNEL).await?;
        pubsub.subscribe(&self.shared.recovery).await?;
        Ok(pubsub)
    }

    /// Hears until the connection ends or gives no more sign of life.
    async fn read_loop(&self, pubsub: PubSub) -> RedisResult<()> {
        let (mut sink, mut messages) = pubsub.split();
        let mut delivery = self.shared.delivery.subscribe();
        delivery.mark_changed();
        let mut is_subscribed = false;
        let mut counting: Step<'_> = self.count().boxed().fuse();
        let mut announcing: Step<'_> = Fuse::terminated();
        let mut has_heard = true;
        let mut pings = tokio::time::interval(PING_EVERY);
        let mut looking: Fuse<JoinHandle<()>> = Fuse::terminated();
        loop {
            tokio::select! {
                message = messages.next() => match message {
                    Some(message) => {
                        has_heard = true;
                        self.shared.dispatch(&message, &*self.listener);
                    }
                    None => return Ok(()),
                },
                () = self.shared.reconnect.notified() => return Ok(()),
                // One look is enough for all that is told before it begins.
                () = self.shared.look.notified(), if looking.is_terminated() => looking = self.look().fuse(),
                _ = &mut looking, if !looking.is_terminated() => {}
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
                () = &mut counting, if !counting.is_terminated() => {
                    // What was said while nobody heard is lost. The subscription is there now, so whoever looks from now
                    // on misses nothing (subscribe, wait for the answer, then look).
                    self.listener.messages_lost();
                }
                _ = pings.tick() => {
                    if !std::mem::take(&mut has_heard)
                        && !matches!(timeout(PING_EVERY, sink.ping::<redis::Value>()).await, Ok(Ok(_)))
                    {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Looks at Redis at once: what was found out may not be seen any more when the next request looks, such as a step of the
    /// clock that is set right again.
    fn look(&self) -> JoinHandle<()> {
        let pool = Weak::clone(&self.pool);
        tokio::spawn(async move {
            if let Some(pool) = pool.upgrade() {
                // What cannot be reached is looked at by whoever reaches it.
                let _ = pool.connect(Instant::now() + COMMAND_TIMEOUT).await;
            }
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

    /// Tells the other processes that this one wants events, and gives them time to hear it. Who does not hear it tells
    /// events in any case, as long as it does not know whether anybody wants them.
    async fn announce(&self) {
        let mut pause = PAUSE_MIN;
        loop {
            let published = self.command::<u64>(&publish(&self.shared.watch)).await;
            match published {
                Some((_, Ok(_))) => break,
                Some((_, Err(error))) => {
                    self.shared.may_publish(Some(&error));
                    if self.shared.may_not_publish.load(Ordering::Relaxed) {
                        // The others find out by their surveys.
                        break;
                    }
                }
                None => {}
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
        tokio::time::sleep(WATCH_SPREADS).await;
    }

    /// Finds out who wanted events before this process heard. If that fails, the next survey does.
    async fn count(&self) {
        let count = redis::cmd("PUBSUB")
            .arg("NUMSUB")
            .arg(&self.shared.events)
            .to_owned();
        if let Some((asked, Ok((_, subscribers)))) = self.command::<(String, u64)>(&count).await {
            self.shared.demand.counted(asked, subscribers);
        }
    }

    /// Runs a command over a connection of the operations. Says when it was sent; none if there is no answer.
    async fn command<T: FromRedisValue>(&self, command: &Cmd) -> Option<(Instant, RedisResult<T>)> {
        let deadline = Instant::now() + COMMAND_TIMEOUT;
        let mut connection = self.pool.upgrade()?.get(deadline).await.ok()?;
        let asked = Instant::now();
        let answer = timeout_at(deadline, command.query_async(connection.socket())).await;
        // What is no answer of Redis' own leaves the connection doubtful.
        let is_answered = answer.as_ref().is_ok_and(|answer| {
            let code = answer.as_ref().err().map(RedisError::code);
            code.is_none_or(|code| code.is_some())
        });
        if !is_answered {
            connection.abandon();
        }
        answer.ok().map(|answer| (asked, answer))
    }
}
