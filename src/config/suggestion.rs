//! What was probably meant by a name that does not exist: a typing error, another program's name for the key, or a key
//! without its section. Which names exist is decided elsewhere.

use super::keys::{self, SettingKey};

/// Common other names, and the keys that they mean. A `_` may also be written `.` or `-`.
const SYNONYMS: [(&str, &str); 16] = [
    ("redis", "store"),
    ("redis_address", "store"),
    ("redis_host", "store"),
    ("redis_url", "store"),
    ("store_url", "store"),
    ("address", "listen"),
    ("bind", "listen"),
    ("host", "listen"),
    ("http_port", "listen"),
    ("listen_address", "listen"),
    ("port", "listen"),
    ("log", "log.level"),
    ("loglevel", "log.level"),
    ("rust_log", "log.level"),
    ("verbose", "log.level"),
    ("ttl", "lease.ttl_default"),
];

/// The key that this name means, if it is a synonym, or the last part of the name of exactly one key.
pub fn key_meant_by(name: &str) -> Option<&'static SettingKey> {
    let name = underscored(name);
    if let Some((_, key)) = SYNONYMS.iter().find(|(synonym, _)| *synonym == name) {
        return keys::find(key);
    }
    let mut found = keys::all()
        .iter()
        .filter(|key| without_section(key) == Some(&name));
    found.next().filter(|_| found.next().is_none())
}

/// The key that was probably meant by a name with `.`, `-` or `_` between its parts.
pub(super) fn nearest_key(name: &str) -> Option<&'static SettingKey> {
    let name = underscored(name);
    let in_wrong_section = |key: &&SettingKey| {
        without_section(key).is_some_and(|last| name.ends_with(&format!("_{last}")))
    };
    let similar = |key: &'static SettingKey| {
        let known = underscored(&key.name);
        // Keys of one section share its name, so it makes none of them likely.
        let section = format!("{}_", key.section());
        let within = name
            .strip_prefix(&section)
            .zip(known.strip_prefix(&section));
        let (name, known) = within.unwrap_or((&name, &known));
        Some((distance(name, known)?, key))
    };
    key_meant_by(&name)
        .or_else(|| keys::all().iter().find(in_wrong_section))
        .or_else(|| nearest(keys::all().iter().filter_map(similar)))
}

/// The known name that differs by a typing error, by case, or by a unit at its end (`ttl_ms`).
pub fn did_you_mean<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    nearest(known.filter_map(|known| Some((distance(name, known)?, known))))
}

/// How many letters differ, if few enough do for a suggestion to help.
fn distance(name: &str, known: &str) -> Option<usize> {
    let name = name.to_ascii_lowercase();
    let distance = strsim::damerau_levenshtein(&name, known);
    (name.starts_with(known) || distance <= (known.len() / 3).max(1)).then_some(distance)
}

fn nearest<T>(found: impl Iterator<Item = (usize, T)>) -> Option<T> {
    let nearest = found.min_by_key(|(distance, _)| *distance);
    nearest.map(|(_, known)| known)
}

fn underscored(name: &str) -> String {
    name.to_lowercase().replace(['.', '-'], "_")
}

/// The last part of the name of a key that is in a section.
fn without_section(key: &SettingKey) -> Option<&str> {
    key.name.split_once('.').map(|(_, last)| last)
}
