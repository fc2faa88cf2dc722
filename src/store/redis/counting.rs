//! The count of the leases for which there is a quota. It is at one node, in a cluster at the partition of the name of the
//! principal or of the empty name, wherever the locks are.

use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use super::node::Node;
use super::reply::{Malformed, Reply};
use super::scripts::ScriptRequest;
use super::{RedisStore, constants, record, scripts};
use crate::domain::{Attempt, CountOutcome, CountStep, LeaseQuota, LockName, Token, UndoneBy};
use crate::store::{CountLeases, StoreResult};

#[async_trait]
impl CountLeases for RedisStore {
    async fn count_leases(
        &self,
        quota: &LeaseQuota,
        step: CountStep,
        names: &[LockName],
        token: Token,
        deadline: Instant,
    ) -> StoreResult<CountOutcome> {
        let node = &self.nodes[quota.bucket().index() % self.nodes.len()];
        node.count_leases(quota, step, names, token, deadline).await
    }
}

impl Node {
    async fn count_leases(
        &self,
        quota: &LeaseQuota,
        step: CountStep,
        names: &[LockName],
        token: Token,
        deadline: Instant,
    ) -> StoreResult<CountOutcome> {
        let request = ScriptRequest::new(&scripts::COUNT);
        let (letter, lasts, attempt) = arguments(step);
        let counted = self.keys.counted(quota);
        let command = |_| {
            let mut command = request.command(&[&counted]);
            command.arg(&[letter]).arg(quota.leases_max);
            command.arg(lasts.as_millis() as u64).arg(&attempt);
            for name in names {
                command.arg(record::claim(&token.digest(name)));
            }
            command
        };
        self.run(request, deadline, command, read).await
    }
}

/// The step as the script reads it: its letter, how long the leases last, and the attempt that may roll them back.
fn arguments(step: CountStep) -> (u8, Duration, String) {
    let of = |attempt: Attempt| (1 + attempt.0 % (constants::COUNT_ATTEMPTS - 1)).to_string();
    match step {
        CountStep::Check => (constants::COUNT_CHECK, Duration::ZERO, String::new()),
        CountStep::Take { by, lasts } => (constants::COUNT_TAKE, lasts, of(by)),
        CountStep::Keep { undone_by, lasts } => {
            let attempt = match undone_by {
                UndoneBy::Nobody => "0".to_owned(),
                UndoneBy::Attempt(attempt) => of(attempt),
                UndoneBy::AsBefore => String::new(),
            };
            (constants::COUNT_KEEP, lasts, attempt)
        }
        CountStep::Extend { lasts } => (constants::COUNT_EXTEND, lasts, String::new()),
        CountStep::Undo(attempt) => (constants::COUNT_UNDO, Duration::ZERO, of(attempt)),
        CountStep::End => (constants::COUNT_END, Duration::ZERO, String::new()),
    }
}

fn read(mut reply: Reply) -> Result<CountOutcome, Malformed> {
    match reply.number()? {
        0 => Ok(CountOutcome::Full {
            retry_in: reply.millis()?,
        }),
        1 => Ok(CountOutcome::Within),
        _ => Err(Malformed),
    }
}
