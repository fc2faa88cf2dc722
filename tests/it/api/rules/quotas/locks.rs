//! The locks that a principal may hold.

use leasehold::http::{Access, Failures};

use super::{api, by, counted, file, greedy, ring};
use crate::api::support::{Api, Call, delete, get, post, put};
use crate::support::eventually;

#[tokio::test]
async fn a_principal_holds_no_more_locks_than_its_quota_permits() {
    let api = api("locks_max = 2").await;
    let acquire = async |path: &str| api.send(greedy(post(path))).await;
    let held = acquire("/locks/a?ttl=1h").await;
    assert_eq!(held.status, 201, "{}", held.text());
    assert_eq!(acquire("/locks/b?ttl=1h").await.status, 201);
    for one_too_many in [
        post("/locks/c"),
        post("/locks/c?wait=1s"),
        post("/locks").json(r#"{"names":["c","d"]}"#),
    ] {
        let refused = api.send(greedy(one_too_many)).await;
        assert_eq!(refused.refusal(), (429, "quota_exceeded".to_owned()));
        assert_eq!(refused.json()["quota"], "locks_max");
        assert_eq!(refused.json()["outcome"], "nothing_done");
        assert_eq!(refused.header("retry-after"), "5");
    }
    assert_eq!(counted(&api, "locks_per_principal").await, 3.0);
    let never = post("/locks").json(r#"{"names":["c","d","e"]}"#);
    let never = api.send(greedy(never)).await;
    assert_eq!(never.refusal(), (400, "invalid_field".to_owned()));

    // What it holds it keeps, and may ask for again.
    let token = held.header("lock-token");
    assert_eq!(
        api.send(greedy(post("/locks/a").token(token))).await.status,
        200
    );
    assert_eq!(
        api.send(greedy(put("/locks/a").token(token))).await.status,
        200
    );
    let other = api.send(by("quiet", post("/locks/q"))).await;
    assert_eq!(other.status, 201, "{}", other.text());
    let blocked = acquire("/locks/q").await;
    assert_eq!(blocked.code(), "quota_exceeded", "{}", blocked.text());

    let release = greedy(delete("/locks/a").token(token));
    assert_eq!(api.send(release).await.status, 204);
    assert_eq!(acquire("/locks/c?ttl=1h").await.status, 201);
    assert_eq!(acquire("/locks/d").await.status, 429);
}

/// Whoever sends them, with a key or without.
#[tokio::test]
async fn all_clients_together_hold_no_more_locks_than_the_service_permits() {
    let keys = ring(&file("locks_max = 2"));
    let api = Api::with(|settings| {
        settings.access = Access::Keys(keys, Failures::new(20));
        settings.locks_max = Some(3);
    })
    .await;
    let quiet = |call: Call| by("quiet", call);
    let held = api.send(quiet(post("/locks/a?ttl=1h"))).await;
    assert_eq!(held.status, 201, "{}", held.text());
    // What is beyond the quota of its principal takes nothing from the others.
    for (name, status) in [("b", 201), ("c", 201), ("d", 429), ("e", 429)] {
        let answer = api
            .send(greedy(post(&format!("/locks/{name}?ttl=1h"))))
            .await;
        assert_eq!(answer.status, status, "{name}: {}", answer.text());
    }
    let refused = api.send(quiet(post("/locks/f?ttl=1h"))).await;
    assert_eq!(refused.refusal(), (429, "quota_exceeded".to_owned()));
    assert_eq!(refused.json()["quota"], "server.locks_max");
    assert_eq!(refused.json()["outcome"], "nothing_done");
    assert_eq!(refused.header("retry-after"), "5");
    assert_eq!(counted(&api, "locks_held").await, 1.0);
    assert_eq!(counted(&api, "locks_per_principal").await, 2.0);

    // What is held is kept, and what was refused is not counted anywhere.
    let token = held.header("lock-token");
    let kept = api.send(quiet(put("/locks/a").token(token))).await;
    assert_eq!(kept.status, 200, "{}", kept.text());
    let repeated = api.send(quiet(post("/locks/a").token(token))).await;
    assert_eq!(repeated.status, 200, "{}", repeated.text());
    let released = api.send(quiet(delete("/locks/a").token(token))).await;
    assert_eq!(released.status, 204);
    for (name, status) in [("a", 201), ("b", 429)] {
        let path = format!("/locks/quiet/{name}?ttl=1h");
        assert_eq!(api.send(quiet(post(&path))).await.status, status, "{name}");
    }
}

#[tokio::test]
async fn clients_without_a_key_are_counted_too() {
    let api = Api::with(|settings| settings.locks_max = Some(1)).await;
    let held = api.send(post("/locks/a?ttl=1h")).await;
    assert_eq!(held.status, 201, "{}", held.text());
    let refused = api.send(post("/locks/b")).await;
    assert_eq!(refused.json()["quota"], "server.locks_max");
    eventually("it is rolled back", async || {
        let view = api.send(get("/locks/b")).await;
        (view.json()["state"] == "free").then_some(())
    })
    .await;
    let release = delete("/locks/a").token(held.header("lock-token"));
    assert_eq!(api.send(release).await.status, 204);
    assert_eq!(api.send(post("/locks/b")).await.status, 201);
}

/// A stream renews by itself, and releases its lock when it is closed.
#[tokio::test]
async fn a_stream_is_counted_for_as_long_as_it_holds_its_lock() {
    let api = api("locks_max = 1").await;
    let hold = || greedy(post("/locks/a?ttl=1h").header("accept", "text/event-stream"));
    for _ in 0..3 {
        let stream = eventually("there is room, and it is counted", async || {
            let stream = api.open(hold()).await;
            if !stream.status().is_success() {
                return None;
            }
            let other = api.send(greedy(post("/locks/b"))).await;
            if other.status == 201 {
                // On a busy machine a count may not arrive in time, and is made up for by the next renewal.
                let release = greedy(delete("/locks/b").token(other.header("lock-token")));
                assert_eq!(api.send(release).await.status, 204);
                return None;
            }
            assert_eq!(other.code(), "quota_exceeded", "{}", other.text());
            Some(stream)
        })
        .await;
        drop(stream);
    }
}
