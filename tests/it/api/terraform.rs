//! The lock of a Terraform state, by the requests that Terraform 1.11 was recorded to send. `tests/it/terraform.rs` runs
//! Terraform itself.

use leasehold::http::{Access, Failures, KeyRing, Role};
use serde_json::Value;

use super::support::{Answer, Api, Call, call, get, post};

const ONE: &str = r#"{"ID":"6443f9f5-54f0-4904-afdb-b10331b53417","Operation":"OperationTypeApply","Info":"",
    "Who":"root@one","Version":"1.11.4","Created":"2026-11-23T07:34:56.435549105Z","Path":""}"#;
const TWO: &str = r#"{"ID":"76e4052f-e6dd-b93e-0d25-fe21f8815fe3","Operation":"OperationTypePlan","Info":"",
    "Who":"root@two","Version":"1.11.4","Created":"2026-11-23T07:34:57.681578442Z","Path":""}"#;

fn lock(info: &'static str) -> Call {
    call("LOCK", "/terraform/prod/network").json(info)
}

fn unlock(info: &'static str) -> Call {
    call("UNLOCK", "/terraform/prod/network").json(info)
}

async fn state(api: &Api) -> Value {
    api.send(get("/locks/prod/network")).await.json()
}

#[tokio::test]
async fn a_run_locks_and_unlocks_with_200_as_terraform_expects() {
    let api = Api::new().await;
    for (lock_method, unlock_method, info) in [("LOCK", "UNLOCK", ONE), ("POST", "DELETE", TWO)] {
        let request = |method| call(method, "/terraform/prod/network").json(info);
        // Terraform repeats a request whose answer was lost.
        for _ in 0..2 {
            assert_eq!(api.send(request(lock_method)).await.status, 200);
        }
        let held = state(&api).await;
        let info: Value = serde_json::from_str(info).expect("JSON");
        assert_eq!(held["holders"][0]["owner"], info["Who"]);
        assert_eq!(held["holders"][0]["metadata"], info);
        for _ in 0..2 {
            assert_eq!(api.send(request(unlock_method)).await.status, 200);
        }
        assert_eq!(state(&api).await["state"], "free");
    }
}

#[tokio::test]
async fn a_second_run_is_refused_with_what_terraform_shows_about_the_first() {
    let api = Api::new().await;
    api.send(lock(ONE)).await;
    let refused = api.send(lock(TWO)).await;
    assert_eq!(
        (refused.status, refused.header("content-type")),
        (423, "application/json")
    );
    let info = refused.json();
    assert_eq!(
        (&info["Who"], &info["Operation"]),
        (&"root@one".into(), &"OperationTypeApply".into())
    );
    assert_eq!(
        info["ID"],
        "6443f9f5-54f0-4904-afdb-b10331b53417 held by \"root@one\" for 60 min more; nobody waits"
    );
    assert_eq!(
        api.send(unlock(TWO)).await.refusal(),
        (412, "token_unknown".to_owned())
    );
}

#[tokio::test]
async fn a_lock_that_something_else_holds_says_so() {
    let api = Api::new().await;
    api.token_of("/locks/prod/network?owner=backup").await;
    let info = api.send(lock(ONE)).await.json();
    assert_eq!(info["ID"], "held by \"backup\" for 30 s more; nobody waits");
    assert_eq!(info["Path"], "prod/network");
    // Terraform cannot read an empty time.
    assert_eq!(info.get("Created"), None);
}

#[tokio::test]
async fn the_address_chooses_the_ttl_and_may_be_that_of_both() {
    let api = Api::new().await;
    let ttl = async |query: &str| {
        let path = format!("/terraform/prod/network{query}");
        let locked = api.send(call("LOCK", &path).json(ONE)).await;
        (locked.status, locked.json()["ttl_ms"].clone())
    };
    assert_eq!(ttl("?ttl=10m").await, (200, 600_000.into()));
    let both = call("UNLOCK", "/terraform/prod/network?ttl=10m").json(ONE);
    assert_eq!(api.send(both).await.status, 200);
    let default = api.send(lock(TWO)).await;
    assert_eq!(default.json()["ttl_ms"], 3_600_000);
    for query in ["?ttl=2h", "?ttl=10", "?tll=5m"] {
        assert_eq!(ttl(query).await.0, 400, "{query}");
    }
}

/// It sends nothing at all.
#[tokio::test]
async fn force_unlock_takes_the_lock_away() {
    let api = Api::new().await;
    api.send(lock(ONE)).await;
    let forced = api.send(call("UNLOCK", "/terraform/prod/network")).await;
    assert_eq!(
        (forced.status, &forced.json()["evicted_total"]),
        (200, &1.into())
    );
    assert_eq!(state(&api).await["state"], "free");
    assert_eq!(
        api.send(unlock(ONE)).await.refusal(),
        (412, "lease_evicted".to_owned())
    );
}

