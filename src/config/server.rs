//! Sockets, their limits and shutdown. `limits`, `server`, `http` and `service` enforce the limits.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU32;
use std::time::Duration;

use super::error::{ConfigError, Origin};
use super::keys_file::RequestRate;
use super::listen::{ListenAddress, socket_mode};
use super::settings::{BYTES_MAX, SERVED_MAX, Settings, UpperBound};
use crate::domain::LockNames;

/// The largest response has a few megabytes; with less than this, only one at a time would fit.
const ANSWER_BYTES_MIN: usize = 1024 * 1024;
/// Each has an event loop of its own.
const THREADS_MAX: UpperBound = UpperBound(1_024, "a process has no use for more");
/// Redis frees the whole count in one step when all leases have run out.
const LOCKS_MAX: UpperBound = UpperBound(1_000_000, "a store can count no more");
/// As many as the stream counter of an HTTP/2 connection can hold.
const STREAMS_MAX: UpperBound = UpperBound(10_000, "an HTTP/2 connection can count no more");

/// Sockets, their limits and shutdown.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Host names of the service, besides `localhost`.
    pub hosts: Vec<String>,
    /// How many threads serve connections; `None` for as many as the machine has use for.
    pub worker_threads: Option<usize>,
    /// How many connections may be open at once.
    pub connections_max: usize,
    /// How many of them may come from one peer address; `None` for half of them.
    pub connections_per_peer_max: Option<usize>,
    /// How many of them are reserved for peers with few connections.
    pub connections_reserved: usize,
    /// Proxies that forward requests of many clients; per-peer limits do not apply to them.
    pub trusted_proxies: Vec<AddressBlock>,
    /// Whether their header `X-Forwarded-For` says where a client is.
    pub forwarded_for: bool,
    /// A second address, for probes, metrics and operators.
    pub admin_listen: Option<ListenAddress>,
    /// The permissions of a Unix socket.
    pub socket_mode: u32,
    /// How many HTTP/2 connections may be open at once.
    pub http2_connections_max: usize,
    /// How many TLS handshakes may be under way at once.
    pub tls_handshakes_max: usize,
    /// How many requests an HTTP/2 connection may carry at once.
    pub http2_streams_max: u32,
    /// How many requests may be in flight at once.
    pub requests_max: usize,
    /// How fast requests of all clients may come, without renewals and releases; `None` for as fast as they are answered.
    pub requests: Option<RequestRate>,
    /// How many locks clients may hold together, over all processes; `None` for as many as the store can keep.
    pub locks_max: Option<usize>,
    /// From the opening of a connection, or the first byte of a request, to the end of its head.
    pub header_read_timeout: Duration,
    /// From a response to the whole head of the next request.
    pub idle_timeout: Duration,
    /// From the head of a request to the end of its body.
    pub body_timeout: Duration,
    /// The largest request body.
    pub body_bytes_max: usize,
    /// How many bytes of large request bodies may be in flight at once.
    pub body_bytes_total_max: usize,
    /// How long a peer may read nothing while response data is waiting for it.
    pub write_timeout: Duration,
    /// How long a peer may take to read a whole response. Streams are exempt.
    pub answer_timeout: Duration,
    /// How many bytes of large responses may be in flight at once.
    pub answer_bytes_max: usize,
    /// How many operations may be in flight at once, not counting renewals, releases and listings.
    pub operations_max: usize,
    /// How many listings may be in flight at once.
    pub listings_max: usize,
    /// How many event streams may be open at once.
    pub event_streams_max: usize,
    /// How many renewals and releases may be in flight at once.
    pub renewals_max: usize,
    /// From readiness turning false to closing the listener.
    pub drain_delay: Duration,
    /// From closing the listener to cutting the remaining connections.
    pub drain_timeout: Duration,
}

