//! The address of a peer, and under which one it is counted.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// Where a peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerAddress {
    /// An address and a port: those of the client, or of the last proxy. Made by [`From`], an IPv4 address is never an
    /// IPv4-mapped one.
    Tcp(SocketAddr),
    /// The address of a client, as a trusted proxy has it.
    Forwarded(IpAddr),
    /// A program on this machine.
    Unix {
        /// The number of the user that it runs as.
        user: u32,
    },
}

/// The beginning of 100::/8, which is reserved and has no hosts. A user of this machine counts as an address in it: the one
/// with the number 0xhhhhllll as 100:0:hhhh:llll::.
const LOCAL_USERS: u128 = 0x0100 << 112;

impl PeerAddress {
    /// The IP address, or one that stands for the user.
    pub(super) fn ip(self) -> IpAddr {
        match self {
            Self::Tcp(address) => address.ip(),
            Self::Forwarded(ip) => ip.to_canonical(),
            // The number is in the first half, because all of an IPv6 /64 is one peer.
            Self::Unix { user } => IpAddr::V6((LOCAL_USERS | u128::from(user) << 64).into()),
        }
    }
}

impl From<SocketAddr> for PeerAddress {
    fn from(address: SocketAddr) -> Self {
        // A socket for both families has the IPv4-mapped address of an IPv4 client.
        Self::Tcp(SocketAddr::new(address.ip().to_canonical(), address.port()))
    }
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(formatter),
            Self::Forwarded(ip) => ip.fmt(formatter),
            Self::Unix { user } => write!(formatter, "unix:uid={user}"),
        }
    }
}

/// The address under which a peer is counted. All of an IPv6 /64 is one peer, because a client with one IPv6 address usually
/// has 2^64 of them (RFC 6177).
pub(super) fn network_of(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            let network = address.to_bits() >> 64 << 64;
            IpAddr::V6(network.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_ipv6_network_are_one_peer() {
        let key = |text: &str| network_of(text.parse().expect("an address"));
        assert_eq!(key("2001:db8::1"), key("2001:db8::ffff:1:2:3"));
        assert_ne!(key("2001:db8::1"), key("2001:db8:0:1::1"));
        assert_ne!(key("192.0.2.1"), key("192.0.2.2"));
        assert_eq!(key("192.0.2.1"), key("::ffff:192.0.2.1"));
    }

    /// A socket for both families has the first form.
    #[test]
    fn an_ipv4_client_is_shown_with_its_ipv4_address() {
        let shown = |text: &str| {
            let address: SocketAddr = text.parse().expect("an address");
            PeerAddress::from(address).to_string()
        };
        assert_eq!(shown("[::ffff:192.0.2.7]:51744"), "192.0.2.7:51744");
        assert_eq!(shown("[2001:db8::7]:51744"), "[2001:db8::7]:51744");
    }

    #[test]
    fn each_user_of_this_machine_is_a_peer() {
        let key = |user| network_of(PeerAddress::Unix { user }.ip());
        assert_ne!(key(0), key(1));
        assert_ne!(key(1), key(u32::MAX));
        assert_eq!(key(0).to_string(), "100::");
    }
}
