//! The settings of Redis besides its address, and the user of the store, who needs a password.

use std::fmt;
use std::time::Duration;

use super::error::ConfigError;
use super::keys::{self, SettingKey};
use super::secret::Secret;
use super::settings::{Settings, UpperBound};
use super::store::{Credentials, StoreUrl};
use super::tls::RedisTls;

const REPLICAS_MAX: UpperBound = UpperBound(
    100,
    "no Redis keeps so many replicas up to date, so nothing would be granted",
);
const CONNECTIONS_MAX: UpperBound = UpperBound(
    1_000,
    "Redis itself accepts 10,000 connections of all its clients",
);

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
        let name = |key| {
            let name = Some(settings.text(key)).filter(|name| !name.is_empty());
            name.map(str::to_owned)
        };
        let own_password = settings.secret("redis.password");
        let is_empty = |password: &Secret| password.expose().is_empty();
        let in_url_password = in_url
            .password
            .filter(|password| own_password.is_none() || !is_empty(password));
        let user_from = match in_url.username {
            Some(_) => "store",
            None => "redis.username",
        };
        let config = Self {
            connections: settings.count("redis.connections", CONNECTIONS_MAX)?,
            connect_timeout: settings.positive("redis.connect_timeout")?,
            username: once(
                settings,
                "redis.username",
                name("redis.username"),
                in_url.username,
            )?,
            password: once(settings, "redis.password", own_password, in_url_password)?,
            sentinel_username: name("redis.sentinel_username"),
            sentinel_password: settings.secret("redis.sentinel_password"),
            tls: RedisTls::parse(settings, store.is_encrypted())?,
            accept_eviction_policy: eviction_policy(settings)?,
            grace_on_empty_start: settings.boolean("redis.grace_on_empty_start")?,
            check_interval: settings.positive("redis.check_interval")?,
            wait_replicas: wait_replicas(settings, store)?,
            wait_timeout: wait_timeout(settings)?,
        };
        // Redis authenticates a user by its password. Without one, the user of the connection stays `default`.
        for (username, password, user_from, password_file) in [
            (
                &config.username,
                &config.password,
                user_from,
                "redis.password_file",
            ),
            (
                &config.sentinel_username,
                &config.sentinel_password,
                "redis.sentinel_username",
                "redis.sentinel_password_file",
            ),
        ] {
            if username.is_some() && password.is_none() {
                return Err(settings.invalid(user_from, without_password(password_file)));
            }
        }
        Ok(config)
    }

    /// The address of a Redis, with the user that this process authenticates as.
    pub fn with_user(&self, address: &impl fmt::Display) -> String {
        let address = address.to_string();
        match &self.username {
            Some(username) => address.replace("://", &format!("://{username}@")),
            None => address,
        }
    }
}

fn without_password(password_file: &str) -> String {
    let variable = keys::find(password_file).map(SettingKey::variable);
    let of_url = match password_file {
        "redis.password_file" => ", or write user:@ in the URL if it needs none",
        _ => "",
    };
    format!(
        "a user without a password; set {password_file} ({}){of_url}, or leave the user out",
        variable.unwrap_or_default()
    )
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
