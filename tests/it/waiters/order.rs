//! First come, first served, over several processes.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::LASTING;
use super::fleet::Fleet;
use super::pace::Turns;

const LOCK: &str = "order/one";
const WAITERS: usize = 1_000;
const PROCESSES: usize = 3;
const HOLD: Duration = Duration::from_millis(1);

/// Each claim is enqueued before the next one is sent, so the order of arrival is known.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_waiters_on_three_processes_are_granted_in_the_order_in_which_they_came() {
    let fleet = Fleet::start(PROCESSES).await;
    let mut first = fleet.client(0, LOCK);
    let mut watcher = fleet.client(0, LOCK);
    first.granted(LASTING).await;
    let mut waiters = JoinSet::new();
    for number in 0..WAITERS {
        let mut client = fleet.client(number % PROCESSES, LOCK);
        waiters.spawn(async move {
            let turn = client.take_turn(number, LASTING, HOLD).await;
            (turn, client.reposts)
        });
        watcher.until_queued(number + 1).await;
    }
    first.release().await;
    let (turns, reposts): (Vec<_>, Vec<_>) = waiters.join_all().await.into_iter().unzip();
    let turns = Turns::new(turns);
    let hand_overs = turns.hand_overs();
    println!("{WAITERS} waiters on {PROCESSES} processes: hand-over {hand_overs}");
    assert_eq!(turns.inversions(), 0, "granted before an earlier one");
    // No client was ever disconnected, so none may have been skipped.
    assert_eq!(reposts.iter().sum::<usize>(), 0, "posted again");
    fleet.becomes_empty(Duration::from_secs(10)).await;
}

/// A client that moves leaves a connection behind that its former process still considers alive. The other waiters
/// there keep their turns.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_moves_costs_no_other_client_its_turn() {
    const LOCK: &str = "order/moved";
    let fleet = Fleet::start(2).await;
    let mut first = fleet.client(0, LOCK);
    let mut watcher = fleet.client(0, LOCK);
    first.granted(LASTING).await;
    let (mut left_behind, mut moved) = (fleet.client(0, LOCK), fleet.client(1, LOCK));
    moved.token.clone_from(&left_behind.token);
    let left_behind = tokio::spawn(async move { left_behind.ask("POST", LASTING).await });
    watcher.until_queued(1).await;
    let mut waiters = JoinSet::new();
    for number in 1..=2 {
        let mut client = fleet.client(number - 1, LOCK);
        waiters.spawn(async move { client.take_turn(number, LASTING, HOLD).await });
        watcher.until_queued(number + 1).await;
    }
    waiters.spawn(async move { moved.take_turn(0, LASTING, HOLD).await });
    // Several polls of the process that the client has left: no waiter may lose its place in this time.
    let end = Instant::now() + Duration::from_secs(5);
    while Instant::now() < end {
        assert_eq!(watcher.queue_length().await.expect("it lives"), 3);
        sleep(Duration::from_millis(50)).await;
    }
    first.release().await;
    let turns = Turns::new(waiters.join_all().await);
    assert_eq!(turns.inversions(), 0, "granted before an earlier one");
    left_behind.abort();
    fleet.becomes_free(Duration::from_secs(15)).await;
}
