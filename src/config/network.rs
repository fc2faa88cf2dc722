//! Address blocks, such as those of trusted proxies. Nothing here knows what a block is used for.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A block of IP addresses that share a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressBlock {
    first: IpAddr,
    prefix_bits: u32,
}

impl AddressBlock {
    /// Parses one address, or a block such as `10.0.0.0/8`. `None` if it is neither.
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
        (prefix_bits <= length).then_some(Self { first, prefix_bits })
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
