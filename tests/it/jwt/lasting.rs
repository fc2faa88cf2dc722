//! What lasts longer than the token with which it began.

use std::time::Duration;

use reqwest::Method;
use tokio::time::timeout;

use super::issuer::{Published, Signer, claims, key_set};
use super::{Accepting, Keys, worker_token};
use crate::support::eventually;

const SHORT: &str = "system:serviceaccount:team-a:short";

/// Opens a stream, and reads it to its end.
async fn to_the_end(service: &Accepting, request: reqwest::RequestBuilder) -> String {
    let answer = request.send().await.unwrap();
    assert_eq!(answer.status(), 200, "{}", service.serving.url);
    let text = timeout(Duration::from_secs(60), answer.text()).await;
    text.expect("the stream ends").unwrap()
}

#[tokio::test]
async fn streams_end_with_their_token() {
    let set = key_set(&[Signer::rsa().jwk("1")]);
    let service = Accepting::start(&Keys::File(&set), &["--jwt-leeway", "0s"]);
    let token = Signer::rsa().token("1", &claims(SHORT, 10));
    let url = |path: &str| format!("{}{path}", service.serving.url);
    let events = service
        .client
        .get(url("/events?prefix=a"))
        .bearer_auth(&token);
    let hold = service.client.post(url("/locks/a/held"));
    let hold = hold
        .header("accept", "text/event-stream")
        .bearer_auth(&token);
    let (events, held) = tokio::join!(to_the_end(&service, events), to_the_end(&service, hold));
    assert!(events.ends_with("event: reset\ndata: {}\n\n"), "{events}");
    let (_, last) = held.rsplit_once("event: ").unwrap();
    assert!(last.starts_with("lost\n"), "{held}");
    assert!(
        last.contains("\"unauthorized\"") && last.contains("has expired"),
        "{last}"
    );
    let late = service.acquire("a/other", &token).await;
    assert_eq!(late.status, 401);
    assert!(late.detail().contains("has expired"), "{}", late.body);
}

/// Their tokens may be valid: new requests with them are not told 401 either.
#[tokio::test]
async fn what_lasts_is_not_told_that_its_token_is_invalid_when_no_key_is_known() {
    let set = key_set(&[Signer::rsa().jwk("1")]);
    let published = Published::new(set.clone()).await;
    let refresh = [
        "--jwt-jwks-refresh",
        "50ms",
        "--jwt-jwks-refresh-min",
        "10ms",
    ];
    let service = Accepting::start(&Keys::Url(&published), &refresh);
    let token = worker_token();
    let stream = |path: &str| {
        let request = service
            .client
            .post(format!("{}{path}", service.serving.url));
        let request = request.header("accept", "text/event-stream");
        request.bearer_auth(&token)
    };
    assert_eq!(service.acquire("a/taken", &token).await.status, 201);
    let withdrawing = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        published.answer(200, "{\"keys\":[]}");
    };
    let (held, waiting, ()) = tokio::join!(
        to_the_end(&service, stream("/locks/a/held")),
        to_the_end(&service, stream("/locks/a/taken?wait=60s")),
        withdrawing,
    );
    for (events, last_event) in [(&held, "lost\n"), (&waiting, "refused\n")] {
        let (_, last) = events.rsplit_once("event: ").unwrap();
        assert!(last.starts_with(last_event), "{events}");
        assert!(last.contains("\"issuer_unavailable\""), "{last}");
    }
    assert!(
        held.contains("event: acquired") && !held.contains("nothing_done"),
        "{held}"
    );
    assert!(
        waiting.contains("\"outcome\":\"nothing_done\""),
        "{waiting}"
    );

    // Also if the key is known again before the answer.
    published.answer(200, &set);
    eventually("the key is known again", async || {
        let granted = service.acquire("a/other", &token).await;
        (granted.status == 201).then_some(())
    })
    .await;
    let polling = service.send(Method::POST, "/locks/a/taken?wait=3s", &token);
    let withdrawing = async {
        let fetched = async |answer: &str| {
            let before = published.fetches();
            published.answer(200, answer);
            eventually("it is fetched", async || {
                (published.fetches() >= before + 3).then_some(())
            })
            .await;
        };
        tokio::time::sleep(Duration::from_millis(200)).await;
        fetched("{\"keys\":[]}").await;
        fetched(&set).await;
    };
    let (polled, ()) = tokio::join!(polling, withdrawing);
    let code = polled.body["code"].as_str();
    assert_eq!((polled.status, code), (503, Some("issuer_unavailable")));
}
