//! Quotas in the keys file: what they may say, what they inherit, and messages about the line that is wrong.

use std::num::NonZeroU32;
use std::time::Duration;

use leasehold::config::{KeysFile, Quota, RequestRate};

use super::keys_file::{assert_complaints, principal};
use super::{KEY, OTHER_KEY, complaint, file, from_environment};

/// The quotas of the principals of a file.
fn quotas(text: &str) -> Vec<Quota> {
    let file = file(text);
    let read = KeysFile::read(file.path()).unwrap_or_else(|error| panic!("{error}"));
    let principals = read.principals.into_iter();
    principals.map(|principal| principal.quota).collect()
}

fn rate(per_second: u32, burst: u32) -> Option<RequestRate> {
    let number = |number| NonZeroU32::new(number).unwrap();
    Some(RequestRate {
        per_second: number(per_second),
        burst: number(burst),
    })
}

#[test]
fn a_principal_takes_from_the_quota_of_all_what_its_own_does_not_say() {
    let of_all = "[quota]\nrequests_per_second = 10\nrequests_burst = 1_000\nttl_max = \"10m\"\n";
    let own = "quota = { requests_per_second = 50, waiters_max = 7, locks_max = 9, name_bytes_max = 64, metadata_bytes_max = 1 }";
    let text = of_all.to_owned() + &principal("a", KEY, "") + &principal("b", OTHER_KEY, own);
    let [a, b] = &quotas(&text)[..] else {
        panic!("two principals");
    };
    let of_all = Quota {
        requests: rate(10, 1_000),
        ttl_max: Some(Duration::from_secs(600)),
        ..Quota::default()
    };
    assert_eq!(*a, of_all);
    let expected = Quota {
        // The burst of all belongs to the rate of all.
        requests: rate(50, 50),
        waiters_max: Some(7),
        locks_max: Some(9),
        ttl_max: Some(Duration::from_secs(600)),
        name_bytes_max: Some(64),
        metadata_bytes_max: Some(1),
    };
    assert_eq!(*b, expected);
    assert_eq!(quotas(&principal("a", KEY, "")), [Quota::default()]);
}

#[test]
fn a_mistake_in_a_quota_is_reported_with_its_line() {
    let own = |line: &str| principal("a", KEY, &format!("[principals.a.quota]\n{line}"));
    assert_complaints(&[
        (
            own("request_per_second = 1"),
            ":4: principals.a.quota.request_per_second: is unknown; did you mean requests_per_second?",
        ),
        (
            own("requests_per_second = 0"),
            ":4: principals.a.quota.requests_per_second: 0 is out of range; use 1 to 1000000",
        ),
        (
            own("requests_per_second = \"10\""),
            ":4: principals.a.quota.requests_per_second: this is of the type string; write a whole number",
        ),
        (
            own("requests_burst = 10"),
            ":4: principals.a.quota.requests_burst: has no meaning without requests_per_second beside it",
        ),
        (
            own("requests_per_second = 10\nrequests_burst = 9"),
            ":5: principals.a.quota.requests_burst: is less than requests_per_second, 10; use this number or a larger one",
        ),
        (
            own("waiters_max = -1"),
            ":4: principals.a.quota.waiters_max: -1 is out of range; use 1 to 10000000",
        ),
        (
            own("locks_max = 1_000_001"),
            ":4: principals.a.quota.locks_max: 1000001 is out of range; use 1 to 1000000",
        ),
        (own("ttl_max = \"30\""), ":4: principals.a.quota.ttl_max: "),
        (
            own("ttl_max = \"0s\""),
            ":4: principals.a.quota.ttl_max: 0s leaves no lease",
        ),
        (
            own("name_bytes_max = 256"),
            ":4: principals.a.quota.name_bytes_max: 256 is out of range; use 1 to 255",
        ),
        (
            own("metadata_bytes_max = 4097"),
            ":4: principals.a.quota.metadata_bytes_max: 4097 is out of range; use 1 to 4096",
        ),
        (
            "quota = 1\n".to_owned() + &principal("a", KEY, ""),
            ":1: quota: this is of the type integer; write a table",
        ),
        (
            "[quota]\nttl_mx = 1\n".to_owned() + &principal("a", KEY, ""),
            ":2: quota.ttl_mx: is unknown; did you mean ttl_max?",
        ),
    ]);
}

#[test]
fn a_longest_ttl_that_no_ttl_of_the_service_fits_is_refused() {
    let of = |ttl_max: &str| {
        let own = format!("quota = {{ ttl_max = \"{ttl_max}\" }}");
        file(&principal("a", KEY, &own))
    };
    let load = |ttl_max: &str| {
        let file = of(ttl_max);
        from_environment(&[
            ("LEASEHOLD_AUTH_KEYS_FILE", file.path().to_str().unwrap()),
            ("LEASEHOLD_LEASE_TTL_MIN", "1s"),
        ])
    };
    let complaint = complaint(load("999ms"));
    let expected = "the quota of a: ttl_max is 999ms, shorter than lease.ttl_min, 1s, so no lease could be granted";
    assert!(complaint.contains("auth_keys_file"), "{complaint}");
    assert!(complaint.contains(expected), "{complaint}");
    let warnings = |ttl_max| load(ttl_max).unwrap().0.warnings();
    assert_eq!(warnings("1s"), Vec::<String>::new());
    let above =
        "the quota of a: ttl_max is 2h, longer than lease.ttl_max, 1h, which bounds its leases too";
    assert_eq!(warnings("2h"), [above]);
}
