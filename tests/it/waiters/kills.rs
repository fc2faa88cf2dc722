//! A process is killed, with all of its waiters.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::fleet::Fleet;
use super::pace::{Turn, Turns};
use super::{LASTING, bound, size};
use crate::support::eventually_within;

const PROCESSES: usize = 3;
/// How much later, in total, the other waiters are granted the lock.
const LOST_MAX: Duration = Duration::from_millis(1500);
/// How long Redis may keep records of the killed process.
const LEFT_MAX: Duration = Duration::from_secs(10);
const HOLD: Duration = Duration::from_millis(1);

/// Kills a process while a client of another one holds the lock and its own clients are next in the queue. Half of
/// those are lost with it, the rest move to other processes. Returns the turns of all remaining clients.
async fn kill_one_of(fleet: &mut Fleet, victim: usize, waiters: usize) -> Turns {
    let lock = "kills/chain";
    let mut holder = fleet.client(victim + 1, lock);
    let mut watcher = fleet.client(victim + 1, lock);
    let (fence, granted) = holder.granted(LASTING).await;
    let mut clients = JoinSet::new();
    for number in 0..waiters {
        let mut client = fleet.client(victim + number, lock);
        let is_lost = number % (2 * PROCESSES) == 0;
        clients.spawn(async move {
            if is_lost {
                let answer = client.ask("POST", LASTING).await;
                assert!(answer.is_err(), "its process was killed: {answer:?}");
                return None;
            }
            Some(client.take_turn(number + 1, LASTING, HOLD).await)
        });
        watcher.until_queued(number + 1).await;
    }
    fleet.kill(victim).await;
    let ends = Instant::now();
    let released = holder.release().await;
    let mut turns: Vec<_> = clients.join_all().await.into_iter().flatten().collect();
    assert_eq!(turns.len(), waiters - waiters.div_ceil(2 * PROCESSES));
    turns.push(Turn {
        number: 0,
        fence,
        granted,
        ends,
        released,
    });
    Turns::new(turns)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_process_delays_the_waiters_of_others_by_at_most_a_second_and_a_half() {
    let mut fleet = Fleet::start(PROCESSES).await;
    let waiters = size(60, 300);
    for round in 0..size(5, 100) {
        let victim = round % PROCESSES;
        let turns = kill_one_of(&mut fleet, victim, waiters).await;
        let hand_overs = turns.hand_overs();
        let lost = hand_overs.lost();
        println!("kill {round}: lost {lost:.1?} in {waiters} hand-overs: {hand_overs}");
        assert!(lost <= bound(LOST_MAX), "lost {lost:?}: {hand_overs}");
        fleet.restart(victim);
    }
    fleet.becomes_free(LEFT_MAX).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_of_the_waiters_of_a_killed_process() {
    const EACH: usize = 10;
    let mut fleet = Fleet::start(PROCESSES).await;
    let lock = "kills/left";
    let mut holder = fleet.client(1, lock);
    let mut watchers = [fleet.client(1, lock), fleet.client(2, lock)];
    holder.granted(LASTING).await;
    let (mut living, mut dead) = (JoinSet::new(), JoinSet::new());
    for number in 0..EACH * PROCESSES {
        let process = number % PROCESSES;
        let mut client = fleet.client(process, lock);
        let clients = if process == 0 { &mut dead } else { &mut living };
        clients.spawn(async move { client.take_turn(number, LASTING, HOLD).await });
        watchers[0].until_queued(number + 1).await;
    }
    // The connections stay open until the process ends, and no client comes back.
    let killed = Instant::now();
    let name = fleet.kill(0).await;
    dead.abort_all();
    let left = EACH * (PROCESSES - 1);
    eventually_within(LEFT_MAX, "the dead are counted no more", async || {
        for watcher in &mut watchers {
            if watcher.queue_length().await.ok()? != left as u64 {
                return None;
            }
        }
        Some(())
    })
    .await;
    let counted = killed.elapsed();
    eventually_within(LEFT_MAX, "they are in no queue", async || {
        let is_left = fleet.has_waiters_of(&name, lock).await;
        (!is_left).then_some(())
    })
    .await;
    let gone = killed.elapsed();
    println!("{EACH} dead waiters: counted no more after {counted:.1?}, gone after {gone:.1?}");
    assert!(gone <= bound(LEFT_MAX), "gone after {gone:?}");
    holder.release().await;
    let turns = Turns::new(living.join_all().await);
    assert_eq!(turns.inversions(), 0);
    fleet.becomes_free(LEFT_MAX).await;
}
