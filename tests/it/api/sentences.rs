//! The detail of a 423, which tells people in one sentence what is in the way.

use std::time::Duration;

use super::support::{Api, delete, pass, post};

/// The detail of a claim that is refused.
async fn refused(api: &Api, path: &str) -> String {
    let answer = api.send(post(path)).await;
    assert_eq!(answer.status, 423, "{}", answer.text());
    answer.detail()
}

#[tokio::test(start_paused = true)]
async fn a_refusal_tells_who_holds_the_lock_for_how_long_and_how_many_wait() {
    let api = Api::new().await;
    api.token_of("/locks/a?owner=tour&ttl=30s").await;
    pass(Duration::from_millis(28_100)).await;
    assert_eq!(
        refused(&api, "/locks/a").await,
        "held by \"tour\" for 1.9 s more; nobody waits"
    );
    api.token_of("/locks/b?ttl=5m").await;
    assert_eq!(
        refused(&api, "/locks/b").await,
        "held by a claim without an owner for 5 min more; nobody waits"
    );
    let waiting = api.queue(post("/locks/b?wait=20s"), "b", 1).await;
    assert!(refused(&api, "/locks/b").await.ends_with("; 1 claim waits"));
    let another = api.queue(post("/locks/b?wait=20s"), "b", 2).await;
    assert!(refused(&api, "/locks/b").await.ends_with("; 2 claims wait"));
    waiting.abort();
    another.abort();
}

#[tokio::test(start_paused = true)]
async fn a_refusal_tells_how_many_share_the_lock() {
    let api = Api::new().await;
    for ttl in ["30s", "12s"] {
        let path = format!("/locks/a?mode=shared&limit=2&ttl={ttl}");
        api.token_of(&path).await;
    }
    assert_eq!(
        refused(&api, "/locks/a?mode=shared&limit=2").await,
        "held by 2 claims, the first of them for 12 s more; nobody waits"
    );
}

#[tokio::test(start_paused = true)]
async fn a_refusal_tells_how_long_a_lock_stays_closed() {
    let api = Api::new().await;
    let token = api.token_of("/locks/a?min_hold=12s").await;
    api.send(delete("/locks/a").token(&token)).await;
    assert_eq!(
        refused(&api, "/locks/a").await,
        "held by nobody, but closed for 12 s more after its last lease; nobody waits"
    );
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_times_out_tells_the_same_and_what_to_do() {
    let api = Api::new().await;
    api.token_of("/locks/a?owner=tour&ttl=30s").await;
    let detail = refused(&api, "/locks/a?wait=10s").await;
    let (reason, advice) = detail.split_once("; the claim ").expect("two parts");
    assert!(
        reason.starts_with("the wait timed out: held by \"tour\" for 20 s more"),
        "{detail}"
    );
    assert!(advice.starts_with("keeps its place for 10 s:"), "{detail}");
}

#[tokio::test]
async fn a_refusal_of_several_locks_names_the_first_and_counts_the_others() {
    let api = Api::new().await;
    for name in ["b", "c", "d"] {
        api.token_of(&format!("/locks/{name}?owner={name}")).await;
    }
    let detail = refused(&api, "/locks?names=a&names=b&names=c&names=d").await;
    assert!(detail.starts_with("b: held by \"b\" for "), "{detail}");
    assert!(
        detail.ends_with("; 2 other locks are not free either"),
        "{detail}"
    );
}

/// An owner is text from a client.
#[tokio::test]
async fn a_long_owner_is_shortened() {
    let api = Api::new().await;
    let owner = "o".repeat(256);
    api.token_of(&format!("/locks/a?owner={owner}")).await;
    let detail = refused(&api, "/locks/a").await;
    assert!(
        detail.contains(&format!("\"{}…\"", "o".repeat(64))),
        "{detail}"
    );
}
