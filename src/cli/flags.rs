//! The configuration flags, generated from the keys, so that the help and the file of defaults cannot disagree; and tips for
//! arguments that clap refuses, where it cannot know what the user meant.

use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgMatches, value_parser};

use super::Environment;
use crate::config::keys::{Kind, SettingKey};
use crate::config::{Sources, key_meant_by, keys};

/// Other programs' names for our commands.
const SYNONYMS: [(&str, &str); 24] = [
    ("start", "serve"),
    ("server", "serve"),
    ("up", "serve"),
    ("exec", "run"),
    ("with", "run"),
    ("lock", "acquire"),
    ("take", "acquire"),
    ("extend", "renew"),
    ("refresh", "renew"),
    ("unlock", "release"),
    ("inspect", "get"),
    ("show", "get"),
    ("status", "get"),
    ("list", "ls"),
    ("locks", "ls"),
    ("events", "watch"),
    ("force-release", "evict"),
    ("force-unlock", "evict"),
    ("health", "healthcheck"),
    ("diagnose", "doctor"),
    ("check", "doctor"),
    ("completion", "completions"),
    ("manual", "man"),
    ("env", "config"),
];

/// `--config` and a flag for each key that is not a secret. They are many: commands should defer them until they are used.
pub(super) fn all() -> Vec<Arg> {
    let file = Arg::new("config")
        .long("config")
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .help_heading("Configuration")
        .help("A TOML file of settings [env: LEASEHOLD_CONFIG] [default: /etc/leasehold/leasehold.toml if present]");
    std::iter::once(file)
        .chain(keys::all().iter().filter(|key| has_flag(key)).map(flag))
        .collect()
}

/// The configuration sources from the command line and the environment.
pub(super) fn sources(matches: &ArgMatches, environment: Environment) -> Sources {
    let flags = keys::all()
        .iter()
        .filter(|key| has_flag(key))
        .filter_map(|key| {
            let value = matches.get_one::<String>(&key.name)?;
            Some((key.name.clone(), value.clone()))
        });
    Sources {
        file: matches.get_one::<PathBuf>("config").cloned(),
        flags: flags.collect(),
        environment,
    }
}

/// The value of a variable, unless it is empty.
pub(super) fn variable(environment: &Environment, name: &str) -> Option<String> {
    let (_, value) = environment.iter().find(|(known, _)| known == name)?;
    let value = value.to_string_lossy().into_owned();
    Some(value).filter(|value| !value.is_empty())
}

/// The help text on how to pass secrets, which have no flag.
pub(super) fn secrets_help() -> String {
    let variables: Vec<String> = keys::all()
        .iter()
        .filter(|key| !has_flag(key))
        .map(SettingKey::variable)
        .collect();
    format!(
        "Secrets have no flag, because other users of the machine can read command lines. Use a `-file` flag or an \
         environment variable: {}.",
        variables.join(", ")
    )
}

/// Secrets have no flag. `store` is the exception: its URL often contains no password, and it is the first thing to
/// set.
pub(super) fn has_flag(key: &SettingKey) -> bool {
    !key.is_secret() || key.name == "store"
}

fn flag(key: &'static SettingKey) -> Arg {
    let arg = Arg::new(key.name.as_str())
        .long(key.flag())
        .help_heading(heading(key.section()))
        .help(format!(
            "{}{}",
            first_sentence(&key.documentation),
            default_help(key)
        ))
        .long_help(format!(
            "{}\n[env: {}]{}",
            key.documentation,
            key.variable(),
            default_help(key)
        ));
    match key.kind {
        Kind::Text => arg.value_name("TEXT"),
        Kind::Duration => arg.value_name("DURATION"),
        // So that the error for -1 names the key, instead of an unknown flag `-1`.
        Kind::Integer => arg.value_name("NUMBER").allow_negative_numbers(true),
        Kind::Boolean => arg
            .value_name("true|false")
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true"),
    }
}

fn default_help(key: &SettingKey) -> String {
    if key.default.is_empty() {
        String::new()
    } else {
        format!(" [default: {}]", key.default)
    }
}

