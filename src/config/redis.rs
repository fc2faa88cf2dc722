//! The settings of the `redis://` store besides its address. The store itself connects.

use std::time::Duration;

use super::error::ConfigError;
use super::secret::Secret;
use super::settings::Settings;
use super::store::Credentials;

/// The `redis://` store; credentials from the URL are merged into it.
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
    /// A `maxmemory-policy` to accept besides `noeviction`.
    pub accept_eviction_policy: Option<String>,
    /// Whether a start on an empty Redis begins with a grace period before the first grant.
    pub grace_on_empty_start: bool,
    /// How often Redis is checked again.
    pub check_interval: Duration,
}

impl RedisConfig {
    pub(super) fn parse(settings: &Settings, in_url: Credentials) -> Result<Self, ConfigError> {
        let username = Some(settings.text("redis.username"))
            .filter(|name| !name.is_empty())
            .map(str::to_owned);
        Ok(Self {
            connections: settings.count("redis.connections")?,
            connect_timeout: settings.positive("redis.connect_timeout")?,
            username: once(settings, "redis.username", username, in_url.username)?,
            password: once(
                settings,
                "redis.password",
                settings.secret("redis.password"),
                in_url.password,
            )?,
            accept_eviction_policy: eviction_policy(settings)?,
            grace_on_empty_start: settings.boolean("redis.grace_on_empty_start")?,
            check_interval: settings.positive("redis.check_interval")?,
        })
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
