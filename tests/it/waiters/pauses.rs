//! A process is paused between the grant and its response, and continues when the lease has ended.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::client::Client;
use super::fleet::{Fleet, store_of};
use super::http1::Answer;
use super::{LASTING, size};
use crate::support::eventually;
use crate::support::proxy::Proxy;

/// The process whose replies from Redis are delayed, and the one that observes the state meanwhile.
const PAUSED: usize = 0;
const WATCHING: usize = 1;
/// Long enough to pause the process while the reply is in flight; well within the operation timeout.
const DELAY: Duration = Duration::from_millis(600);
const OWNER: &str = "paused";

/// The holder of the lock, with its fencing token.
async fn holder(watcher: &mut Client) -> Option<(String, u64)> {
    let lock = watcher.ask("GET", "").await.ok()?.json();
    let holder = lock["holders"].get(0)?;
    let owner = holder["owner"].as_str()?.to_owned();
    Some((owner, holder["fencing_token"].as_u64()?))
}

/// The lease that the process did not report in time has ended. Its response must match the current state.
async fn assert_matches_the_current_state(answer: &Answer, lost: u64, client: &mut Client) {
    let body = answer.json();
    if !answer.grants() {
        assert!(matches!(answer.status, 409 | 423 | 503), "{body}");
        return;
    }
    assert!(body["expires_in_ms"].as_u64() > Some(0), "{body}");
    assert!(body["fencing_token"].as_u64() > Some(lost), "{body}");
    let renewed = client.ask("PUT", "").await.expect("it is answered");
    assert_eq!(
        renewed.status,
        200,
        "reported {body}, but {}",
        renewed.json()
    );
}

/// One client acquires through the paused process; with a `wait`, while another client holds the lock.
async fn pause_once(fleet: &Fleet, proxy: &Proxy, lock: &str, fields: &str, waits: bool) {
    let mut watcher = fleet.client(WATCHING, lock);
    let mut first = fleet.client(WATCHING, lock);
    let mut client = fleet.client(PAUSED, lock);
    let fields = format!("owner={OWNER}&{fields}");
    if waits {
        first.granted(LASTING).await;
    }
    let asking = tokio::spawn(async move {
        let answer = client.ask("POST", &fields).await;
        (client, answer.expect("it is answered"))
    });
    if waits {
        watcher.until_queued(1).await;
        proxy.delay_replies(DELAY);
        first.release().await;
    }
    let lost = eventually("it is granted", async || {
        let (owner, fence) = holder(&mut watcher).await?;
        (owner == OWNER).then_some(fence)
    })
    .await;
    fleet.signal(PAUSED, Signal::SIGSTOP);
    eventually("the lease is over", async || {
        holder(&mut watcher).await.is_none().then_some(())
    })
    .await;
    assert!(!asking.is_finished(), "it was answered before the pause");
    fleet.signal(PAUSED, Signal::SIGCONT);
    let (mut client, answer) = asking.await.expect("it is answered");
    proxy.delay_replies(Duration::ZERO);
    println!(
        "after the pause: {} {}",
        answer.status,
        answer.json()["code"]
    );
    assert_matches_the_current_state(&answer, lost, &mut client).await;
    let left = client.ask("DELETE", "").await.expect("it is answered");
    assert!(matches!(left.status, 204 | 412), "{}", left.json());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_expires_during_a_pause_is_never_reported() {
    let mut proxy = None;
    let fleet = Fleet::start_with(async |redis| {
        let passing = proxy.insert(Proxy::start(redis.address()).await);
        let address = passing.database(0);
        let delayed = format!("redis://{}:{}", address.host, address.port);
        vec![delayed, store_of(redis)]
    })
    .await;
    let proxy = proxy.expect("the fleet has one");
    for round in 0..size(3, 100) {
        pause_once(
            &fleet,
            &proxy,
            &format!("pauses/waiting/{round}"),
            "ttl=500ms&wait=20s",
            true,
        )
        .await;
        proxy.delay_replies(DELAY);
        pause_once(
            &fleet,
            &proxy,
            &format!("pauses/asking/{round}"),
            "ttl=500ms",
            false,
        )
        .await;
    }
    fleet.becomes_empty(crate::support::EFFECT_TIMEOUT).await;
}
