//! The locks that a principal may hold.

use super::{api, by, counted, greedy};
use crate::api::support::{delete, post, put};
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
