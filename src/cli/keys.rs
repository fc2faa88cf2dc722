//! `leasehold keys`: makes keys and their hashes, and shows and checks a keys file. No command takes a key as an argument,
//! because other users see the arguments of a process.

use std::io::{self, Read as _};
use std::path::PathBuf;

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches, Command, value_parser};

use super::notices::{Notices, Verbosity};
use super::output::{self, Cell, TextTable};
use super::{Environment, Exit, arguments, flags};
use crate::config::{
    ADMIN, API_KEY_CHARS_MAX, Config, ConfigError, KeyHash, KeysFile, PrincipalEntry, Secret,
    Sources, check_api_key,
};
use crate::domain::{LockName, Verb};

/// The file of the configuration, which the commands check if no other is named.
const FILE_VARIABLE: &str = "LEASEHOLD_AUTH_KEYS_FILE";
/// How a key begins, so that people and scanners for leaked secrets recognize one.
const KEY_PREFIX: &str = "lk_";
/// As many random bytes as a SHA-256 has.
const KEY_BYTES: usize = 32;

const EXAMPLES: &str = "\
Examples:
  leasehold keys new > billing.key
  leasehold keys hash billing.key
  leasehold keys check keys.toml
  leasehold keys check keys.toml --principal billing --verb acquire --name orders/42";

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub(super) enum KeysError {
    #[error(transparent)]
    File(#[from] ConfigError),
    #[error("{}: {problem}", .path.display())]
    Quota { path: PathBuf, problem: String },
    #[error("{0}")]
    Key(String),
    #[error("no keys file is named; give one, or set {FILE_VARIABLE}")]
    NoFile,
    #[error("the keys file has no principal {0}")]
    NoPrincipal(String),
    #[error("cannot print a key, so none was made: {0}")]
    Unwritable(io::Error),
    #[error("the system has no random numbers")]
    NoRandomness,
}

impl KeysError {
    pub(super) fn exit(&self) -> Exit {
        match self {
            Self::File(_) | Self::Quota { .. } | Self::NoPrincipal(_) | Self::Key(_) => {
                Exit::Misconfigured
            }
            Self::NoFile => Exit::Misused,
            Self::NoRandomness | Self::Unwritable(_) => Exit::Internal,
        }
    }
}

pub(super) fn command() -> Command {
    let file = |help: &'static str| {
        Arg::new("file")
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
            .help(help)
    };
    let keys_file = || file("The keys file [env: LEASEHOLD_AUTH_KEYS_FILE]");
    let of_question = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    let principal = of_question("principal", "NAME", "Check whether this principal may …");
    let verb = of_question("verb", "VERB", "… do this …")
        .requires("principal")
        .value_parser(PossibleValuesParser::new(
            Verb::ALL.map(Verb::as_str).into_iter().chain([ADMIN]),
        ));
    let name = of_question("name", "NAME", "… with this lock")
        .requires("verb")
        .value_parser(arguments::lock_name());
    Command::new("keys")
        .about("Make keys, and show or check a keys file")
        .after_help(EXAMPLES)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(Command::new("new").about("Print a new key, and its hash on standard error"))
        .subcommand(
            Command::new("hash")
                .about("Print the hash of a key, which is what the keys file has")
                .arg(file("The file of the key; standard input without it")),
        )
        .subcommand(
            Command::new("list")
                .about("Print the principals of a keys file, with their rules")
                .arg(keys_file()),
        )
        .subcommand(
            Command::new("check")
                .about("Check a keys file, or what a principal may: exit 0, or 78 with the reason")
                .arg(keys_file())
                .arg(principal.requires("verb"))
                .arg(verb)
                .arg(name),
        )
}

/// # Errors
/// A file or a key cannot be used.
pub(super) fn run(matches: &ArgMatches, environment: Environment) -> Result<Exit, KeysError> {
    let (command, matches) = matches.subcommand().expect("clap requires a subcommand");
    match command {
        "new" => new(),
        "hash" => {
            let key = key_in(matches)?;
            check_api_key(&key).map_err(|problem| KeysError::Key(format!("the key {problem}")))?;
            let hash = KeyHash::of(key.expose().as_bytes());
            Ok(output::show(&format!("{hash}\n")))
        }
        "list" => Ok(list(&file_in(matches, &environment)?)),
        _ => {
            let file = file_in(matches, &environment)?;
            check_quotas(&file, environment)?;
            check(matches, &file)
        }
    }
}

