//! What can be configured: the structs that the rest of the program is given, and the checks between keys.
//!
//! A value comes from a flag, else from `LEASEHOLD_*` in the environment, else from the TOML file, else from
//! `config/leasehold.toml`, which is compiled in and is the only list of keys. Everything is parsed once, before any
//! socket opens. Nothing here knows HTTP, Redis or the process: arguments and environment are passed in.

mod error;
pub mod keys;
mod layers;
mod log;
mod secret;
mod settings;
mod store;

use std::net::SocketAddr;
use std::time::Duration;

pub use error::{ConfigError, Origin};
pub use layers::Sources;
pub use log::{LogConfig, LogFormat, LogRequests};
pub use secret::Secret;
pub use settings::Settings;
pub use store::{RedisAddress, StoreUrl};

const API_KEY_CHARS_MIN: usize = 16;

/// The whole configuration, checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// The address to serve on.
    pub listen: SocketAddr,
    /// Where locks live.
    pub store: StoreUrl,
    /// Who may call.
    pub auth: Auth,
    /// The deadline of one store operation.
    pub operation_timeout: Duration,
    /// Bounds of what a claim may ask for.
    pub lease: LeaseConfig,
    /// Sockets and shutdown.
    pub server: ServerConfig,
    /// The `memory:` store.
    pub memory: MemoryConfig,
    /// The `redis://` store.
    pub redis: RedisConfig,
    /// Logs.
    pub log: LogConfig,
}

/// Who may call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Auth {
    /// Everybody who reaches the address.
    Open,
    /// Callers that present this key.
    Key(Secret),
}

/// Bounds of what a claim may ask for.
#[derive(Debug, Clone)]
pub struct LeaseConfig {
    /// The TTL of a claim that names none.
    pub ttl_default: Duration,
    /// The shortest TTL.
    pub ttl_min: Duration,
    /// The longest TTL.
    pub ttl_max: Duration,
    /// The largest ceiling across renewals.
    pub max_hold_max: Duration,
    /// The longest pause after a lease that expired.
    pub lock_delay_max: Duration,
}

/// Sockets and shutdown.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// How many connections may be open at once.
    pub connections_max: usize,
    /// From the opening of a connection to the whole head of its first request.
    pub header_read_timeout: Duration,
    /// From an answer to the whole head of the next request.
    pub idle_timeout: Duration,
    /// From the head of a request to the end of its body.
    pub body_timeout: Duration,
    /// The largest request body.
    pub body_bytes_max: usize,
    /// From readiness going false to the closing of the listener.
    pub drain_delay: Duration,
    /// From the closing of the listener to the cutting of connections.
    pub drain_timeout: Duration,
}

/// The `memory:` store.
#[derive(Debug, Clone)]
pub struct MemoryConfig {
    /// How many locks are kept at once.
    pub locks_max: usize,
}

/// The `redis://` store; credentials from the URL are merged into it.
#[derive(Debug, Clone)]
pub struct RedisConfig {
    /// How many connections are kept open.
    pub connections: usize,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// The user to authenticate as.
    pub username: Option<String>,
    /// The password to authenticate with.
    pub password: Option<Secret>,
    /// A `maxmemory-policy` to accept besides `noeviction`.
    pub accept_eviction_policy: Option<String>,
    /// Whether a start on an empty Redis waits before it grants.
    pub grace_on_empty_start: bool,
    /// How often Redis is examined again.
    pub survey_interval: Duration,
}

impl Config {
    /// Resolves the layers, parses every value and checks them against each other.
    ///
    /// # Errors
    ///
    /// When a name is unknown, a value does not parse, or two values contradict.
    pub fn load(sources: &Sources) -> Result<(Self, Settings), ConfigError> {
        let settings = Settings::resolve(sources)?;
        let config = Self::parse(&settings)?;
        Ok((config, settings))
    }

