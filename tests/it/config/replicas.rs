//! The replicas that have to confirm what is reported.

use std::time::Duration;

use super::{complaint, from_environment};

const STORE: &str = "LEASEHOLD_STORE";
const REPLICAS: &str = "LEASEHOLD_REDIS_WAIT_REPLICAS";
const TIMEOUT: &str = "LEASEHOLD_REDIS_WAIT_TIMEOUT";

#[test]
fn no_replica_has_to_confirm_unless_it_is_configured() {
    let (config, _) = from_environment(&[]).unwrap();
    assert_eq!(config.redis.wait_replicas, 0);
    let (config, _) =
        from_environment(&[(STORE, "redis://r"), (REPLICAS, "2"), (TIMEOUT, "1s")]).unwrap();
    assert_eq!(config.redis.wait_replicas, 2);
    assert_eq!(config.redis.wait_timeout, Duration::from_secs(1));
}

#[test]
fn replicas_have_less_time_than_an_operation() {
    let error = complaint(from_environment(&[
        (STORE, "redis://r"),
        (REPLICAS, "1"),
        (TIMEOUT, "2s"),
    ]));
    assert!(error.contains("shorter than operation_timeout"), "{error}");
    from_environment(&[(TIMEOUT, "2s")]).expect("no replica is waited for");
    let error = complaint(from_environment(&[(REPLICAS, "all")]));
    assert!(error.contains("is not a whole number"), "{error}");
}

#[test]
fn more_replicas_than_one_redis_has_are_refused_with_the_bound() {
    from_environment(&[(STORE, "redis://r"), (REPLICAS, "100")]).expect("as many as are allowed");
    for number in ["101", "99999999999"] {
        let error = complaint(from_environment(&[
            (STORE, "redis://r"),
            (REPLICAS, number),
        ]));
        assert!(
            error.contains(&format!("{number} is more than 100: ")),
            "{error}"
        );
    }
}

#[test]
fn a_store_without_replicas_cannot_wait_for_any() {
    for store in ["memory:", "file:/var/lib/leasehold"] {
        let error = complaint(from_environment(&[(STORE, store), (REPLICAS, "1")]));
        assert!(error.contains("has no replicas"), "{error}");
        assert!(error.contains(store.split(':').next().unwrap()), "{error}");
        from_environment(&[(STORE, store), (REPLICAS, "0")]).expect("none is waited for");
    }
}
