//! Who may call: the keys, those of the keys file too, and the rule that an address which other machines can reach needs
//! a key. `http` compares the keys.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::error::ConfigError;
use super::jwt;
use super::key_hash::KeyHash;
use super::keys_file::{KeysFile, PrincipalEntry};
use super::listen::ListenAddress;
use super::secret::{self, Secret};
use super::server_tls;
use super::settings::{Settings, UpperBound};
use crate::domain::Bounds;

/// The shortest key, in characters.
pub const API_KEY_CHARS_MIN: usize = 16;
/// The longest key, in characters.
pub const API_KEY_CHARS_MAX: usize = 512;

const KEYS_FILE: &str = "auth_keys_file";

/// The settings that have an effect only where a client needs a key at all.
const FURTHER_KEYS: [&str; 3] = ["api_key_next", "admin_key", "read_key"];

/// Who may call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Auth {
    /// Every client that can reach the address.
    Open,
    /// Clients that present a key.
    Keys(Box<Keys>),
}

/// The keys, each with what it allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys {
    /// Acquires, renews and releases.
    pub api: Option<ApiKey>,
    /// Equivalent to [`api`](Self::api), so that clients can be moved from one key to the other one by one.
    pub api_next: Option<ApiKey>,
    /// Evicts as well.
    pub admin: Option<ApiKey>,
    /// Only reads locks, events and metrics.
    pub read: Option<ApiKey>,
    /// Principals with rules of their own.
    pub file: Option<KeysFile>,
    /// Whether clients are asked for certificates.
    asks_for_certificates: bool,
    /// Whether tokens of an issuer are accepted.
    accepts_tokens: bool,
    /// The bounds of all claims.
    lease: Bounds,
}

/// One key and its origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKey {
    /// The key itself.
    pub secret: Secret,
    /// The file that the key was read from, if any.
    pub file: Option<PathBuf>,
}

/// Authentication settings that apply with or without keys.
#[derive(Debug, Clone)]
pub struct AuthConfig {
    /// Whether `/metrics` needs no key.
    pub is_metrics_open: bool,
    /// How many requests without a valid key one address may send per minute; further ones get 429.
    pub failures_max: u32,
    /// How often key files are reread.
    pub reread_interval: Duration,
}

impl Auth {
    pub(super) fn parse(
        settings: &Settings,
        listen: &ListenAddress,
        lease: &Bounds,
    ) -> Result<Self, ConfigError> {
        let wants_key = settings.choice("auth", &[("key", true), ("none", false)])?;
        let api = key(settings, "api_key")?;
        let file = keys_file(settings)?;
        if jwt::is_set(settings) && file.is_none() {
            let problem = format!(
                "has no effect without principals that have subjects; set {KEYS_FILE} (LEASEHOLD_AUTH_KEYS_FILE)"
            );
            return Err(settings.invalid(jwt::ISSUER, problem));
        }
        let first = match (&api, &file) {
            (Some(_), _) => "api_key",
            (None, Some(_)) => KEYS_FILE,
            (None, None) => {
                return without_key(settings, wants_key, listen).map(|()| Self::Open);
            }
        };
        if !wants_key {
            let problem = format!(
                "none contradicts the {first} ({}); remove one of the two",
                settings.origin(first)
            );
            return Err(settings.invalid("auth", problem));
        }
        let [api_next, admin, read] = FURTHER_KEYS.map(|name| key(settings, name));
        let keys = Keys {
            api,
            api_next: api_next?,
            admin: admin?,
            read: read?,
            file,
            asks_for_certificates: server_tls::asks_clients(settings),
            accepts_tokens: jwt::is_set(settings),
            lease: lease.clone(),
        };
        keys.checked()
            .map_err(|(name, problem)| settings.invalid(name, problem))
            .map(|keys| Self::Keys(Box::new(keys)))
    }
}

impl AuthConfig {
    pub(super) fn parse(settings: &Settings) -> Result<Self, ConfigError> {
        const FAILURES_MAX: UpperBound = UpperBound(
            1_000_000_000,
            "no address can send more requests in a minute",
        );
        let failures_max = settings.count("auth_failures_max", FAILURES_MAX)?;
        Ok(Self {
            is_metrics_open: settings.choice("auth_metrics", &[("key", false), ("none", true)])?,
            failures_max: u32::try_from(failures_max).expect("it is below the bound"),
            reread_interval: settings.positive("auth_reread_interval")?,
        })
    }
}

