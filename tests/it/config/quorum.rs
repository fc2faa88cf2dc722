//! The URL of a quorum, and its settings.

use leasehold::config::{QuorumAddress, StoreUrl};

use super::{complaint, from_environment};

fn parsed(url: &str) -> QuorumAddress {
    let (config, _) = from_environment(&[("LEASEHOLD_STORE", url)]).unwrap();
    match config.store {
        StoreUrl::Quorum(address) => address,
        other => panic!("{url} is of a quorum, not {other:?}"),
    }
}

#[test]
fn a_url_has_the_urls_of_the_nodes() {
    let address = parsed(
        "quorum:redis://a,rediss://b:1/2,redis+sentinel://s1,s2:7/locks,valkey://c,redis://d",
    );
    assert_eq!(address.nodes.len(), 5);
    assert_eq!(
        address.to_string(),
        "quorum:redis://a:6379/0,rediss://b:1/2,redis+sentinel://s1:26379,s2:7/locks/0,redis://c:6379/0,redis://d:6379/0"
    );
}

#[test]
fn blanks_around_the_commas_of_a_quorum_count_for_nothing() {
    let written = parsed("quorum: redis://a , redis+sentinel://s1,s2/locks,\tredis://c ");
    assert_eq!(
        written,
        parsed("quorum:redis://a,redis+sentinel://s1,s2/locks,redis://c")
    );
}

#[test]
fn a_quorum_keeps_smaller_limits() {
    for (url, limit_max) in [
        ("redis://a", 1_000_000),
        ("quorum:redis://a,redis://b,redis://c", 1_000),
    ] {
        let (config, _) = from_environment(&[("LEASEHOLD_STORE", url)]).unwrap();
        assert_eq!(config.lease.limits.limit_max, limit_max, "{url}");
    }
}

/// Two clocks that NTP slews in opposite directions drift apart by one thousandth, so nothing less is safe.
#[test]
fn the_drift_of_clocks_can_be_set_but_not_to_nothing() {
    let with_drift = |drift| from_environment(&[("LEASEHOLD_QUORUM_DRIFT_PER_THOUSAND", drift)]);
    for (written, drift) in [("1", 1), ("50", 50), ("200", 200)] {
        let (config, _) = with_drift(written).unwrap();
        assert_eq!(config.quorum.drift_per_thousand, drift);
    }
    for (written, problem) in [
        ("0", "a whole number from 1"),
        ("0.01", "a whole number from 1"),
        ("201", "201 is more than 200: clocks that drift apart"),
    ] {
        let error = complaint(with_drift(written));
        assert!(error.contains(problem), "{error}");
    }
}

#[test]
fn all_nodes_have_the_same_credentials() {
    let url = "quorum:redis://bob:pa,ss@a,redis://bob:pa,ss@b,redis://bob:pa,ss@c";
    let (config, _) = from_environment(&[("LEASEHOLD_STORE", url)]).unwrap();
    assert_eq!(config.redis.username.as_deref(), Some("bob"));
    assert!(!config.store.to_string().contains("bob"));
    let url = "quorum:redis://bob:secret@a,redis://b,redis://c";
    let error = complaint(from_environment(&[("LEASEHOLD_STORE", url)]));
    assert!(error.contains("have the same user and password"), "{error}");
    assert!(!error.contains("secret"), "{error}");
}

#[test]
fn what_is_wrong_with_the_nodes_is_said() {
    for (url, problem) in [
        (
            "quorum:redis://a,redis://b",
            "has 3, 5, 7 or 9 nodes, not 2",
        ),
        (
            "quorum:redis://a,redis://b,redis://c,redis://d",
            "has 3, 5, 7 or 9 nodes, not 4",
        ),
        ("quorum:", "node 1 of the quorum: its URL is missing"),
        (
            "quorum://redis://a,redis://b,redis://c",
            "no slashes follow quorum:",
        ),
        (
            "redis://a,redis://b,redis://c",
            "several Redis are a quorum; write quorum: before the first",
        ),
        (
            "quorum:redis://a,redis://b,redis://A:6379/1",
            "nodes 1 and 3 of the quorum are the same Redis",
        ),
        (
            "quorum:redis+sentinel://s,t/x,redis+sentinel://t/x,redis://c",
            "nodes 1 and 2 of the quorum are the same Redis",
        ),
        (
            "quorum:redis://a,memory:,redis://c",
            "node 2 of the quorum: a store of one process has no vote",
        ),
        (
            "quorum:redis://a,redis://b,file:/c",
            "node 3 of the quorum: a store of one process has no vote",
        ),
        (
            "quorum:redis://a,redis+cluster://b,redis://c",
            "node 2 of the quorum: a Redis Cluster cannot be a node",
        ),
        (
            "quorum:redis://a,redis://b,redis://c,",
            "node 3 of the quorum: no URL follows the comma after it",
        ),
        (
            "quorum:redis+sentinel://s,t/x,,redis://b,redis://c",
            "node 1 of the quorum: no URL follows the comma after it",
        ),
        (
            "quorum:redis://a,redis://,redis://c",
            "node 2 of the quorum: the host is missing",
        ),
    ] {
        let error = complaint(from_environment(&[("LEASEHOLD_STORE", url)]));
        assert!(error.contains(problem), "{url}: {error}");
    }
}
