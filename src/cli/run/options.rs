//! The arguments of `leasehold run`.

use std::ffi::OsString;
use std::time::Duration;

use clap::builder::ValueParser;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use nix::unistd::{User, gethostname, getuid};
use serde_json::{Map, Value, json};

use super::super::service;
use super::super::{Environment, flags};
use crate::domain::{LockName, LockNames, Owner, duration};

const EXAMPLES: &str = "\
Examples:
  leasehold run backup -- ./backup.sh                 Wait for the lock, run the script, release the lock
  leasehold run --skip-ok -n nightly -- ./report.sh   For cron on many machines: one runs it, the others succeed
  leasehold run -w 10m -t 1m deploy -- make deploy    Wait ten minutes at most; the lock is free a minute after a crash
  leasehold run --shared --limit 4 gpu -- ./train     A semaphore: at most four at once
  leasehold run acct/1 acct/2 -- ./transfer.sh        Both locks or none

The command finds LEASEHOLD_FENCING_TOKEN in its environment. Exit codes of its own: 75 the lock is busy, 76 the lock was
lost while the command ran, 69 the service cannot be reached.";

/// What to run, under which claim.
#[derive(Debug)]
pub(super) struct RunOptions {
    pub(super) names: LockNames,
    pub(super) command: Vec<OsString>,
    /// `None` waits for ever.
    pub(super) wait: Option<Duration>,
    /// The exit code if the lock is busy.
    pub(super) busy_code: u8,
    /// The fields of the claim, but for `wait` and the token.
    pub(super) fields: Map<String, Value>,
    pub(super) kill_after: Option<Duration>,
    /// Whether the command may go on without its lease.
    pub(super) ignores_loss: bool,
    pub(super) verbosity: Verbosity,
}

/// What `run` says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verbosity {
    /// Only why the command did not run or was ended.
    Quiet,
    /// Whom it waits for, on a terminal; and what the reader should know.
    Normal,
    /// Everything.
    Verbose,
}

pub(in crate::cli) fn command() -> Command {
    Command::new("run")
        .about("Run a command while holding a lock")
        .after_help(EXAMPLES)
        .arg(
            Arg::new("names")
                .value_name("NAME")
                .required(true)
                .num_args(1..)
                .value_parser(lock_name())
                .help("The lock; with several, all or none are taken"),
        )
        .arg(command_argument())
        .args(claim_arguments())
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

/// Parses the name of a lock.
pub(in crate::cli) fn lock_name() -> ValueParser {
    ValueParser::new(|text: &str| {
        LockName::parse(text.as_bytes()).map_err(|error| error.to_string())
    })
}

/// Parses a duration.
pub(in crate::cli) fn duration_value() -> ValueParser {
    ValueParser::new(|text: &str| duration::parse(text).map_err(|error| error.to_string()))
}

/// What a claim may ask for.
pub(in crate::cli) fn claim_arguments() -> [Arg; 7] {
    let duration = |name: &'static str| {
        Arg::new(name)
            .long(name.replace('_', "-"))
            .value_name("DURATION")
            .value_parser(duration_value())
    };
    let number = |name: &'static str| {
        Arg::new(name)
            .long(name)
            .value_name("NUMBER")
            .value_parser(value_parser!(u32).range(1..))
    };
    [
        duration("wait")
            .short('w')
            .conflicts_with("nonblock")
            .help("How long to wait for the lock; without it, as long as it takes"),
        duration("ttl").short('t').default_value("30s").help(
            "How long the lock stays taken if this machine fails; it is renewed at a third of that",
        ),
        Arg::new("shared")
            .long("shared")
            .short('s')
            .action(ArgAction::SetTrue)
            .help("Hold the lock together with others that ask for the same"),
        number("limit")
            .requires("shared")
            .help("With --shared: a semaphore with this many permits in all"),
        number("permits")
            .requires("limit")
            .help("With --limit: how many permits to take [default: 1]"),
        duration("min_hold")
            .help("Keep the lock taken at least this long, however soon the command ends"),
        Arg::new("owner")
            .long("owner")
            .value_name("TEXT")
            .value_parser(ValueParser::new(|text: &str| {
                Owner::new(text)
                    .map(|_| text.to_owned())
                    .map_err(|error| error.problem)
            }))
            .help("Who holds the lock, for others to read [default: user@host:pid]"),
    ]
}

fn behaviour_arguments() -> [Arg; 7] {
    let flag = |name: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name.replace('_', "-"))
            .action(ArgAction::SetTrue)
            .help(help)
    };
    [
        flag("nonblock", "Do not wait: exit with 75 if the lock is taken").short('n'),
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
            .value_parser(duration_value())
            .help("How long a command that has lost its lock may take to end after SIGTERM [default: a fifth of the TTL, at most 10s]"),
        flag("quiet", "Say only why the command did not run, or was ended").short('q'),
        flag("verbose", "Say what is done")
            .short('v')
            .conflicts_with("quiet"),
    ]
}

impl RunOptions {
    pub(super) fn parse(matches: &ArgMatches, environment: &Environment) -> Result<Self, String> {
        let names = matches.get_many::<LockName>("names");
        let names = names.into_iter().flatten().cloned().collect();
        let is_set = |name| matches.get_flag(name);
        let duration = |name| matches.get_one::<Duration>(name).copied();
        let fields = claim_fields(matches, environment);
        let kill_after = duration("kill_after");
        let ttl = duration("ttl").unwrap_or_default();
        if kill_after.is_some_and(|kill_after| kill_after > ttl / 2) {
            return Err(
                "--kill-after: use at most half of the --ttl, so that there is time to renew"
                    .to_owned(),
            );
        }
        Ok(Self {
            names: LockNames::several(names).map_err(|error| error.to_string())?,
            command: command_words(matches).collect(),
            wait: match is_set("nonblock") {
                true => Some(Duration::ZERO),
                false => duration("wait"),
            },
            busy_code: match is_set("skip_ok") {
                true => 0,
                false => *matches
                    .get_one("conflict_exit_code")
                    .expect("it has a default"),
            },
            fields,
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

/// The fields of a claim, but for `wait` and the token.
pub(in crate::cli) fn claim_fields(
    matches: &ArgMatches,
    environment: &Environment,
) -> Map<String, Value> {
    let mut fields = Map::new();
    for name in ["ttl", "min_hold"] {
        if let Some(value) = matches.get_one::<Duration>(name) {
            fields.insert(name.to_owned(), json!(duration::format(*value)));
        }
    }
    for name in ["limit", "permits"] {
        if let Some(value) = matches.get_one::<u32>(name) {
            fields.insert(name.to_owned(), json!(value));
        }
    }
    if matches.get_flag("shared") {
        fields.insert("mode".to_owned(), json!("shared"));
    }
    let owner = matches.get_one::<String>("owner").cloned();
    let owner = owner.unwrap_or_else(|| default_owner(environment));
    fields.insert("owner".to_owned(), json!(owner));
    fields
}

/// `user@host:pid`, as far as they are known.
fn default_owner(environment: &Environment) -> String {
    let user = User::from_uid(getuid())
        .ok()
        .flatten()
        .map(|user| user.name);
    let user = user.or_else(|| flags::variable(environment, "USER"));
    let user = user.unwrap_or_else(|| getuid().to_string());
    let host = gethostname().unwrap_or_default();
    let owner = format!("{user}@{}:{}", host.to_string_lossy(), std::process::id());
    // A name that the service does not take is better left out than a reason not to run.
    Owner::new(&owner).map_or_else(|_| String::new(), |_| owner)
}
