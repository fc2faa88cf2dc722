//! The URL of a Redis that Sentinels watch: `redis+sentinel://host[:port],…/name[/database]`.

use std::fmt;

use super::{hosts, store};

const SENTINEL_PORT: u16 = 26379;

/// Which Sentinels know the primary, and which database of it; credentials are in
/// [`RedisConfig`](super::RedisConfig).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentinelAddress {
    /// Host and port of some Sentinels, which know the others. A host may stand for several.
    pub sentinels: Vec<(String, u16)>,
    /// The name under which they watch the primary.
    pub primary: String,
    /// The number of the database.
    pub database: u32,
    /// Whether the connections use TLS, also those to the Sentinels: `rediss+sentinel://`.
    pub is_encrypted: bool,
}

impl SentinelAddress {
    /// Parses what follows the credentials.
    pub(super) fn parse(place: &str, is_encrypted: bool) -> Result<Self, String> {
        let mut parts = place.split('/');
        let hosts = parts.next().unwrap_or_default();
        let sentinels: Result<Vec<_>, _> = hosts
            .split(',')
            .map(|host| hosts::host_and_port(host, SENTINEL_PORT))
            .collect();
        let primary = parts.next().unwrap_or_default();
        if primary.is_empty() {
            return Err("the name of the primary is missing".to_owned());
        }
        let database = store::database(parts.next().unwrap_or_default())?;
        if parts.next().is_some() {
            return Err("nothing follows the database".to_owned());
        }
        Ok(Self {
            sentinels: sentinels?,
            primary: primary.to_owned(),
            database,
            is_encrypted,
        })
    }
}

impl fmt::Display for SentinelAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_encrypted { "rediss" } else { "redis" };
        write!(formatter, "{scheme}+sentinel://")?;
        hosts::write(formatter, &self.sentinels)?;
        write!(formatter, "/{}/{}", self.primary, self.database)
    }
}
