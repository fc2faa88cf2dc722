//! The store: the URL that chooses it, and the settings of Redis besides its address. No message here quotes the URL as
//! written, because it may contain a password. The store itself connects.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::cluster::ClusterAddress;
use super::error::ConfigError;
use super::hosts;
use super::quorum::QuorumAddress;
use super::secret::Secret;
use super::sentinel::SentinelAddress;
use super::settings::{Settings, UpperBound};
use super::tls::RedisTls;

const REDIS_PORT: u16 = 6379;
const REPLICAS_MAX: UpperBound = UpperBound(
    100,
    "no Redis keeps so many replicas up to date, so nothing would be granted",
);
const CONNECTIONS_MAX: UpperBound = UpperBound(
    1_000,
    "Redis itself accepts 10,000 connections of all its clients",
);

/// Where locks are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// In the memory of this process.
    Memory,
    /// In a directory of this machine, used by this process alone.
    File(PathBuf),
    /// In one Redis or Valkey.
    Redis(RedisAddress),
    /// In the Redis or Valkey that Sentinels name.
    Sentinel(SentinelAddress),
    /// In a Redis Cluster or Valkey Cluster.
    Cluster(ClusterAddress),
    /// In several independent Redis or Valkey, a majority of which decides.
    Quorum(QuorumAddress),
}

impl StoreUrl {
    /// Whether the connections to Redis use TLS.
    fn is_encrypted(&self) -> bool {
        match self {
            Self::Memory | Self::File(_) => false,
            Self::Redis(address) => address.is_encrypted,
            Self::Sentinel(address) => address.is_encrypted,
            Self::Cluster(address) => address.is_encrypted,
            Self::Quorum(address) => address.is_encrypted(),
        }
    }
}

/// Which database of which Redis; credentials are in [`RedisConfig`](super::RedisConfig).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisAddress {
    /// A host name or an address, an IPv6 one without its brackets.
    pub host: String,
    /// The TCP port.
    pub port: u16,
    /// The number of the database.
    pub database: u32,
    /// Whether the connection uses TLS: `rediss://`.
    pub is_encrypted: bool,
}

/// The credentials in a URL.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Credentials {
    pub(super) username: Option<String>,
    pub(super) password: Option<Secret>,
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => formatter.write_str("memory:"),
            Self::File(directory) => write!(formatter, "file:{}", directory.display()),
            Self::Sentinel(address) => write!(formatter, "{address}"),
            Self::Cluster(address) => write!(formatter, "{address}"),
            Self::Quorum(address) => write!(formatter, "{address}"),
            Self::Redis(address) => write!(formatter, "{address}"),
        }
    }
}

impl fmt::Display for RedisAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            host,
            port,
            database,
            is_encrypted,
        } = self;
        let scheme = if *is_encrypted { "rediss" } else { "redis" };
        match host.contains(':') {
            true => write!(formatter, "{scheme}://[{host}]:{port}/{database}"),
            false => write!(formatter, "{scheme}://{host}:{port}/{database}"),
        }
    }
}

pub(super) fn parse(url: &str) -> Result<(StoreUrl, Credentials), String> {
    const HOW: &str = "write memory:, file:DIR or redis://[user:password@]host[:port][/database], or \
        redis+sentinel://[user:password@]host[:port],…/name[/database] or \
        redis+cluster://[user:password@]host[:port],…, and rediss for TLS, or quorum:URL,URL,URL of several redis";
    let url = completed(url);
    if url.starts_with(['/', '.']) {
        return Err(format!(
            "this is a directory without its scheme; write file:{url}"
        ));
    }
    let Some((scheme, rest)) = url.split_once(':') else {
        return Err(format!("this is not a URL; {HOW}"));
    };
    match (scheme, rest.strip_prefix("//")) {
        ("memory", None) if rest.is_empty() => Ok((StoreUrl::Memory, Credentials::default())),
        ("memory", _) => Err("nothing follows memory:; write memory:".to_owned()),
        ("file", _) => Ok((StoreUrl::File(directory(rest)?), Credentials::default())),
        (
            "redis" | "rediss" | "redis+sentinel" | "rediss+sentinel" | "redis+cluster"
            | "rediss+cluster",
            rest,
        ) => match rest {
            Some(rest) => redis(scheme, rest).map_err(|problem| format!("{problem}; {HOW}")),
            None => Err(format!("two slashes follow {scheme}:; {HOW}")),
        },
        ("quorum", _) => QuorumAddress::parse(rest)
            .map(|(address, credentials)| (StoreUrl::Quorum(address), credentials)),
        _ => Err(format!("there is no store of this scheme; {HOW}")),
    }
}

