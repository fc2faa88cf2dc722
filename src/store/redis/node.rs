//! One Redis: the connections to it, what is known of its data, and the messages between its processes. Runs scripts,
//! with retries until Redis answers. `encode` builds their commands, and `decode` reads their answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::time::{Instant, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::failure::Failure;
use super::keys::RedisKeys;
use super::pool::{Connection, Pool};
use super::probe;
use super::pubsub::PubSub;
use super::recovery::Recovery;
use super::redirection::Redirection;
use super::refused_right::RefusedRight;
use super::replication::Replication;
use super::reply::{InTime, Malformed, Reply};
use super::scripts::ScriptRequest;
use crate::backoff::Backoff;
use crate::store::{Fault, StoreError, StoreResult};
use crate::telemetry::traces::{self, SpanKind};

/// The second pause between two tries, after none; doubled up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// The connection generation of a command that another node executed than the one whose replicas are asked: no barrier
/// confirms it.
const UNCONFIRMED: u64 = u64::MAX;

/// How many data losses one request survives before it gives up.
pub(super) const LOSSES_MAX: usize = 3;

/// One Redis, as this process sees it.
pub(super) struct Node {
    pub(super) keys: RedisKeys,
    pub(super) pool: Arc<Pool>,
    pub(super) recovery: Arc<Recovery>,
    pub(super) messages: Arc<PubSub>,
    pub(super) refused_right: Arc<RefusedRight>,
    /// None if no replica has to confirm what is reported.
    pub(super) replication: Option<Arc<Replication>>,
    /// How many answers belonged to another request.
    pub(super) mismatches: AtomicU64,
    /// How many tries of claims were not granted because a fencing counter had lost data.
    pub(super) fencing_regressions: AtomicU64,
    /// Held by the request that announces a TTL, so that only one of many with the same TTL does.
    pub(super) announcing: tokio::sync::Mutex<()>,
    /// What goes on beside requests, and ends with the store: among others, finding out when a Redis that is down is
    /// back.
    pub(super) _tasks: Vec<AbortOnDropHandle<()>>,
}

/// What the tries of one request have left behind.
#[derive(Default)]
pub(super) struct ScriptTries {
    /// Whether one without an answer may still be executed.
    pub(super) has_lost: bool,
    /// Whether one may still reach Redis.
    may_arrive: bool,
    /// The generation of the connection that the last answer came over.
    pub(super) generation: u64,
}

impl ScriptTries {
    /// The error for the caller, delayed until no try can arrive in time any more: the client may retry at once,
    /// elsewhere.
    pub(super) async fn when_too_late(self, error: StoreError, deadline: Instant) -> StoreError {
        if self.may_arrive {
            tokio::time::sleep_until(deadline).await;
        }
        error
    }
}

impl Node {
    /// Runs a script that does nothing after the deadline. The command gets whether an earlier try may still be
    /// executed. Also returns the generation of the connection.
    pub(super) async fn run_in_time<T>(
        &self,
        request: ScriptRequest,
        deadline: Instant,
        command: impl Fn(bool) -> Cmd,
        read: impl Fn(Reply) -> Result<InTime<T>, Malformed>,
    ) -> Result<(T, u64), StoreError> {
        let mut tries = ScriptTries::default();
        for _ in 0..LOSSES_MAX {
            let run = self.run_tracked(request, deadline, &mut tries, &command, &read);
            match run.await {
                Ok(InTime::Done(answer)) => return Ok((answer, tries.generation)),
                Ok(InTime::Late { redis_us }) if self.recovery.is_ahead(redis_us) => {
                    self.recovery.declare_lost(tries.generation);
                }
                Ok(InTime::Late { .. }) => break,
                Err(error) => return Err(tries.when_too_late(error, deadline).await),
            }
        }
        let detail = "it came too late";
        if !tries.has_lost {
            return Err(StoreError::unavailable(Fault::Timeout, detail));
        }
        // Another try of the same request may have arrived in time, or may still do so if the clock was set.
        tokio::time::sleep_until(deadline).await;
        Err(StoreError::unknown(Fault::Timeout, detail))
    }

    /// The same as [`run_tracked`](Self::run_tracked), for callers that need not know of earlier tries.
    pub(super) async fn run<T>(
        &self,
        request: ScriptRequest,
        deadline: Instant,
        command: impl Fn(bool) -> Cmd,
        read: impl Fn(Reply) -> Result<T, Malformed>,
    ) -> StoreResult<T> {
        let mut tries = ScriptTries::default();
        self.run_tracked(request, deadline, &mut tries, command, read)
            .await
    }

    /// Runs a script until Redis answers, on another connection if the first one turns out to be dead. Each command
    /// gets, before it is sent, whether an earlier try may still be executed: one of these, or of `tries` before.
    ///
    /// Every script can be repeated: it identifies its claim by the token and its request by the attempt.
    pub(super) async fn run_tracked<T>(
        &self,
        request: ScriptRequest,
        deadline: Instant,
        tries: &mut ScriptTries,
        command: impl Fn(bool) -> Cmd,
        read: impl Fn(Reply) -> Result<T, Malformed>,
    ) -> StoreResult<T> {
        if let Some(failure) = probe::known_down(&self.pool, &self.recovery) {
            return Err(failure.into_error(tries.has_lost));
        }
        let (mut pause, mut backoff) = (Duration::ZERO, Backoff::default());
        let mut was_redirected = false;
        loop {
            let began = Instant::now();
            let command = || command(tries.has_lost);
            let tried = self.try_once(request, deadline, command, &read).await;
            self.trace(request, began, tried.as_ref().err());
            let failure = match tried {
                Ok((answer, generation)) => {
                    self.recovery.note_answer(began);
                    tries.generation = generation;
                    return Ok(answer);
                }
                Err(failure) => failure,
            };
            self.refused_right.note(&failure);
            // The first try after a move knows where to go. Two nodes may each name the other one for a while.
            if failure.redirection.is_some() && !was_redirected {
                (pause, was_redirected) = (Duration::ZERO, true);
            }
            if failure.is_moving() {
                self.recovery.outage.note_moving();
            } else if failure.is_outage() {
                self.recovery.note_no_answer(began);
            }
            tries.may_arrive |= failure.may_arrive();
            if !failure.is_worth_retrying || Instant::now() + pause >= deadline {
                return Err(failure.into_error(tries.has_lost));
            }
            tries.has_lost |= failure.may_be_done;
            tokio::time::sleep(pause).await;
            pause = backoff.next(PAUSE_MIN, PAUSE_MAX);
        }
    }

