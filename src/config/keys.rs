//! The table of keys, read from the file of defaults: names, types, defaults and their documentation.
//! That file is the only list of keys; no key is named here.

use std::sync::LazyLock;

use crate::domain::duration;

/// The file of defaults, which documents every key.
pub const DEFAULTS: &str = include_str!("../../config/leasehold.toml");

static KEYS: LazyLock<Vec<SettingKey>> = LazyLock::new(|| scan(DEFAULTS));

/// How a key's value is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Any text.
    Text,
    /// A duration with its unit, such as `1m30s`.
    Duration,
    /// A whole number.
    Integer,
    /// `true` or `false`.
    Boolean,
}

impl Kind {
    /// A description of how to write such a value in the file.
    pub fn example(self, default: &str) -> String {
        match self {
            Self::Text | Self::Duration => format!("a text in quotes, like \"{default}\""),
            Self::Integer => format!("a whole number, like {default}"),
            Self::Boolean => "true or false".to_owned(),
        }
    }
}

/// One setting as the file of defaults describes it.
#[derive(Debug)]
pub struct SettingKey {
    /// The dotted name, such as `redis.connections`.
    pub name: String,
    /// How the value is written.
    pub kind: Kind,
    /// The default, as it would be written on the command line.
    pub default: String,
    /// The comment above the key, as one paragraph.
    pub documentation: String,
    /// The line of the file of defaults, counted from 1.
    pub line: usize,
}

impl SettingKey {
    /// The environment variable: `LEASEHOLD_REDIS_CONNECTIONS`.
    pub fn variable(&self) -> String {
        format!("LEASEHOLD_{}", self.name.replace('.', "_").to_uppercase())
    }

    /// The flag without its dashes: `redis-connections`.
    pub fn flag(&self) -> String {
        self.name.replace(['.', '_'], "-")
    }

    /// The section of the file; empty for the keys at its top.
    pub fn section(&self) -> &str {
        self.name.split_once('.').map_or("", |(section, _)| section)
    }

    /// Whether the value is secret: a key is secret if there is a `_file` key for it.
    pub fn is_secret(&self) -> bool {
        self.file_key().is_some()
    }

    /// The key that names a file to read this secret from.
    pub fn file_key(&self) -> Option<&'static SettingKey> {
        find(&format!("{}_file", self.name))
    }
}

/// All keys, in the order of the file.
pub fn all() -> &'static [SettingKey] {
    &KEYS
}

/// The key with this dotted name.
pub fn find(name: &str) -> Option<&'static SettingKey> {
    KEYS.iter().find(|key| key.name == name)
}

/// Parses line by line, because it needs the order and the comments, and a TOML parser keeps neither.
fn scan(text: &str) -> Vec<SettingKey> {
    let mut keys = Vec::new();
    let mut section = String::new();
    let mut comment: Vec<&str> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if let Some(sentence) = line.strip_prefix('#') {
            comment.push(sentence.trim());
        } else if let Some(name) = line
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
        {
            section = format!("{name}.");
            comment.clear();
        } else if let Some((name, value)) = line.split_once(" = ") {
            let (kind, default) = typed(value);
            keys.push(SettingKey {
                name: format!("{section}{name}"),
                kind,
                default,
                documentation: comment.join(" "),
                line: index + 1,
            });
            comment.clear();
        } else {
            comment.clear();
        }
    }
    keys
}

fn typed(value: &str) -> (Kind, String) {
    let Some(text) = value
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'))
    else {
        let kind = if value.parse::<bool>().is_ok() {
            Kind::Boolean
        } else {
            Kind::Integer
        };
        return (kind, value.to_owned());
    };
    let kind = if duration::parse(text).is_ok() {
        Kind::Duration
    } else {
        Kind::Text
    };
    (kind, text.to_owned())
}
