//! The history checker: random clients on real processes, faults, and a judge that knows only what the clients saw.
//!
//! `scripts/history --help` explains how to run it for any time; the runs here are short. Every request is recorded with the
//! times at which it was sent and answered, by one monotonic clock (`record`, `recorder`). Clients draw plans from a seed
//! (`plan`) and execute them (`scenes`, `actor`), while others only observe (`observe`). Faults happen one after the other,
//! and each counts its observed effects (`faults`): a run in which a chosen fault had no effect is invalid, and so is one
//! with too few grants. At the end the judge applies its rules (`judge`). Each rule names the guarantee that it checks, and
//! tests show that it rejects a history that breaks it (`broken`), and how far its excuses go (`excuses`). A second judge,
//! which shares no rule with the first, searches for an order of the requests that explains all answers (`linear`).
//! Meanwhile clients use what the locks protect, on a server that knows fencing tokens and nothing else (`resource`).
//!
//! The same seed gives the same plans and the same order of faults; the outcomes depend on the machine. The report of a
//! violation has the command to repeat the run, and the requests that show it.

mod actor;
mod broken;
mod chance;
mod clock;
mod excused_views;
mod excuses;
mod failover;
mod faults;
mod fleet;
mod judge;
mod linear;
mod minority;
mod namespaces;
mod observe;
mod options;
mod overtaken;
mod plan;
mod record;
mod recorder;
mod report;
mod resource;
mod run;
mod scenes;
mod sse;
mod valid;
mod watched;

use judge::Rule;
use options::Options;
use resource::Presented;

/// Runs with these options, and fails with the violations.
async fn check(options: &str) {
    let options = Options::parse(options).unwrap_or_else(|problem| panic!("{problem}"));
    let (text, failure) = run::run(&options).await.text(&options);
    println!("{text}");
    if let Some(failure) = failure {
        panic!("{failure}");
    }
    println!("passed: zero violations");
}

/// Faults of processes and of their connections, without data loss in Redis.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_short_history_with_troubled_processes_breaks_no_promise() {
    let faults = "kill-process,pause-process,stall,lose-answers,lose-requests,script-flush";
    check(&format!(
        "--seed 1 --seconds 15 --ttl-max 6 --persistence always --faults {faults}"
    ))
    .await;
}

/// Faults of Redis without data loss, and commands that arrive late.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_short_history_with_a_troubled_redis_breaks_no_promise() {
    let faults = "cut,kill-redis,pause-redis,late-delivery,full-memory,lost-pubsub";
    check(&format!(
        "--seed 1 --seconds 15 --ttl-max 6 --persistence always --faults {faults}"
    ))
    .await;
}

/// Faults with data loss or clock steps.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_short_history_with_lost_data_breaks_no_promise() {
    let faults = "lose-redis,flushall,replaced,lose-both,clock";
    check(&format!(
        "--seed 1 --seconds 15 --ttl-max 3 --faults {faults}"
    ))
    .await;
}

/// Faults of a cluster: a primary that fails, pauses or loses its data, and slots that move.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_short_history_on_a_redis_cluster_breaks_no_promise() {
    check("--seed 1 --seconds 15 --ttl-max 3 --store cluster --faults failover,reshard,flushall,pause-redis").await;
}

/// Failovers without replicas that confirm: what a former primary reports may be lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_short_history_with_sentinels_breaks_no_promise() {
    check("--seed 1 --seconds 8 --ttl-max 2 --clients 8 --store sentinel --faults failover,planned-failover").await;
}

/// The same if replicas confirm: no failover loses a lease, and a former primary that one process goes on with reports none.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_short_history_with_replicas_that_confirm_breaks_no_promise() {
    check("--seed 1 --seconds 8 --ttl-max 2 --clients 8 --store sentinel --wait-replicas all --faults partition,replaced").await;
}

/// Faults of the nodes of a quorum: one forgets everything, and a majority fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_short_history_on_a_quorum_breaks_no_promise() {
    check("--seed 1 --seconds 8 --ttl-max 2 --clients 8 --store quorum --persistence always --faults flushall,majority").await;
}

/// The same in memory, where a process can only be paused. It covers streams with `min_hold` that are taken over, and
/// streams that take over and are closed at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_short_history_in_memory_breaks_no_promise() {
    check("--seed 1 --seconds 5 --ttl-max 3 --store memory --faults all").await;
}

/// Faults of a process with its files. A loss of power often finds nothing to lose, so `file::power` has it instead.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_short_history_on_files_breaks_no_promise() {
    check("--seed 1 --seconds 8 --ttl-max 3 --clients 8 --store file --faults kill-process,pause-process").await;
}

/// What the judge finds out of the resource if the service orders its grants so.
async fn found_with(presented: Presented) -> Vec<Rule> {
    let options = Options::parse("--seconds 5 --ttl-max 3 --store memory --faults none");
    let options = Options {
        presented,
        ..options.expect("they are fine")
    };
    let report = run::run(&options).await;
    let found = report.rounds.iter().flat_map(|round| &round.violations);
    found.map(|violation| violation.rule).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn fencing_tokens_that_become_smaller_are_noticed_by_holders_that_the_resource_refuses() {
    let found = found_with(Presented::Reversed).await;
    assert!(found.contains(&Rule::RefusedHolder), "{found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn equal_fencing_tokens_are_noticed_by_late_clients_that_the_resource_accepts() {
    let found = found_with(Presented::Equal).await;
    for rule in [Rule::OutdatedUse, Rule::LostUpdate] {
        assert!(found.contains(&rule), "no {rule:?} in {found:?}");
    }
}

/// The run for `scripts/history`; it does nothing without its options.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_history_that_was_asked_for_breaks_no_promise() {
    if let Some(options) = asked() {
        check(&options).await;
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "a knob of the tests is no configuration of the service"
)]
fn asked() -> Option<String> {
    std::env::var("LEASEHOLD_HISTORY").ok()
}
