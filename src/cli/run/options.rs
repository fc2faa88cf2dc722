//! The arguments of `leasehold run`.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use super::super::arguments::{self, ClaimHelp, ClaimOptions};
use super::super::notices::Verbosity;
use super::super::{Environment, service};

const EXAMPLES: &str = "\
Examples:
  Wait for the lock, run the script, release the lock:
    leasehold run backup -- ./backup.sh
  For cron on many machines; one runs it, the others succeed:
    leasehold run --skip-ok -n nightly -- ./report.sh
  Wait ten minutes at most; after a crash the lock is free within a minute:
    leasehold run -w 10m -t 1m deploy -- make deploy
  A semaphore, at most four at once:
    leasehold run --shared --limit 4 gpu -- ./train
  Both locks or none:
    leasehold run acct/1 acct/2 -- ./transfer.sh

The command finds LEASEHOLD_FENCING_TOKEN in its environment.

The exit code is that of the command, or one of these:
  64   the arguments are wrong        69   the service cannot be reached
  70   the system refused something   75   the lock is taken
  76   the lock was lost              78   the configuration or the key is wrong
  126  the command cannot be executed
  127  the command was not found";

const FOR_RUN: ClaimHelp = ClaimHelp {
    ttl: "How long the lock stays taken if this machine fails; it is renewed at a third of that",
    min_hold: "Keep the lock taken at least this long, however soon the command ends",
    owner: "Who holds the lock, for others to read [default: user@host:pid]",
};

/// What to run, under which claim.
#[derive(Debug)]
pub(super) struct RunOptions {
    pub(super) claim: ClaimOptions,
    pub(super) command: Vec<OsString>,
    /// The exit code if the lock is busy.
    pub(super) busy_code: u8,
    pub(super) kill_after: Option<Duration>,
    /// Whether the command may go on without its lease.
    pub(super) ignores_loss: bool,
    pub(super) verbosity: Verbosity,
}

pub(in crate::cli) fn command() -> Command {
    Command::new("run")
        .about("Run a command while holding a lock")
        .after_help(EXAMPLES)
        .arg(arguments::names(
            "The lock; with several, all or none are taken",
        ))
        .arg(command_argument())
        .args(arguments::of_claim(FOR_RUN))
        .args(behaviour_arguments())
        .args(service::arguments())
}

/// The words after `--`.
pub(super) fn command_argument() -> Arg {
    Arg::new("command")
        .value_name("COMMAND")
        .required(true)
        .num_args(1..)
        .last(true)
        .value_parser(value_parser!(OsString))
        .help("The command and its arguments, after --")
}

pub(super) fn command_words(matches: &ArgMatches) -> impl Iterator<Item = OsString> {
    let words = matches.get_many::<OsString>("command");
    words.into_iter().flatten().cloned()
}

fn behaviour_arguments() -> [Arg; 6] {
    let flag = |name: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name.replace('_', "-"))
            .action(ArgAction::SetTrue)
            .help(help)
    };
    [
        Arg::new("conflict_exit_code")
            .long("conflict-exit-code")
            .short('E')
            .value_name("CODE")
            .default_value("75")
            .value_parser(value_parser!(u8))
            .help("The exit code if the lock is taken or the wait is over"),
        flag("skip_ok", "Exit with 0 if the lock is taken or the wait is over")
            .conflicts_with("conflict_exit_code"),
        Arg::new("on_lost")
            .long("on-lost")
            .value_name("ACTION")
            .default_value("kill")
            .value_parser(["kill", "ignore"])
            .help("What to do with the command when the lock is lost"),
        Arg::new("kill_after")
            .long("kill-after")
            .value_name("DURATION")
            .value_parser(arguments::duration())
            .help("How long a command that has lost its lock may take to end after SIGTERM [default: a fifth of the TTL, at most 10s]"),
        flag("quiet", "Print only why the command did not run, or was ended").short('q'),
        flag("verbose", "Print every step")
            .short('v')
            .conflicts_with("quiet"),
    ]
}

impl RunOptions {
    pub(super) fn parse(matches: &ArgMatches, environment: &Environment) -> Result<Self, String> {
        let is_set = |name| matches.get_flag(name);
        let duration = |name| matches.get_one::<Duration>(name).copied();
        let kill_after = duration("kill_after");
        let ttl = duration("ttl").unwrap_or_default();
        if kill_after.is_some_and(|kill_after| kill_after > ttl / 2) {
            return Err(
                "--kill-after: use at most half of the --ttl, so that there is time to renew"
                    .to_owned(),
            );
        }
        Ok(Self {
            claim: ClaimOptions::parse(matches, environment, std::process::id())?,
            command: command_words(matches).collect(),
            busy_code: match is_set("skip_ok") {
                true => 0,
                false => *matches
                    .get_one("conflict_exit_code")
                    .expect("it has a default"),
            },
            kill_after,
            ignores_loss: matches
                .get_one::<String>("on_lost")
                .is_some_and(|on_lost| on_lost == "ignore"),
            verbosity: match (is_set("quiet"), is_set("verbose")) {
                (true, _) => Verbosity::Quiet,
                (_, true) => Verbosity::Verbose,
                (false, false) => Verbosity::Normal,
            },
        })
    }
}