impl ServerConfig {
    pub(super) fn parse(settings: &Settings) -> Result<Self, ConfigError> {
        let answer_bytes_max = settings.count("server.answer_bytes_max", BYTES_MAX)?;
        if answer_bytes_max < ANSWER_BYTES_MIN {
            let problem =
                format!("{answer_bytes_max} is out of range; use {ANSWER_BYTES_MIN} or more");
            return Err(settings.invalid("server.answer_bytes_max", problem));
        }
        let (body_bytes_max, body_bytes_total_max) = body_bytes(settings)?;
        let streams = settings.count("server.http2_streams_max", STREAMS_MAX)?;
        let (trusted_proxies, forwarded_for) = proxies(settings)?;
        Ok(Self {
            hosts: hosts(settings)?,
            worker_threads: share(settings, "server.worker_threads", THREADS_MAX)?,
            connections_max: settings.count("server.connections_max", SERVED_MAX)?,
            connections_per_peer_max: share(
                settings,
                "server.connections_per_peer_max",
                SERVED_MAX,
            )?,
            connections_reserved: settings.whole("server.connections_reserved", SERVED_MAX)?,
            trusted_proxies,
            forwarded_for,
            admin_listen: admin_listen(settings)?,
            socket_mode: socket_mode(settings, "server.socket_mode")?,
            http2_connections_max: settings.count("server.http2_connections_max", SERVED_MAX)?,
            tls_handshakes_max: settings.count("server.tls_handshakes_max", SERVED_MAX)?,
            http2_streams_max: u32::try_from(streams).expect("it is below the limit"),
            requests_max: settings.count("server.requests_max", SERVED_MAX)?,
            requests: requests(settings)?,
            locks_max: locks_max(settings)?,
            header_read_timeout: settings.positive("server.header_read_timeout")?,
            idle_timeout: settings.positive("server.idle_timeout")?,
            body_timeout: settings.positive("server.body_timeout")?,
            body_bytes_max,
            body_bytes_total_max,
            write_timeout: settings.positive("server.write_timeout")?,
            answer_timeout: settings.positive("server.answer_timeout")?,
            answer_bytes_max,
            operations_max: settings.count("server.operations_max", SERVED_MAX)?,
            listings_max: settings.count("server.listings_max", SERVED_MAX)?,
            event_streams_max: settings.count("server.event_streams_max", SERVED_MAX)?,
            renewals_max: settings.count("server.renewals_max", SERVED_MAX)?,
            drain_delay: settings.duration("server.drain_delay")?,
            drain_timeout: settings.duration("server.drain_timeout")?,
        })
    }

    /// How many connections one peer address may have.
    #[must_use]
    pub fn connections_of_peer(&self) -> usize {
        let half = half(self.connections_max);
        self.connections_per_peer_max.unwrap_or(half)
    }

    /// How many connections are reserved for peers with few connections: at most a quarter of all.
    #[must_use]
    pub fn connections_kept(&self) -> usize {
        self.connections_reserved.min(self.connections_max / 4)
    }
}

/// One peer's share of a limit for all.
#[must_use]
pub fn half(all: usize) -> usize {
    all.div_ceil(2)
}

/// The largest body, and the bytes of all. Half of all are for one peer, so a larger body would always be refused.
fn body_bytes(settings: &Settings) -> Result<(usize, usize), ConfigError> {
    let (name, of_all) = ("server.body_bytes_max", "server.body_bytes_total_max");
    let largest = settings.count(name, BYTES_MAX)?;
    let total = settings.count(of_all, BYTES_MAX)?;
    if largest <= half(total) {
        return Ok((largest, total));
    }
    let (blamed, advice) = match settings.origin(of_all) {
        Origin::Default => (name, format!("use {} or less", half(total))),
        Origin::File { .. } | Origin::Environment(_) | Origin::Flag(_) => {
            (of_all, format!("use {} or more", largest * 2))
        }
    };
    let problem = format!(
        "half of {of_all} ({total}) is for one peer, so a body of {name} ({largest}) would always be refused; {advice}"
    );
    Err(settings.invalid(blamed, problem))
}

/// A count; 0 means that the key has no value of its own.
fn share(settings: &Settings, name: &str, bound: UpperBound) -> Result<Option<usize>, ConfigError> {
    let count = settings.whole(name, bound)?;
    Ok((count > 0).then_some(count))
}

/// A rate, with as many requests at once as in a second.
fn requests(settings: &Settings) -> Result<Option<RequestRate>, ConfigError> {
    let per_second = share(settings, "server.requests_per_second", SERVED_MAX)?;
    let per_second = per_second.and_then(|it| NonZeroU32::new(u32::try_from(it).ok()?));
    Ok(per_second.map(|per_second| RequestRate {
        per_second,
        burst: per_second,
    }))
}

/// How many locks clients may hold together. A single claim must never exceed it: it would be refused for ever.
fn locks_max(settings: &Settings) -> Result<Option<usize>, ConfigError> {
    const NAME: &str = "server.locks_max";
    match share(settings, NAME, LOCKS_MAX)? {
        Some(few) if few < LockNames::COUNT_MAX => {
            let least = LockNames::COUNT_MAX;
            let problem = format!(
                "{few} is out of range; use 0 or at least {least}, because one claim may have so many locks"
            );
            Err(settings.invalid(NAME, problem))
        }
        locks_max => Ok(locks_max),
    }
}

/// A list of names in one text, so that a flag or a variable can set it too.
fn hosts(settings: &Settings) -> Result<Vec<String>, ConfigError> {
    let names = settings.text("server.hosts").split(',').map(str::trim);
    let names = names.filter(|name| !name.is_empty()).map(|name| {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        if name.bytes().all(is_name) {
            return Ok(name.to_owned());
        }
        let problem = format!(
            "\"{name}\" is not a host name; write names without ports, like locks.example,ci-7"
        );
        Err(settings.invalid("server.hosts", problem))
    });
    names.collect()
}

