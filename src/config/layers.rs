//! The four layers in which a key can be set. Each is turned into settings that record their origin.
//! Nothing here knows what the values mean.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{ConfigError, Origin};
use super::keys::{self, Kind, SettingKey};
use super::secret::Secret;
use super::settings::Settings;
use super::suggestion::{did_you_mean, nearest_key};
use super::traces;

const PREFIX: &str = "LEASEHOLD_";
const FILE_VARIABLE: &str = "LEASEHOLD_CONFIG";
/// Variables of clients and their commands. They may be in the environment of a server, which ignores them.
const OF_CLIENTS: [&str; 10] = [
    "LEASEHOLD_URL",
    "LEASEHOLD_CA_FILE",
    "LEASEHOLD_CLIENT_CERT_FILE",
    "LEASEHOLD_CLIENT_KEY_FILE",
    "LEASEHOLD_LOCK_NAME",
    "LEASEHOLD_LOCK_TOKEN",
    "LEASEHOLD_FENCING_TOKEN",
    "LEASEHOLD_EXPIRES_AT",
    "LEASEHOLD_HOLD_COUNT",
    "LEASEHOLD_RUN_PIPE",
];
/// Variables by which other programs find a Redis, their port or a collector of traces, and the keys that they would set.
const OF_OTHERS: [(&str, &str); 4] = [
    ("REDIS_URL", "store"),
    ("PORT", "listen"),
    ("OTEL_EXPORTER_OTLP_ENDPOINT", traces::ENDPOINT),
    ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", traces::ENDPOINT),
];
const FILE_BY_CONVENTION: &str = "/etc/leasehold/leasehold.toml";

/// Refuses a variable that begins with `LEASEHOLD_` and that no command reads.
///
/// # Errors
/// The first such variable, with the name that was probably meant.
pub fn check_variables(variables: &[(OsString, OsString)]) -> Result<(), ConfigError> {
    environment(variables).map(|_| ())
}

/// The command line and environment of the process, passed in so that nothing below reads them from the process.
#[derive(Default)]
pub struct Sources {
    /// The file named on the command line.
    pub file: Option<PathBuf>,
    /// Dotted keys and values from the command line.
    pub flags: Vec<(String, String)>,
    /// The environment; only `LEASEHOLD_*` is read.
    pub environment: Vec<(OsString, OsString)>,
}

/// A variable that a user may have set in the belief that it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadVariable {
    /// Its name.
    pub name: &'static str,
    /// The variable to set instead.
    pub meant: String,
}

/// One key as set in one layer. It has no `Debug`, because the value may be a secret.
#[derive(Clone)]
pub(super) struct Setting {
    pub(super) key: &'static SettingKey,
    pub(super) value: String,
    pub(super) origin: Origin,
}

/// All settings of all layers, the weakest layer first.
pub(super) fn gather(sources: &Sources) -> Result<Vec<Setting>, ConfigError> {
    let environment = environment(&sources.environment)?;
    let mut settings: Vec<Setting> = keys::all()
        .iter()
        .map(|key| Setting {
            key,
            value: key.default.clone(),
            origin: Origin::Default,
        })
        .collect();
    if let Some(path) = file_path(sources) {
        let text = std::fs::read_to_string(&path)
            .map_err(|error| ConfigError::unreadable(&path, &error))?;
        settings.extend(file(&path, &text)?);
    }
    settings.extend(environment);
    settings.extend(flags(&sources.flags));
    Ok(settings)
}

/// The variables of other programs that are set, whose keys are not.
pub(super) fn unread(sources: &Sources, settings: &Settings) -> Vec<UnreadVariable> {
    let is_set = |name: &str| sources.environment.iter().any(|(known, _)| known == name);
    let unread = OF_OTHERS
        .into_iter()
        .filter(|(name, key)| is_set(name) && *settings.origin(key) == Origin::Default);
    let unread = unread.filter_map(|(name, key)| {
        let meant = keys::find(key)?.variable();
        Some(UnreadVariable { name, meant })
    });
    unread.collect()
}

fn file_path(sources: &Sources) -> Option<PathBuf> {
    let by_variable = || {
        let (_, path) = sources
            .environment
            .iter()
            .find(|(name, _)| name == FILE_VARIABLE)?;
        (!path.is_empty()).then(|| PathBuf::from(path))
    };
    let by_convention = || {
        let path = PathBuf::from(FILE_BY_CONVENTION);
        path.exists().then_some(path)
    };
    sources
        .file
        .clone()
        .or_else(by_variable)
        .or_else(by_convention)
}

fn flags(flags: &[(String, String)]) -> impl Iterator<Item = Setting> {
    flags.iter().map(|(name, value)| {
        let key = keys::find(name).expect("the flags were made from the keys");
        Setting {
            key,
            value: value.clone(),
            origin: Origin::Flag(format!("--{}", key.flag())),
        }
    })
}

fn environment(variables: &[(OsString, OsString)]) -> Result<Vec<Setting>, ConfigError> {
    let mut settings = Vec::new();
    for (name, value) in variables {
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else {
            continue;
        };
        let value = value.to_string_lossy();
        if name == FILE_VARIABLE || OF_CLIENTS.contains(&name) || is_service_link(name, &value) {
            continue;
        }
        let origin = Origin::Environment(name.to_owned());
        let Some(key) = keys::all().iter().find(|key| key.variable() == name) else {
            let nearest = nearest_variable(&name[PREFIX.len()..]);
            return Err(ConfigError::Unknown {
                origin,
                what: "variable",
                name: name.to_owned(),
                nearest,
            });
        };
        let value = match key.is_secret() {
            true => Secret::from_variable(value.into_owned())
                .expose()
                .to_owned(),
            false => value.into_owned(),
        };
        settings.push(Setting { key, value, origin });
    }
    Ok(settings)
}

