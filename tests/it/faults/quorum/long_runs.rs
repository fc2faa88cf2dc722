//! What is also run for longer, to count it: many clients of one lock, nodes that are restarted one by one, and clocks of a
//! majority that are set. `LEASEHOLD_QUORUM_SECONDS=60` is how long each goes on; each prints what it has counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use leasehold::domain::{Claim, Renewed};
use leasehold::service::AcquireOutcome;
use leasehold::store::quorum::QuorumStore;
use tokio::time::{Instant, sleep};

use super::{addresses, is_granted, keep, process, servers};
use crate::faults::{Replica, lasting_for};
use crate::support::fixture::{claim, lock_of, rival};
use crate::support::redis_server::{RedisOptions, RedisServer};
use crate::support::{eventually, eventually_within};

const PROCESSES: usize = 5;
const CLIENTS: usize = 50;

/// So long that it ends in no pause of a busy machine.
const LASTING: Duration = Duration::from_secs(120);

/// A node that has lost its data, or whose clock was set, has no vote for so long.
const TTL: Duration = Duration::from_secs(6);

/// The longest wait for what a node without a vote delays.
const PATIENT: Duration = Duration::from_secs(60);

/// The longest wait of a client for a lock that fifty want. None starves.
const TURN_MAX: Duration = Duration::from_secs(300);

/// What the clocks of all nodes are ahead of the machine's, so that some can be set back.
const AHEAD: Duration = Duration::from_secs(2 * HOUR_SECONDS);
const HOUR_SECONDS: u64 = 3_600;

/// Until when a run goes on after it has done the least.
#[expect(
    clippy::disallowed_methods,
    reason = "a knob of the tests is no configuration of the service"
)]
fn until() -> Instant {
    let seconds = std::env::var("LEASEHOLD_QUORUM_SECONDS").ok();
    let seconds = seconds.map_or(0, |it| it.parse().expect("a number of seconds"));
    Instant::now() + Duration::from_secs(seconds)
}

/// One lock, and what its clients have seen.
struct Contended {
    lock: Claim,
    wait: Duration,
    until: Instant,
    holders: AtomicUsize,
    last_fence: AtomicU64,
}

impl Contended {
    /// Acquires and releases the lock until the end, at least twice. Returns how long each acquire took.
    async fn client(&self, process: &Replica) -> Vec<Duration> {
        let mut took = Vec::new();
        while took.len() < 2 || Instant::now() < self.until {
            let claim = lasting_for(LASTING, rival(&self.lock));
            let since = Instant::now();
            let fence = eventually_within(TURN_MAX, "it has its turn", async || {
                if let Ok(answer) = process.acquire_within(&claim, self.wait).await
                    && let Some(granted) = granted(answer)
                {
                    return Some(granted);
                }
                sleep(Duration::from_millis(fastrand::u64(0..40))).await;
                None
            })
            .await;
            took.push(since.elapsed());
            assert_eq!(
                self.holders.fetch_add(1, Ordering::SeqCst),
                0,
                "two hold it"
            );
            let before = self.last_fence.swap(fence, Ordering::SeqCst);
            assert!(before < fence, "{before} then {fence}");
            sleep(Duration::from_millis(1)).await;
            self.holders.fetch_sub(1, Ordering::SeqCst);
            eventually("it is released", async || {
                process.release(&claim).await.ok()
            })
            .await;
        }
        took
    }
}

fn granted(outcome: AcquireOutcome) -> Option<u64> {
    match outcome {
        AcquireOutcome::Granted(granted) => Some(granted.leases[0].holder.fence.get()),
        _ => None,
    }
}

async fn contend(wait: Duration) {
    let servers = servers(RedisOptions::default()).await;
    let nodes = addresses(&servers);
    let processes = join_all((0..PROCESSES).map(|_| process(&nodes))).await;
    let since = Instant::now();
    let contended = Contended {
        lock: claim(),
        wait,
        until: until(),
        holders: AtomicUsize::new(0),
        last_fence: AtomicU64::new(0),
    };
    let clients = (0..CLIENTS).map(|number| contended.client(&processes[number % PROCESSES].0));
    let mut took: Vec<_> = join_all(clients).await.into_iter().flatten().collect();
    let (grants, lasted) = (took.len(), since.elapsed());
    let ended = Instant::now();
    eventually("nothing is left at a node", async || {
        let is_idle = |(_, quorum): &(Replica, Arc<QuorumStore>)| quorum.in_progress() == 0;
        processes.iter().all(is_idle).then_some(())
    })
    .await;
    processes[0].0.granted(&rival(&contended.lock)).await;
    took.sort_unstable();
    println!(
        "wait {wait:?}: {grants} grants in {lasted:.1?}, {:.0} /s; acquired within {:.0?} in the median, {:.0?} p99, \
         {:.0?} at most; nothing was left after {:.0?}",
        grants as f64 / lasted.as_secs_f64(),
        took[grants / 2],
        took[grants * 99 / 100],
        took[grants - 1],
        ended.elapsed(),
    );
}

