//! Whether the replicas have what is about to be reported (`redis.wait_replicas`).
//!
//! Redis answers before its replicas have a write, so a failover can lose it. `WAIT` says how many replicas have the
//! writes of its own connection, and blocks that connection meanwhile. So scripts keep the shared connections, and the
//! question is asked over one of its own: a message is published there, and `WAIT` then waits for it. Replicas receive
//! everything in one order, published messages too. Those that have the message have all that Redis had answered before
//! it, over whichever connection. This is called a barrier, and one barrier is enough for all requests that were
//! answered before it began.
//!
//! A `WAIT` behind the script itself would not do. A replay writes nothing, and since Redis 7.2 a `WAIT` after it does
//! not wait for the grant that it repeats, which came over another connection. The message needs no memory, and no
//! append-only file has it. The nodes of a cluster do not replicate messages, so a key is written there instead. All
//! partitions of a primary share its barriers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};

use super::UNPOISONED;
use super::barriers::{BarrierConnection, Barriers, RunId};
use super::failure::{Execution, Failure};
use super::keys::{self, RedisKeys};
use super::pool::{Connection, Pool};
use super::recovery::Recovery;
use crate::config::RedisConfig;
use crate::domain::duration;
use crate::store::{Fault, Finding, StoreError};
use crate::telemetry::traces::{self, SpanKind};

/// How much longer than `redis.wait_timeout` the answer to a `WAIT` may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// How long opening a connection may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// The pause between two barriers while too few replicas confirm. New grants are refused for so long after they are
/// back.
const PROBE_PAUSE: Duration = Duration::from_millis(100);

/// How long the key of a barrier is kept.
const BARRIER_KEPT_MS: u64 = 60_000;

/// Asks whether the replicas have what this process has written.
pub(super) struct Replication {
    /// How many replicas have to confirm, and for how long to wait for them.
    replicas: u64,
    timeout: Duration,
    pool: Arc<Pool>,
    recovery: Arc<Recovery>,
    keys: RedisKeys,
    /// The barriers of the only Redis; those of a cluster are of the primaries.
    barriers: Arc<Barriers>,
    /// Why the last barrier that Redis answered was not confirmed; none if it was.
    trouble: Mutex<Option<Failure>>,
    has_trouble: AtomicBool,
    began_trouble: Notify,
}

impl Replication {
    /// None if no replica has to confirm.
    pub(super) fn new(
        config: &RedisConfig,
        keys: RedisKeys,
        pool: &Arc<Pool>,
        recovery: &Arc<Recovery>,
    ) -> Option<Arc<Self>> {
        let replicas = u64::try_from(config.wait_replicas).unwrap_or(u64::MAX);
        (replicas > 0).then(|| {
            Arc::new(Self {
                replicas,
                keys,
                timeout: config.wait_timeout,
                pool: Arc::clone(pool),
                recovery: Arc::clone(recovery),
                barriers: Arc::default(),
                trouble: Mutex::default(),
                has_trouble: AtomicBool::new(false),
                began_trouble: Notify::new(),
            })
        })
    }

    /// Repeats the barrier for as long as too few replicas confirm it, again and again.
    pub(super) async fn probe(self: Arc<Self>) {
        loop {
            self.began_trouble.notified().await;
            while self.has_trouble() {
                drop(self.check().await);
                sleep(PROBE_PAUSE).await;
            }
        }
    }

    /// Waits until the replicas have all that Redis has answered by now over connections of this generation.
    ///
    /// # Errors
    /// Too few replicas have confirmed it in time, or that is unknown. They may have it anyway.
    ///
    /// # Cancel safety
    /// If the future is dropped, the barrier is abandoned, and the next request begins another one.
    pub(super) async fn confirm(
        &self,
        generation: u64,
        deadline: Instant,
    ) -> Result<(), StoreError> {
        let began = Instant::now();
        let confirmed = self.confirmed(generation, deadline).await;
        trace_replicas(self.replicas, began, &confirmed);
        confirmed
    }

