//! The URL of a Redis Cluster.

use leasehold::config::{ClusterAddress, StoreUrl};

use super::{complaint, from_environment};

fn parsed(url: &str) -> ClusterAddress {
    let (config, _) = from_environment(&[("LEASEHOLD_STORE", url)]).unwrap();
    match config.store {
        StoreUrl::Cluster(address) => address,
        other => panic!("{url} is of a cluster, not {other:?}"),
    }
}

#[test]
fn a_url_has_some_nodes_of_the_cluster() {
    let place = |host: &str, port| (host.to_owned(), port);
    let address = parsed("redis+cluster://bob:pass@a,b:1,[::1]:2");
    assert_eq!(
        address.nodes,
        [place("a", 6379), place("b", 1), place("::1", 2)]
    );
    assert!(!address.is_encrypted);
    assert_eq!(address.to_string(), "redis+cluster://a:6379,b:1,[::1]:2");
    assert!(parsed("rediss+cluster://a/0").is_encrypted);
    assert_eq!(parsed("valkey+cluster://a").nodes, [place("a", 6379)]);
}

#[test]
fn what_is_wrong_in_the_url_is_named() {
    for (url, problem) in [
        ("redis+cluster://a,,b", "the host is missing"),
        (
            "redis+cluster://a/1",
            "a Redis Cluster has no database but 0",
        ),
        ("redis+cluster://a/x", "the database is not a number"),
        ("redis+cluster:a", "two slashes follow redis+cluster:"),
    ] {
        let error = complaint(from_environment(&[("LEASEHOLD_STORE", url)]));
        assert!(error.contains(problem), "{url}: {error}");
    }
}
