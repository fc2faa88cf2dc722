//! Content negotiation.

use super::support::{Api, get, post};

#[tokio::test]
async fn a_shell_script_gets_just_the_token() {
    let api = Api::new().await;
    let answer = api
        .send(post("/locks/a").header("accept", "text/plain"))
        .await;
    assert_eq!(answer.status, 201);
    assert_eq!(answer.header("content-type"), "text/plain; charset=utf-8");
    assert_eq!(answer.text(), format!("{}\n", answer.header("lock-token")));
}

#[tokio::test]
async fn a_client_that_takes_anything_gets_json() {
    let api = Api::new().await;
    for (name, accept) in [
        ("a", "*/*"),
        ("b", "application/json, text/plain"),
        ("c", "image/png"),
    ] {
        let answer = api
            .send(post(&format!("/locks/{name}")).header("accept", accept))
            .await;
        assert_eq!(
            answer.header("content-type"),
            "application/json",
            "{accept}"
        );
    }
}

#[tokio::test]
async fn a_refusal_is_a_problem_whatever_the_client_accepts() {
    let api = Api::new().await;
    api.token_of("/locks/a").await;
    let refused = api
        .send(post("/locks/a").header("accept", "text/plain"))
        .await;
    assert_eq!(refused.refusal(), (423, "lock_held".to_owned()));
}

#[tokio::test]
async fn a_problem_can_be_read_by_programs_and_by_people() {
    let api = Api::new().await;
    let page = async |accept| {
        let page = get("/problems/lock_held").header("accept", accept);
        api.send(page).await.header("content-type").to_owned()
    };
    assert_eq!(page("application/json").await, "application/json");
    assert_eq!(
        page("text/html,application/xhtml+xml,*/*;q=0.8").await,
        "text/html; charset=utf-8"
    );
    assert_eq!(page("text/plain").await, "text/plain; charset=utf-8");
}

#[tokio::test]
async fn several_locks_cannot_be_held_by_a_stream_and_that_is_said() {
    let api = Api::new().await;
    let asked = post("/locks?names=a&names=b").header("accept", "text/event-stream");
    let answer = api.send(asked).await;
    assert_eq!(answer.refusal(), (400, "invalid_field".to_owned()));
    assert!(answer.text().contains("stream"), "{}", answer.text());
    assert_eq!(api.send(get("/locks/a")).await.json()["state"], "free");
}