    fn parse(settings: &Settings) -> Result<Self, ConfigError> {
        let listen = listen(settings)?;
        let (store, credentials) = store::parse(settings.text("store"))
            .map_err(|problem| settings.invalid("store", problem))?;
        Ok(Self {
            listen,
            store,
            auth: auth(settings, listen)?,
            operation_timeout: positive(settings, "operation_timeout")?,
            lease: LeaseConfig::parse(settings)?,
            server: ServerConfig::parse(settings)?,
            memory: MemoryConfig {
                locks_max: settings.count("memory.locks_max")?,
            },
            redis: RedisConfig::parse(settings, credentials)?,
            log: LogConfig::parse(settings)?,
        })
    }

    /// What is allowed but deserves a second look, as sentences for the log.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if !self.listen.ip().is_loopback() {
            if self.auth == Auth::Open {
                warnings.push(format!(
                    "auth is none: whoever reaches {} can take and release locks",
                    self.listen
                ));
            }
            if self.store == StoreUrl::Memory {
                warnings.push(
                    "the store is memory: locks end with this process and no replica shares them"
                        .to_owned(),
                );
            }
        }
        if let Some(policy) = &self.redis.accept_eviction_policy {
            warnings.push(format!(
                "the eviction policy {policy} is accepted: Redis may drop locks that are held"
            ));
        }
        warnings
    }
}

impl LeaseConfig {
    fn parse(settings: &Settings) -> Result<Self, ConfigError> {
        let lease = Self {
            ttl_default: positive(settings, "lease.ttl_default")?,
            ttl_min: positive(settings, "lease.ttl_min")?,
            ttl_max: positive(settings, "lease.ttl_max")?,
            max_hold_max: positive(settings, "lease.max_hold_max")?,
            lock_delay_max: settings.duration("lease.lock_delay_max")?,
        };
        in_order(settings, "lease.ttl_min", "lease.ttl_default")?;
        in_order(settings, "lease.ttl_default", "lease.ttl_max")?;
        Ok(lease)
    }
}

impl ServerConfig {
    fn parse(settings: &Settings) -> Result<Self, ConfigError> {
        Ok(Self {
            connections_max: connections_max(settings)?,
            header_read_timeout: positive(settings, "server.header_read_timeout")?,
            idle_timeout: positive(settings, "server.idle_timeout")?,
            body_timeout: positive(settings, "server.body_timeout")?,
            body_bytes_max: settings.count("server.body_bytes_max")?,
            drain_delay: settings.duration("server.drain_delay")?,
            drain_timeout: settings.duration("server.drain_timeout")?,
        })
    }
}

impl RedisConfig {
    fn parse(settings: &Settings, in_url: store::Credentials) -> Result<Self, ConfigError> {
        let username = Some(settings.text("redis.username"))
            .filter(|name| !name.is_empty())
            .map(str::to_owned);
        Ok(Self {
            connections: settings.count("redis.connections")?,
            connect_timeout: positive(settings, "redis.connect_timeout")?,
            username: once(settings, "redis.username", username, in_url.username)?,
            password: once(
                settings,
                "redis.password",
                settings.secret("redis.password"),
                in_url.password,
            )?,
            accept_eviction_policy: eviction_policy(settings)?,
            grace_on_empty_start: settings.boolean("redis.grace_on_empty_start")?,
            survey_interval: positive(settings, "redis.survey_interval")?,
        })
    }
}

fn listen(settings: &Settings) -> Result<SocketAddr, ConfigError> {
    let text = settings.text("listen");
    text.parse().map_err(|_| {
        let problem = format!("\"{text}\" is not an address with a port; write 127.0.0.1:7625, 0.0.0.0:7625 or [::]:7625");
        settings.invalid("listen", problem)
    })
}

