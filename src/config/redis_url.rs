//! What the URLs of several Redis servers name: the nodes of a cluster, `redis+cluster://host[:port],…`, or the Sentinels
//! that watch a primary, `redis+sentinel://host[:port],…/name[/database]`. The URL of one server is in `store`.

use std::fmt;

use super::store;

const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// Which nodes know the cluster; credentials are in [`RedisConfig`](super::RedisConfig).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterAddress {
    /// Host and port of some nodes, which know the others.
    pub nodes: Vec<(String, u16)>,
    /// Whether the connections use TLS: `rediss+cluster://`.
    pub is_encrypted: bool,
}

impl ClusterAddress {
    /// Parses what follows the credentials.
    pub(super) fn parse(place: &str, is_encrypted: bool) -> Result<Self, String> {
        let (hosts, database) = place.split_once('/').unwrap_or((place, ""));
        if store::database(database)? != 0 {
            return Err("a Redis Cluster has no database but 0".to_owned());
        }
        let nodes: Result<Vec<_>, _> = hosts
            .split(',')
            .map(|host| host_and_port(host, REDIS_PORT))
            .collect();
        Ok(Self {
            nodes: nodes?,
            is_encrypted,
        })
    }
}

impl fmt::Display for ClusterAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_encrypted { "rediss" } else { "redis" };
        write!(formatter, "{scheme}+cluster://")?;
        write_hosts(formatter, &self.nodes)
    }
}

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
            .map(|host| host_and_port(host, SENTINEL_PORT))
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
        write_hosts(formatter, &self.sentinels)?;
        write!(formatter, "/{}/{}", self.primary, self.database)
    }
}

/// Writes hosts and ports as in a URL.
fn write_hosts(formatter: &mut fmt::Formatter<'_>, hosts: &[(String, u16)]) -> fmt::Result {
    for (number, (host, port)) in hosts.iter().enumerate() {
        let comma = if number == 0 { "" } else { "," };
        match host.contains(':') {
            true => write!(formatter, "{comma}[{host}]:{port}")?,
            false => write!(formatter, "{comma}{host}:{port}")?,
        }
    }
    Ok(())
}

/// Host and port of one server.
pub(super) fn host_and_port(authority: &str, default: u16) -> Result<(String, u16), String> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(bracketed) => {
            let (host, port) = bracketed
                .split_once(']')
                .ok_or("the bracket of the address is not closed")?;
            (host, port.strip_prefix(':').unwrap_or(port))
        }
        None => authority.split_once(':').unwrap_or((authority, "")),
    };
    if host.is_empty() {
        return Err("the host is missing".to_owned());
    }
    if host.contains(char::is_whitespace) {
        return Err(format!("the host {host:?} has a blank in it"));
    }
    let port = match port {
        "" => default,
        number => number
            .parse()
            .map_err(|_| "the port is not a number up to 65535".to_owned())?,
    };
    Ok((host.to_owned(), port))
}
