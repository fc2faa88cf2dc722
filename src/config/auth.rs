//! Who may call: the keys, and the rule that an address which others can reach needs one. Comparing keys is the business
//! of `http`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::error::ConfigError;
use super::secret::{self, Secret};
use super::settings::Settings;

const API_KEY_CHARS_MIN: usize = 16;
/// The longest key, in characters.
pub const API_KEY_CHARS_MAX: usize = 512;

/// The settings that mean something only where there is an `api_key`.
const FURTHER_KEYS: [&str; 3] = ["api_key_next", "admin_key", "read_key"];

/// Who may call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Auth {
    /// Everybody who reaches the address.
    Open,
    /// Callers that present a key.
    Keys(Keys),
}

/// The keys, each with what it allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys {
    /// Acquires, renews and releases.
    pub api: ApiKey,
    /// As good as [`api`](Self::api), so that callers can change from one to the other one by one.
    pub api_next: Option<ApiKey>,
    /// Evicts, too.
    pub admin: Option<ApiKey>,
    /// Only looks at locks, events and metrics.
    pub read: Option<ApiKey>,
}

/// One key and where it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKey {
    /// The key itself.
    pub secret: Secret,
    /// The file that it was read from, if it was.
    pub file: Option<PathBuf>,
}

/// What is configured about keys, whether there are any or not.
#[derive(Debug, Clone)]
pub struct AuthConfig {
    /// Whether figures are shown to callers without a key.
    pub is_metrics_open: bool,
    /// How many requests without a valid key one address may send in a minute before it is told to slow down.
    pub failures_max: u32,
    /// How often the files of keys are read again.
    pub reread_interval: Duration,
}

impl Auth {
    pub(super) fn parse(settings: &Settings, listen: SocketAddr) -> Result<Self, ConfigError> {
        let wants_key = settings.choice("auth", &[("key", true), ("none", false)])?;
        let api = key(settings, "api_key")?;
        let Some(api) = api else {
            return without_key(settings, wants_key, listen).map(|()| Self::Open);
        };
        if !wants_key {
            let problem = format!(
                "none contradicts the api_key ({}); drop one of the two",
                settings.origin("api_key")
            );
            return Err(settings.invalid("auth", problem));
        }
        let [api_next, admin, read] = FURTHER_KEYS.map(|name| key(settings, name));
        let keys = Keys {
            api,
            api_next: api_next?,
            admin: admin?,
            read: read?,
        };
        keys.checked()
            .map_err(|(name, problem)| settings.invalid(name, problem))
            .map(Self::Keys)
    }
}

impl AuthConfig {
    pub(super) fn parse(settings: &Settings) -> Result<Self, ConfigError> {
        let failures_max = settings.count("auth_failures_max")?;
        Ok(Self {
            is_metrics_open: settings.choice("auth_metrics", &[("key", false), ("none", true)])?,
            // More than so many in a minute is no limit anyway.
            failures_max: u32::try_from(failures_max).unwrap_or(u32::MAX),
            reread_interval: settings.positive("auth_reread_interval")?,
        })
    }
}

impl Keys {
    /// The same keys as their files have them now. Keys that were not read from a file stay as they are.
    ///
    /// # Errors
    ///
    /// Says in one line which key cannot be used and why; it never quotes one.
    pub fn reread(&self) -> Result<Self, String> {
        let read = |name: &str, key: &ApiKey| -> Result<ApiKey, String> {
            let Some(file) = &key.file else {
                return Ok(key.clone());
            };
            let secret = secret::read(file).map_err(|problem| format!("{name}: {problem}"))?;
            Ok(ApiKey {
                secret: Secret::new(secret),
                file: key.file.clone(),
            })
        };
        let read_if_any =
            |name, key: &Option<ApiKey>| key.as_ref().map(|key| read(name, key)).transpose();
        let keys = Self {
            api: read("api_key", &self.api)?,
            api_next: read_if_any("api_key_next", &self.api_next)?,
            admin: read_if_any("admin_key", &self.admin)?,
            read: read_if_any("read_key", &self.read)?,
        };
        keys.checked()
            .map_err(|(name, problem)| format!("{name}: {problem}"))
    }

    /// Whether any key comes from a file.
    pub fn are_from_files(&self) -> bool {
        self.all().any(|(_, key)| key.file.is_some())
    }

    fn all(&self) -> impl Iterator<Item = (&'static str, &ApiKey)> {
        let further = [&self.api_next, &self.admin, &self.read];
        let further = FURTHER_KEYS.into_iter().zip(further);
        std::iter::once(("api_key", &self.api))
            .chain(further.filter_map(|(name, key)| Some((name, key.as_ref()?))))
    }

    /// Each key is fit for a header, and none allows two things.
    fn checked(self) -> Result<Self, (&'static str, String)> {
        for (name, key) in self.all() {
            check(&key.secret).map_err(|problem| (name, problem))?;
        }
        let all: Vec<_> = self.all().collect();
        for (index, (name, key)) in all.iter().enumerate() {
            let same = all[..index]
                .iter()
                .find(|(_, other)| other.secret == key.secret);
            // The two that allow the same may be the same for a while, before or after callers change.
            if let Some((other, _)) = same.filter(|_| *name != "api_key_next") {
                let problem = format!("is the same as {other}; each has to be a key of its own");
                return Err((name, problem));
            }
        }
        Ok(self)
    }
}

/// Whether it is right that there is no key.
fn without_key(
    settings: &Settings,
    wants_key: bool,
    listen: SocketAddr,
) -> Result<(), ConfigError> {
    if let Some(name) = FURTHER_KEYS
        .into_iter()
        .find(|name| settings.secret(name).is_some())
    {
        let problem = "means nothing without an api_key (LEASEHOLD_API_KEY_FILE), because everybody may do everything then";
        return Err(settings.invalid(name, problem));
    }
    if wants_key && !listen.ip().is_loopback() {
        let problem = format!(
            "{listen} is reachable from other machines and there is no key; give api_key_file \
             (LEASEHOLD_API_KEY_FILE) or api_key (LEASEHOLD_API_KEY), or write auth = \"none\" (LEASEHOLD_AUTH=none)"
        );
        return Err(settings.invalid("listen", problem));
    }
    Ok(())
}

fn key(settings: &Settings, name: &str) -> Result<Option<ApiKey>, ConfigError> {
    let Some(secret) = settings.secret(name) else {
        return Ok(None);
    };
    let file = settings.text(&format!("{name}_file"));
    Ok(Some(ApiKey {
        secret,
        file: (!file.is_empty()).then(|| file.into()),
    }))
}

/// A key travels in a header, so it must survive one.
fn check(key: &Secret) -> Result<(), String> {
    let length = key.expose().len();
    if length < API_KEY_CHARS_MIN {
        return Err(format!(
            "is shorter than {API_KEY_CHARS_MIN} characters; `openssl rand -hex 32` makes a good one"
        ));
    }
    if length > API_KEY_CHARS_MAX {
        return Err(format!("is longer than {API_KEY_CHARS_MAX} characters"));
    }
    if !key.expose().bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(
            "has a character that a header cannot carry; write visible ASCII without spaces"
                .to_owned(),
        );
    }
    Ok(())
}
