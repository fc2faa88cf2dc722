//! Names that users try for a key because other programs call it so, and names without their section.

use super::keys;

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
pub fn key_meant_by(name: &str) -> Option<&'static keys::SettingKey> {
    let name = name.to_lowercase().replace(['.', '-'], "_");
    if let Some((_, key)) = SYNONYMS.iter().find(|(synonym, _)| *synonym == name) {
        return keys::find(key);
    }
    let is_of = |key: &&keys::SettingKey| {
        key.name
            .rsplit_once('.')
            .is_some_and(|(_, last)| last == name)
    };
    let mut found = keys::all().iter().filter(is_of);
    found.next().filter(|_| found.next().is_none())
}
