//! The replicas that have to confirm what is reported.

use std::time::Duration;

use super::{complaint, from_environment};

const REPLICAS: &str = "LEASEHOLD_REDIS_WAIT_REPLICAS";
const TIMEOUT: &str = "LEASEHOLD_REDIS_WAIT_TIMEOUT";

#[test]
fn no_replica_has_to_confirm_unless_it_is_configured() {
    let (config, _) = from_environment(&[]).unwrap();
    assert_eq!(config.redis.wait_replicas, 0);
    let (config, _) = from_environment(&[(REPLICAS, "2"), (TIMEOUT, "1s")]).unwrap();
    assert_eq!(config.redis.wait_replicas, 2);
    assert_eq!(config.redis.wait_timeout, Duration::from_secs(1));
}

#[test]
fn replicas_have_less_time_than_an_operation() {
    let error = complaint(from_environment(&[(REPLICAS, "1"), (TIMEOUT, "2s")]));
    assert!(error.contains("shorter than operation_timeout"), "{error}");
    from_environment(&[(TIMEOUT, "2s")]).expect("no replica is waited for");
    let error = complaint(from_environment(&[(REPLICAS, "all")]));
    assert!(error.contains("is not a whole number"), "{error}");
}
