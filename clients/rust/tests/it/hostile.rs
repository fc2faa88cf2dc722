//! What the client does when the answers are garbage.

use std::time::Duration;

use leasehold_client::Error;

use crate::testbed::{Server, eventually};

const SECOND: Duration = Duration::from_secs(1);

/// A grant, encoded for a URL.
fn grant(name: &str, ttl_ms: u64, expires_in_ms: u64) -> String {
    format!(
        "status=200&body={{%22name%22:%22{name}%22,%22fencing_token%22:7,%22ttl_ms%22:{ttl_ms},%22waited_ms%22:0,\
         %22expires_in_ms%22:{expires_in_ms}}}"
    )
}

#[tokio::test]
async fn garbage_does_not_stop_the_renewals() {
    let garbage = [
        "status=429&header=Retry-After:3600".to_owned(),
        "status=503&header=Retry-After:18446744073709551615".to_owned(),
        "status=200&body={%22locks%22:[null]}".to_owned(),
        "status=200&body={%22locks%22:[]}".to_owned(),
        "status=307&header=Location:/locks/b".to_owned(),
        grant("b", 60_000, 60_000),
        grant("a", 0, 60_000),
        grant("a", 60_000, u64::MAX),
    ];
    for answer in garbage {
        let server = Server::start().await;
        server.answer("PUT", 1, &answer).await;
        let lease = server.client().lock("a").ttl(3 * SECOND).await.unwrap();
        eventually(async || server.count("PUT").await >= 2).await;
        assert!(lease.is_held() && lease.fencing_token() > 7, "{answer}");
        let ends = server.lock("a").await["holders"][0]["expires_at"].clone();
        // The renewals go on.
        eventually(async || server.lock("a").await["holders"][0]["expires_at"] != ends).await;
        assert!(lease.is_held(), "{answer}");
    }
}

#[tokio::test]
async fn a_grant_that_is_none_is_refused_and_withdrawn() {
    for answer in [grant("b", 60_000, 60_000), grant("a", 0, 60_000)] {
        let server = Server::start().await;
        server.answer("POST", 1, &answer).await;
        let error = server.client().lock("a").await.unwrap_err();
        assert!(matches!(error, Error::Refused(_)), "{answer}");
        assert_eq!(server.count("DELETE").await, 1);
    }
}

#[tokio::test]
async fn answers_that_come_at_once_are_not_asked_for_without_a_pause() {
    for answer in ["status=423".to_owned(), grant("a", 60_000, 0)] {
        let server = Server::start().await;
        server.answer("POST", 100_000, &answer).await;
        let client = server.client_that_retries_for(SECOND);
        assert!(client.lock("a").wait(SECOND).await.is_err(), "{answer}");
        assert!(server.count("POST").await <= 12, "{answer}");
    }
}

#[tokio::test]
async fn an_answer_that_drips_is_given_up() {
    let server = Server::start().await;
    server.fault("drip", "PUT", 1).await;
    server.fault("drip", "DELETE", 1).await;
    let lease = server.client().lock("a").ttl(3 * SECOND).await.unwrap();
    eventually(async || server.count("PUT").await >= 2).await;
    assert!(lease.is_held());
    assert!(lease.release().await.unwrap());
}

#[tokio::test]
async fn a_release_that_was_not_confirmed_stays_so() {
    let server = Server::start().await;
    server.fault("refuse", "DELETE", 3).await;
    let lease = server.client().lock("a").await.unwrap();
    assert!(!lease.release().await.unwrap());
    assert!(!lease.release().await.unwrap());
    assert_eq!(server.count("DELETE").await, 3);
}
