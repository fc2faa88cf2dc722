//! The commands for claims that hold: renew, release and step back. `decode` reads the answers, and `commands` acquires
//! locks.

use redis::Cmd;
use tokio::time::Instant;

use super::commands::{call, digests, is_compact, millis, share};
use super::decode;
use super::pool::{self, Connection, evalsha};
use super::scripts;
use super::{RedisStore, keys, record};
use crate::domain::{
    ClaimDigest, HoldCount, LockNames, Mode, Released, RenewOptions, Renewed, RollbackRight, Token,
};
use crate::store::StoreError;

impl RedisStore {
    pub(super) async fn renew(
        &self,
        names: &LockNames,
        token: Token,
        change: RenewOptions,
        deadline: Instant,
    ) -> Result<Renewed, StoreError> {
        let (script, request) = (&scripts::RENEW, pool::request_id());
        let digests = digests(names, token);
        let ttl_ms = change.ttl.map(|ttl| millis(ttl.get()));
        let is_plain = change.mode.is_none() && change.rollback_right == RollbackRight::Never;
        let is_short = is_plain && ttl_ms.is_none_or(is_compact);
        let (limit, permits) = share(change.mode.unwrap_or_default());
        let mode = match change.mode {
            None => "",
            Some(Mode::Exclusive) => "x",
            Some(Mode::Shared(_)) => "s",
        };
        let command = |is_repeat: bool| {
            let mut command = evalsha(script, digests.len());
            for name in names.iter() {
                command.arg(keys::lock(name));
            }
            command.arg(self.recovery.time.not_after_us(deadline));
            add_callers(&mut command, request, &digests, "");
            let channel = self.messages.channel();
            let is_short = is_short && channel.is_empty() && !is_repeat;
            match ttl_ms {
                Some(ttl_ms) => command.arg(ttl_ms),
                None if is_short => return command,
                None => command.arg(""),
            };
            if is_short {
                return command;
            }
            command.arg(mode).arg(&limit).arg(permits).arg(channel);
            match change.rollback_right {
                RollbackRight::Never => command.arg(""),
                RollbackRight::AsBefore => command.arg("r"),
            };
            if is_repeat {
                command.arg("1");
            }
            command
        };
        let read = |reply| decode::renewed(reply, names);
        let sent_at = Instant::now();
        let run = self.run_in_time(script, request, deadline, command, read);
        let ((renewed, closed_for), epoch) = run.await?;
        self.report_renewed(renewed, closed_for, epoch, [sent_at, deadline])
            .await
    }

    pub(super) async fn release(
        &self,
        names: &LockNames,
        token: Token,
        hold_count: Option<HoldCount>,
        deadline: Instant,
    ) -> Result<Vec<Released>, StoreError> {
        let (script, request) = (&scripts::RELEASE, pool::request_id());
        let digests = digests(names, token);
        let command = |is_repeat: bool| {
            let mut command = call(script, names, &digests);
            add_callers(&mut command, request, &digests, self.messages.releaser());
            match (hold_count, self.messages.channel()) {
                (None, "") => {}
                (None, channel) => {
                    command.arg("").arg(channel);
                }
                (Some(depth), channel) => {
                    command.arg(depth.get()).arg(channel);
                    command.arg(self.recovery.time.not_after_us(deadline));
                    if is_repeat {
                        command.arg("1");
                    }
                }
            }
            command
        };
        let read = |reply| decode::released(reply, names);
        let sent_at = Instant::now();
        let answer = if hold_count.is_some() {
            let run = self.run_in_time(script, request, deadline, command, read);
            run.await.map(|(reply, epoch)| (reply, Some(epoch)))
        } else {
            let read = |reply, _: &Connection| read(reply)?.done();
            let run = self.run(script, request, deadline, || command(false), read);
            run.await.map(|reply| (reply, None))
        };
        let (may_be_reserved, may_be_of_stream) = match &answer {
            Ok((reply, _)) => (reply.may_be_reserved, reply.may_be_of_stream),
            // The content of a lost answer is unknown.
            Err(StoreError::Unknown { .. }) => (true, true),
            Err(StoreError::Unavailable { .. }) => (false, false),
        };
        if may_be_reserved {
            self.messages.may_be_reserved(names);
        }
        // The message on the channel may be lost or late.
        if may_be_of_stream {
            self.messages.released(names, &digests);
        }
        let (reply, epoch) = answer?;
        self.report_released(reply, epoch, [sent_at, deadline])
            .await
    }
}

fn add_callers(command: &mut Cmd, request: u64, digests: &[ClaimDigest], process: &str) {
    for digest in digests {
        command.arg(record::caller(request, digest, process));
    }
}
