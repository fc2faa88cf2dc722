//! What the nodes report is passed on when a majority has, whichever of them have missed it before, and a gap in the
//! events is reported once a majority may have missed some.

use std::time::Duration;

use tokio::time::sleep;

use super::nodes::Process;
use crate::support::fixture::fresh_name;

/// Every node misses some, one after the other.
#[tokio::test(start_paused = true)]
async fn a_wake_up_arrives_whichever_node_misses_it() {
    for run in 0..81_usize {
        let process = Process::alone();
        let name = fresh_name();
        let mut before = 0;
        for step in 0..4 {
            let missing = run / 3_usize.pow(step) % 3;
            for node in [2, 0, 1].into_iter().filter(|node| *node != missing) {
                process.nodes[node].listener().reserved(&name);
            }
            let passed_on = process.fixture.listener().reservations_of(&name);
            assert!(passed_on > before, "step {step} of run {run}");
            before = passed_on;
            sleep(Duration::from_millis(150)).await;
        }
    }
}

/// The third report belongs to what the other two have reported.
#[tokio::test(start_paused = true)]
async fn a_wake_up_that_all_nodes_report_is_passed_on_once() {
    let process = Process::alone();
    let name = fresh_name();
    for times in 1..4 {
        for node in &process.nodes {
            node.listener().reserved(&name);
            sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(process.fixture.listener().reservations_of(&name), times);
    }
}

/// The second one fails long before the first one is heard again, or before that is noticed.
#[tokio::test(start_paused = true)]
async fn events_that_two_nodes_may_have_missed_at_once_are_lost() {
    let long = Duration::from_secs(60);
    let process = Process::alone();
    let [first, second] = [0, 1].map(|node| process.nodes[node].listener());
    let missed = || process.fixture.listener().missed_events();
    first.events_interrupted();
    sleep(long).await;
    first.events_lost();
    assert_eq!(missed(), 0, "the other two were heard all the time");
    sleep(long).await;
    first.events_interrupted();
    sleep(long).await;
    second.events_interrupted();
    sleep(long).await;
    assert_eq!(missed(), 0, "nobody can ask for events yet");
    second.events_lost();
    assert_eq!(missed(), 1);
    sleep(long).await;
    first.events_lost();
    assert_eq!(missed(), 1, "a majority was heard since");
    sleep(long).await;
    second.events_interrupted();
    second.events_lost();
    sleep(Duration::from_secs(4)).await;
    first.events_interrupted();
    sleep(long).await;
    first.events_lost();
    assert_eq!(
        missed(),
        2,
        "it was noticed late that the first one was silent"
    );
}
