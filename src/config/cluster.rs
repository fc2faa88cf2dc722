//! The URL of a Redis Cluster: `redis+cluster://host[:port],…`.

use std::fmt;

use super::{hosts, store};

const REDIS_PORT: u16 = 6379;

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
            .map(|host| hosts::host_and_port(host, REDIS_PORT))
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
        hosts::write(formatter, &self.nodes)
    }
}
