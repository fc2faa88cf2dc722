//! The address of a client in the header `X-Forwarded-For`, which each proxy extends by the address that it sees. Whether
//! the peer may say so is decided in `peer`.

use std::net::{IpAddr, SocketAddr};

use axum::http::{HeaderMap, HeaderName};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// How many proxies may follow each other. A client cannot make them more: each of them is at a trusted address.
const PROXIES_MAX: usize = 16;

/// The last address that is not one of a proxy. `None` if there is none, or if something else is among the proxies after
/// it: then nobody who is trusted says where the client is.
///
/// Whatever comes before that address was written by the client or by somebody else who is not trusted. It is not read, so
/// that no value of it, however long or malformed, changes the result.
pub(super) fn client_address(
    headers: &HeaderMap,
    is_proxy: impl Fn(IpAddr) -> bool,
) -> Option<IpAddr> {
    headers
        .get_all(X_FORWARDED_FOR)
        .iter()
        .rev()
        .flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','))
        .take(PROXIES_MAX)
        .map(address)
        .find(|address| address.is_none_or(|address| !is_proxy(address)))?
}

/// Parses an address, with or without a port. An IPv6 address may stand in brackets, and has to if there is a port.
fn address(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text.trim_ascii()).ok()?;
    let in_brackets = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    let address = text.parse().ok();
    let address = address.or_else(|| in_brackets().map(IpAddr::V6));
    let address = address.or_else(|| text.parse().ok().map(|it: SocketAddr| it.ip()))?;
    Some(address.to_canonical())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;
    use crate::config::AddressBlock;

    /// The address of the client if the header has these lines, and the proxies are in 10.0.0.0/8 and 2001:db8:1::/48.
    fn client(lines: &[&[u8]]) -> Option<String> {
        let blocks = ["10.0.0.0/8", "2001:db8:1::/48"];
        let blocks = blocks.map(|block| AddressBlock::parse(block).expect("a block"));
        let mut headers = HeaderMap::new();
        for line in lines {
            let line = HeaderValue::from_bytes(line).expect("a valid value");
            headers.append(X_FORWARDED_FOR, line);
        }
        let is_proxy = |address| blocks.iter().any(|block| block.contains(address));
        client_address(&headers, is_proxy).map(|address| address.to_string())
    }

    #[test]
    fn the_client_is_before_the_last_proxies() {
        for (lines, expected) in [
            (&["192.0.2.7"] as &[_], "192.0.2.7"),
            (&["192.0.2.7, 10.0.0.1"], "192.0.2.7"),
            (&[" 192.0.2.7\t,10.0.0.1 , 10.0.0.2"], "192.0.2.7"),
            // What comes before was sent by the client.
            (&["203.0.113.9, 192.0.2.7"], "192.0.2.7"),
            (&["10.0.0.9, 192.0.2.7, 10.0.0.1"], "192.0.2.7"),
            (&["unknown, <script>, , 192.0.2.7"], "192.0.2.7"),
            (&[", 192.0.2.7"], "192.0.2.7"),
            // A proxy may add a line instead.
            (&["203.0.113.9", "192.0.2.7"], "192.0.2.7"),
            (&["203.0.113.9", "192.0.2.7", "10.0.0.1"], "192.0.2.7"),
            (&["", "192.0.2.7"], "192.0.2.7"),
            (&["192.0.2.7:51744, 10.0.0.1:80"], "192.0.2.7"),
            (&["::ffff:192.0.2.7, ::ffff:10.0.0.1"], "192.0.2.7"),
            (&["2001:db8::7, 2001:db8:1::1"], "2001:db8::7"),
            (&["[2001:db8::7], [2001:db8:1::1]:443"], "2001:db8::7"),
            (&["[2001:db8::7]:51744"], "2001:db8::7"),
        ] {
            let bytes: Vec<_> = lines.iter().map(|line| line.as_bytes()).collect();
            assert_eq!(client(&bytes).as_deref(), Some(expected), "{lines:?}");
        }
        let mut long = b"\xff203.0.113.9, ".repeat(4_000);
        long.extend_from_slice(b"192.0.2.7");
        assert_eq!(client(&[&long]).as_deref(), Some("192.0.2.7"));
    }

    #[test]
    fn a_value_that_no_proxy_writes_names_nobody() {
        for text in [
            "",
            "10.0.0.1",
            "unknown",
            "_hidden",
            "192.0.2.7,",
            "192.0.2.7, unknown",
            "192.0.2.7, unknown, 10.0.0.1",
            "192.0.2.7, , 10.0.0.1",
            "192.0.2.7:",
            "192.0.2.7:99999",
            "192.0.2.7 10.0.0.1",
            "192.0.2",
            "192.000.002.007",
            "[192.0.2.7]",
            "2001:db8::7%eth0",
            "[2001:db8::7",
            "\"2001:db8::7\"",
            "for=192.0.2.7",
        ] {
            assert_eq!(client(&[text.as_bytes()]), None, "{text:?}");
        }
        assert_eq!(client(&[]), None);
        assert_eq!(client(&[b"192.0.2.7, \xff"]), None);
        let proxies = |count| format!("192.0.2.7{}", ", 10.0.0.1".repeat(count));
        let client_before = |count| client(&[proxies(count).as_bytes()]);
        assert_eq!(client_before(PROXIES_MAX - 1).as_deref(), Some("192.0.2.7"));
        assert_eq!(client_before(PROXIES_MAX), None);
    }
}
