//! The URL of a Redis that Sentinels watch.

use leasehold::config::{SentinelAddress, StoreUrl};

use super::{complaint, from_environment};

fn parsed(url: &str) -> SentinelAddress {
    let (config, _) = from_environment(&[("LEASEHOLD_STORE", url)]).unwrap();
    match config.store {
        StoreUrl::Sentinel(address) => address,
        other => panic!("{url} is of Sentinels, not {other:?}"),
    }
}

#[test]
fn a_url_has_sentinels_the_name_of_the_primary_and_perhaps_a_database() {
    let place = |host: &str, port| (host.to_owned(), port);
    let address = parsed("redis+sentinel://bob:pass@a,b:1,[::1]:2/locks/3");
    assert_eq!(
        address.sentinels,
        [place("a", 26379), place("b", 1), place("::1", 2)]
    );
    assert_eq!((address.primary.as_str(), address.database), ("locks", 3));
    assert!(!address.is_encrypted);
    assert_eq!(
        address.to_string(),
        "redis+sentinel://a:26379,b:1,[::1]:2/locks/3"
    );
    let address = parsed("rediss+sentinel://a/locks");
    assert!(address.is_encrypted && address.database == 0);
}

#[test]
fn what_is_missing_in_the_url_is_named() {
    for (url, problem) in [
        ("redis+sentinel://a,b", "the name of the primary is missing"),
        ("redis+sentinel://a,,b/locks", "the host is missing"),
        ("redis+sentinel://a/locks/x", "the database is not a number"),
        (
            "redis+sentinel://a/locks/1/2",
            "nothing follows the database",
        ),
        (
            "redis+sentinel:a/locks",
            "two slashes follow redis+sentinel:",
        ),
    ] {
        let error = complaint(from_environment(&[("LEASEHOLD_STORE", url)]));
        assert!(error.contains(problem), "{url}: {error}");
    }
}
