//! The effective settings, one for each key, and typed access to them. The structs of `config.rs` decide which type
//! each key has.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use super::error::{ConfigError, Origin};
use super::keys::{self, SettingKey};
use super::layers::{self, Setting, Sources};
use super::secret::{self, Secret};
use super::store;
use super::suggestion::did_you_mean;
use crate::domain::duration;

/// How booleans are written where no TOML says it, such as in the environment.
const BOOLEANS: [(&str, bool); 8] = [
    ("true", true),
    ("false", false),
    ("yes", true),
    ("no", false),
    ("on", true),
    ("off", false),
    ("1", true),
    ("0", false),
];

/// Longer than anything lasts here, and short enough for every clock, counter and store.
const DURATION_MAX: Duration = Duration::from_secs(3650 * 24 * 60 * 60);

/// The shortest that can be written.
const DURATION_MIN: Duration = Duration::from_millis(1);

/// The largest number that a key may have, and the reason.
#[derive(Debug, Clone, Copy)]
pub(super) struct UpperBound(pub(super) usize, pub(super) &'static str);

/// For what one process serves at once.
pub(super) const SERVED_MAX: UpperBound =
    UpperBound(1_000_000, "one process can serve no more at once");
/// For entries that each take memory.
pub(super) const KEPT_MAX: UpperBound =
    UpperBound(10_000_000, "one process has no memory for more");
/// For bytes of memory.
pub(super) const BYTES_MAX: UpperBound =
    UpperBound(1 << 40, "no machine has memory for more bytes");

/// One effective setting for each key. `Display` prints them as TOML with their origins and without secrets.
pub struct Settings(Vec<Setting>);

impl Settings {
    /// Gathers the layers, takes each key from the layer with the highest precedence, and reads secrets from their
    /// files.
    ///
    /// # Errors
    ///
    /// When a layer has an unknown name, a file cannot be read, or a secret is given twice in one layer.
    pub fn resolve(sources: &Sources) -> Result<Self, ConfigError> {
        let gathered = layers::gather(sources)?;
        let mut effective = Self(
            keys::all()
                .iter()
                .map(|key| strongest(&gathered, key))
                .collect(),
        );
        for key in keys::all() {
            if let Some(file_key) = key.file_key() {
                effective.resolve_secret(key, file_key)?;
            }
        }
        Ok(effective)
    }

    /// Where the key was set.
    pub fn origin(&self, name: &str) -> &Origin {
        &self.setting(name).origin
    }

    pub(super) fn text(&self, name: &str) -> &str {
        &self.setting(name).value
    }

    /// The secret, or `None` when it is empty.
    pub(super) fn secret(&self, name: &str) -> Option<Secret> {
        let text = self.text(name);
        (!text.is_empty()).then(|| Secret::new(text))
    }

    /// A duration that every clock and every store can add to the time.
    pub(super) fn duration(&self, name: &str) -> Result<Duration, ConfigError> {
        self.between(name, Duration::ZERO, DURATION_MAX)
    }

    /// A duration within these bounds.
    pub(super) fn between(
        &self,
        name: &str,
        min: Duration,
        max: Duration,
    ) -> Result<Duration, ConfigError> {
        let text = self.text(name);
        let duration =
            duration::parse(text).map_err(|error| self.invalid(name, error.to_string()))?;
        if (min..=max).contains(&duration) {
            return Ok(duration);
        }
        let [min, max] = [min, max].map(duration::format);
        let problem = format!("{text} is out of range; use {min} to {max}");
        Err(self.invalid(name, problem))
    }

    /// A duration that is not zero.
    pub(super) fn positive(&self, name: &str) -> Result<Duration, ConfigError> {
        match duration::parse(self.text(name)) {
            Ok(Duration::ZERO) => Err(self.invalid(name, "must be longer than 0s")),
            Ok(_) | Err(_) => self.between(name, DURATION_MIN, DURATION_MAX),
        }
    }

    /// A whole number of at least 1: no limit makes sense at 0.
    pub(super) fn count(&self, name: &str, bound: UpperBound) -> Result<usize, ConfigError> {
        self.number(name, 1, bound, "a whole number from 1")
    }

    /// A whole number, which may be 0 where the file of defaults defines what 0 means.
    pub(super) fn whole(&self, name: &str, bound: UpperBound) -> Result<usize, ConfigError> {
        self.number(name, 0, bound, "a whole number")
    }

    fn number(
        &self,
        name: &str,
        min: usize,
        UpperBound(max, reason): UpperBound,
        what: &str,
    ) -> Result<usize, ConfigError> {
        let text = self.text(name);
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let problem = match text.parse::<usize>() {
            Ok(number) if number > max => format!("{text} is more than {max}: {reason}"),
            Ok(number) if number >= min => return Ok(number),
            Err(_) if is_number => format!("{text} is more than {max}: {reason}"),
            Ok(_) | Err(_) => {
                format!(
                    "\"{text}\" is not {what}; write one like {}",
                    default_of(name)
                )
            }
        };
        Err(self.invalid(name, problem))
    }

    pub(super) fn boolean(&self, name: &str) -> Result<bool, ConfigError> {
        let text = self.text(name);
        let found = BOOLEANS
            .iter()
            .find(|(word, _)| word.eq_ignore_ascii_case(text));
        found
            .map(|(_, value)| *value)
            .ok_or_else(|| self.invalid(name, format!("\"{text}\" is not one of true, false")))
    }

    /// An address with a port. `:7625` is on all interfaces, and `localhost:7625` on the loopback one.
    pub(super) fn address(&self, name: &str) -> Result<SocketAddr, ConfigError> {
        let text = self.text(name);
        let complete = match text.split_once(':') {
            Some(("", port)) => format!("0.0.0.0:{port}"),
            Some(("localhost", port)) => format!("127.0.0.1:{port}"),
            _ => text.to_owned(),
        };
        complete.parse().map_err(|_| {
            let problem = format!(
                "\"{text}\" is not an address with a port; write 127.0.0.1:7625, 0.0.0.0:7625 or [::]:7625"
            );
            self.invalid(name, problem)
        })
    }

    /// One of the given words.
    pub(super) fn choice<T: Copy>(
        &self,
        name: &str,
        choices: &[(&str, T)],
    ) -> Result<T, ConfigError> {
        let text = self.text(name);
        let chosen = choices
            .iter()
            .find(|(word, _)| word.eq_ignore_ascii_case(text));
        chosen.map(|(_, value)| *value).ok_or_else(|| {
            let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
            let nearest = did_you_mean(text, words.iter().copied());
            let hint = nearest.map_or_else(String::new, |word| format!("; did you mean {word}?"));
            self.invalid(
                name,
                format!("\"{text}\" is not one of {}{hint}", words.join(", ")),
            )
        })
    }

    pub(super) fn invalid(&self, name: &str, problem: impl Into<String>) -> ConfigError {
        ConfigError::invalid(self.origin(name), name, problem)
    }

    fn setting(&self, name: &str) -> &Setting {
        self.0
            .iter()
            .find(|setting| setting.key.name == name)
            .expect("every name asked for is a key")
    }

    fn setting_mut(&mut self, key: &SettingKey) -> &mut Setting {
        self.0
            .iter_mut()
            .find(|setting| setting.key.name == key.name)
            .expect("every key has a setting")
    }

    /// Stores the secret under its own key, whether it was given as a value or in a file.
    fn resolve_secret(
        &mut self,
        key: &SettingKey,
        file_key: &SettingKey,
    ) -> Result<(), ConfigError> {
        let plain = self.setting(&key.name).clone();
        let file = self.setting(&file_key.name).clone();
        if plain.origin.layer() > file.origin.layer() {
            self.setting_mut(file_key).value.clear();
            return Ok(());
        }
        if file.value.is_empty() {
            return Ok(());
        }
        // An empty value counts as not set; only two values in the same layer contradict each other.
        if plain.origin.layer() == file.origin.layer() && !plain.value.is_empty() {
            let problem = format!(
                "{} is set too ({}); set only one of the two",
                key.name, plain.origin
            );
            return Err(ConfigError::invalid(&file.origin, &file_key.name, problem));
        }
        let contents = secret::read(Path::new(&file.value))
            .map_err(|problem| ConfigError::invalid(&file.origin, &file_key.name, problem))?;
        let secret = self.setting_mut(key);
        secret.value = contents;
        secret.origin = file.origin;
        Ok(())
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut section = "";
        for Setting { key, value, origin } in &self.0 {
            if key.section() != section {
                section = key.section();
                write!(formatter, "\n[{section}]\n")?;
            }
            let name = key.name.rsplit('.').next().unwrap_or(&key.name);
            let shown = shown(key, value);
            let shown = match key.kind {
                keys::Kind::Text | keys::Kind::Duration => toml::Value::String(shown).to_string(),
                keys::Kind::Boolean => self
                    .boolean(&key.name)
                    .map_or(shown, |value| value.to_string()),
                keys::Kind::Integer => shown,
            };
            writeln!(formatter, "{:<48} # {origin}", format!("{name} = {shown}"))?;
        }
        Ok(())
    }
}

fn shown(key: &SettingKey, value: &str) -> String {
    match key.name.as_str() {
        "store" => store::redacted(value),
        _ if key.is_secret() && !value.is_empty() => "***".to_owned(),
        _ => value.to_owned(),
    }
}

/// The setting of the layer with the highest precedence. TOML and the command line allow a key only once per layer.
fn strongest(gathered: &[Setting], key: &SettingKey) -> Setting {
    let last = gathered
        .iter()
        .rfind(|setting| setting.key.name == key.name);
    last.expect("the defaults have every key").clone()
}

fn default_of(name: &str) -> &'static str {
    keys::find(name).map_or("", |key| &key.default)
}
