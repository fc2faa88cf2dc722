//! A rolling replacement of all processes while clients hold, wait and come back.

use std::process::Command;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::LASTING;
use super::client::Client;
use super::fleet::{Fleet, former_release};
use super::pace::{Turn, Turns};
use crate::process::leasehold;

const PROCESSES: usize = 3;
/// The claims that wait in one queue during the whole replacement.
const WAITERS: usize = 60;
const BUSY_LOCKS: usize = 3;
const CLIENTS_OF_EACH: usize = 4;
const HOLD: Duration = Duration::from_millis(5);
/// The `terminationGracePeriodSeconds` of the manifests, after which a process would be killed.
const GRACE: Duration = Duration::from_secs(30);

/// Takes turns at a lock, each with another token and at another process, until the replacement is over.
async fn take_turns(clients: impl Fn(usize) -> Client, over: CancellationToken) -> Vec<Turn> {
    let mut turns = Vec::new();
    while !over.is_cancelled() {
        let number = turns.len();
        let mut client = clients(number);
        turns.push(client.take_turn(number, LASTING, HOLD).await);
    }
    turns
}

/// Renews until the replacement is over, then releases. A lost lease would be 412. Returns the fencing tokens seen.
async fn keep(mut client: Client, over: CancellationToken) -> Vec<u64> {
    let mut fences = vec![client.granted("ttl=30s").await.0];
    while !over.is_cancelled() {
        match client.ask("PUT", "").await {
            Ok(answer) if answer.status == 200 => {
                fences.extend(answer.json()["fencing_token"].as_u64());
                sleep(Duration::from_millis(50)).await;
            }
            Ok(answer) if answer.status == 503 => client.move_on(),
            Ok(answer) => panic!("{}: {}", answer.status, answer.json()),
            Err(_) => client.move_on(),
        }
    }
    client.release().await;
    fences
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_replacement_under_load_loses_no_grant_and_no_order() {
    replace_all(Fleet::start_keeping("1m", PROCESSES).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_replacement_over_tls_and_with_keys_loses_no_grant_and_no_order() {
    replace_all(Fleet::start_protected("1m", PROCESSES).await).await;
}

async fn replace_all(mut fleet: Fleet) {
    let over = CancellationToken::new();
    let kept = tokio::spawn(keep(fleet.client(0, "rollout/kept"), over.clone()));
    let (mut holder, mut watcher) = (
        fleet.client(0, "rollout/line"),
        fleet.client(1, "rollout/line"),
    );
    holder.granted(LASTING).await;
    let mut line = JoinSet::new();
    for number in 0..WAITERS {
        let mut client = fleet.client(number, "rollout/line");
        line.spawn(async move { client.take_turn(number, LASTING, HOLD).await });
        watcher.until_queued(number + 1).await;
    }
    let busy = |lock: usize| {
        let clients = fleet.clients(&format!("rollout/busy-{lock}"));
        let all = (0..CLIENTS_OF_EACH).map(|_| take_turns(clients.clone(), over.clone()));
        all.collect::<JoinSet<_>>()
    };
    let busy: Vec<_> = (0..BUSY_LOCKS).map(busy).collect();

    replace_each(&mut fleet, || leasehold(&[])).await;
    // Back to the former release, if the fleet began with it.
    if fleet.began_with_former_release() {
        replace_each(&mut fleet, || former_release().expect("it is known")).await;
    }
    over.cancel();

    let mut fences = kept.await.expect("it keeps its lease");
    fences.dedup();
    assert_eq!(fences.len(), 1, "the lease was granted again: {fences:?}");
    for clients in busy {
        let turns: Vec<_> = clients.join_all().await.concat();
        assert!(turns.len() >= CLIENTS_OF_EACH, "{} turns", turns.len());
        Turns::new(turns).assert_apart();
    }
    holder.release().await;
    let turns = Turns::new(line.join_all().await);
    assert_eq!(turns.inversions(), 0, "granted before an earlier one");
    turns.assert_apart();
    fleet.becomes_empty(crate::support::EFFECT_TIMEOUT).await;
}

async fn replace_each(fleet: &mut Fleet, binary: impl Fn() -> Command) {
    for process in 0..PROCESSES {
        let status = fleet.replace(process, binary(), GRACE).await;
        assert_eq!(
            status.code(),
            Some(0),
            "process {process} was not stopped well"
        );
    }
}