/// The trusted proxies, and whether they say where their clients are.
fn proxies(settings: &Settings) -> Result<(Vec<AddressBlock>, bool), ConfigError> {
    let trusted = blocks(settings, "server.trusted_proxies")?;
    let name = "server.forwarded_for";
    let forwarded_for = settings.boolean(name)?;
    if forwarded_for && trusted.is_empty() {
        let problem =
            "the header counts only if it comes from a proxy in server.trusted_proxies; name yours";
        return Err(settings.invalid(name, problem));
    }
    Ok((trusted, forwarded_for))
}

fn blocks(settings: &Settings, name: &str) -> Result<Vec<AddressBlock>, ConfigError> {
    let texts = settings.text(name).split(',').map(str::trim);
    let blocks = texts.filter(|text| !text.is_empty()).map(|text| {
        AddressBlock::parse(text).ok_or_else(|| {
            let problem = format!(
                "\"{text}\" is neither an address nor an address block; write \"10.0.0.0/8, 192.0.2.7\""
            );
            settings.invalid(name, problem)
        })
    });
    blocks.collect()
}

pub(super) fn admin_listen(settings: &Settings) -> Result<Option<ListenAddress>, ConfigError> {
    let name = "server.admin_listen";
    let text = settings.text(name);
    if text.is_empty() {
        return Ok(None);
    }
    ListenAddress::parse(settings, name).map(Some)
}

/// The first bits of every IPv4-mapped IPv6 address, ::ffff:0:0/96, which the IPv4 address follows.
const MAPPED_BITS: u32 = 96;

/// A block of IP addresses that share a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressBlock {
    first: IpAddr,
    prefix_bits: u32,
}

impl AddressBlock {
    /// Parses one address, or a block such as `10.0.0.0/8`. `None` if it is neither. IPv4-mapped IPv6 addresses are those of
    /// IPv4, because those that are compared with them are.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u32>().ok()?)),
            None => (text, None),
        };
        let first: IpAddr = address.parse().ok()?;
        let length = match first {
            IpAddr::V4(_) => Ipv4Addr::BITS,
            IpAddr::V6(_) => Ipv6Addr::BITS,
        };
        let prefix_bits = bits.unwrap_or(length);
        let is_within = prefix_bits <= length;
        let is_mapped = first.to_canonical() != first;
        is_within.then_some(match prefix_bits.checked_sub(MAPPED_BITS) {
            Some(prefix_bits) if is_mapped => Self {
                first: first.to_canonical(),
                prefix_bits,
            },
            Some(_) | None => Self { first, prefix_bits },
        })
    }

    /// Whether the block contains the address. An IPv4-mapped IPv6 address counts as the IPv4 address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.first, address.to_canonical()) {
            (IpAddr::V4(first), IpAddr::V4(address)) => {
                let differing = first.to_bits() ^ address.to_bits();
                differing.leading_zeros() >= self.prefix_bits
            }
            (IpAddr::V6(first), IpAddr::V6(address)) => {
                let differing = first.to_bits() ^ address.to_bits();
                differing.leading_zeros() >= self.prefix_bits
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_contains_the_addresses_with_its_prefix() {
        for (block, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.1"),
            ("192.0.2.7", "192.0.2.7", "192.0.2.8"),
            ("192.0.2.128/25", "192.0.2.200", "192.0.2.127"),
            ("2001:db8::/32", "2001:db8:ffff::1", "2001:db9::1"),
            ("::1", "::1", "::2"),
            ("10.0.0.0/8", "::ffff:10.0.0.1", "::10.0.0.1"),
            // As a socket for both families has it.
            ("::ffff:192.0.2.7", "192.0.2.7", "192.0.2.8"),
            ("::ffff:10.0.0.0/104", "10.255.0.1", "11.0.0.1"),
            ("::ffff:0.0.0.0/96", "192.0.2.7", "2001:db8::1"),
        ] {
            let parsed = AddressBlock::parse(block).expect("a block");
            assert!(
                parsed.contains(inside.parse().expect("an address")),
                "{block} {inside}"
            );
            assert!(
                !parsed.contains(outside.parse().expect("an address")),
                "{block} {outside}"
            );
        }
        let all = AddressBlock::parse("0.0.0.0/0").expect("a block");
        assert!(all.contains("203.0.113.1".parse().expect("an address")));
    }

    #[test]
    fn texts_that_are_not_a_block_are_refused() {
        for text in [
            "",
            "10.0.0.0/33",
            "10.0.0.0/",
            "10.0.0/8",
            "::/129",
            "proxy.example",
            "10.0.0.1:80",
        ] {
            assert_eq!(AddressBlock::parse(text), None, "{text}");
        }
    }
}
