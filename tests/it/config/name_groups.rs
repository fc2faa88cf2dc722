//! Groups of lock names for metrics: the message about one that is wrong. `domain::name_groups` tests what they match.

use super::{complaint, from_environment};

#[test]
fn a_group_of_names_that_matches_none_is_refused() {
    let groups = [("LEASEHOLD_METRICS_NAME_GROUPS", "jobs/*,/x")];
    let error = complaint(from_environment(&groups));
    let problem = "\"/x\" matches no name; write one like jobs/*, or tenant/*/billing";
    assert!(error.contains(problem), "{error}");
}

#[test]
fn a_group_that_is_the_name_of_a_lock_is_refused() {
    let groups = [("LEASEHOLD_METRICS_NAME_GROUPS", "jobs/*,backup")];
    let error = complaint(from_environment(&groups));
    let problem =
        "\"backup\" has no *, so the name of a lock would be a label; write one like backup/*";
    assert!(error.contains(problem), "{error}");
}

#[test]
fn a_group_that_would_never_count_is_refused_with_the_one_before_it() {
    let groups = [("LEASEHOLD_METRICS_NAME_GROUPS", "jobs/*, jobs/nightly/*")];
    let error = complaint(from_environment(&groups));
    let problem =
        "\"jobs/nightly/*\" would never count, because \"jobs/*\" before it matches the same names";
    assert!(error.contains(problem), "{error}");
}
