//! Pub/sub messages are lost repeatedly.

use std::time::Duration;

use tokio::task::JoinSet;

use super::fleet::Fleet;
use super::pace::Turns;
use super::{LASTING, bound, random_duration, size};

const PROCESSES: usize = 3;
/// How often every pub/sub connection is cut.
const CUT_EVERY: Duration = Duration::from_millis(200);
/// How late a hand-over may be if its message is lost.
const LATE_MAX: Duration = Duration::from_millis(1200);
/// The longest turn. Turns vary, so that hand-overs and cuts coincide in all ways.
const HOLD_MAX: Duration = Duration::from_millis(100);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_messages_all_waiters_are_granted_slightly_late() {
    let fleet = Fleet::start(PROCESSES).await;
    let (lock, waiters) = ("messages/cut", size(60, 600));
    let mut holder = fleet.client(0, lock);
    let mut watcher = fleet.client(0, lock);
    holder.granted(LASTING).await;
    let mut clients = JoinSet::new();
    for number in 0..waiters {
        let mut client = fleet.client(number % PROCESSES, lock);
        let hold = random_duration(HOLD_MAX);
        clients.spawn(async move { client.take_turn(number, LASTING, hold).await });
        watcher.until_queued(number + 1).await;
    }
    holder.release().await;
    let mut cut = 0;
    let cutting = async {
        let mut interval = tokio::time::interval(CUT_EVERY);
        loop {
            interval.tick().await;
            let kill = ["CLIENT", "KILL", "TYPE", "pubsub"];
            cut += fleet.redis.integer(0, &kill).await;
        }
    };
    let turns = tokio::select! {
        turns = clients.join_all() => Turns::new(turns),
        never = cutting => never,
    };
    let hand_overs = turns.hand_overs();
    println!("{cut} connections cut in {waiters} hand-overs: {hand_overs}");
    assert!(cut >= 3 * PROCESSES as i64, "only {cut} were cut");
    assert!(hand_overs.max() <= bound(LATE_MAX), "late: {hand_overs}");
    assert_eq!(turns.inversions(), 0);
    fleet.becomes_empty(crate::support::EFFECT_TIMEOUT).await;
}
