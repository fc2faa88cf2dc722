//! The URL of a quorum: `quorum:URL,URL,URL`, with the URLs of its nodes, and the settings of a quorum.

use std::fmt;

use super::error::ConfigError;
use super::redis_url::SentinelAddress;
use super::settings::{Settings, UpperBound};
use super::store::{self, Credentials, RedisAddress, StoreUrl};

const HOW: &str =
    "write quorum:URL,URL,URL with the redis:// or redis+sentinel:// URLs of its nodes";

/// More nodes than this make each operation slower, and tolerate more failures than ever happen at a time.
const NODES_MAX: usize = 9;

/// Where a clock that is slewed fast and one that is slewed as fast the other way drift apart by a sixth.
const DRIFT_MAX: UpperBound = UpperBound(
    200,
    "clocks that drift apart by more than a fifth are broken",
);

/// The settings of a quorum, besides its URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuorumConfig {
    /// How far the clocks of a node and of a process may drift apart, in thousandths. Never 0: where NTP slews clocks by
    /// up to 500 parts in a million, two of them drift apart by one thousandth.
    pub drift_per_thousand: u32,
}

impl QuorumConfig {
    pub(super) fn parse(settings: &Settings) -> Result<Self, ConfigError> {
        let drift = settings.count("quorum.drift_per_thousand", DRIFT_MAX)?;
        Ok(Self {
            drift_per_thousand: u32::try_from(drift).unwrap_or(u32::MAX),
        })
    }
}

/// The nodes of a quorum; credentials are in [`RedisConfig`](super::RedisConfig), the same for all nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuorumAddress {
    /// An odd number of them, from three on.
    pub nodes: Vec<QuorumNode>,
}

/// Where one node is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuorumNode {
    /// One Redis or Valkey.
    Redis(RedisAddress),
    /// The Redis or Valkey that Sentinels name.
    Sentinel(SentinelAddress),
}

impl QuorumAddress {
    /// Whether the connections to some node use TLS.
    pub(super) fn is_encrypted(&self) -> bool {
        self.nodes.iter().any(|node| match node {
            QuorumNode::Redis(address) => address.is_encrypted,
            QuorumNode::Sentinel(address) => address.is_encrypted,
        })
    }

    /// Parses what follows `quorum:`.
    pub(super) fn parse(urls: &str) -> Result<(Self, Credentials), String> {
        let parsed = split(urls).into_iter().enumerate().map(|(index, url)| {
            node(url).map_err(|problem| format!("node {} of the quorum: {problem}", index + 1))
        });
        let parsed: Vec<_> = parsed.collect::<Result<_, _>>()?;
        let (nodes, credentials): (Vec<_>, Vec<_>) = parsed.into_iter().unzip();
        let count = nodes.len();
        if count < 3 || count % 2 == 0 || count > NODES_MAX {
            let why = match count % 2 {
                0 => ": an even number tolerates no more failures than one node less",
                _ => "",
            };
            return Err(format!(
                "a quorum has 3, 5, 7 or 9 nodes, not {count}{why}; {HOW}"
            ));
        }
        for (index, node) in nodes.iter().enumerate() {
            if let Some(same) = nodes[..index].iter().position(|other| other.is_at(node)) {
                return Err(format!(
                    "nodes {} and {} of the quorum are the same Redis, which would have two votes",
                    same + 1,
                    index + 1
                ));
            }
        }
        Ok((Self { nodes }, common(credentials)?))
    }
}

impl QuorumNode {
    /// Whether this is the same server; two of its databases fail together.
    fn is_at(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Redis(one), Self::Redis(other)) => {
                one.port == other.port && one.host.eq_ignore_ascii_case(&other.host)
            }
            (Self::Sentinel(one), Self::Sentinel(other)) => {
                let is_shared = |sentinel| other.sentinels.contains(sentinel);
                one.primary == other.primary && one.sentinels.iter().any(is_shared)
            }
            (Self::Redis(_), Self::Sentinel(_)) | (Self::Sentinel(_), Self::Redis(_)) => false,
        }
    }
}

/// The URLs of the nodes, without blanks around them. The URL of Sentinels has commas of its own, so only those before a
/// scheme separate nodes.
fn split(urls: &str) -> Vec<&str> {
    let begins_url = |rest: &str| {
        let scheme = rest.split_once(':').map_or("", |(scheme, _)| scheme);
        let is_of_scheme = |letter: char| letter.is_ascii_lowercase() || letter == '+';
        ["memory", "file", "quorum"].contains(&scheme)
            || rest[scheme.len()..].starts_with("://") && scheme.chars().all(is_of_scheme)
    };
    let mut nodes = Vec::new();
    let mut from = 0;
    for (at, _) in urls.match_indices(',') {
        if begins_url(urls[at + 1..].trim_start()) {
            nodes.push(urls[from..at].trim());
            from = at + 1;
        }
    }
    nodes.push(urls[from..].trim());
    nodes
}

fn node(url: &str) -> Result<(QuorumNode, Credentials), String> {
    if url.is_empty() {
        return Err(format!("its URL is missing; {HOW}"));
    }
    // It is not part of the URL: the one of Sentinels ends with their name.
    if url.ends_with(',') {
        return Err(format!("no URL follows the comma after it; {HOW}"));
    }
    let (address, credentials) = store::parse(url)?;
    let node = match address {
        StoreUrl::Redis(address) => QuorumNode::Redis(address),
        StoreUrl::Sentinel(address) => QuorumNode::Sentinel(address),
        StoreUrl::Memory | StoreUrl::File(_) => {
            return Err(format!(
                "a store of one process has no vote, since other processes do not share it; {HOW}"
            ));
        }
        StoreUrl::Cluster(_) => {
            return Err(format!(
                "a Redis Cluster cannot be a node, since its primaries fail one by one; {HOW}"
            ));
        }
        StoreUrl::Quorum(_) => return Err(format!("a quorum cannot be a node; {HOW}")),
    };
    Ok((node, credentials))
}

/// The credentials in the URLs of the nodes.
fn common(of_nodes: Vec<Credentials>) -> Result<Credentials, String> {
    let mut of_nodes = of_nodes.into_iter();
    let first = of_nodes.next().unwrap_or_default();
    match of_nodes.all(|other| other == first) {
        true => Ok(first),
        false => Err(
            "all nodes of a quorum have the same user and password; write them into each URL, or set redis.username \
             and redis.password_file"
                .to_owned(),
        ),
    }
}

impl fmt::Display for QuorumNode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Redis(address) => write!(formatter, "{address}"),
            Self::Sentinel(address) => write!(formatter, "{address}"),
        }
    }
}

impl fmt::Display for QuorumAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("quorum:")?;
        for (index, node) in self.nodes.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(formatter, "{comma}{node}")?;
        }
        Ok(())
    }
}
