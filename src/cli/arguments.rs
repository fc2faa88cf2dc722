//! The arguments that client commands share: names of locks, and the fields of a claim.

use std::time::Duration;

use clap::builder::ValueParser;
use clap::{Arg, ArgAction, ArgMatches, value_parser};
use nix::unistd::{User, gethostname, getuid};
use serde_json::{Map, Value, json};

use super::{Environment, flags};
use crate::domain::{self, LockName, LockNames, Owner, Token};

/// What a command claims.
#[derive(Debug)]
pub(super) struct ClaimOptions {
    pub(super) names: LockNames,
    /// How long to wait; `None` for as long as it takes.
    pub(super) wait: Option<Duration>,
    /// The token of the caller's choice.
    pub(super) token: Option<Token>,
    /// The fields of the claim, but for `wait` and the token.
    pub(super) fields: Map<String, Value>,
}

/// The help of the arguments whose effect depends on the command.
#[derive(Clone, Copy)]
pub(super) struct ClaimHelp {
    pub(super) ttl: &'static str,
    pub(super) min_hold: &'static str,
    pub(super) owner: &'static str,
}

impl ClaimOptions {
    /// `process` is the process that holds the lock, for its default owner.
    pub(super) fn parse(
        matches: &ArgMatches,
        environment: &Environment,
        process: u32,
    ) -> Result<Self, String> {
        Ok(Self {
            names: names_in(matches)?,
            wait: match matches.get_flag("nonblock") {
                true => Some(Duration::ZERO),
                false => matches.get_one("wait").copied(),
            },
            token: matches.try_get_one("token").ok().flatten().copied(),
            fields: fields(matches, environment, process),
        })
    }
}

/// One or more locks.
pub(super) fn names(help: &'static str) -> Arg {
    Arg::new("names")
        .value_name("NAME")
        .required(true)
        .num_args(1..)
        .value_parser(lock_name())
        .help(help)
}

/// The locks that [`names`] gives.
pub(super) fn names_in(matches: &ArgMatches) -> Result<LockNames, String> {
    let names = matches.get_many::<LockName>("names");
    let names = names.into_iter().flatten().cloned().collect();
    LockNames::several(names).map_err(|error| error.to_string())
}

/// Parses the name of a lock.
pub(super) fn lock_name() -> ValueParser {
    ValueParser::new(|text: &str| {
        // The service's own sentence is about its paths.
        if text.is_empty() {
            return Err("it is empty; write a name like orders/42".to_owned());
        }
        LockName::parse(text.as_bytes()).map_err(|error| error.to_string())
    })
}

/// Parses a duration.
pub(super) fn duration() -> ValueParser {
    ValueParser::new(|text: &str| domain::duration::parse(text).map_err(|error| error.to_string()))
}

/// What a claim may ask for.
pub(super) fn of_claim(help: ClaimHelp) -> [Arg; 12] {
    let duration_named = |name: &'static str| {
        Arg::new(name)
            .long(name.replace('_', "-"))
            .value_name("DURATION")
            .value_parser(duration())
    };
    let number = |name: &'static str| {
        Arg::new(name)
            .long(name)
            .value_name("NUMBER")
            .value_parser(value_parser!(u32).range(1..))
    };
    [
        duration_named("wait")
            .short('w')
            .conflicts_with("nonblock")
            .help("How long to wait for the lock; without it, as long as it takes"),
        Arg::new("nonblock")
            .long("nonblock")
            .short('n')
            .action(ArgAction::SetTrue)
            .help("Do not wait: exit with 75 if the lock is taken"),
        duration_named("ttl")
            .short('t')
            .default_value("30s")
            .help(help.ttl),
        Arg::new("shared")
            .long("shared")
            .short('s')
            .action(ArgAction::SetTrue)
            .help("Hold the lock together with other shared claims"),
        number("limit")
            .requires("shared")
            .help("With --shared: a semaphore with this many permits in all"),
        number("permits")
            .requires("limit")
            .help("With --limit: how many permits to take [default: 1]"),
        duration_named("min_hold").help(help.min_hold),
        duration_named("max_hold").help("The longest time to hold the lock, across renewals"),
        duration_named("lock_delay").help(
            "Keep the lock closed this long after its lease expired or was evicted; at most 60s",
        ),
        Arg::new("no_fair")
            .long("no-fair")
            .action(ArgAction::SetTrue)
            .help("Take a free lock even if others wait for it"),
        Arg::new("metadata")
            .long("metadata")
            .value_name("JSON")
            .value_parser(ValueParser::new(json_object))
            .help("More about the holder for others to read, as a JSON object"),
        Arg::new("owner")
            .long("owner")
            .value_name("TEXT")
            .value_parser(ValueParser::new(|text: &str| {
                Owner::new(text)
                    .map(|_| text.to_owned())
                    .map_err(|error| error.problem)
            }))
            .help(help.owner),
    ]
}

fn json_object(text: &str) -> Result<Value, String> {
    match serde_json::from_str(text) {
        Ok(object @ Value::Object(_)) => Ok(object),
        Ok(_) | Err(_) => Err("this is no JSON object; write one like {\"job\": 7}".to_owned()),
    }
}

/// The fields of a claim, but for `wait` and the token.
fn fields(matches: &ArgMatches, environment: &Environment, process: u32) -> Map<String, Value> {
    let mut fields = Map::new();
    for name in ["ttl", "min_hold", "max_hold", "lock_delay"] {
        if let Some(value) = matches.get_one::<Duration>(name) {
            fields.insert(name.to_owned(), json!(domain::duration::format(*value)));
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
    if matches.get_flag("no_fair") {
        fields.insert("fair".to_owned(), json!(false));
    }
    if let Some(metadata) = matches.get_one::<Value>("metadata") {
        fields.insert("metadata".to_owned(), metadata.clone());
    }
    let owner = matches.get_one::<String>("owner").cloned();
    let owner = owner.unwrap_or_else(|| default_owner(environment, process));
    fields.insert("owner".to_owned(), json!(owner));
    fields
}

/// `user@host:pid`, as far as they are known.
fn default_owner(environment: &Environment, process: u32) -> String {
    let user = User::from_uid(getuid())
        .ok()
        .flatten()
        .map(|user| user.name);
    let user = user.or_else(|| flags::variable(environment, "USER"));
    let user = user.unwrap_or_else(|| getuid().to_string());
    let host = gethostname().unwrap_or_default();
    let owner = format!("{user}@{}:{process}", host.to_string_lossy());
    // A name that the service does not take is better left out than a reason not to run.
    Owner::new(&owner).map_or_else(|_| String::new(), |_| owner)
}
