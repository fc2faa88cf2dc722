//! Sharing over HTTP: readers, permits, and claims that do not match the current holders.

use insta::assert_snapshot;

use leasehold::domain::LimitBounds;
use leasehold::http::HttpSettings;

use super::support::{Api, call, delete, get, post, put, refused};

#[tokio::test]
async fn readers_hold_together_and_a_writer_does_not_join_them() {
    let api = Api::new().await;
    let first = api.send(post("/locks/a?mode=shared&owner=r1")).await;
    assert_snapshot!("granted_shared", first.shape());
    api.token_of("/locks/a?mode=shared&owner=r2").await;
    let lock = api.send(get("/locks/a")).await.json();
    assert_eq!(
        (&lock["state"], &lock["holders_total"]),
        (&"held".into(), &2.into())
    );
    let writer = api.send(post("/locks/a")).await;
    assert_eq!(writer.refusal(), (423, "lock_held".to_owned()));
    assert_eq!(writer.json()["holders_total"], 2);
    assert_eq!(writer.json()["holders"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn no_more_permits_are_given_than_there_are() {
    let api = Api::new().await;
    let path = "/locks/gpu?mode=shared&limit=4&permits=3";
    let granted = api.send(post(path)).await;
    let grant = granted.json();
    assert_eq!(
        (&grant["mode"], &grant["limit"], &grant["permits"]),
        (&"shared".into(), &4.into(), &3.into())
    );
    let refused = api
        .send(post("/locks/gpu?mode=shared&limit=4&permits=2"))
        .await;
    assert_eq!(refused.refusal(), (423, "lock_held".to_owned()));
    api.token_of("/locks/gpu?mode=shared&limit=4").await;
}

/// Several locks with the same limit.
fn limited(locks: usize, limit: u32) -> String {
    let names: String = (0..locks).map(|lock| format!("names={lock}&")).collect();
    format!("/locks?{names}mode=shared&limit={limit}")
}

#[tokio::test]
async fn a_limit_that_a_quorum_cannot_keep_is_refused() {
    let of_quorum = |settings: &mut HttpSettings| settings.bounds.limits = LimitBounds::OF_QUORUM;
    for (locks, limit) in [(1, 1_000), (10, 1_000), (16, 625)] {
        let api = Api::with(of_quorum).await;
        api.token_of(&limited(locks, limit)).await;
    }
    let api = Api::with(of_quorum).await;
    for (locks, limit) in [(1, 1_001), (11, 1_000), (16, 626)] {
        for method in ["POST", "PUT"] {
            let request = call(method, &limited(locks, limit));
            refused(
                &api,
                request,
                "invalid_field",
                "limit",
                "than a quorum can keep",
            )
            .await;
        }
    }
}

#[tokio::test]
async fn another_limit_is_refused_with_the_one_in_force() {
    let api = Api::new().await;
    api.token_of("/locks/a?mode=shared&limit=4").await;
    let refused = api.send(post("/locks/a?mode=shared&limit=5")).await;
    assert_eq!(refused.refusal(), (409, "limit_mismatch".to_owned()));
    assert_eq!(refused.json()["limit_in_force"], 4);
    assert_snapshot!("limit_mismatch", refused.shape());
    api.token_of("/locks/b?mode=shared").await;
    let refused = api.send(post("/locks/b?mode=shared&limit=5")).await;
    let problem = refused.json();
    assert_eq!(problem["code"], "limit_mismatch");
    assert_eq!(
        problem.get("limit_in_force"),
        Some(&serde_json::Value::Null)
    );
}

#[tokio::test]
async fn a_claim_stays_what_it_was_made_as() {
    let api = Api::new().await;
    let token = api.token_of("/locks/a?mode=shared&limit=4").await;
    for request in [
        post("/locks/a?mode=shared&limit=4&permits=2"),
        put("/locks/a?mode=shared&limit=4&permits=2"),
    ] {
        let refused = api.send(request.token(&token)).await;
        assert_eq!(refused.refusal(), (409, "claim_mismatch".to_owned()));
    }
    for request in [post("/locks/a"), put("/locks/a?mode=exclusive")] {
        let refused = api.send(request.token(&token)).await;
        assert_eq!(refused.refusal(), (409, "upgrade_unsupported".to_owned()));
        let detail = refused.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains("send mode=shared again"), "{detail}");
    }
    let same = api
        .send(put("/locks/a?mode=shared&limit=4").token(&token))
        .await;
    assert_eq!(same.status, 200);
}

#[tokio::test]
async fn a_holder_is_downgraded_and_others_share_the_lock() {
    let api = Api::new().await;
    let granted = api.send(post("/locks/a")).await;
    let token = granted.header("lock-token");
    let down = api
        .send(put("/locks/a").token(token).form("mode=shared&limit=2"))
        .await;
    assert_eq!(down.status, 200, "{}", down.text());
    let lease = down.json();
    assert_eq!(
        (&lease["mode"], &lease["limit"], &lease["permits"]),
        (&"shared".into(), &2.into(), &1.into())
    );
    assert_eq!(lease["fencing_token"], granted.json()["fencing_token"]);
    api.token_of("/locks/a?mode=shared&limit=2").await;
    assert_eq!(
        api.send(delete("/locks/a").token(token)).await.status,
        204,
        "the token is the same claim still"
    );
}