impl Keys {
    /// Rereads the keys from their files. Keys that do not come from a file stay as they are.
    ///
    /// # Errors
    ///
    /// One line that says which key cannot be used and why; it never quotes a key.
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
            api: read_if_any("api_key", &self.api)?,
            api_next: read_if_any("api_key_next", &self.api_next)?,
            admin: read_if_any("admin_key", &self.admin)?,
            read: read_if_any("read_key", &self.read)?,
            file: self.file.as_ref().map(reread).transpose()?,
            asks_for_certificates: self.asks_for_certificates,
            accepts_tokens: self.accepts_tokens,
            lease: self.lease.clone(),
        };
        keys.checked()
            .map_err(|(name, problem)| format!("{name}: {problem}"))
    }

    /// Whether any key comes from a file.
    pub fn are_from_files(&self) -> bool {
        self.file.is_some() || self.all().any(|(_, key)| key.file.is_some())
    }

    fn all(&self) -> impl Iterator<Item = (&'static str, &ApiKey)> {
        let further = [&self.api_next, &self.admin, &self.read];
        let further = FURTHER_KEYS.into_iter().zip(further);
        let all = std::iter::once(("api_key", &self.api)).chain(further);
        all.filter_map(|(name, key)| Some((name, key.as_ref()?)))
    }

    fn principals(&self) -> impl Iterator<Item = &PrincipalEntry> {
        self.file.iter().flat_map(|file| &file.principals)
    }

    fn principal_of(&self, hash: &KeyHash) -> Option<&str> {
        let mut principals = self.principals();
        let principal = principals.find(|principal| principal.keys.contains(hash));
        principal.map(|principal| principal.name.as_str())
    }

    /// Checks that each key is valid in a header, that no key has two roles, that no principal waits for certificates that
    /// clients are not asked for, or for tokens that are not accepted, and that none has a quota that permits no lease.
    fn checked(self) -> Result<Self, (&'static str, String)> {
        if let Some(file) = &self.file {
            file.check_quotas(&self.lease)
                .map_err(|problem| (KEYS_FILE, problem))?;
        }
        for (name, key) in self.all() {
            check_api_key(&key.secret).map_err(|problem| (name, problem))?;
        }
        self.check_known_by(
            ("certificates", |principal| {
                !principal.certificates.is_empty()
            }),
            (
                self.asks_for_certificates,
                "clients are not asked for theirs",
            ),
            server_tls::CLIENT_CA_FILE,
        )?;
        self.check_known_by(
            ("subjects", |principal| !principal.subjects.is_empty()),
            (self.accepts_tokens, "no tokens are accepted"),
            jwt::ISSUER,
        )?;
        let all: Vec<_> = self.all().collect();
        for (index, (name, key)) in all.iter().enumerate() {
            let same = all[..index]
                .iter()
                .find(|(_, other)| other.secret == key.secret);
            // `api_key` and `api_key_next` have the same role, so they may be equal before or after a key change.
            if let Some((other, _)) = same.filter(|_| *name != "api_key_next") {
                let problem = format!("is the same as {other}; use a different key for each");
                return Err((name, problem));
            }
            let hash = KeyHash::of(key.secret.expose().as_bytes());
            if let Some(principal) = self.principal_of(&hash) {
                let problem = format!(
                    "is a key of {principal} too, in the keys file; use a different key for each"
                );
                return Err((name, problem));
            }
        }
        Ok(self)
    }

    /// Checks that no principal waits for clients that show what this service does not look at, without this setting.
    fn check_known_by(
        &self,
        (what, has_some): (&str, fn(&PrincipalEntry) -> bool),
        (is_accepted, why_not): (bool, &str),
        setting: &str,
    ) -> Result<(), (&'static str, String)> {
        let mut principals = self.principals();
        match principals.find(|principal| !is_accepted && has_some(principal)) {
            None => Ok(()),
            Some(PrincipalEntry { name, .. }) => {
                let problem = format!("{name} has {what}, and {why_not}; set {setting}");
                Err((KEYS_FILE, problem))
            }
        }
    }
}

/// Checks that running without a key is allowed.
fn without_key(
    settings: &Settings,
    wants_key: bool,
    listen: &ListenAddress,
) -> Result<(), ConfigError> {
    if let Some(name) = FURTHER_KEYS
        .into_iter()
        .find(|name| settings.secret(name).is_some())
    {
        let problem = "has no effect without an api_key (LEASEHOLD_API_KEY_FILE), because then every client may do everything";
        return Err(settings.invalid(name, problem));
    }
    if wants_key && !listen.is_local() {
        let problem = format!(
            "{listen} is reachable from other machines and there is no key; set auth_keys_file \
             (LEASEHOLD_AUTH_KEYS_FILE), api_key_file (LEASEHOLD_API_KEY_FILE) or api_key (LEASEHOLD_API_KEY), or auth = \"none\" (LEASEHOLD_AUTH=none)"
        );
        return Err(settings.invalid("listen", problem));
    }
    Ok(())
}

fn keys_file(settings: &Settings) -> Result<Option<KeysFile>, ConfigError> {
    match settings.text(KEYS_FILE) {
        "" => Ok(None),
        path => KeysFile::read(Path::new(path)).map(Some),
    }
}

fn reread(file: &KeysFile) -> Result<KeysFile, String> {
    KeysFile::read(&file.path).map_err(|error| error.to_string())
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

/// A key is sent in a header, so it must be valid there, and it must not be guessed.
///
/// # Errors
/// What is wrong with it, as the end of a sentence that begins with the key.
pub fn check_api_key(key: &Secret) -> Result<(), String> {
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
            "has a character that is not allowed in a header; use visible ASCII without spaces"
                .to_owned(),
        );
    }
    Ok(())
}
