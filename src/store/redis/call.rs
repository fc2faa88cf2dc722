//! Runs one script, with retries until Redis answers. The callers build the command and decode the answer.

use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::Cmd;
use tokio::time::Instant;

use super::RedisStore;
use super::pool::{Connection, Failure};
use super::scripts::{InTime, Malformed, Reply, Script};
use crate::store::{Fault, StoreError};

/// How many data losses one request survives before it gives up.
pub(super) const LOSSES_MAX: usize = 3;

/// Why a script has no answer.
pub(super) struct Unanswered {
    pub(super) error: StoreError,
    /// Whether a try may still reach Redis.
    may_arrive: bool,
}

impl Unanswered {
    /// The error for the caller, delayed until no try can arrive in time any more: the client may retry at once,
    /// elsewhere.
    pub(super) async fn when_too_late(self, deadline: Instant) -> StoreError {
        if self.may_arrive {
            tokio::time::sleep_until(deadline).await;
        }
        self.error
    }
}

impl RedisStore {
    /// Runs a script that does nothing after the deadline. The command gets whether an earlier try may still be
    /// executed. Also returns the epoch of the connection.
    pub(super) async fn run_in_time<T>(
        &self,
        script: &Script,
        request: u64,
        deadline: Instant,
        command: impl Fn(bool) -> Cmd,
        read: impl Fn(Reply) -> Result<InTime<T>, Malformed>,
    ) -> Result<(T, u64), StoreError> {
        let mut is_unsure = false;
        for _ in 0..LOSSES_MAX {
            let was_unsure = is_unsure;
            let command = |is_repeat| command(is_repeat || was_unsure);
            let read = |reply, connection: &Connection| Ok((read(reply)?, connection.epoch));
            let run = self.run_unsure(script, request, deadline, command, read);
            match run.await {
                Ok(((InTime::Done(answer), epoch), _)) => return Ok((answer, epoch)),
                Ok(((InTime::Late { redis_us }, epoch), has_lost_tries)) => {
                    is_unsure |= has_lost_tries;
                    if !self.recovery.is_ahead(redis_us) {
                        break;
                    }
                    self.recovery.declare_lost(epoch);
                }
                Err(unanswered) => {
                    let error = unanswered.when_too_late(deadline).await;
                    return Err(match is_unsure {
                        true => StoreError::unknown(error.fault(), error.detail()),
                        false => error,
                    });
                }
            }
        }
        let detail = "it came too late";
        if !is_unsure {
            return Err(StoreError::unavailable(Fault::Timeout, detail));
        }
        // Another try of the same request may have arrived in time, or may still do so if the clock was set.
        tokio::time::sleep_until(deadline).await;
        Err(StoreError::unknown(Fault::Timeout, detail))
    }

    /// Runs a script until Redis answers, on another connection if the first one turns out to be dead.
    ///
    /// Every script can be repeated: it identifies its claim by the token and its request by the attempt.
    pub(super) async fn run<T>(
        &self,
        script: &Script,
        request: u64,
        deadline: Instant,
        command: impl Fn() -> Cmd,
        read: impl Fn(Reply, &Connection) -> Result<T, Malformed>,
    ) -> Result<T, StoreError> {
        let ran = self.run_unsure(script, request, deadline, |_| command(), read);
        match ran.await {
            Ok((answer, _)) => Ok(answer),
            Err(unanswered) => Err(unanswered.error),
        }
    }

    /// The same, but tracks whether an earlier try may still be executed: passes that to each command before it is
    /// sent, and returns it with the answer.
    pub(super) async fn run_unsure<T>(
        &self,
        script: &Script,
        request: u64,
        deadline: Instant,
        command: impl Fn(bool) -> Cmd,
        read: impl Fn(Reply, &Connection) -> Result<T, Malformed>,
    ) -> Result<(T, bool), Unanswered> {
        let (mut may_be_done, mut may_arrive) = (false, false);
        let mut pause = Duration::ZERO;
        loop {
            let began = Instant::now();
            let failure = match self
                .try_once(script, request, deadline, || command(may_be_done), &read)
                .await
            {
                Ok(answer) => {
                    self.recovery.is_back(began);
                    return Ok((answer, may_be_done));
                }
                Err(failure) => failure,
            };
            // A Redis without memory grants nothing either, and waiters cannot claim their reservations.
            let is_away = [Fault::Io, Fault::Timeout, Fault::Busy, Fault::Full];
            if is_away.contains(&failure.fault) {
                self.recovery.is_away(began);
            }
            may_arrive |= failure.may_arrive();
            if !failure.is_worth_retrying || Instant::now() + pause >= deadline {
                let error = failure.into_error(may_be_done);
                return Err(Unanswered { error, may_arrive });
            }
            may_be_done |= failure.may_be_done;
            tokio::time::sleep(pause).await;
            pause = (pause * 2).clamp(Duration::from_millis(10), Duration::from_millis(200));
        }
    }

    async fn try_once<T>(
        &self,
        script: &Script,
        request: u64,
        deadline: Instant,
        command: impl Fn() -> Cmd,
        read: impl Fn(Reply, &Connection) -> Result<T, Malformed>,
    ) -> Result<T, Failure> {
        let mut connection = self.pool.get(deadline).await?;
        let value = connection.run(script, &command(), deadline).await?;
        let Some(reply) = Reply::to(request, value) else {
            self.mismatches.fetch_add(1, Ordering::Relaxed);
            connection.abandon();
            return Err(Failure::corrupt(
                "an answer that belongs to another request",
            ));
        };
        read(reply, &connection).map_err(|Malformed| Failure::corrupt("an answer out of form"))
    }
}
