//! The life of a claim from its first request to its end, with every response on the way.

use std::time::Duration;

use insta::assert_snapshot;

use super::support::{Api, call, delete, get, pass, post, put};

const TOKEN: &str = "6f1c3b0e-8f0a-4f57-9c55-0d5d3f1f4a1b";

#[tokio::test]
async fn a_request_without_anything_is_granted_with_the_defaults() {
    let api = Api::new().await;
    assert_snapshot!("granted", api.send(post("/locks/orders/42")).await.shape());
}

#[tokio::test]
async fn every_field_is_taken_and_shown_again() {
    let api = Api::new().await;
    let body = r#"{"ttl":"1m","mode":"exclusive","owner":"pod-1","metadata":{"job" : [1, 2.50]},
        "token":"6f1c3b0e-8f0a-4f57-9c55-0d5d3f1f4a1b","hold_count":2,"min_hold":"0s","max_hold":"1h",
        "lock_delay":"5s"}"#;
    let answer = api.send(post("/locks/full").json(body)).await;
    assert_snapshot!("granted_with_every_field", answer.shape());
    assert_eq!(answer.header("lock-token"), TOKEN);
    // Byte for byte, including the spaces and the trailing zero.
    assert!(answer.text().contains(r#""metadata":{"job" : [1, 2.50]}"#));
}

#[tokio::test]
async fn the_fencing_token_of_the_header_is_the_one_of_the_body() {
    let answer = Api::new().await.send(post("/locks/a")).await;
    assert_eq!(
        answer.json()["fencing_token"].to_string(),
        answer.header("fencing-token")
    );
    assert_eq!(answer.json()["token"], answer.header("lock-token"));
}

#[tokio::test]
async fn a_lock_that_is_held_is_refused_with_its_holders_but_without_their_tokens() {
    let api = Api::new().await;
    let holder = post("/locks/a").json(r#"{"owner":"pod-1","metadata":{"job":7}}"#);
    let token = api.send(holder).await.header("lock-token").to_owned();
    let refused = api.send(post("/locks/a")).await;
    assert_eq!(refused.code(), "lock_held");
    assert!(!refused.text().contains(&token), "{}", refused.text());
    assert_snapshot!("held", refused.shape());
}

#[tokio::test]
async fn posting_the_same_token_again_repeats_the_answer() {
    let api = Api::new().await;
    let token = api.token_of("/locks/a").await;
    let again = api.send(post("/locks/a").token(&token)).await;
    assert_eq!(again.header("lock-token"), token);
    assert_snapshot!("replayed", again.shape());
}

#[tokio::test]
async fn a_holder_changes_its_hold_count_to_the_requested_one() {
    let api = Api::new().await;
    let token = api.token_of("/locks/a").await;
    let deeper = api.send(post("/locks/a?hold_count=2").token(&token)).await;
    assert_eq!(
        (deeper.status, &deeper.json()["hold_count"]),
        (200, &2.into())
    );
    assert_eq!(deeper.json()["replayed"], false);
    let back = api
        .send(delete("/locks/a?hold_count=1").token(&token))
        .await;
    assert_snapshot!("stepped_back", back.shape());
    let freed = api.send(delete("/locks/a").token(&token)).await;
    assert_snapshot!("released", freed.shape());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_restarts_the_ttl() {
    let api = Api::new().await;
    let token = api.token_of("/locks/a?ttl=10s").await;
    pass(Duration::from_secs(6)).await;
    let renewed = api.send(put("/locks/a").token(&token)).await;
    assert_eq!(renewed.json()["expires_in_ms"], 10_000);
    let longer = api
        .send(put("/locks/a").token(&token).form("ttl=20s"))
        .await;
    assert_eq!(
        (longer.status, &longer.json()["ttl_ms"]),
        (200, &20_000.into())
    );
    assert_snapshot!("renewed", longer.shape());
}

#[tokio::test]
async fn releasing_twice_is_answered_twice_with_204() {
    let api = Api::new().await;
    let token = api.token_of("/locks/a").await;
    for _ in 0..2 {
        assert_eq!(api.send(delete("/locks/a").token(&token)).await.status, 204);
    }
}

/// Nothing in the request says that it is late. It only affects its own claim: a new token is another claim.
#[tokio::test(start_paused = true)]
async fn a_late_release_also_ends_later_grants_of_its_token() {
    let api = Api::new().await;
    let token = api.token_of("/locks/a").await;
    let release = || delete("/locks/a").token(&token);
    assert_eq!(api.send(release()).await.status, 204);
    let again = api.send(post("/locks/a").token(&token)).await;
    assert_eq!(again.refusal(), (409, "claim_ended".to_owned()));
    pass(Duration::from_secs(61)).await;
    assert_eq!(api.send(post("/locks/a").token(&token)).await.status, 201);
    assert_eq!(api.send(release()).await.status, 204);
    api.is_soon("a", "free").await;

    let token = api.token_of("/locks/a?hold_count=2").await;
    let steps_back = || delete("/locks/a?hold_count=1").token(&token);
    assert_eq!(api.send(steps_back()).await.json()["hold_count"], 1);
    let deeper = post("/locks/a?hold_count=2").token(&token);
    assert_eq!(api.send(deeper).await.json()["hold_count"], 2);
    assert_eq!(api.send(steps_back()).await.json()["hold_count"], 1);
}

#[tokio::test]
async fn a_late_request_of_a_released_claim_gets_claim_ended() {
    let api = Api::new().await;
    let token = api.token_of("/locks/a").await;
    api.send(delete("/locks/a").token(&token)).await;
    let posted = api.send(post("/locks/a").token(&token)).await;
    assert_snapshot!("claim_ended", posted.shape());
    let renewed = api.send(put("/locks/a").token(&token)).await;
    assert_eq!(renewed.status, 412);
    assert_snapshot!("lease_released", renewed.shape());
}

#[tokio::test(start_paused = true)]
async fn an_expired_lease_is_412_and_says_whether_the_lock_was_granted_since() {
    let api = Api::new().await;
    let token = api.token_of("/locks/a?ttl=1s").await;
    pass(Duration::from_secs(2)).await;
    for late in [put("/locks/a"), delete("/locks/a")] {
        let answer = api.send(late.token(&token)).await;
        assert_eq!(answer.refusal(), (412, "lease_expired".to_owned()));
    }
    assert_snapshot!(
        "lease_expired",
        api.send(put("/locks/a").token(&token)).await.shape()
    );
    let late = api.send(post("/locks/a").token(&token)).await;
    assert_eq!(
        (late.code(), &late.json()["ended"]),
        ("claim_ended".to_owned(), &"expired".into())
    );
    api.token_of("/locks/a").await;
    assert_snapshot!(
        "lease_lost",
        api.send(put("/locks/a").token(&token)).await.shape()
    );
}

#[tokio::test]
async fn an_unknown_token_changes_nothing() {
    let api = Api::new().await;
    api.token_of("/locks/a").await;
    for foreign in [put("/locks/a"), delete("/locks/a"), delete("/locks/free")] {
        let answer = api.send(foreign.token(TOKEN)).await;
        assert_eq!(answer.refusal(), (412, "token_unknown".to_owned()));
    }
    assert_eq!(api.send(get("/locks/a")).await.json()["state"], "held");
}

#[tokio::test]
async fn an_eviction_names_the_holders_and_tells_them_why() {
    let api = Api::new().await;
    let token = api.token_of("/locks/a?owner=pod-1").await;
    let evicted = api
        .send(delete("/locks/a?force=true&reason=maintenance%20at%20ten"))
        .await;
    assert_snapshot!("evicted", evicted.shape());
    let refused = api.send(put("/locks/a").token(&token)).await;
    assert_snapshot!("lease_evicted", refused.shape());
    let late = api.send(post("/locks/a").token(&token)).await;
    assert_eq!(late.json()["ended"], "evicted");
    assert_eq!(late.json()["reason"], "maintenance at ten");
    let nobody = api.send(delete("/locks/a?force=true")).await;
    assert_eq!(
        (nobody.status, nobody.text()),
        (200, "{\"evicted\":[],\"evicted_total\":0}\n")
    );
}

#[tokio::test(start_paused = true)]
async fn a_lock_shows_its_state() {
    let api = Api::new().await;
    assert_snapshot!("inspect_free", api.send(get("/locks/a")).await.shape());
    let token = api.token_of("/locks/a?min_hold=20s").await;
    assert_snapshot!("inspect_held", api.send(get("/locks/a")).await.shape());
    api.send(delete("/locks/a").token(&token)).await;
    assert_snapshot!("inspect_cooling", api.send(get("/locks/a")).await.shape());
    let cooling = api.send(post("/locks/a")).await;
    // The whole time, not the five seconds after which a holder may have released it.
    assert_eq!(cooling.header("retry-after"), "20");
    assert_snapshot!("cooling", cooling.shape());
}

#[tokio::test]
async fn head_responds_like_get_without_a_body() {
    let api = Api::new().await;
    let (head, get) = (
        api.send(super::support::call("HEAD", "/locks/a")).await,
        api.send(get("/locks/a")).await,
    );
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert_eq!(head.header("content-length"), get.body.len().to_string());
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_rounded_up_to_at_least_a_second_and_at_most_five() {
    let api = Api::new().await;
    for (ttl, seconds) in [("100ms", "1"), ("1500ms", "2"), ("3s", "3"), ("1h", "5")] {
        let path = format!("/locks/{ttl}?ttl={ttl}");
        api.token_of(&path).await;
        assert_eq!(
            api.send(post(&path)).await.header("retry-after"),
            seconds,
            "{ttl}"
        );
    }
}

#[tokio::test]
async fn the_head_of_a_lock_tells_its_state() {
    let api = Api::new().await;
    let state = async |state: &str| {
        for method in ["GET", "HEAD"] {
            let answer = api.send(call(method, "/locks/a")).await;
            assert_eq!((answer.status, answer.header("lock-state")), (200, state));
        }
    };
    state("free").await;
    let token = api.token_of("/locks/a?min_hold=1m").await;
    state("held").await;
    api.send(delete("/locks/a").token(&token)).await;
    state("cooling").await;
}
