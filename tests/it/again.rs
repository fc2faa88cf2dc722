//! Tests that are run again: those of the interface on every store, and those of the Redis store on every server.
//!
//! Each test here starts this test binary once more with an environment variable that names the store or the server.
//! The same works by hand: `TEST_REDIS=valkey-9 cargo test --test it -- contract::redis`.

use std::io::Write as _;
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

/// How many tests of one run go on at a time. As many runs as the machine has threads for tests go on beside each other.
const THREADS: &str = "2";

/// How many of them may fail while all others are run beside them, if they pass alone.
const TRIED_ALONE_MAX: usize = 3;

/// Runs the tests whose names contain one of `chosen`, except for `skipped`, and returns how many passed.
///
/// Several of these runs go on at a time, and up to twenty servers with them, so one test of some two thousand may not get
/// what it waits for in time. Such a test is run once more, alone: what fails on this store or server at all fails again.
fn run(variable: (&str, &str), chosen: &[&str], skipped: &[Skipped]) -> usize {
    let _turn = TURN.blocking_read();
    // The name of the first one ends like that of the module of the interface.
    let mut arguments = vec!["--test-threads", THREADS, "--skip", "openapi::"];
    arguments.extend(chosen);
    for (test, _) in skipped {
        arguments.extend(["--skip", test]);
    }
    let all = Outcome::of(variable, &arguments);
    let failed = all.failed();
    if failed.is_empty() {
        return all.passed();
    }
    assert!(failed.len() <= TRIED_ALONE_MAX, "{variable:?}: {all}");
    // Not by a macro, whose text the harness keeps from sight when the test passes.
    let _ = writeln!(
        std::io::stderr(),
        "failed beside others: {variable:?}: {all}"
    );
    let alone = [&["--test-threads", "1", "--exact"], &failed[..]].concat();
    let again = Outcome::of(variable, &alone);
    assert!(again.failed().is_empty(), "{variable:?}: {again}");
    all.passed() + again.passed()
}

/// What a run of this test binary printed.
struct Outcome(String);

impl Outcome {
    fn of((name, value): (&str, &str), arguments: &[&str]) -> Self {
        let binary = std::env::current_exe().expect("the path of this binary");
        let mut tests = Command::new(binary);
        let output = tests.env(name, value).args(arguments).output();
        let output = output.expect("the test binary starts");
        Self(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The names of the tests that failed.
    fn failed(&self) -> Vec<&str> {
        let listed = self
            .0
            .rsplit_once("\nfailures:\n")
            .map(|(_, listed)| listed);
        let lines = listed.unwrap_or_default().lines().map(str::trim);
        lines.take_while(|line| !line.is_empty()).collect()
    }

    /// How many passed.
    fn passed(&self) -> usize {
        let result = self.0.rsplit_once("\ntest result: ").map(|(_, end)| end);
        let passed = result.and_then(|result| result.split_once(" passed"));
        let passed = passed.and_then(|(passed, _)| passed.rsplit(' ').next()?.parse().ok());
        passed.unwrap_or_else(|| panic!("the tests did not end: {self}"))
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let failures = self.0.split_once("\nfailures:\n");
        f.write_str(failures.map_or(&self.0, |(_, failures)| failures))
    }
}

#[test]
fn a_run_is_read_by_what_it_printed() {
    let well = Outcome("\ntest result: ok. 161 passed; 0 failed; 0 ignored".to_owned());
    assert_eq!((well.passed(), well.failed()), (161, vec![]));
    let failures =
        "\nfailures:\n\n---- a::b stdout ----\nfailures: none\n\nfailures:\n    a::b\n    a::c\n\n";
    let text = format!("{failures}test result: FAILED. 159 passed; 2 failed; 0 ignored");
    let unwell = Outcome(text);
    assert_eq!(
        (unwell.passed(), unwell.failed()),
        (159, vec!["a::b", "a::c"])
    );
}
