//! Several locks at once over HTTP: all or none, under one token.

use std::time::Duration;

use insta::assert_snapshot;
use serde_json::json;

use super::support::{Api, Call, call, delete, get, pass, post, put, refused};

const A: &str = "6f1c3b0e-8f0a-4f57-9c55-0d5d3f1f4a1b";

fn both(method: &str) -> Call {
    call(method, "/locks").token(A)
}

async fn state(api: &Api, name: &str) -> String {
    let lock = api.send(get(&format!("/locks/{name}"))).await.json();
    lock["state"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn several_locks_are_granted_under_one_token() {
    let api = Api::new().await;
    let body = r#"{"names":["b","a"],"owner":"pod-1","ttl":"45s"}"#;
    let granted = api.send(both("POST").json(body)).await;
    assert_eq!(granted.header("lock-token"), A);
    assert!(!granted.headers.contains_key("fencing-token"));
    assert_snapshot!("granted_several", granted.shape());
    let [first, second] = [0, 1].map(|index| granted.json()["locks"][index].clone());
    assert_eq!(
        (&first["name"], &second["name"]),
        (&"a".into(), &"b".into())
    );
    let again = api.send(both("POST").json(body)).await;
    assert_eq!(again.status, 200);
    assert_eq!(again.json()["locks"][1]["replayed"], true);
    assert_eq!(
        again.json()["locks"][1]["fencing_token"],
        second["fencing_token"]
    );
}

#[tokio::test]
async fn names_mean_the_same_in_json_in_a_form_and_in_the_query_string() {
    let api = Api::new().await;
    for request in [
        both("POST").json(r#"{"names":["a/1","b:c"]}"#),
        both("POST").form("names=b%3Ac&names=a/1"),
        call("POST", "/locks?names=a%2F1&names=b:c").token(A),
        call("POST", "/locks?names=a/1").token(A).form("names=b:c"),
    ] {
        let granted = api.send(request).await;
        assert!(granted.status < 300, "{}", granted.text());
        assert_eq!(granted.json()["locks"][0]["name"], "a/1");
        assert_eq!(granted.json()["locks"][1]["name"], "b:c");
    }
}

/// A list with commas would silently be one lock.
#[tokio::test]
async fn a_name_with_a_comma_is_taken_from_json_alone() {
    let api = Api::new().await;
    let granted = api.send(both("POST").json(r#"{"names":["b,c"]}"#)).await;
    assert_eq!(granted.json()["locks"][0]["name"], "b,c");
}

#[tokio::test]
async fn a_shell_script_gets_just_the_one_token() {
    let api = Api::new().await;
    let request = post("/locks").form("names=a&names=b");
    let granted = api.send(request.header("accept", "text/plain")).await;
    assert_eq!(granted.status, 201);
    assert_eq!(
        granted.text(),
        format!("{}\n", granted.header("lock-token"))
    );
}

#[tokio::test]
async fn one_lock_in_the_way_keeps_all_of_them_and_is_named() {
    let api = Api::new().await;
    api.token_of("/locks/b?owner=pod-1").await;
    let refused = api.send(both("POST").form("names=a&names=b")).await;
    assert_eq!(refused.refusal(), (423, "lock_held".to_owned()));
    assert_eq!(refused.json()["blocked_by"][0]["name"], "b");
    assert!(refused.detail().starts_with("b: held by \"pod-1\" for "));
    assert_snapshot!("blocked_by", refused.shape());
    assert_eq!(state(&api, "a").await, "free");
}

#[tokio::test(start_paused = true)]
async fn several_locks_are_waited_for_at_once() {
    let api = Api::new().await;
    let token = api.token_of("/locks/b").await;
    let waiting = both("POST").form("names=a&names=b&wait=20s");
    let waiting = api.queue(waiting, "b", 1).await;
    api.send(delete("/locks/b").token(&token)).await;
    let granted = waiting.await.unwrap();
    assert_eq!(granted.status, 201, "{}", granted.text());
    let out_of_time = post("/locks").form("names=a&names=c&wait=2s");
    let out_of_time = api.send(out_of_time).await;
    assert_eq!(out_of_time.refusal(), (423, "wait_timeout".to_owned()));
    assert_eq!(out_of_time.json()["blocked_by"][0]["name"], "a");
    assert_eq!(out_of_time.json()["position"], 1);
}

#[tokio::test(start_paused = true)]
async fn all_leases_are_renewed_or_none() {
    let api = Api::new().await;
    let names = "names=a&names=b&ttl=10s";
    api.send(both("POST").form(names)).await;
    pass(Duration::from_secs(4)).await;
    let renewed = api.send(both("PUT").form("names=b&names=a")).await;
    assert_eq!(renewed.json()["locks"][0]["expires_in_ms"], 10_000);
    assert_snapshot!("renewed_several", renewed.shape());
    pass(Duration::from_secs(4)).await;
    api.send(delete("/locks/b?force=true&reason=maintenance"))
        .await;
    let lost = api.send(both("PUT").form("names=a&names=b")).await;
    assert_eq!(lost.refusal(), (412, "lease_evicted".to_owned()));
    assert_eq!(lost.json()["lost"][0]["reason"], "maintenance");
    assert!(lost.detail().contains("nothing was renewed"));
    assert_snapshot!("lost_several", lost.shape());
    let lock = api.send(get("/locks/a")).await.json();
    assert_eq!(lock["holders"][0]["expires_in_ms"], 6_000);
}

#[tokio::test]
async fn a_release_frees_the_held_locks_and_lists_the_lost_ones() {
    let api = Api::new().await;
    api.send(both("POST").form("names=a&names=b")).await;
    api.send(delete("/locks/a?force=true")).await;
    let lost = api.send(call("DELETE", "/locks?names=a&names=b").token(A));
    let lost = lost.await;
    assert_eq!(lost.refusal(), (412, "lease_evicted".to_owned()));
    let names: Vec<_> = lost.json()["lost"].as_array().unwrap().clone();
    assert_eq!((names.len(), &names[0]["name"]), (1, &"a".into()));
    assert!(lost.detail().contains("others were released"));
    assert_eq!(state(&api, "b").await, "free");
}

#[tokio::test]
async fn several_locks_are_held_deeper_and_stepped_back_together() {
    let api = Api::new().await;
    api.send(both("POST").form("names=a&names=b")).await;
    let deeper = both("POST").form("names=a&names=b&hold_count=2");
    let deeper = api.send(deeper).await;
    assert_eq!(
        (deeper.status, &deeper.json()["locks"][1]["hold_count"]),
        (200, &2.into())
    );
    let back = both("DELETE").form("names=a&names=b&hold_count=1");
    let back = api.send(back).await;
    assert_eq!(
        (back.status, &back.json()["locks"][0]["hold_count"]),
        (200, &1.into())
    );
    for _ in 0..2 {
        let released = both("DELETE").json(r#"{"names":["a","b"]}"#);
        assert_eq!(api.send(released).await.status, 204);
    }
    let late = api.send(both("POST").form("names=a&names=b")).await;
    assert_eq!(late.refusal(), (409, "claim_ended".to_owned()));
    assert_eq!(late.json()["name"], "a");
    let late = api.send(both("PUT").form("names=a&names=b")).await;
    assert_eq!(late.refusal(), (412, "lease_released".to_owned()));
    let lost = ["a", "b"].map(|name| json!({"name": name, "code": "lease_released"}));
    assert_eq!(late.json()["lost"], json!(lost));
}

#[tokio::test]
async fn one_of_several_locks_may_be_released_before_the_others() {
    let api = Api::new().await;
    api.send(both("POST").form("names=a&names=b")).await;
    assert_eq!(api.send(delete("/locks/a").token(A)).await.status, 204);
    assert_eq!(state(&api, "b").await, "held");
    let renewed = api.send(put("/locks/b").token(A)).await;
    assert_eq!(renewed.status, 200);
    let renewed = api.send(both("PUT").form("names=a&names=b")).await;
    assert_eq!(renewed.refusal(), (412, "lease_released".to_owned()));
    let lost = json!([{"name": "a", "code": "lease_released"}]);
    assert_eq!(renewed.json()["lost"], lost);
}

#[tokio::test]
async fn names_that_are_missing_too_many_or_none_are_refused() {
    let api = Api::new().await;
    let many: Vec<_> = (0..65).map(|number| format!("names={number}")).collect();
    for (body, words) in [
        ("", "required"),
        ("names=a&names=a", "there twice"),
        ("names=a,b", "names=a&names=b"),
        ("names=a%2Cb", "JSON"),
        (&many.join("&"), "1 to 64"),
    ] {
        for method in ["POST", "PUT", "DELETE"] {
            refused(
                &api,
                both(method).form(body.to_owned()),
                "invalid_field",
                "names",
                words,
            )
            .await;
        }
    }
    for body in [
        r#"{"names":"a"}"#,
        r#"{"names":[1]}"#,
        r#"{"names":[]}"#,
        r#"{"names":{"a":1}}"#,
        r#"{"names":["a",null]}"#,
        r#"{"names":true}"#,
    ] {
        refused(&api, both("POST").json(body), "invalid_field", "names", "").await;
    }
    refused(
        &api,
        both("POST").json(r#"{"names":["a","b//c"]}"#),
        "invalid_name",
        "names",
        "\"b//c\"",
    )
    .await;
    refused(
        &api,
        post("/locks?names=a").json(r#"{"names":["b"]}"#),
        "invalid_field",
        "names",
        "elsewhere",
    )
    .await;
    refused(
        &api,
        post("/locks").form("name=a"),
        "unknown_field",
        "name",
        "did you mean \"names\"",
    )
    .await;
}

#[tokio::test]
async fn names_belong_to_all_locks_and_force_to_one() {
    let api = Api::new().await;
    for method in ["POST", "PUT", "DELETE"] {
        refused(
            &api,
            call(method, "/locks/a?names=b").token(A),
            "unknown_field",
            "names",
            "at /locks",
        )
        .await;
    }
    refused(
        &api,
        delete("/locks?force=true&names=a"),
        "invalid_field",
        "force",
        "one lock",
    )
    .await;
    let without_token = api.send(put("/locks?names=a")).await;
    assert_eq!(without_token.refusal(), (400, "token_missing".to_owned()));
}
