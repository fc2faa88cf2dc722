//! One script, asked until it answers. What is asked and how the answer reads is the caller's affair.

use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::Cmd;
use tokio::time::Instant;

use super::RedisStore;
use super::pool::{Connection, Failure};
use super::scripts::{Malformed, Reply, Script};
use crate::store::{Fault, StoreError};

impl RedisStore {
    /// Runs a script until it is answered, on another connection if the first one turns out to be dead.
    ///
    /// Every script may be run again: it knows its claim by the token and its request by the attempt.
    pub(super) async fn run<T>(
        &self,
        script: &Script,
        request: u64,
        deadline: Instant,
        command: impl Fn() -> Cmd,
        read: impl Fn(Reply, &Connection) -> Result<T, Malformed>,
    ) -> Result<T, StoreError> {
        let ran = self.run_unsure(script, request, deadline, command, read);
        ran.await.map(|(answer, _)| answer)
    }

    /// The same, and says whether an earlier try may still be executed, after the one that was answered.
    pub(super) async fn run_unsure<T>(
        &self,
        script: &Script,
        request: u64,
        deadline: Instant,
        command: impl Fn() -> Cmd,
        read: impl Fn(Reply, &Connection) -> Result<T, Malformed>,
    ) -> Result<(T, bool), StoreError> {
        let mut may_be_done = false;
        let mut pause = Duration::ZERO;
        loop {
            let began = Instant::now();
            let failure = match self
                .try_once(script, request, deadline, &command, &read)
                .await
            {
                Ok(answer) => {
                    self.recovery.is_back();
                    return Ok((answer, may_be_done));
                }
                Err(failure) => failure,
            };
            // A Redis without memory grants nothing either, and whoever waits cannot take what is offered.
            let is_away = [Fault::Io, Fault::Timeout, Fault::Busy, Fault::Full];
            if is_away.contains(&failure.fault) {
                self.recovery.is_away(began);
            }
            if !failure.is_worth_retrying || Instant::now() + pause >= deadline {
                return Err(failure.into_error(may_be_done));
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
