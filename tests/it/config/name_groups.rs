//! Groups of lock names for metrics: the message about one that is wrong. `domain::name_groups` tests what they match.

use super::{complaint, from_environment};

#[test]
fn a_group_of_names_that_matches_none_is_refused() {
    let groups = [("LEASEHOLD_METRICS_NAME_GROUPS", "jobs/*,/x")];
    let error = complaint(from_environment(&groups));
    let problem = "\"/x\" matches no name; write one like jobs/*, or tenant/*/billing";
    assert!(error.contains(problem), "{error}");
}
