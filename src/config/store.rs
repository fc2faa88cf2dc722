//! The URL that chooses the store. No message here quotes it as written, because it may contain a password. The store
//! itself connects.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;

use super::quorum::QuorumAddress;
use super::redis_url::{ClusterAddress, SentinelAddress, host_and_port};
use super::secret::Secret;

const REDIS_PORT: u16 = 6379;

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
    pub(super) fn is_encrypted(&self) -> bool {
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

/// The credentials in a URL. A user that needs no password has an empty one: `user:@`.
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
            Some(rest)
                if [",redis://", ",rediss://"]
                    .iter()
                    .any(|next| rest.contains(next)) =>
            {
                Err("several Redis are a quorum; write quorum: before the first".to_owned())
            }
            Some(rest) => redis(scheme, rest).map_err(|problem| format!("{problem}; {HOW}")),
            None => Err(format!("two slashes follow {scheme}:; {HOW}")),
        },
        ("quorum", Some(_)) => {
            Err("no slashes follow quorum:; write quorum:redis://host,redis://host,…".to_owned())
        }
        ("quorum", None) => QuorumAddress::parse(rest)
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
    if let Some(nodes) = url.strip_prefix("quorum:") {
        return format!("quorum:{}", redacted_nodes(nodes));
    }
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

/// The same of each node of a quorum. A comma also separates Sentinels, and may be in a password, so a node begins only
/// where a scheme does.
fn redacted_nodes(nodes: &str) -> String {
    let mut urls: Vec<String> = Vec::new();
    for part in nodes.split(',') {
        match urls.last_mut() {
            Some(last) if !part.contains("://") => *last = format!("{last},{part}"),
            _ => urls.push(part.to_owned()),
        }
    }
    let urls: Vec<_> = urls.iter().map(|url| redacted(url)).collect();
    urls.join(",")
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
    let (host, port) = host_and_port(authority, REDIS_PORT)?;
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
    let (username, password) = match user_info.split_once(':') {
        Some((username, password)) => (decoded(username)?, Some(decoded(password)?)),
        None => (decoded(user_info)?, None),
    };
    let username = (!username.is_empty()).then_some(username);
    // An empty one is that of a user that needs none.
    let password = password.filter(|password| !password.is_empty() || username.is_some());
    Ok(Credentials {
        username,
        password: password.map(Secret::new),
    })
}

fn decoded(text: &str) -> Result<String, String> {
    let decoded = percent_encoding::percent_decode_str(text).decode_utf8();
    decoded
        .map(String::from)
        .map_err(|_| "the credentials are not percent-encoded UTF-8".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_nodes_of_a_quorum_are_shown_and_none_of_their_credentials() {
        let url = "quorum:redis://u:a,b@h1:1,rediss://:c@h2:2,redis+sentinel://u:d@s1:3,s2:4/name";
        assert_eq!(
            redacted(url),
            "quorum:redis://***@h1:1,rediss://***@h2:2,redis+sentinel://***@s1:3,s2:4/name"
        );
    }
}
