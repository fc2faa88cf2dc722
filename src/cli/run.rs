//! `leasehold run`: runs a command while holding a lock.
//!
//! Three processes: the runner, which the user started, acquires, renews and releases; its child, the [`guard`], starts
//! the command and ends it when the lease may run out. The files in the order of events: `options`, `nested` (a run
//! within a run), `guarded` (the runner's end of the guard), [`launch`] (starts the command), `keeper` (renews),
//! `supervise` (signals, terminal, loss).

pub(super) mod guard;
mod guarded;
mod keeper;
pub(super) mod launch;
mod messages;
mod nested;
pub(super) mod options;
mod processes;
mod supervise;
mod terminal;

use std::io;

use clap::ArgMatches;
use nix::errno::Errno;
use nix::sys::prctl;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::acquisition::{self, AcquiredLease, Acquisition, AcquisitionEnd};
use super::notices::{Notices, Verbosity};
use super::service::{self, ClientError};
use super::signals::ClientSignals;
use super::{CliError, Environment, Exit};
use crate::client::Client;
use guarded::GuardedCommand;
use keeper::{LeaseKeeper, ReleaseOutcome};
use messages::CommandDeadline;
use nested::{NestedRuns, OuterRun, PIPE_VARIABLE};
use options::RunOptions;
use supervise::{CommandEnd, SupervisedEnd, Supervision};

const NAME_VARIABLE: &str = "LEASEHOLD_LOCK_NAME";
const TOKEN_VARIABLE: &str = "LEASEHOLD_LOCK_TOKEN";
const HOLD_COUNT_VARIABLE: &str = "LEASEHOLD_HOLD_COUNT";
const FENCING_VARIABLE: &str = "LEASEHOLD_FENCING_TOKEN";
const EXPIRY_VARIABLE: &str = "LEASEHOLD_EXPIRES_AT";

pub(super) fn run(matches: &ArgMatches, environment: &Environment) -> Result<Exit, CliError> {
    let options = RunOptions::parse(matches, environment).map_err(ClientError::Misused)?;
    let client = service::client(matches, environment)?;
    let variables = service::variables(matches, &client);
    let run = Run {
        outer: OuterRun::find(&options.claim.names, environment, &client)?,
        notices: Notices::new(options.verbosity),
        options,
        variables,
    };
    let busy_code = run.options.busy_code;
    match service::block_on(run.under_lock(client)) {
        // Not an error of this command: its caller chose the code.
        Err(ClientError::Busy(text)) => {
            if busy_code != 0 {
                Notices::new(Verbosity::Normal).note(&text);
            }
            Ok(Exit::Command(busy_code))
        }
        ended => Ok(ended?),
    }
}

/// What to run, and the outer run, if there is one.
struct Run {
    options: RunOptions,
    outer: Option<OuterRun>,
    /// Variables by which clients within the command find the same service.
    variables: Vec<(&'static str, String)>,
    notices: Notices,
}

/// What a run has while its command runs.
struct HeldLock {
    acquired: AcquiredLease,
    /// The outer run whose claim it shares.
    outer: Option<OuterRun>,
    nested: NestedRuns,
}

impl Run {
    async fn under_lock(mut self, mut client: Client) -> Result<Exit, ClientError> {
        let mut signals = ClientSignals::listen()?;
        let options = &self.options.claim;
        let mut outer = self.outer.take();
        let mut acquired = None;
        if let Some(run) = &outer {
            acquired = tokio::select! {
                acquired = run.re_enter(&mut client, options) => acquired?,
                signal = signals.next_stop() => return Ok(Exit::Command(128 + signal as u8)),
            };
            if acquired.is_none() {
                self.notices
                    .detail("the outer run does not hold its lock any more; taking the lock anew");
                outer = None;
            }
        }
        let acquired = match acquired {
            Some(acquired) => acquired,
            None => {
                let acquisition = Acquisition::new(&mut client, options, self.notices);
                match acquisition.acquire(&mut signals).await? {
                    AcquisitionEnd::Granted(acquired) => *acquired,
                    AcquisitionEnd::Stopped(signal) => {
                        return Ok(Exit::Command(128 + signal as u8));
                    }
                }
            }
        };
        let names = acquisition::shown(acquired.claim.names());
        let fences = fences(&acquired);
        self.notices
            .detail(&format!("holding {names} with fencing token {fences}"));
        let nested = NestedRuns::new()?;
        let held = HeldLock {
            acquired,
            outer,
            nested,
        };
        self.hold(held, client, &mut signals).await
    }