/// The URL for a text that can mean only one store: `memory`, `localhost:6379`, and the URLs of Valkey's own clients.
fn completed(url: &str) -> Cow<'_, str> {
    if url == "memory" {
        return "memory:".into();
    }
    if is_host_and_port(url) {
        return format!("redis://{url}").into();
    }
    match url.strip_prefix("valkey") {
        Some(rest) if rest.contains("://") => format!("redis{rest}").into(),
        _ => url.into(),
    }
}

/// Whether this is a host with its port. `redis:6379` is one too, because the slashes of a URL are missing.
fn is_host_and_port(text: &str) -> bool {
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
    text.rsplit_once(':').is_some_and(|(host, port)| {
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || ".-_[]:".contains(letter);
        !host.is_empty()
            && host != "memory"
            && host != "file"
            && host.chars().all(is_name)
            && is_port(port)
    })
}

/// The directory of a `file:` URL: `file:DIR`, or `file:///DIR` as other programs write it.
fn directory(rest: &str) -> Result<PathBuf, String> {
    const HOW: &str = "write file:DIR, such as file:/var/lib/leasehold";
    let path = match rest.strip_prefix("//") {
        None => rest,
        Some(path) if path.starts_with('/') => path,
        Some(_) => return Err(format!("a file: store is on this machine; {HOW}")),
    };
    match path {
        "" => Err(format!("the directory is missing; {HOW}")),
        // It would name another directory than the one that was meant.
        path if path.trim() != path => Err(format!(
            "the directory {path:?} begins or ends with a blank; {HOW}"
        )),
        path => Ok(PathBuf::from(path)),
    }
}

/// Hides the credentials of a URL and keeps the rest, which helps to find out why a store cannot be reached. It splits
/// at the last `@`, because a password may contain an unescaped one.
pub(super) fn redacted(url: &str) -> String {
    match url.split_once("://") {
        Some((scheme, rest)) => match rest.rsplit_once('@') {
            Some((_, place)) => format!("{scheme}://***@{place}"),
            None => url.to_owned(),
        },
        None if url.is_empty() || ["memory", "memory:"].contains(&url) => url.to_owned(),
        None if url.starts_with("file:") || is_host_and_port(url) => url.to_owned(),
        None => "***".to_owned(),
    }
}

fn redis(scheme: &str, rest: &str) -> Result<(StoreUrl, Credentials), String> {
    // A password may contain an unescaped `@`, so the credentials end at the last one.
    let user_info = rest.rsplit_once('@').map_or("", |(user_info, _)| user_info);
    if user_info.contains(['?', '#']) {
        return Err(
            "`#` and `?` in a password are written %23 and %3F; or set redis.password_file instead"
                .to_owned(),
        );
    }
    if rest.contains(['?', '#']) {
        return Err(
            "the URL of a Redis takes no parameters; settings of Redis are keys of their own"
                .to_owned(),
        );
    }
    let (user_info, place) = rest
        .rsplit_once('@')
        .map_or((None, rest), |(user, place)| (Some(user), place));
    let credentials = user_info.map_or_else(|| Ok(Credentials::default()), credentials)?;
    let is_encrypted = scheme.starts_with("rediss");
    if scheme.ends_with("+sentinel") {
        let address = SentinelAddress::parse(place, is_encrypted)?;
        return Ok((StoreUrl::Sentinel(address), credentials));
    }
    if scheme.ends_with("+cluster") {
        let address = ClusterAddress::parse(place, is_encrypted)?;
        return Ok((StoreUrl::Cluster(address), credentials));
    }
    let (authority, number) = place.split_once('/').unwrap_or((place, ""));
    let (host, port) = hosts::host_and_port(authority, REDIS_PORT)?;
    let address = RedisAddress {
        host,
        port,
        database: database(number)?,
        is_encrypted,
    };
    Ok((StoreUrl::Redis(address), credentials))
}

/// The number of a database, in a URL that need not have one.
pub(super) fn database(number: &str) -> Result<u32, String> {
    match number {
        "" => Ok(0),
        number => number
            .parse()
            .map_err(|_| "the database is not a number".to_owned()),
    }
}

