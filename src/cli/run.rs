//! `leasehold run`: runs a command while holding a lock.
//!
//! Three processes: the runner, which the user started, acquires, renews and releases; its child, the [`guard`], starts
//! the command and ends it when the lease may run out. The files in the order of events: `options`, `acquire`,
//! `guarded` (the runner's end of the guard), `keeper` (renews), `supervise` (signals, terminal, loss).

mod acquire;
mod boottime;
pub(super) mod guard;
mod guarded;
mod keeper;
mod messages;
pub(super) mod options;
mod orders;
mod processes;
mod say;
mod signals;
mod supervise;
mod terminal;

use clap::ArgMatches;
use nix::errno::Errno;
use nix::sys::prctl;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::service::{self, ClientError};
use super::{CliError, Environment, Exit, flags};
use crate::client::{Client, ClientClaim};
use crate::domain::{LockName, LockNames, Token};
use acquire::{AcquiredLease, Acquisition};
use guarded::GuardedCommand;
use keeper::{LeaseKeeper, ReleaseOutcome};
use messages::Order;
use options::RunOptions;
use say::Say;
use signals::RunSignals;
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
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(ClientError::System)?;
    let run = Run {
        claimed: NestedClaim::of(&options.names, environment, &client)?,
        say: Say::new(options.verbosity),
        options,
        variables,
    };
    let busy_code = run.options.busy_code;
    match runtime.block_on(run.under_lock(client)) {
        // Not an error of this command: its caller chose the code.
        Err(ClientError::Busy(text)) => {
            if busy_code != 0 {
                Say::new(options::Verbosity::Normal).note(&text);
            }
            Ok(Exit::Command(busy_code))
        }
        ended => Ok(ended?),
    }
}

/// What to run, and under which claim.
struct Run {
    options: RunOptions,
    claimed: NestedClaim,
    /// By which a client that the command starts finds the same service.
    variables: Vec<(&'static str, String)>,
    say: Say,
}

/// The claim of a run: that of an outer run which holds the lock already, or a new one.
struct NestedClaim {
    claim: ClientClaim,
    /// The depth at which an outer run holds.
    outer_depth: Option<u16>,
}

impl NestedClaim {
    /// A run within the command of another run of the same lock would wait for itself. It re-enters instead.
    fn of(
        names: &LockNames,
        environment: &Environment,
        client: &Client,
    ) -> Result<Self, ClientError> {
        let new = Self {
            claim: ClientClaim::new(names.clone(), Token::random()),
            outer_depth: None,
        };
        let variable = |name| flags::variable(environment, name);
        let is_here = variable("LEASEHOLD_URL").is_some_and(|url| url == client.url().to_string());
        let outer = variable(NAME_VARIABLE).map(|names| {
            let names = names
                .split(' ')
                .map(|name| LockName::parse(name.as_bytes()));
            LockNames::several(names.collect::<Result<_, _>>().unwrap_or_default())
        });
        let token = variable(TOKEN_VARIABLE).map(|token| Token::parse(&token));
        let (true, Some(Ok(outer)), Some(Ok(token))) = (is_here, outer, token) else {
            return Ok(new);
        };
        let held = names.iter().filter(|name| outer.contains(name)).count();
        if held == 0 {
            return Ok(new);
        }
        if held < names.len() {
            return Err(ClientError::Misused(
                "an outer `leasehold run` holds some of these locks; take all of them there, because waiting for one \
                 while holding another can wait for ever"
                    .to_owned(),
            ));
        }
        let depth = variable(HOLD_COUNT_VARIABLE).and_then(|depth| depth.parse().ok());
        Ok(Self {
            claim: ClientClaim::new(outer, token),
            outer_depth: Some(depth.unwrap_or(1)),
        })
    }