    /// Also returns the generation of the connection. The command is built once there is one: opening it may be what reveals
    /// that the data were lost.
    ///
    /// # Cancel safety
    /// If the future is dropped, the command may still be executed; the connection stays usable.
    async fn try_once<T>(
        &self,
        request: ScriptRequest,
        deadline: Instant,
        command: impl Fn() -> Cmd,
        read: impl Fn(Reply) -> Result<T, Malformed>,
    ) -> Result<(T, u64), Failure> {
        let mut connection = self.pool.get(deadline).await?;
        let command = command();
        let socket = connection.socket();
        let sending = async {
            let answer = socket.send_packed_command(&command).await;
            request.with_text_if_unknown(socket, &command, answer).await
        };
        let mut answer = match timeout_at(deadline, sending).await {
            Ok(answer) => answer.map_err(|error| self.answered_with(Failure::of(&error))),
            Err(_) => Err(Failure::timed_out()),
        };
        let mut generation = connection.generation;
        let is_redirected = matches!(&answer, Err(failure) if failure.redirection.is_some());
        if let Err(failure) = &answer
            && is_redirected
        {
            if self.replication.is_some() {
                generation = UNCONFIRMED;
            }
            // Rare; boxed so that it does not enlarge every request.
            answer =
                Box::pin(self.redirected(request, deadline, &command, failure, &connection)).await;
        }
        let value = answer.inspect_err(|failure| {
            if failure.fault == Fault::ClusterDown {
                self.may_have_moved(connection.generation);
            }
            if failure.casts_doubt_on_connection() {
                connection.abandon();
            }
            // After a redirection it is the answer of another node.
            if failure.fault == Fault::Replica && !is_redirected {
                // The other connections lead to the same Redis, and each would cost another request.
                self.recovery.moved(connection.generation);
            }
        })?;
        let Some(reply) = Reply::to(request.id, value) else {
            self.mismatches.fetch_add(1, Ordering::Relaxed);
            connection.abandon();
            let detail = "an answer that belongs to another request";
            return Err(Failure::corrupt(detail));
        };
        match read(reply) {
            Ok(answer) => Ok((answer, generation)),
            Err(Malformed) => Err(Failure::corrupt("an answer that its script cannot give")),
        }
    }

    /// The same failure with the node of a cluster that has answered it. One without an answer names none: by now the slot may
    /// be at another node than the silent one.
    fn answered_with(&self, failure: Failure) -> Failure {
        match failure.may_arrive() {
            true => failure,
            false => failure.at(self.pool.connector().known_node()),
        }
    }

    /// Follows the redirection of a command that a node of a cluster refused: a slot that has moved is looked up by the
    /// next try; keys that have arrived at another node already are there before their slot is.
    async fn redirected(
        &self,
        request: ScriptRequest,
        deadline: Instant,
        command: &Cmd,
        failure: &Failure,
        connection: &Connection,
    ) -> Result<Value, Failure> {
        let Some(Redirection::Ask(endpoint)) = &failure.redirection else {
            self.may_have_moved(connection.generation);
            return Err(failure.clone());
        };
        let connector = self.pool.connector();
        let opening = timeout_at(deadline, connector.open_at(endpoint)).await;
        let mut other = match opening {
            Ok(opened) => opened,
            Err(_) => Err(Failure::timed_out()),
        }
        .map_err(|error| failure.passed_on(error.before_any_command()))?;
        match timeout_at(deadline, request.send_asking(&mut other, command)).await {
            Ok(answer) => answer.map_err(|error| failure.passed_on(Failure::of_first(&error))),
            Err(_) => Err(Failure::timed_out()),
        }
    }

    /// Another primary may have the slot by now, as far as a request over a connection of this generation has found out.
    fn may_have_moved(&self, generation: u64) {
        self.pool.connector().may_have_moved();
        self.recovery.moved(generation);
    }

    /// Records one try of a script that began at this time, within the span of the request, by the semantic conventions of
    /// OpenTelemetry for Redis. The span never has an argument of the command, among which are the hashes of tokens.
    fn trace(&self, request: ScriptRequest, began: Instant, failure: Option<&Failure>) {
        let Some(scope) = traces::current() else {
            return;
        };
        scope.record(SpanKind::Client, began, |span| {
            span.name(format!("EVALSHA {}", request.name()));
            span.text("db.system.name", "redis");
            span.text("db.operation.name", "EVALSHA");
            span.text("db.stored_procedure.name", request.name());
            if let Some((host, port)) = self.pool.connector().known_endpoint() {
                span.text("server.address", host);
                span.number("server.port", port);
            }
            if let Some(failure) = failure {
                span.text("error.type", failure.fault.label());
                span.fail();
            }
        });
    }
}
