//! What lasts longer than the token with which it began.

use std::time::Duration;

use tokio::time::timeout;

use super::issuer::{Signer, claims, key_set};
use super::{Accepting, Keys};

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