fn credentials(user_info: &str) -> Result<Credentials, String> {
    let (username, password) = user_info.split_once(':').unwrap_or((user_info, ""));
    let (username, password) = (decoded(username)?, decoded(password)?);
    Ok(Credentials {
        username: (!username.is_empty()).then_some(username),
        password: (!password.is_empty()).then(|| Secret::new(password)),
    })
}

fn decoded(text: &str) -> Result<String, String> {
    let decoded = percent_encoding::percent_decode_str(text).decode_utf8();
    decoded
        .map(String::from)
        .map_err(|_| "the credentials are not percent-encoded UTF-8".to_owned())
}

/// The settings of Redis; credentials from the URL are merged into them.
#[derive(Debug, Clone)]
pub struct RedisConfig {
    /// The maximum number of connections per thread.
    pub connections: usize,
    /// The timeout for connecting.
    pub connect_timeout: Duration,
    /// The user to authenticate as.
    pub username: Option<String>,
    /// The password to authenticate with.
    pub password: Option<Secret>,
    /// The user to authenticate as at the Sentinels.
    pub sentinel_username: Option<String>,
    /// The password of the Sentinels.
    pub sentinel_password: Option<Secret>,
    /// The certificates, for a store with TLS.
    pub tls: RedisTls,
    /// A `maxmemory-policy` to accept besides `noeviction`.
    pub accept_eviction_policy: Option<String>,
    /// Whether a start on an empty Redis begins with a grace period before the first grant.
    pub grace_on_empty_start: bool,
    /// How often Redis is checked again.
    pub check_interval: Duration,
    /// How many replicas have to have a lease before it is reported.
    pub wait_replicas: usize,
    /// How long they may take.
    pub wait_timeout: Duration,
}

impl RedisConfig {
    pub(super) fn parse(
        settings: &Settings,
        in_url: Credentials,
        store: &StoreUrl,
    ) -> Result<Self, ConfigError> {
        let name = |key| Some(settings.text(key)).filter(|name| !name.is_empty());
        let username = name("redis.username").map(str::to_owned);
        Ok(Self {
            connections: settings.count("redis.connections", CONNECTIONS_MAX)?,
            connect_timeout: settings.positive("redis.connect_timeout")?,
            username: once(settings, "redis.username", username, in_url.username)?,
            password: once(
                settings,
                "redis.password",
                settings.secret("redis.password"),
                in_url.password,
            )?,
            sentinel_username: name("redis.sentinel_username").map(str::to_owned),
            sentinel_password: settings.secret("redis.sentinel_password"),
            tls: RedisTls::parse(settings, store.is_encrypted())?,
            accept_eviction_policy: eviction_policy(settings)?,
            grace_on_empty_start: settings.boolean("redis.grace_on_empty_start")?,
            check_interval: settings.positive("redis.check_interval")?,
            wait_replicas: wait_replicas(settings, store)?,
            wait_timeout: wait_timeout(settings)?,
        })
    }
}

/// The embedded stores have no replicas. A user who configures some would believe leases safer than they are.
fn wait_replicas(settings: &Settings, store: &StoreUrl) -> Result<usize, ConfigError> {
    let key = "redis.wait_replicas";
    let replicas = settings.whole(key, REPLICAS_MAX)?;
    let is_redis = match store {
        StoreUrl::Memory | StoreUrl::File(_) => false,
        StoreUrl::Redis(_) | StoreUrl::Sentinel(_) | StoreUrl::Cluster(_) | StoreUrl::Quorum(_) => {
            true
        }
    };
    if replicas == 0 || is_redis {
        return Ok(replicas);
    }
    let problem = format!(
        "{replicas} replicas cannot confirm, because the store {store} has no replicas; use a redis store, or 0"
    );
    Err(settings.invalid(key, problem))
}

/// An answer after the deadline of its operation would be worth nothing.
fn wait_timeout(settings: &Settings) -> Result<Duration, ConfigError> {
    let key = "redis.wait_timeout";
    let (timeout, limit) = (
        settings.positive(key)?,
        settings.positive("operation_timeout")?,
    );
    let is_in_use = settings.whole("redis.wait_replicas", REPLICAS_MAX)? > 0;
    match is_in_use && timeout >= limit {
        true => Err(settings.invalid(key, "must be shorter than operation_timeout")),
        false => Ok(timeout),
    }
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

/// A credential may be set in the URL or under its own key, not in both: one of them would be ignored silently.
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