#[tokio::test]
async fn a_body_that_is_not_of_terraform_is_refused() {
    let api = Api::new().await;
    for (body, code) in [
        ("", "malformed_body"),
        ("[]", "malformed_body"),
        ("{\"ID\":7}", "malformed_body"),
        ("{}", "invalid_field"),
        ("{\"ID\":\"mine\"}", "invalid_field"),
    ] {
        assert_eq!(
            api.send(lock(body)).await.refusal(),
            (400, code.to_owned()),
            "{body}"
        );
    }
    let odd = r#"{"ID":"6443f9f5-54f0-4904-afdb-b10331b53417","Who":"a\u0000b","More":[{}]}"#;
    assert_eq!(api.send(lock(odd)).await.status, 200);
}

/// Terraform prints what the service answers about the holder on the terminal of somebody else.
#[tokio::test]
async fn a_name_that_could_control_a_terminal_is_shown_without_that_and_can_be_unlocked() {
    const ODD: &str = r#"{"ID":"6443f9f5-54f0-4904-afdb-b10331b53417","Operation":"Op\u001b[2J","Info":"a\nb\u007f",
        "Who":"eve\u009b31m@\u202ehost\u200b","Version":"1\u2028","Created":"\u0000now","Path":"p\udb40\udc61"}"#;
    let api = Api::new().await;
    assert_eq!(api.send(lock(ODD)).await.status, 200);
    let refused = api.send(lock(TWO)).await.json();
    let shown = ["Operation", "Info", "Who", "Version", "Path"];
    let shown = shown.map(|member| refused[member].as_str().expect("a text"));
    assert_eq!(
        shown,
        [
            "Op\u{fffd}[2J",
            "a\u{fffd}b\u{fffd}",
            "eve\u{fffd}31m@\u{fffd}host\u{fffd}",
            "1\u{fffd}",
            "p\u{fffd}"
        ]
    );
    assert_eq!(refused.get("Created"), None);
    let id = refused["ID"].as_str().expect("a text");
    let held_by =
        "6443f9f5-54f0-4904-afdb-b10331b53417 held by \"eve\u{fffd}31m@\u{fffd}host\u{fffd}\" for";
    assert!(id.starts_with(held_by), "{id}");
    let holder = state(&api).await["holders"][0].clone();
    assert_eq!(holder["owner"], "eve\u{fffd}31m@\u{fffd}host\u{fffd}");
    assert_eq!(holder["metadata"]["Info"], "a\u{fffd}b\u{fffd}");
    assert_eq!(api.send(unlock(ODD)).await.status, 200);
    assert_eq!(state(&api).await["state"], "free");
}

/// Other clients may choose metadata that look like those of Terraform.
#[tokio::test]
async fn metadata_of_another_client_cannot_control_a_terminal_either() {
    let api = Api::new().await;
    let forged = r#"{"metadata":{"ID":"\u001b]0;title\u0007","Who":"\u202e"}}"#;
    assert_eq!(
        api.send(post("/locks/prod/network").json(forged))
            .await
            .status,
        201
    );
    let refused = api.send(lock(ONE)).await.json();
    assert_eq!(refused["Who"], "\u{fffd}");
    let id = refused["ID"].as_str().expect("a text");
    assert!(id.starts_with("\u{fffd}]0;title\u{fffd} held by"), "{id}");
}

fn with_password(request: Call, encoded: &str) -> Call {
    request.header("authorization", format!("Basic {encoded}"))
}

/// Terraform can send a key as a password only; browsers can be made to send a password by themselves.
#[tokio::test]
async fn the_key_may_be_the_password_of_terraform_and_of_nothing_else() {
    let api = Api::with(|settings| {
        let ring = KeyRing::new([(Role::Client, "client-key"), (Role::Admin, "admin-key")]);
        settings.access = Access::Keys(ring, Failures::new(60));
    })
    .await;
    let [client, admin] = ["dGY6Y2xpZW50LWtleQ==", "dGY6YWRtaW4ta2V5"];
    let status = async |request: Call| -> u16 {
        let answer: Answer = api.send(request).await;
        answer.status
    };
    assert_eq!(status(lock(ONE)).await, 401);
    assert_eq!(status(with_password(lock(ONE), "dGY6d3Jvbmc=")).await, 401);
    assert_eq!(status(with_password(lock(ONE), "%%%")).await, 401);
    assert_eq!(status(with_password(lock(ONE), client)).await, 200);
    assert_eq!(status(with_password(post("/locks/a"), client)).await, 401);
    let force = || call("UNLOCK", "/terraform/prod/network");
    assert_eq!(status(with_password(force(), client)).await, 403);
    assert_eq!(status(with_password(force(), admin)).await, 200);
}

#[tokio::test]
async fn other_methods_are_refused_with_those_that_exist() {
    let api = Api::new().await;
    for method in ["GET", "PUT", "PATCH"] {
        let answer = api.send(call(method, "/terraform/prod")).await;
        assert_eq!(answer.refusal(), (405, "method_not_allowed".to_owned()));
        assert_eq!(answer.header("allow"), "LOCK,UNLOCK,POST,DELETE");
    }
}