    fn depth(&self) -> u16 {
        self.outer_depth.map_or(1, |depth| depth.saturating_add(1))
    }
}

impl Run {
    async fn under_lock(self, mut client: Client) -> Result<Exit, ClientError> {
        let mut signals = RunSignals::listen()?;
        let claim = &self.claimed.claim;
        let hold_count = self.claimed.outer_depth.map(|_| self.claimed.depth());
        let acquisition = Acquisition::new(&mut client, claim, &self.options, hold_count, self.say);
        let acquired = tokio::select! {
            acquired = acquisition.acquire() => acquired?,
            signal = signals.next_stop() => {
                if hold_count.is_none() {
                    acquire::leave(&mut client, claim).await;
                }
                return Ok(Exit::Command(128 + signal as u8));
            }
        };
        let AcquiredLease {
            lease,
            sent_at,
            is_reentry,
        } = acquired;
        let fences: Vec<_> = lease.fencing_tokens.iter().map(u64::to_string).collect();
        let fences = fences.join(" ");
        self.say.detail(&format!(
            "holding {} with fencing token {fences}",
            acquire::shown(claim)
        ));
        let variables = self.variables_of_command(fences, &lease.expires_at);
        let keeper = LeaseKeeper {
            client,
            claim: claim.clone(),
            outer_depth: self.claimed.outer_depth.filter(|_| is_reentry),
            lease,
            confirmed_at: sent_at,
            kill_after: self.options.kill_after,
        };
        self.hold(keeper, &variables, &mut signals).await
    }

    /// The environment of the command, beside that of the runner.
    fn variables_of_command(
        &self,
        fences: String,
        expires_at: &str,
    ) -> Vec<(&'static str, String)> {
        let claim = &self.claimed.claim;
        let mut variables = self.variables.clone();
        variables.extend([
            (NAME_VARIABLE, acquire::shown(claim)),
            (TOKEN_VARIABLE, claim.token().expose().to_string()),
            (FENCING_VARIABLE, fences),
            (EXPIRY_VARIABLE, expires_at.to_owned()),
            (HOLD_COUNT_VARIABLE, self.claimed.depth().to_string()),
        ]);
        variables
    }

    /// Runs the command while the lease is kept, and releases the lock when all of its processes are gone.
    async fn hold(
        &self,
        mut keeper: LeaseKeeper,
        variables: &[(&'static str, String)],
        signals: &mut RunSignals,
    ) -> Result<Exit, ClientError> {
        // So that what the command has started is still below the runner when the guard is gone.
        prctl::set_child_subreaper(true).map_err(std::io::Error::from)?;
        let deadline = (!self.options.ignores_loss).then(|| keeper.deadline());
        let first = deadline.map(Order::Until);
        let command = match GuardedCommand::start(&self.options.command, variables, first) {
            Ok(command) => command,
            Err(error) => {
                keeper.release().await;
                return Err(error.into());
            }
        };
        let (tx, news) = mpsc::channel(16);
        let stopped = CancellationToken::new();
        let keeping = tokio::spawn(keeper.keep(tx, stopped.clone()));
        let supervision = Supervision::new(command, deadline, news, signals, self.say)?;
        let ended = supervision.until_end().await?;
        stopped.cancel();
        let keeper = keeping.await.map_err(std::io::Error::other)?;
        Ok(self.finish(ended, keeper).await)
    }

    async fn finish(&self, ended: SupervisedEnd, mut keeper: LeaseKeeper) -> Exit {
        let mut is_lost = ended.is_lost;
        match keeper.release().await {
            ReleaseOutcome::Released => self.say.detail("released the lock"),
            ReleaseOutcome::WasLost(_) if is_lost => {}
            ReleaseOutcome::WasLost(reason) => {
                is_lost = true;
                let text = format!("the lock was lost before the command ended: {reason}");
                self.say.problem(&text);
            }
            ReleaseOutcome::NotReleased(problem) => self.say.note(&format!(
                "cannot release the lock, which stays taken until its TTL of {:?} is over: {problem}",
                keeper.lease.ttl
            )),
        }
        match ended.end {
            CommandEnd::NotStarted { errno } => self.not_started(Errno::from_raw(errno)),
            CommandEnd::Exited { .. } | CommandEnd::Killed if is_lost => Exit::Lost,
            CommandEnd::Exited { code, .. } => Exit::Command(code),
            CommandEnd::Killed => Exit::Internal,
        }
    }

    fn not_started(&self, errno: Errno) -> Exit {
        let program = self.options.command[0].to_string_lossy();
        self.say
            .problem(&format!("cannot execute {program}: {}", errno.desc()));
        match errno == Errno::ENOENT {
            true => Exit::NotFound,
            false => Exit::NotExecutable,
        }
    }
}