#[tokio::test]
async fn fifty_clients_that_wait_for_one_lock_are_all_granted() {
    contend(Duration::from_secs(30)).await;
}

/// Nobody keeps their order.
#[tokio::test]
async fn fifty_clients_that_try_again_and_again_are_all_granted() {
    contend(Duration::ZERO).await;
}

/// With every restart a node has lost its data: only renewals bring the lease back there.
#[tokio::test]
async fn a_lease_outlives_restarts_of_all_nodes_one_after_the_other() {
    let mut servers = servers(RedisOptions::forgetful()).await;
    let (replica, _) = process(&addresses(&servers)).await;
    let held = lasting_for(TTL, claim());
    let fence = replica.granted(&held).await;
    let (since, until) = (Instant::now(), until());
    let (mut restarts, mut renewals) = (0, 0);
    while restarts < 6 || Instant::now() < until {
        let number = restarts % 3;
        servers[number].kill();
        servers[number].restart().await;
        restarts += 1;
        eventually_within(PATIENT, "the node votes", async || {
            keep(&replica, &held).await;
            renewals += 1;
            let nodes = replica.service.store_health().nodes;
            nodes.iter().all(|node| node.votes).then_some(())
        })
        .await;
        eventually("the lease is back at the node", async || {
            match replica.renew(&held).await {
                Ok(Renewed::Extended(renewals)) => {
                    assert_eq!(renewals[0].lease.holder.fence.get(), fence);
                }
                Ok(other) => panic!("it holds, but: {other:?}"),
                Err(_) => {}
            }
            let pattern = format!("*{}*", lock_of(&held));
            let keys = servers[number].keys(0, &pattern);
            (!keys.await.is_empty()).then_some(())
        })
        .await;
        let answer = replica.acquire(&rival(&held)).await;
        assert!(!is_granted(&answer), "two hold it: {answer:?}");
    }
    println!(
        "{restarts} restarts and {renewals} renewals in {:.0?}: the lease was never lost",
        since.elapsed()
    );
}

/// The order of tokens depends on no clock. Exclusion in time does, so overlaps are counted only.
#[tokio::test]
async fn tokens_are_in_order_while_the_clocks_of_a_majority_are_set_by_an_hour() {
    let mut servers = Vec::new();
    for _ in 0..5 {
        let options = RedisOptions {
            has_movable_clock: true,
            ..RedisOptions::default()
        };
        let server = RedisServer::start(options).await;
        server.move_clock(AHEAD).await;
        servers.push(server);
    }
    let (replica, _) = process(&addresses(&servers)).await;
    let (lock, until) = (claim(), until());
    let (mut jumps, mut grants, mut overlaps, mut last) = (0, 0, 0, 0);
    let hour = Duration::from_secs(HOUR_SECONDS);
    let clocks = [AHEAD + hour, AHEAD, AHEAD - hour, AHEAD];
    while jumps < 2 || Instant::now() < until {
        let mut ends = Instant::now();
        for is_set in [false, true] {
            if is_set {
                let clock = clocks[jumps % clocks.len()];
                let majority = (0..3).map(|node| servers[(jumps + node) % 3].move_clock(clock));
                join_all(majority).await;
                jumps += 1;
            }
            let next = lasting_for(TTL, rival(&lock));
            let fence = eventually_within(PATIENT, "it is granted", async || {
                granted(replica.acquire(&next).await.ok()?)
            })
            .await;
            assert!(last < fence, "{last} then {fence} after {jumps} jumps");
            (last, grants) = (fence, grants + 1);
            overlaps += usize::from(is_set && Instant::now() < ends);
            ends = Instant::now() + TTL;
            if is_set {
                eventually("it is released", async || replica.release(&next).await.ok()).await;
            }
        }
    }
    println!("{jumps} jumps, {grants} grants: 0 out of order, {overlaps} overlapping leases");
}