    async fn confirmed(&self, generation: u64, deadline: Instant) -> Result<(), StoreError> {
        match timeout_at(deadline, self.next_barrier()).await {
            Ok(Ok(run_id)) if self.recovery.is_at(generation, &run_id) => Ok(()),
            Ok(Ok(_)) => {
                let detail = "the connection may have led to another Redis";
                Err(StoreError::unknown(Fault::Io, detail))
            }
            Ok(Err(failure)) => Err(failure.into_error(true)),
            Err(_) => {
                let detail = "the replicas could not be asked in time";
                Err(StoreError::unknown(Fault::Timeout, detail))
            }
        }
    }

    /// Asks the replicas now, for a health check.
    pub(super) async fn check(&self) -> Result<(), Failure> {
        self.next_barrier().await.map(drop)
    }

    /// Why nothing is granted; none unless the last barrier was not confirmed. Each claim would cost the time of
    /// another one, and would be rolled back.
    pub(super) fn trouble(&self) -> Option<Failure> {
        if !self.has_trouble() {
            return None;
        }
        self.trouble.lock().expect(UNPOISONED).clone()
    }

    pub(super) fn has_trouble(&self) -> bool {
        self.has_trouble.load(Ordering::Relaxed)
    }

    pub(super) fn finding(&self) -> Finding {
        let wanted = self.replicas;
        let detail = match self.trouble() {
            None => {
                format!("replicas that confirm each grant: {wanted}, as redis.wait_replicas says")
            }
            Some(failure) => format!(
                "{}; nothing is granted until redis.wait_replicas, {wanted}, confirm",
                failure.explanation()
            ),
        };
        Finding {
            topic: "replicas",
            is_fine: !self.has_trouble(),
            detail,
        }
    }

    /// The outcome of the first barrier that begins from now on: at which Redis it was.
    async fn next_barrier(&self) -> Result<RunId, Failure> {
        let of_primary = self.pool.connector().barriers().await?;
        let barriers = of_primary.as_ref().unwrap_or(&self.barriers);
        let is_here = |run_id: &str| self.recovery.is_now_at(run_id);
        let next = barriers.next(is_here, |kept| self.barrier(kept));
        let (outcome, _none_begins) = next.await;
        self.note(&outcome);
        outcome
    }

    /// Also returns the connection if it can be used again.
    async fn barrier(
        &self,
        kept: Option<BarrierConnection>,
    ) -> (Result<RunId, Failure>, Option<BarrierConnection>) {
        if let Some(mut kept) = kept.filter(|kept| self.recovery.is_now_at(&kept.run_id))
            && let Ok(confirmed) = self.count(&mut kept.connection).await
        {
            return (self.outcome_of(confirmed, &kept.run_id), Some(kept));
        }
        // The former connection may have been closed while it was idle, or by a failover.
        match self.open().await {
            Ok(mut opened) => match self.count(&mut opened.connection).await {
                Ok(confirmed) => (self.outcome_of(confirmed, &opened.run_id), Some(opened)),
                Err(failure) => (Err(failure), None),
            },
            Err(failure) => (Err(failure), None),
        }
    }

    async fn open(&self) -> Result<BarrierConnection, Failure> {
        let connecting = self.pool.connect_alone(Instant::now() + CONNECT_WITHIN);
        let connection = connecting.await?;
        match self.recovery.run_id_at(connection.generation) {
            Some(run_id) => Ok(BarrierConnection { connection, run_id }),
            None => Err(Failure::new(
                Fault::Io,
                Execution::NotDone,
                "the connection may lead to another Redis by now",
            )),
        }
    }

    /// How many replicas have the message of this barrier, and so everything before it.
    async fn count(&self, connection: &mut Connection) -> Result<u64, Failure> {
        if self.keys.partition().is_none() {
            let publish = redis::cmd("PUBLISH")
                .arg(keys::BARRIER_CHANNEL)
                .arg("")
                .take();
            let waiting = self.wait_behind::<redis::Value>(publish, connection);
            return waiting.await.map(|it| it.1);
        }
        match self.wait_behind(self.prolong(), connection).await? {
            (0, _) => {
                let waiting = self.wait_behind::<redis::Value>(self.set(), connection);
                waiting.await.map(|it| it.1)
            }
            (_, confirmed) => Ok(confirmed),
        }
    }

