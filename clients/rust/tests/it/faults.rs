//! What the client does when answers are lost, the service is busy, or its own process does not run.

use std::future::pending;
use std::time::{Duration, Instant};

use leasehold_client::{Client, Error};
use tokio::time::timeout;

use crate::testbed::{Server, eventually, pause_this_process};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn an_acquire_is_repeated_with_the_same_token() {
    for kind in ["lose_answer", "refuse"] {
        let server = Server::start().await;
        server.fault(kind, "POST", 2).await;
        let lease = server
            .client()
            .lock("a")
            .wait(Duration::ZERO)
            .await
            .unwrap();
        let requests = server.requests().await;
        let failed: Vec<_> = requests
            .iter()
            .map(|request| request["failed"].as_str())
            .collect();
        assert_eq!(failed, [Some(kind), Some(kind), None]);
        assert!(
            requests
                .iter()
                .all(|request| request["token"] == lease.token())
        );
        assert_eq!(server.lock("a").await["holders_total"], 1);
    }
}

#[tokio::test]
async fn retry_after_is_honoured() {
    let server = Server::start().await;
    server.fault("refuse", "POST", 1).await;
    let _lease = server.client().lock("a").await.unwrap();
    let requests = server.requests().await;
    let at = |index: usize| requests[index]["at_ms"].as_u64().unwrap();
    assert!(at(1) - at(0) >= 1000);
}

#[tokio::test]
async fn retries_have_a_bound_and_the_claim_is_withdrawn() {
    let server = Server::start().await;
    server.fault("refuse", "POST", 100).await;
    let client = server.client_that_retries_for(2 * SECOND);
    let error = client.lock("a").await.unwrap_err();
    assert!(matches!(&error, Error::Unavailable(problem) if problem.code == "store_unavailable"));
    assert_eq!(server.requests().await.last().unwrap()["method"], "DELETE");
}

#[tokio::test]
async fn nobody_listening_is_unavailable() {
    let builder = Client::builder("http://127.0.0.1:9").retry_for(SECOND / 5);
    let error = builder.build().unwrap().lock("a").await.unwrap_err();
    assert!(matches!(&error, Error::Unavailable(problem) if problem.status == 0));
}

#[tokio::test]
async fn a_lost_answer_to_a_renewal_or_a_release_does_no_harm() {
    let server = Server::start().await;
    let lease = server.client().lock("a").ttl(2 * SECOND).await.unwrap();
    server.fault("lose_answer", "PUT", 1).await;
    server.fault("lose_answer", "DELETE", 1).await;
    eventually(async || server.count("PUT").await >= 2).await;
    assert!(lease.is_held());
    assert!(lease.release().await.unwrap());
    assert_eq!(server.lock("a").await["state"], "free");
}

#[tokio::test]
async fn a_lease_whose_renewals_hang_is_lost_in_time() {
    let server = Server::start().await;
    server.fault("hang", "PUT", 100).await;
    let lease = server.client().lock("a").ttl(SECOND).await.unwrap();
    let lost = lease.while_held(pending::<()>()).await.unwrap_err();
    assert_eq!(lost.problem().code, "lease_expired");
    assert!(!lease.is_held());
    assert!(matches!(lease.release().await, Err(Error::Lost(_))));
}

#[tokio::test]
async fn a_lease_is_not_held_right_after_a_pause_beyond_its_ttl() {
    let server = Server::start_alone().await;
    let lease = server.client().lock("a").ttl(SECOND).await.unwrap();
    pause_this_process(2).await;
    let mut before = Instant::now();
    loop {
        let now = Instant::now();
        if now - before > SECOND {
            break;
        }
        before = now;
    }
    // The process was stopped between the last two readings of the clock, and no task of this thread has run since.
    assert!(!lease.is_held());
    assert!(matches!(lease.check(), Err(Error::Lost(_))));
    assert!(matches!(lease.lost().await, Error::Lost(_)));
}

#[tokio::test]
async fn a_dropped_wait_leaves_the_queue() {
    let server = Server::start().await;
    let client = server.client();
    let _lease = client.lock("a").await.unwrap();
    let waiting = tokio::spawn(client.lock("a").into_future());
    eventually(async || server.lock("a").await["queue_length"] == 1).await;
    waiting.abort();
    eventually(async || server.count("DELETE").await == 1).await;
    eventually(async || server.lock("a").await["queue_length"] == 0).await;
}

#[tokio::test]
async fn a_dropped_lease_is_released() {
    let server = Server::start().await;
    drop(server.client().lock("a").await.unwrap());
    eventually(async || server.lock("a").await["state"] == "free").await;
}

#[tokio::test]
async fn work_is_dropped_when_the_lease_is_lost() {
    let server = Server::start().await;
    let lease = server.client().lock("a").ttl(SECOND).await.unwrap();
    assert_eq!(lease.while_held(async { 5 }).await.unwrap(), 5);
    server.evict("a").await;
    let lost = lease.while_held(pending::<()>()).await.unwrap_err();
    assert_eq!(lost.problem().code, "lease_evicted");
}

#[tokio::test]
async fn a_released_lease_is_not_lost() {
    let server = Server::start().await;
    let lease = server.client().lock("a").ttl(SECOND).await.unwrap();
    lease.release().await.unwrap();
    assert!(timeout(SECOND * 2, lease.lost()).await.is_err());
    assert!(lease.check().is_ok() && !lease.is_held());
}

#[tokio::test]
async fn many_waiters_do_not_delay_a_renewal() {
    let server = Server::start().await;
    let client = server.client();
    let lease = client.lock("a").ttl(6 * SECOND).await.unwrap();
    let waiting: Vec<_> = (0..120)
        .map(|_| tokio::spawn(client.lock("a").into_future()))
        .collect();
    eventually(async || server.lock("a").await["queue_length"] == 120).await;
    let before = server.count("PUT").await;
    eventually(async || server.count("PUT").await > before + 1).await;
    assert!(lease.is_held());
    waiting.iter().for_each(|task| task.abort());
}

#[tokio::test]
async fn a_wrong_key_is_refused_at_once_and_a_held_lock_says_who_holds_it() {
    let server = Server::start().await;
    let wrong = Client::builder(&server.url)
        .api_key("wrong".repeat(8))
        .build()
        .unwrap();
    let refused = wrong.lock("a").await.unwrap_err();
    assert!(matches!(&refused, Error::Refused(problem) if problem.code == "unauthorized"));
    let client = server.client();
    let _lease = client.lock("a").owner("pod-1").await.unwrap();
    let held = client.lock("a").wait(Duration::ZERO).await.unwrap_err();
    assert!(
        matches!(&held, Error::Held(problem) if problem.body["holders"][0]["owner"] == "pod-1")
    );
}
