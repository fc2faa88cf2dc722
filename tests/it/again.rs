//! Tests that are run again: those of the interface on every store, and those of the Redis store on every server.
//!
//! Each test here starts this test binary once more with an environment variable that names the store or the server.
//! The same works by hand: `TEST_REDIS=valkey-9 cargo test --test it -- contract::redis`.

use std::process::Command;

use crate::support::TURN;

/// What a run on another store or server leaves out, and why.
type Skipped = (&'static str, &'static str);

/// The tests that depend on the version of Redis: what scripts do, what they cost, how long keys are kept, what INFO,
/// CONFIG, ACL and CLUSTER say, what WAIT waits for, and what a restart and a change of the clock do.
const OF_REDIS: [&str; 16] = [
    "contract::redis",
    "contract::one_store::redis",
    "faults::clock",
    "faults::cluster_listings",
    "faults::cluster_moves",
    "faults::crashes",
    "faults::redis_cluster",
    "faults::refusals",
    "faults::replicas",
    "faults::rights",
    "faults::unfit",
    "fencing::",
    "records::",
    "round_trips::",
    "scripts::",
    "support::redis_server",
];

/// The same beyond one Redis without encryption, where it depends on the server and not only on this service: what its
/// TLS and its Sentinels do. Not of Redis 6.2, which is compiled here without TLS.
const OF_TLS_AND_SENTINELS: [&str; 2] = ["faults::tls", "faults::sentinels"];

/// The tests of the interface in which locks, messages or failures of several nodes may meet, or what a majority decides
/// otherwise than one store. Each starts with a cluster or a quorum of its own.
const OF_NODES: [&str; 15] = [
    "api::delivery",
    "api::events",
    "api::flow_control",
    "api::health",
    "api::life",
    "api::limits",
    "api::listing",
    "api::rules",
    "api::several",
    "api::sharing",
    "api::sockets",
    "api::streams",
    "api::terraform",
    "api::vanished",
    "api::waiting",
];

const NOT_ON_REDIS_6: [Skipped; 8] = [
    (
        "a_right_that_only_some_requests_need_is_reported_once_one_was_refused",
        "a script cannot give an error a code of its own, so the answer counts as an invalid one",
    ),
    (
        "a_durable_redis_that_is_loading_its_data_has_lost_none",
        "it refuses CONFIG SET while it loads its data, so that a slow load cannot be ended",
    ),
    (
        "without_the_right_to_count_subscribers_locks_are_granted_and_it_is_reported",
        "it cannot take back the right to a part of a command",
    ),
    (
        "a_node_of_a_cluster_is_refused",
        "the port of its bus cannot be chosen, and may be that of another test",
    ),
    (
        "cluster_listings::",
        "the port of its bus cannot be chosen, and may be that of another test",
    ),
    (
        "cluster_moves::",
        "the port of its bus cannot be chosen, and may be that of another test",
    ),
    (
        "redis_cluster::",
        "the port of its bus cannot be chosen, and may be that of another test",
    ),
    (
        "moving_slot::",
        "the port of its bus cannot be chosen, and may be that of another test",
    ),
];

const NOT_ON_VALKEY_8: [Skipped; 1] = [(
    "scripts::",
    "its MONITOR leaves quotes and backslashes as they are, so that words cannot be told apart",
)];

/// A time that is stopped on an embedded store goes on while Redis answers.
const TO_THE_MILLISECOND: &str = "it compares remaining times to the millisecond";
const A_MINUTE: &str = "it would really wait for a minute or more";

const NOT_ON_FILE: [Skipped; 1] = [(
    "streams::a_stream_waits_in_the_queue_and_reports_its_position",
    "after a jump of the stopped clock the grant may be written before the keep-alive",
)];

