//! What the nodes report is passed on when a majority has, whichever of them have missed it before, and a gap in the
//! events is reported once a majority may have missed some.

use std::time::Duration;

use leasehold::store::LockStore as _;
use tokio::time::{sleep, timeout};

use super::nodes::Process;
use crate::support::fixture::fresh_name;
use crate::support::scripted_store::Behavior;

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

/// Its report of one wake-up is taken for one of the next, so that one node less is needed for that.
#[tokio::test(start_paused = true)]
async fn a_node_that_is_always_late_hides_no_wake_up() {
    for late in 0..3 {
        let process = Process::alone();
        let name = fresh_name();
        let [first, second] = [1, 2].map(|step| (late + step) % 3);
        let report = |node: usize| {
            let before = process.fixture.listener().reservations_of(&name);
            process.nodes[node].listener().reserved(&name);
            process.fixture.listener().reservations_of(&name) - before
        };
        for times in 0..20 {
            let too_early = report(first);
            assert!(too_early <= 1);
            assert_eq!(report(second), 1, "wake-up {times}: a majority reports it");
            sleep(Duration::from_millis(150)).await;
            assert_eq!(report(late), 0, "wake-up {times} again");
            sleep(Duration::from_millis(150)).await;
        }
    }
}

/// A node that is later than that has missed what the other one has reported.
#[tokio::test(start_paused = true)]
async fn reports_are_counted_together_for_a_few_seconds() {
    for (apart, passed_on) in [(4, 1), (6, 0)] {
        let process = Process::alone();
        let name = fresh_name();
        process.nodes[0].listener().evicted(&name);
        sleep(Duration::from_secs(apart)).await;
        process.nodes[1].listener().evicted(&name);
        let evictions = process.fixture.listener().evictions_of(&name);
        assert_eq!(evictions, passed_on, "{apart} s apart");
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

/// It was never sure of any event, so it has reported no interruption.
#[tokio::test(start_paused = true)]
async fn a_node_that_was_down_when_somebody_began_to_watch_counts_as_one_that_misses_events() {
    for down in 0..3 {
        let process = Process::alone();
        let [other, third] = [1, 2].map(|step| process.nodes[(down + step) % 3].listener());
        let missed = || process.fixture.listener().missed_events();
        process.behaves(&[down], &Behavior::Unanswered);
        let begins = timeout(
            Duration::from_secs(1),
            process.quorum.set_event_delivery(true),
        );
        begins.await.expect_err("the node does not answer");
        sleep(Duration::from_secs(60)).await;
        other.events_interrupted();
        other.events_lost();
        assert_eq!(missed(), 1, "meanwhile the third was alone");
        sleep(Duration::from_secs(60)).await;

        process.nodes[down].listener().events_lost();
        assert_eq!(missed(), 1, "a majority was heard all the time");
        sleep(Duration::from_secs(60)).await;
        third.events_interrupted();
        third.events_lost();
        assert_eq!(missed(), 1, "now the other two deliver all events");
    }
}

/// Somebody watched while too few nodes delivered their events, of which some began later without saying so.
#[tokio::test(start_paused = true)]
async fn events_are_lost_while_no_majority_has_begun_to_deliver_them() {
    let process = Process::alone();
    let missed = || process.fixture.listener().missed_events();
    let begins = async || {
        let begins = process.quorum.set_event_delivery(true);
        let begins = timeout(Duration::from_secs(1), begins).await;
        begins.expect_err("a node does not answer");
    };
    process.behaves(&[0, 1], &Behavior::Unanswered);
    begins().await;
    process.behaves(&[0], &Behavior::Answered);
    begins().await;
    assert_eq!(missed(), 0, "two nodes are heard, and one may be missing");
    process.nodes[1].listener().events_lost();
    assert_eq!(missed(), 1, "two were missing before");
}

/// A node that was never heard counts only while somebody watches.
#[tokio::test(start_paused = true)]
async fn nobody_misses_events_that_nobody_watches() {
    let process = Process::alone();
    process.behaves(&[0], &Behavior::Unanswered);
    let begins = process.quorum.set_event_delivery(true);
    let begins = timeout(Duration::from_secs(1), begins);
    begins.await.expect_err("the node does not answer");
    process.quorum.set_event_delivery(false).await;
    let other = process.nodes[1].listener();
    other.events_interrupted();
    other.events_lost();
    assert_eq!(process.fixture.listener().missed_events(), 0);
}