/// The variable that was probably meant. The names are compared without the prefix: since all share it, it would make
/// every name look similar.
fn nearest_variable(name: &str) -> Option<String> {
    let others = OF_CLIENTS.into_iter().chain([FILE_VARIABLE]);
    let others = others.filter_map(|other| other.strip_prefix(PREFIX));
    let others: Vec<_> = others.map(str::to_lowercase).collect();
    match did_you_mean(name, others.iter().map(String::as_str)) {
        Some(other) => Some(format!("{PREFIX}{}", other.to_uppercase())),
        None => nearest_key(name).map(SettingKey::variable),
    }
}

/// Whether Kubernetes generated this variable: for a Service called `leasehold` or `leasehold-…`, it sets
/// `LEASEHOLD_SERVICE_HOST`, `LEASEHOLD_PORT=tcp://…` and more in every pod, which users neither wrote nor can correct.
fn is_service_link(name: &str, value: &str) -> bool {
    name.contains("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || name.contains("_PORT_")
        || (name.ends_with("_PORT") && value.contains("://"))
}

fn file(path: &Path, text: &str) -> Result<Vec<Setting>, ConfigError> {
    let origin = |offset: usize| Origin::File {
        path: path.to_owned(),
        line: line_of(text, offset),
    };
    let table = DeTable::parse(text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        let reason = match without_quotes(text, offset) {
            // The parser's guess at what it is does not help.
            Some(quoted) => format!("a text needs quotes: {quoted}"),
            None => error.message().lines().collect::<Vec<_>>().join(", "),
        };
        ConfigError::Syntax {
            origin: origin(offset),
            reason,
        }
    })?;
    let mut settings = Vec::new();
    collect(table.get_ref(), "", &origin, &mut settings)?;
    Ok(settings)
}

/// The corrected line at this offset, if it sets a text key to a value without quotes.
fn without_quotes(text: &str, offset: usize) -> Option<String> {
    let line = text.lines().nth(line_of(text, offset) - 1)?;
    let (name, value) = line.split_once('=')?;
    let (name, value) = (name.trim(), value.split('#').next()?.trim());
    let is_of_key = |key: &&SettingKey| key.name.rsplit('.').next() == Some(name);
    let key = keys::all().iter().find(is_of_key)?;
    let is_text = matches!(key.kind, Kind::Text | Kind::Duration);
    let is_plain = !value.is_empty() && !value.contains(['"', '\'', '[', '{']);
    // Never echo a secret.
    (is_text && is_plain && !key.is_secret()).then(|| format!("{name} = \"{value}\""))
}

/// Walks one table; `prefix` is empty or the name of the section with its dot.
fn collect(
    table: &DeTable<'_>,
    prefix: &str,
    origin: &dyn Fn(usize) -> Origin,
    settings: &mut Vec<Setting>,
) -> Result<(), ConfigError> {
    for (name, value) in table {
        let dotted = format!("{prefix}{}", name.get_ref());
        let origin_here = origin(name.span().start);
        if let Some(section) = value.get_ref().as_table().filter(|_| prefix.is_empty()) {
            let Some(_) = keys::all().iter().find(|key| key.section() == dotted) else {
                let sections = keys::all().iter().map(SettingKey::section);
                let nearest = did_you_mean(&dotted, sections.filter(|section| !section.is_empty()));
                let nearest = nearest.map(str::to_owned);
                return Err(ConfigError::Unknown {
                    origin: origin_here,
                    what: "section",
                    name: dotted,
                    nearest,
                });
            };
            collect(section, &format!("{dotted}."), origin, settings)?;
            continue;
        }
        let Some(key) = keys::find(&dotted) else {
            let nearest = nearest_key(&dotted).map(|key| key.name.clone());
            return Err(ConfigError::Unknown {
                origin: origin_here,
                what: "key",
                name: dotted,
                nearest,
            });
        };
        let value = as_text(key, value)
            .map_err(|problem| ConfigError::invalid(&origin_here, &key.name, problem))?;
        settings.push(Setting {
            key,
            value,
            origin: origin_here,
        });
    }
    Ok(())
}

/// The value as it would be written on the command line, so that one parser serves all layers.
fn as_text(key: &SettingKey, value: &Spanned<DeValue<'_>>) -> Result<String, String> {
    let value = value.get_ref();
    match (key.kind, value) {
        (Kind::Text | Kind::Duration, DeValue::String(text)) => Ok(text.to_string()),
        (Kind::Duration, DeValue::Integer(number)) => Err(format!(
            "{number} has no unit; write \"{number}s\" or \"{number}ms\""
        )),
        (Kind::Text, DeValue::Array(_)) => Err(
            "this is an array; write one text with commas between its parts, like \"a, b\""
                .to_owned(),
        ),
        (Kind::Integer, DeValue::Integer(number)) => Ok(number.to_string()),
        (Kind::Boolean, DeValue::Boolean(boolean)) => Ok(boolean.to_string()),
        (kind, _) => Err(format!(
            "this is {}; write {}",
            article(value.type_str()),
            kind.example(&key.default)
        )),
    }
}

fn article(type_name: &str) -> String {
    let article = if type_name.starts_with(['a', 'i']) {
        "an"
    } else {
        "a"
    };
    format!("{article} {type_name}")
}

fn line_of(text: &str, offset: usize) -> usize {
    let before = &text.as_bytes()[..offset.min(text.len())];
    before.iter().filter(|byte| **byte == b'\n').count() + 1
}