    /// Keeps the key of the barriers that this partition of a cluster begins, for a health check: others may have begun
    /// all of them lately, and once memory is full, it cannot be set any more.
    pub(super) async fn keep_key(&self, connection: &mut Connection) {
        if self.keys.partition().is_none() {
            return;
        }
        // A failure is one of the next barrier, too, which reports it.
        let prolonged = self.prolong().query_async(connection.socket()).await;
        if let Ok(0) = prolonged {
            let set = self.set();
            let setting = set.query_async::<redis::Value>(connection.socket());
            drop(setting.await);
        }
    }

    /// Allowed when memory is full.
    fn prolong(&self) -> redis::Cmd {
        let key = self.keys.barrier();
        redis::cmd("PEXPIRE").arg(key).arg(BARRIER_KEPT_MS).take()
    }

    /// The key is missing at first, and after a pause.
    fn set(&self) -> redis::Cmd {
        let mut set = redis::cmd("SET");
        set.arg(self.keys.barrier()).arg(1);
        set.arg("PX").arg(BARRIER_KEPT_MS).take()
    }

    /// The answer to a command that is replicated, and how many replicas have it.
    async fn wait_behind<T: redis::FromRedisValue>(
        &self,
        command: redis::Cmd,
        connection: &mut Connection,
    ) -> Result<(T, u64), Failure> {
        let timeout_ms = u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX);
        let mut barrier = redis::pipe();
        barrier.add_command(command);
        barrier.cmd("WAIT").arg(self.replicas).arg(timeout_ms);
        let asking = barrier.query_async(connection.socket());
        let give_up = Instant::now() + self.timeout + ANSWER_WITHIN;
        match timeout_at(give_up, asking).await {
            Ok(Ok(answers)) => Ok(answers),
            Ok(Err(error)) => Err(failed(&error)),
            Err(_) => Err(Failure::timed_out()),
        }
    }

    fn outcome_of(&self, confirmed: u64, run_id: &RunId) -> Result<RunId, Failure> {
        if confirmed >= self.replicas {
            return Ok(Arc::clone(run_id));
        }
        let detail = format!(
            "{confirmed} of {} replicas have confirmed a write within {}",
            self.replicas,
            duration::format(self.timeout)
        );
        Err(Failure::new(
            Fault::Unreplicated,
            Execution::MayBeDone,
            detail,
        ))
    }

    /// Notes the outcome of a barrier for the claims to come. A Redis that cannot be asked is no trouble of its
    /// replicas: each request finds that out, and retries for as long as it has time.
    fn note(&self, outcome: &Result<RunId, Failure>) {
        let trouble = match outcome {
            Ok(_) => None,
            Err(failure) if matches!(failure.fault, Fault::Unreplicated | Fault::Permission) => {
                Some(failure.clone())
            }
            Err(_) => return,
        };
        let has_trouble = trouble.is_some();
        *self.trouble.lock().expect(UNPOISONED) = trouble;
        if !self.has_trouble.swap(has_trouble, Ordering::Relaxed) && has_trouble {
            self.began_trouble.notify_one();
        }
    }
}

/// Records a wait for so many replicas that began at this time, within the span of the request.
fn trace_replicas(replicas: u64, began: Instant, confirmed: &Result<(), StoreError>) {
    let Some(scope) = traces::current() else {
        return;
    };
    scope.record(SpanKind::Internal, began, |span| {
        span.name("wait for the replicas");
        let replicas = i64::try_from(replicas).unwrap_or(i64::MAX);
        span.number("leasehold.replicas.wanted", replicas);
        if let Err(error) = confirmed {
            span.text("error.type", error.fault().label());
            span.fail();
        }
    });
}

/// A managed service may not have the command. That lasts, as a missing right does.
fn failed(error: &redis::RedisError) -> Failure {
    let first = Failure::of_first(error);
    match first.detail.contains("unknown command") {
        true => Failure::new(Fault::Permission, Execution::MayBeDone, first.detail)
            .because("it has no command WAIT, which redis.wait_replicas needs"),
        false => Failure::of(error),
    }
}