    /// The environment of the command, beside that of the runner.
    fn variables_of_command(&self, held: &HeldLock) -> io::Result<Vec<(&'static str, String)>> {
        let HeldLock {
            acquired, nested, ..
        } = held;
        let depth = held.outer.as_ref().map_or(1, |outer| outer.depth() + 1);
        let mut variables = self.variables.clone();
        variables.extend([
            (NAME_VARIABLE, acquisition::shown(acquired.claim.names())),
            (TOKEN_VARIABLE, acquired.claim.token().expose().to_string()),
            (FENCING_VARIABLE, fences(acquired)),
            (EXPIRY_VARIABLE, acquired.lease.expires_at.clone()),
            (HOLD_COUNT_VARIABLE, depth.to_string()),
            (PIPE_VARIABLE, nested.place()?),
        ]);
        Ok(variables)
    }

    /// Runs the command while the lease is renewed, and releases the lock when all of its processes are gone.
    async fn hold(
        &self,
        held: HeldLock,
        client: Client,
        signals: &mut ClientSignals,
    ) -> Result<Exit, ClientError> {
        let outer = held.outer.as_ref();
        let mut keeper = LeaseKeeper {
            client,
            claim: held.acquired.claim.clone(),
            outer_depth: outer.map(OuterRun::depth),
            lease: held.acquired.lease.clone(),
            confirmed_at: held.acquired.sent_at,
            kill_after: self.options.kill_after,
        };
        let deadline = keeper.deadline();
        let command = match self.start(&held, deadline) {
            Ok(command) => command,
            Err(error) => {
                keeper.release().await;
                return Err(error.into());
            }
        };
        let (tx, news) = mpsc::channel(16);
        let stopped = CancellationToken::new();
        let keeping = tokio::spawn(keeper.keep(tx, stopped.clone()));
        let deadline = (deadline, self.options.ignores_loss);
        let supervision = Supervision::new(command, deadline, news, signals, self.notices)?;
        let ended = supervision.until_end(held.nested).await?;
        stopped.cancel();
        let keeper = keeping.await.map_err(io::Error::other)?;
        Ok(self.finish(ended, keeper).await)
    }

    fn start(&self, held: &HeldLock, deadline: CommandDeadline) -> io::Result<GuardedCommand> {
        // So that what the command has started is still below the runner when the guard is gone.
        prctl::set_child_subreaper(true)?;
        let variables = self.variables_of_command(held)?;
        let first = Supervision::order(deadline, self.options.ignores_loss);
        let outer = held.outer.as_ref().map(OuterRun::pipe);
        GuardedCommand::start(
            &self.options.command,
            &variables,
            first,
            &held.nested,
            outer,
        )
    }

    async fn finish(&self, ended: SupervisedEnd, mut keeper: LeaseKeeper) -> Exit {
        if let Some(signal) = ended.stopped_by {
            self.notices.problem(&format!(
                "ended by {signal}; the runs within the command hold the lock, which is free when they have ended and \
                 its TTL of {:?} is over",
                keeper.lease.ttl
            ));
            return Exit::Command(128 + signal as u8);
        }
        let mut is_lost = ended.is_lost;
        match keeper.release().await {
            ReleaseOutcome::Released => self.notices.detail("released the lock"),
            ReleaseOutcome::WasLost(_) if is_lost => {}
            ReleaseOutcome::WasLost(reason) => {
                is_lost = true;
                let text = format!("the lock was lost before the command ended: {reason}");
                self.notices.problem(&text);
            }
            ReleaseOutcome::NotReleased(problem) => self.notices.note(&format!(
                "cannot release the lock, which stays taken until its TTL of {:?} is over: {problem}",
                keeper.lease.ttl
            )),
        }
        match ended.end {
            CommandEnd::NotStarted { errno } if errno != Errno::ECANCELED as i32 => {
                self.not_started(Errno::from_raw(errno))
            }
            _ if is_lost => Exit::Lost,
            CommandEnd::Exited { code, .. } => Exit::Command(code),
            CommandEnd::Killed | CommandEnd::NotStarted { .. } => Exit::Internal,
        }
    }

    fn not_started(&self, errno: Errno) -> Exit {
        let program = self.options.command[0].to_string_lossy();
        self.notices
            .problem(&format!("cannot execute {program}: {}", errno.desc()));
        #[expect(
            clippy::wildcard_enum_match_arm,
            reason = "all other reasons are about the program"
        )]
        match errno {
            Errno::ENOENT => Exit::NotFound,
            // The system has no process, memory or descriptor left.
            Errno::EAGAIN | Errno::ENOMEM | Errno::EMFILE | Errno::ENFILE => Exit::Internal,
            _ => Exit::NotExecutable,
        }
    }
}

fn fences(acquired: &AcquiredLease) -> String {
    let fences: Vec<_> = acquired
        .lease
        .fencing_tokens
        .iter()
        .map(u64::to_string)
        .collect();
    fences.join(" ")
}
