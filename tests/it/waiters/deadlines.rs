//! Many waits of various lengths, on locks that are handed over meanwhile.

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
/// The time within which all clients arrive.
const ARRIVE_WITHIN: Duration = Duration::from_secs(5);
/// The number of waiters per lock. Every other lock is held to the end; the others are released after a while and then
/// handed over.
const WAITERS_EACH: usize = 20;
const HOLD_MAX: Duration = Duration::from_millis(300);
/// How late a response may be.
const LATE_MAX: Duration = Duration::from_millis(250);

/// The outcome of a wait.
enum Came {
    Granted,
    /// The client, after a timeout.
    TimedOut(Client),
    /// A short wait, on a machine so busy that the store did not reply even once.
    Unclear,
}

/// Waits once. Returns how late the response was after the end of the wait.
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
        // If there were a second response to the first request, it would be read as the response to this one.
        client.release().await;
        return (late, Came::Granted);
    }
    let problem = answer.json();
    if problem["code"] == "store_unavailable" {
        // Released in case it was granted, or the lock would not be free at the end.
        return (late, Came::Unclear);
    }
    assert_eq!(problem["code"], "wait_timeout", "{problem}");
    assert_eq!(problem["token"], client.token.as_str());
    assert_holds_nothing(&mut client).await;
    // Some leave the queue; the places of the others end after a while.
    if random(2) == 0 {
        let left = client.ask("DELETE", "").await.expect("it is answered");
        assert_eq!(left.status, 204, "{}", left.json());
    }
    (late, Came::TimedOut(client))
}

/// A client whose wait timed out must not hold the lock, neither now nor later.
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
async fn every_wait_gets_one_response_in_time_and_no_grant_afterwards() {
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
    assert!(unclear <= waiters / 100, "{unclear} got no outcome");
    for client in &mut timed_out {
        assert_holds_nothing(client).await;
    }
    end.send_replace(true);
    holders.join_all().await;
    fleet.becomes_empty(crate::support::EFFECT_TIMEOUT).await;
    assert_eq!(fleet.leases().await, [""; 0]);
}
