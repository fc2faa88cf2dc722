//! Bounds of numbers and durations: nothing that a key accepts can fail or overflow later.

use leasehold::config::keys::{self, Kind};

use super::{complaint, from_environment};

/// A number that no limit of a process can mean, and a duration that no clock can add.
const ABSURD_NUMBER: &str = "9999999999999";
const ABSURD_DURATION: &str = "99999999999d";

#[test]
fn no_number_and_no_duration_is_without_an_upper_bound() {
    for key in keys::all() {
        let absurd = match key.kind {
            Kind::Integer => ABSURD_NUMBER,
            Kind::Duration => ABSURD_DURATION,
            Kind::Text | Kind::Boolean => continue,
        };
        let variables = [("LEASEHOLD_STORE", "redis://r"), (&key.variable(), absurd)];
        let error = complaint(from_environment(&variables));
        assert!(error.contains(&key.name), "{error}");
        let names_the_bound = ["is more than ", "is out of range; use ", "is longer than "];
        assert!(
            names_the_bound.iter().any(|words| error.contains(words)),
            "{error}"
        );
    }
}

#[test]
fn a_body_that_one_peer_could_never_send_is_no_limit() {
    let body = "LEASEHOLD_SERVER_BODY_BYTES_MAX";
    let total = "LEASEHOLD_SERVER_BODY_BYTES_TOTAL_MAX";
    let error = complaint(from_environment(&[(body, "65536"), (total, "131070")]));
    assert!(
        error.contains("65536") && error.contains("131072"),
        "{error}"
    );
    let error = complaint(from_environment(&[(body, "9999999")]));
    assert!(error.contains("use 8388608 or less"), "{error}");
    from_environment(&[(body, "65536"), (total, "131072")]).expect("half is enough for one body");
}

#[test]
fn a_bound_that_is_named_is_one_that_is_accepted() {
    let key = "LEASEHOLD_LEASE_TTL_MAX";
    let error = complaint(from_environment(&[(key, "1000000d")]));
    assert!(error.contains("use 1ms to 3650d"), "{error}");
    let error = complaint(from_environment(&[(key, "0s")]));
    assert!(error.contains("must be longer than 0s"), "{error}");
}

#[test]
fn all_clients_together_may_hold_what_one_claim_may() {
    let key = "LEASEHOLD_SERVER_LOCKS_MAX";
    let error = complaint(from_environment(&[(key, "63")]));
    assert!(error.contains("use 0 or at least 64"), "{error}");
    let locks_max = |value| {
        let (config, _) = from_environment(&[(key, value)]).expect("it is accepted");
        config.server.locks_max
    };
    assert_eq!(locks_max("64"), Some(64));
    assert_eq!(locks_max("0"), None);
}