const NOT_ON_REDIS: [Skipped; 11] = [
    ("sentences::", TO_THE_MILLISECOND),
    (
        "events::a_stream_without_events_sends_keep_alives",
        A_MINUTE,
    ),
    (
        "guard::a_peer_without_a_key_is_rate_limited_and_affects_no_others",
        A_MINUTE,
    ),
    (
        "life::a_late_release_also_ends_later_grants_of_its_token",
        A_MINUTE,
    ),
    ("life::a_renewal_restarts_the_ttl", TO_THE_MILLISECOND),
    ("logs::no_token_is_ever_logged", A_MINUTE),
    (
        "nonsense::nothing_that_is_sent_makes_it_fail",
        "it needs 1,500 stores",
    ),
    (
        "several::all_leases_are_renewed_or_none",
        TO_THE_MILLISECOND,
    ),
    (
        "streams::a_stream_waits_in_the_queue_and_reports_its_position",
        A_MINUTE,
    ),
    (
        "waiting::a_lock_shows_the_head_of_its_queue",
        TO_THE_MILLISECOND,
    ),
    (
        "waiting::a_request_that_waits_is_answered_when_it_is_its_turn",
        TO_THE_MILLISECOND,
    ),
];

#[test]
fn the_interface_is_the_same_on_a_file_store() {
    run_interface("file", &NOT_ON_FILE);
}

#[test]
fn the_interface_is_the_same_on_redis() {
    run_interface("redis", &NOT_ON_REDIS);
}

#[test]
fn the_interface_is_the_same_on_a_redis_with_sentinels_and_a_replica_that_confirms() {
    run_interface("sentinel", &NOT_ON_REDIS);
}

#[test]
fn the_interface_is_the_same_on_a_redis_cluster() {
    run(("TEST_STORE", "cluster"), &OF_NODES, &NOT_ON_REDIS);
}

#[test]
fn leases_queues_and_streams_are_the_same_on_a_quorum() {
    run(("TEST_STORE", "quorum"), &OF_NODES, &NOT_ON_REDIS);
}

#[test]
fn the_store_keeps_its_promises_on_redis_6() {
    run(("TEST_REDIS", "redis-6"), &OF_REDIS, &NOT_ON_REDIS_6);
}

#[test]
fn the_store_keeps_its_promises_on_redis_8() {
    run_redis("redis-8", &[]);
}

#[test]
fn the_store_keeps_its_promises_on_valkey_8() {
    run_redis("valkey-8", &NOT_ON_VALKEY_8);
}

#[test]
fn the_store_keeps_its_promises_on_valkey_9() {
    run_redis("valkey-9", &[]);
}

/// Runs the tests of the Redis store on this server.
fn run_redis(server: &str, skipped: &[Skipped]) {
    let chosen = [&OF_REDIS[..], &OF_TLS_AND_SENTINELS].concat();
    run(("TEST_REDIS", server), &chosen, skipped);
}

/// Runs the tests of the interface on this store. At least 85 of 100 have to apply to it.
fn run_interface(store: &str, skipped: &[Skipped]) {
    let passed = run(("TEST_STORE", store), &["api::"], skipped);
    let all = passed + skipped.len();
    assert!(passed * 100 >= all * 85, "{passed} of {all} tests apply");
}

/// Runs the tests whose names contain one of `chosen`, except for `skipped`, and returns how many passed.
fn run(variable: (&str, &str), chosen: &[&str], skipped: &[Skipped]) -> usize {
    let _turn = TURN.blocking_read();
    let binary = std::env::current_exe().expect("the path of this binary");
    let mut tests = Command::new(binary);
    tests
        .env(variable.0, variable.1)
        .args(["--test-threads", "4"]);
    // Its name ends like that of the module of the interface.
    tests.args(["--skip", "openapi::"]).args(chosen);
    for (test, _) in skipped {
        tests.args(["--skip", test]);
    }
    let output = tests.output().expect("the test binary starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let (_, failures) = text.split_once("\nfailures:\n").unwrap_or(("", &text));
    assert!(output.status.success(), "{variable:?}: {failures}");
    let passed = text.rsplit_once("test result: ok. ").map(|(_, end)| end);
    let passed = passed
        .and_then(|end| end.split_once(" passed"))
        .map(|(count, _)| count);
    let passed = passed.and_then(|count| count.parse().ok());
    passed.unwrap_or_else(|| panic!("{variable:?}: the tests did not end: {text}"))
}