fn auth(settings: &Settings, listen: SocketAddr) -> Result<Auth, ConfigError> {
    let wants_key = settings.choice("auth", &[("key", true), ("none", false)])?;
    match (wants_key, settings.secret("api_key")) {
        (true, Some(key)) => checked_api_key(settings, key).map(Auth::Key),
        (true, None) if listen.ip().is_loopback() => Ok(Auth::Open),
        (true, None) => {
            let problem = format!(
                "{listen} is reachable from other machines and there is no key; give api_key_file \
                 (LEASEHOLD_API_KEY_FILE) or api_key (LEASEHOLD_API_KEY), or write auth = \"none\" (LEASEHOLD_AUTH=none)"
            );
            Err(settings.invalid("listen", problem))
        }
        (false, None) => Ok(Auth::Open),
        (false, Some(_)) => {
            let problem = format!(
                "none contradicts the api_key ({}); drop one of the two",
                settings.origin("api_key")
            );
            Err(settings.invalid("auth", problem))
        }
    }
}

/// The key travels in a header, so it must survive one.
fn checked_api_key(settings: &Settings, key: Secret) -> Result<Secret, ConfigError> {
    if key.expose().len() < API_KEY_CHARS_MIN {
        let problem = format!(
            "is shorter than {API_KEY_CHARS_MIN} characters; `openssl rand -hex 32` makes a good one"
        );
        return Err(settings.invalid("api_key", problem));
    }
    if !key.expose().bytes().all(|byte| byte.is_ascii_graphic()) {
        let problem =
            "has a character that a header cannot carry; write visible ASCII without spaces";
        return Err(settings.invalid("api_key", problem));
    }
    Ok(key)
}

/// The semaphore behind the limit has a largest value of its own, far above what a system can open.
fn connections_max(settings: &Settings) -> Result<usize, ConfigError> {
    const LIMIT: usize = 1_000_000;
    let count = settings.count("server.connections_max")?;
    if count > LIMIT {
        return Err(settings.invalid(
            "server.connections_max",
            format!("{count} is more than {LIMIT}"),
        ));
    }
    Ok(count)
}

fn eviction_policy(settings: &Settings) -> Result<Option<String>, ConfigError> {
    match settings.text("redis.accept_eviction_policy") {
        "" | "noeviction" => Ok(None),
        policy if policy.starts_with("allkeys-") || policy.starts_with("volatile-") => {
            Ok(Some(policy.to_owned()))
        }
        policy => {
            let problem = format!(
                "\"{policy}\" is not a maxmemory-policy; write one like volatile-lru, or nothing"
            );
            Err(settings.invalid("redis.accept_eviction_policy", problem))
        }
    }
}

fn positive(settings: &Settings, name: &str) -> Result<Duration, ConfigError> {
    let duration = settings.duration(name)?;
    if duration.is_zero() {
        return Err(settings.invalid(name, "must be longer than 0s"));
    }
    Ok(duration)
}

fn in_order(settings: &Settings, low: &str, high: &str) -> Result<(), ConfigError> {
    if settings.duration(low)? <= settings.duration(high)? {
        return Ok(());
    }
    // The complaint goes to the one that a person wrote.
    let (blamed, other, relation) = match settings.origin(high) {
        Origin::Default => (low, high, "longer"),
        Origin::File { .. } | Origin::Environment(_) | Origin::Flag(_) => (high, low, "shorter"),
    };
    let problem = format!(
        "{} is {relation} than {other}, which is {} ({}); write ttl_min <= ttl_default <= ttl_max",
        settings.text(blamed),
        settings.text(other),
        settings.origin(other),
    );
    Err(settings.invalid(blamed, problem))
}

/// A credential stands in the URL or under its own key; of two, one would be ignored without a word.
fn once<T>(
    settings: &Settings,
    name: &str,
    own: Option<T>,
    in_url: Option<T>,
) -> Result<Option<T>, ConfigError> {
    if own.is_some() && in_url.is_some() {
        let problem = format!(
            "the store's URL ({}) has it too; give one of the two",
            settings.origin("store")
        );
        return Err(settings.invalid(name, problem));
    }
    Ok(own.or(in_url))
}