fn new() -> Result<Exit, KeysError> {
    output::is_writable().map_err(KeysError::Unwritable)?;
    if output::may_be_closed() {
        let closed = "it is closed, or the null device, so the key would be lost";
        return Err(KeysError::Unwritable(io::Error::other(closed)));
    }
    let mut bytes = [0; KEY_BYTES];
    let provider = rustls::crypto::ring::default_provider();
    let filled = provider.secure_random.fill(&mut bytes);
    filled.map_err(|_| KeysError::NoRandomness)?;
    let key = format!("{KEY_PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(bytes));
    let shown = output::show(&format!("{key}\n"));
    // The hash of a key that nobody has is of no use in the keys file.
    if shown == Exit::Done {
        let hash = KeyHash::of(key.as_bytes());
        Notices::new(Verbosity::Normal).note(&format!("for the keys file: \"{hash}\""));
    }
    Ok(shown)
}

/// The key in a file, or in standard input.
fn key_in(matches: &ArgMatches) -> Result<Secret, KeysError> {
    if let Some(file) = matches.get_one::<PathBuf>("file") {
        return Secret::from_file(file).map_err(KeysError::Key);
    }
    let mut text = String::new();
    let mut bounded = io::stdin().take(API_KEY_CHARS_MAX as u64 + 2);
    bounded
        .read_to_string(&mut text)
        .map_err(|error| KeysError::Key(format!("standard input: cannot be read: {error}")))?;
    match text.trim_end_matches(['\r', '\n']) {
        "" => Err(KeysError::Key("standard input: is empty".to_owned())),
        key => Ok(Secret::new(key)),
    }
}

fn file_in(matches: &ArgMatches, environment: &Environment) -> Result<KeysFile, KeysError> {
    let named = matches.get_one::<PathBuf>("file").cloned();
    let configured = || flags::variable(environment, FILE_VARIABLE).map(PathBuf::from);
    let path = named.or_else(configured).ok_or(KeysError::NoFile)?;
    Ok(KeysFile::read(&path)?)
}

fn list(file: &KeysFile) -> Exit {
    let rows = file.principals.iter().flat_map(rows);
    let columns = ["PRINCIPAL", "KEYS", "PREFIX", "VERBS"];
    output::show(&TextTable::new(&columns).text_of(rows.collect()))
}

/// A row for each rule, the first of which shows whose they are.
fn rows(entry: &PrincipalEntry) -> Vec<Vec<Cell>> {
    let keys = entry.keys.iter().map(KeyHash::beginning);
    let certificates = entry.certificates.iter().map(ToString::to_string);
    let subjects = entry.subjects.iter().cloned();
    let keys: Vec<_> = keys.chain(certificates).chain(subjects).collect();
    let mut head = [entry.name.clone(), keys.join(",")];
    let mut rows = Vec::new();
    for rule in entry.rights.rules() {
        let prefix = match rule.prefix.as_str() {
            "" => "(every lock)",
            prefix => prefix,
        };
        let mut row: Vec<_> = head.iter().map(Cell::from).collect();
        row.extend([Cell::from(prefix), Cell::from(&rule.verbs)]);
        rows.push(row);
        head = [String::new(), String::new()];
    }
    if rows.is_empty() {
        let nothing = ["", "(no rule: may do nothing)"].map(Cell::from);
        rows.push(head.iter().map(Cell::from).chain(nothing).collect());
    }
    rows
}

/// As the service does with the same environment and file of settings.
fn check_quotas(file: &KeysFile, environment: Environment) -> Result<(), KeysError> {
    let sources = Sources {
        environment,
        ..Sources::default()
    };
    let bounds = Config::lease_bounds(&sources)?;
    file.check_quotas(&bounds)
        .map_err(|problem| KeysError::Quota {
            path: file.path.clone(),
            problem,
        })
}

fn check(matches: &ArgMatches, file: &KeysFile) -> Result<Exit, KeysError> {
    let word = |name| matches.get_one::<String>(name);
    let Some((name, verb)) = word("principal").zip(word("verb")) else {
        let count = file.principals.len();
        return Ok(output::show(&format!(
            "{}: is valid; principals: {count}\n",
            file.path.display()
        )));
    };
    let mut principals = file.principals.iter();
    let principal = principals.find(|principal| principal.name == *name);
    let rights = &principal
        .ok_or_else(|| KeysError::NoPrincipal(name.clone()))?
        .rights;
    let lock = matches.get_one::<LockName>("name");
    let may = verbs_of(verb).all(|verb| match lock {
        Some(lock) => rights.permit(verb, lock),
        None => rights.permit_somewhere(verb),
    });
    let on = match lock {
        Some(lock) => format!(" on {lock}"),
        None if may && !verbs_of(verb).all(|verb| rights.permit_everywhere(verb)) => {
            " on some locks".to_owned()
        }
        None => String::new(),
    };
    let (answer, exit) = match may {
        true => ("may", Exit::Done),
        false => ("may not", Exit::Misconfigured),
    };
    let shown = output::show(&format!("{name} {answer} {verb}{on}\n"));
    Ok(if shown == Exit::Done { exit } else { shown })
}

/// The verbs that a word of the keys file stands for.
fn verbs_of(word: &str) -> impl Iterator<Item = Verb> {
    let is_meant = move |verb: &Verb| word == ADMIN || verb.as_str() == word;
    Verb::ALL.into_iter().filter(is_meant)
}
