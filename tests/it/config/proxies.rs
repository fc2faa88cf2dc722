//! The proxies in front of the service, and whether what they say about their clients counts.

use super::{complaint, from_environment};

#[test]
fn a_header_counts_only_with_the_proxies_that_set_it() {
    let forwarded_for = ("LEASEHOLD_SERVER_FORWARDED_FOR", "true");
    let error = complaint(from_environment(&[forwarded_for]));
    assert!(error.contains("server.trusted_proxies"), "{error}");
    let proxies = ("LEASEHOLD_SERVER_TRUSTED_PROXIES", "192.0.2.0/24");
    let (config, _) = from_environment(&[forwarded_for, proxies]).unwrap();
    assert!(config.server.forwarded_for);
    let (config, _) = from_environment(&[proxies]).unwrap();
    assert!(!config.server.forwarded_for);
}
