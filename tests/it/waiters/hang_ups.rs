//! Clients that disconnect: before their request was read, while they wait, and after they were granted.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::client::Client;
use super::fleet::Fleet;
use super::http1::Request;
use super::{random, random_duration, size};
use crate::support::eventually;

const PROCESSES: usize = 3;
const LOCKS: usize = 25;
/// The time within which all clients arrive.
const ARRIVE_WITHIN: Duration = Duration::from_secs(3);
const PATIENCE_MAX: Duration = Duration::from_millis(400);
/// Short, because a lease that was delivered to a disconnected client stays until it expires.
const BRIEF: &str = "ttl=300ms&wait=5m";
/// How much the memory may differ after the second round: what the allocator keeps, independent of the number of
/// clients.
const GROWTH_BYTES_MAX: f64 = 8.0 * 1024.0 * 1024.0;

/// The end of a client. The test counts them, to know that all kinds occurred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    /// It disconnected without a response.
    Unanswered,
    /// It was granted the lock and then disconnected.
    Holding,
    /// It was granted the lock and released it.
    Done,
}

async fn come_and_go(mut client: Client) -> Left {
    sleep(random_duration(ARRIVE_WITHIN)).await;
    let asked = client.ask("POST", BRIEF);
    let Ok(answer) = timeout(random_duration(PATIENCE_MAX), asked).await else {
        return Left::Unanswered;
    };
    let answer = answer.expect("it is answered");
    assert!(answer.grants(), "{}", answer.json());
    if random(2) == 0 {
        return Left::Holding;
    }
    // The short lease may have expired.
    let released = client.ask("DELETE", "").await.expect("it is answered");
    assert!(matches!(released.status, 204 | 412), "{}", released.status);
    Left::Done
}

/// Sends a part of a request and disconnects.
async fn stammer(mut client: Client) {
    sleep(random_duration(ARRIVE_WITHIN)).await;
    let request = Request {
        method: "POST",
        path: "/locks/hang-ups/stammered",
        token: None,
        body: BRIEF,
    };
    let connection = client.connect().await.expect("it listens");
    let sent = timeout(Duration::from_micros(random(500)), connection.send(request));
    drop(sent.await);
}

async fn round(fleet: &Fleet, clients: usize) {
    let mut tasks = JoinSet::new();
    for number in 0..clients {
        let lock = format!("hang-ups/{}", number % LOCKS);
        let client = fleet.client(number / LOCKS, &lock);
        if number % 10 == 0 {
            tasks.spawn(async move {
                stammer(client).await;
                Left::Unanswered
            });
        } else {
            tasks.spawn(come_and_go(client));
        }
    }
    let left = tasks.join_all().await;
    let count = |what| left.iter().filter(|left| **left == what).count();
    let counts = [Left::Unanswered, Left::Holding, Left::Done].map(|what| (what, count(what)));
    println!("{clients} clients: {counts:?}");
    for (what, count) in counts {
        assert!(count > 20, "only {count} {what:?}");
    }
    fleet.becomes_empty(Duration::from_secs(5)).await;
}

/// Waits until the process has only the connection of this client. Returns its memory in bytes.
async fn settled(fleet: &Fleet, process: usize) -> f64 {
    eventually("it closed its connections", async || {
        let open = fleet.figure(process, "leasehold_open_connections").await;
        (open <= 1.0).then_some(())
    })
    .await;
    fleet.figure(process, "process_resident_memory_bytes").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_clients_that_hang_up_leave_nothing_behind() {
    let fleet = Fleet::start(PROCESSES).await;
    let clients = size(1_000, 10_000);
    round(&fleet, clients).await;
    let mut before = Vec::new();
    for process in 0..PROCESSES {
        before.push(settled(&fleet, process).await);
    }
    round(&fleet, clients).await;
    let mut most = 0.0;
    for process in 0..PROCESSES {
        // The pool, the pub/sub connection, and for a moment that of a periodic check.
        let metric = "leasehold_store_pool_max_connections";
        most += fleet.figure(process, metric).await + 2.0;
    }
    let connections = fleet.redis.connections().await as f64;
    assert!(
        connections <= most,
        "{connections} connections to Redis, and at most {most}"
    );
    for (process, before) in before.into_iter().enumerate() {
        let after = settled(&fleet, process).await;
        let mebibytes = |bytes: f64| bytes / 1024.0 / 1024.0;
        println!(
            "process {process}: {:.1} MiB, then {:.1}",
            mebibytes(before),
            mebibytes(after)
        );
        assert!(after - before <= GROWTH_BYTES_MAX, "process {process} grew");
    }
}
