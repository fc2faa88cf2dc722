//! Many waits of all lengths, on locks that are handed over meanwhile.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio::time::sleep;

use super::client::Client;
use super::fleet::Fleet;
use super::pace::Spread;
use super::{LASTING, bound, random, random_duration, size};

const PROCESSES: usize = 3;
const WAIT_MAX: Duration = Duration::from_secs(5);
/// They come within so long.
const ARRIVE_WITHIN: Duration = Duration::from_secs(5);
/// So many for one lock. Every other lock is held to the end, the rest is released after a while and then handed over.
const WAITERS_EACH: usize = 20;
const HOLD_MAX: Duration = Duration::from_millis(300);
/// How late an answer may be.
const LATE_MAX: Duration = Duration::from_millis(250);

/// What a wait came to.
enum Came {
    Granted,
    /// Who was told that the time is up.
    TimedOut(Client),
    /// A wait of moments, on a machine so busy that the store had not answered even once.
    Unclear,
}

/// Waits once. Returns by how much later than the wait the answer came.
async fn wait_once(mut client: Client) -> (Duration, Came) {
    sleep(random_duration(ARRIVE_WITHIN)).await;
    let wait = random_duration(WAIT_MAX) + Duration::from_millis(1);
    let fields = format!("ttl=10m&wait={}ms", wait.as_millis());
    client.connect().await.expect("it listens");
    let asked = Instant::now();
    let answer = client.ask("POST", &fields).await.expect("it is answered");
    let late = answer.at.saturating_duration_since(asked + wait);
    if answer.grants() {
        sleep(random_duration(HOLD_MAX)).await;
        // Were there a second answer to the request, it would be taken for that of this one.
        client.release().await;
        return (late, Came::Granted);
    }
    let problem = answer.json();
    if problem["code"] == "store_unavailable" {
        // What may have come of it is given back all the same, or the lock would not be free in the end.
        return (late, Came::Unclear);
    }
    assert_eq!(problem["code"], "wait_timeout", "{problem}");
    assert_eq!(problem["token"], client.token.as_str());
    assert_holds_nothing(&mut client).await;
    // Some leave the queue, and the places of the others are forgotten after a while.
    if random(2) == 0 {
        let left = client.ask("DELETE", "").await.expect("it is answered");
        assert_eq!(left.status, 204, "{}", left.json());
    }
    (late, Came::TimedOut(client))
}

/// Whoever was told that the time is up holds nothing, and never will unless it asks again.
async fn assert_holds_nothing(client: &mut Client) {
    let renewal = client.ask("PUT", "").await.expect("it is answered");
    let is_refused = matches!(renewal.status, 409 | 412);
    assert!(is_refused, "{}", renewal.json());
}

/// Holds a lock for a while, or until all others have ended.
async fn hold(
    mut client: Client,
    is_to_the_end: bool,
    mut end: tokio::sync::watch::Receiver<bool>,
) {
    client.granted(LASTING).await;
    if is_to_the_end {
        end.wait_for(|end| *end).await.expect("the test ends it");
    } else {
        sleep(random_duration(WAIT_MAX)).await;
    }
    client.release().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_wait_is_answered_once_and_in_time_and_nobody_is_granted_afterwards() {
    let fleet = Fleet::start(PROCESSES).await;
    let waiters = size(1_000, 10_000);
    let locks = waiters / WAITERS_EACH;
    let end = tokio::sync::watch::Sender::new(false);
    let mut holders = JoinSet::new();
    for number in 0..locks {
        let client = fleet.client(number % PROCESSES, &format!("deadlines/{number}"));
        holders.spawn(hold(client, number % 2 == 0, end.subscribe()));
    }
    let mut clients = JoinSet::new();
    for number in 0..waiters {
        let lock = format!("deadlines/{}", number % locks);
        clients.spawn(wait_once(fleet.client(number / locks, &lock)));
    }
    let (late, came): (Vec<_>, Vec<_>) = clients.join_all().await.into_iter().unzip();
    let late: Spread = late.into_iter().collect();
    let unclear = came.iter().filter(|came| matches!(came, Came::Unclear));
    let unclear = unclear.count();
    let mut timed_out: Vec<_> = came
        .into_iter()
        .filter_map(|came| match came {
            Came::TimedOut(client) => Some(client),
            Came::Granted | Came::Unclear => None,
        })
        .collect();
    let granted = waiters - unclear - timed_out.len();
    println!(
        "{waiters} waits: {granted} granted, {} timed out, {unclear} unclear; late by {late}",
        timed_out.len()
    );
    assert!(late.max() <= bound(LATE_MAX), "answered late: {late}");
    assert!(granted > waiters / 10, "only {granted} were granted");
    let count = timed_out.len();
    assert!(count > waiters / 10, "only {count} timed out");
    assert!(unclear <= waiters / 100, "{unclear} were told nothing");
    for client in &mut timed_out {
        assert_holds_nothing(client).await;
    }
    end.send_replace(true);
    holders.join_all().await;
    fleet.becomes_empty(crate::support::PATIENCE).await;
    assert_eq!(fleet.leases().await, [""; 0]);
}