fn heading(section: &str) -> String {
    match section {
        "" => "Configuration".to_owned(),
        section => format!("Configuration, [{section}]"),
    }
}

fn first_sentence(text: &str) -> &str {
    let end = [". ", "; "].iter().filter_map(|end| text.find(end)).min();
    end.map_or(text, |end| &text[..end]).trim_end_matches('.')
}

/// Adds the flag, the command or the syntax that was probably meant.
pub(super) fn add_tips(refusal: &mut clap::Error) {
    match (refusal.kind(), invalid(refusal)) {
        (ErrorKind::UnknownArgument, Some(name)) => {
            if name == "--prefix" && is_of(refusal, "leasehold ls") {
                add_tip(refusal, "write 'leasehold ls PREFIX'".to_owned());
                return;
            }
            let meant = name.strip_prefix("--").and_then(key_meant_by);
            if let Some(key) = meant.filter(|key| has_flag(key)) {
                let flag = ContextValue::String(format!("--{}", key.flag()));
                refusal.insert(ContextKind::SuggestedArg, flag);
            }
        }
        (ErrorKind::InvalidSubcommand, Some(name)) if name == "version" => {
            add_tip(
                refusal,
                "'leasehold --version' prints the version".to_owned(),
            );
        }
        (ErrorKind::InvalidSubcommand, Some(name)) => {
            if let Some((_, meant)) = SYNONYMS.iter().find(|(synonym, _)| *synonym == name) {
                let meant = ContextValue::Strings(vec![(*meant).to_owned()]);
                refusal.insert(ContextKind::SuggestedSubcommand, meant);
            }
        }
        (ErrorKind::ArgumentConflict, _) if is_of(refusal, "leasehold watch") => {
            let tip =
                "'leasehold watch NAME' shows one lock, 'leasehold watch --prefix PREFIX' many";
            add_tip(refusal, tip.to_owned());
        }
        (ErrorKind::ArgumentConflict, Some(name)) if name == "true" || name == "false" => {
            add_tip(
                refusal,
                format!("a flag that is true or false needs '=', as in '--flag={name}'"),
            );
        }
        (ErrorKind::ValueValidation, _) => hide_password(refusal),
        (ErrorKind::MissingRequiredArgument, _) if lacks(refusal, "<COMMAND>") => {
            let tip = "'--' goes before the command, as in 'leasehold run NAME -- ./command'";
            add_tip(refusal, tip.to_owned());
        }
        _ => {}
    }
}

/// A URL may have a password, and errors end up in logs.
fn hide_password(refusal: &mut clap::Error) {
    if let Some(ContextValue::String(value)) = refusal.get(ContextKind::InvalidValue)
        && let Some((_, host)) = value.rsplit_once('@')
    {
        let shown = ContextValue::String(format!("…@{host}"));
        refusal.insert(ContextKind::InvalidValue, shown);
    }
}

fn add_tip(refusal: &mut clap::Error, tip: String) {
    let tip = ContextValue::StyledStrs(vec![tip.into()]);
    refusal.insert(ContextKind::Suggested, tip);
}

/// Whether this argument is missing.
fn lacks(refusal: &clap::Error, argument: &str) -> bool {
    match refusal.get(ContextKind::InvalidArg) {
        Some(ContextValue::Strings(missing)) => {
            missing.iter().any(|missing| missing.contains(argument))
        }
        _ => false,
    }
}

/// Whether a command refused the arguments whose usage begins like this.
fn is_of(refusal: &clap::Error, command: &str) -> bool {
    match refusal.get(ContextKind::Usage) {
        Some(ContextValue::StyledStr(usage)) => usage.to_string().contains(command),
        _ => false,
    }
}

/// The argument that was refused.
fn invalid(refusal: &clap::Error) -> Option<String> {
    let kinds = [ContextKind::InvalidSubcommand, ContextKind::InvalidArg];
    kinds.iter().find_map(|kind| match refusal.get(*kind) {
        Some(ContextValue::String(name)) => Some(name.clone()),
        _ => None,
    })
}
