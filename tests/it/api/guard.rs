//! API keys: what each permits, what needs none, and how requests without a key are refused.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use leasehold::http::{Access, Failures, KeyRing, Role};
use leasehold::server::Peer;

use super::support::{Answer, Api, Call, call, delete, get, pass, post, refused};

const FAILURES_MAX: u32 = 20;

async fn guarded_by(ring: &KeyRing) -> Api {
    Api::with(|settings| {
        settings.access = Access::Keys(ring.clone(), Failures::new(FAILURES_MAX));
    })
    .await
}

async fn guarded() -> Api {
    guarded_by(&KeyRing::new([(Role::Client, "s3cret")])).await
}

async fn with_every_role() -> Api {
    guarded_by(&KeyRing::new([
        (Role::Reader, "reader"),
        (Role::Client, "client"),
        (Role::Client, "next"),
        (Role::Admin, "admin"),
    ]))
    .await
}

fn with_key(request: Call, key: &str) -> Call {
    request.header("authorization", format!("Bearer {key}"))
}

fn from(request: Call, ip: [u8; 4]) -> Call {
    let address = SocketAddr::new(IpAddr::from(ip), 40_000);
    request.extension(Peer::unlimited(address))
}

#[tokio::test]
async fn without_the_key_nothing_about_locks_is_answered() {
    for path in [
        "/locks",
        "/locks/",
        "/locks/a",
        "/locks/%FF",
        "/events",
        "/metrics",
    ] {
        let api = guarded().await;
        for method in ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH"] {
            let answer = api.send(call(method, path)).await;
            assert_eq!(answer.status, 401, "{method} {path}");
            assert_eq!(answer.header("www-authenticate"), "Bearer");
        }
    }
    let answer = guarded().await.send(post("/locks/a")).await;
    insta::assert_snapshot!("unauthorized", answer.shape());
}

#[tokio::test]
async fn a_wrong_key_is_refused_like_none() {
    let api = guarded().await;
    let long = format!("Bearer {}", "s".repeat(10_000));
    for presented in [
        "Bearer s3cre",
        "Bearer s3cret2",
        "Bearer ",
        "Bearer",
        "Basic s3cret",
        "s3cret",
        "",
        &long,
    ] {
        let answer = api
            .send(post("/locks/a").header("authorization", presented))
            .await;
        assert_eq!(
            answer.refusal(),
            (401, "unauthorized".to_owned()),
            "{presented}"
        );
    }
}

#[tokio::test]
async fn the_right_key_opens_everything_but_evictions() {
    let api = guarded().await;
    for presented in ["Bearer s3cret", "bearer s3cret", "BEARER  s3cret"] {
        let answer = api
            .send(get("/locks").header("authorization", presented))
            .await;
        assert_eq!(answer.status, 200, "{presented}");
    }
    let granted = api.send(with_key(post("/locks/a"), "s3cret")).await;
    assert_eq!(granted.status, 201);
    let metrics = api.send(with_key(get("/metrics"), "s3cret")).await;
    assert_eq!(metrics.status, 200);
    let evicted = with_key(delete("/locks/a?force=true"), "s3cret");
    let evicted = api.send(evicted).await;
    assert_eq!(evicted.refusal(), (403, "forbidden".to_owned()));
    let detail = evicted.detail();
    assert!(detail.contains("LEASEHOLD_ADMIN_KEY_FILE"), "{detail}");
    let lock = api.send(with_key(get("/locks/a"), "s3cret")).await;
    assert_eq!(lock.json()["state"], "held");
}

#[tokio::test]
async fn probes_and_documents_stay_open() {
    let api = guarded().await;
    for path in [
        "/",
        "/livez",
        "/readyz",
        "/healthz",
        "/version",
        "/openapi.json",
        "/docs/",
        "/ui",
        "/problems",
    ] {
        assert_eq!(api.send(get(path)).await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn each_role_may_do_what_those_below_it_may_and_no_more() {
    let api = with_every_role().await;
    for (key, read, change, evict) in [
        ("reader", 200, 403, 403),
        ("client", 200, 201, 403),
        ("next", 200, 201, 403),
        ("admin", 200, 201, 200),
    ] {
        for path in ["/locks", "/locks/a", "/metrics"] {
            let answer = api.send(with_key(get(path), key)).await;
            assert_eq!(answer.status, read, "{key} {path}");
        }
        let events = with_key(call("HEAD", "/events"), key);
        assert_eq!(api.send(events).await.status, read, "{key}");
        let name = format!("/locks/{key}");
        let answer = api.send(with_key(post(&name), key)).await;
        assert_eq!(answer.status, change, "{key}");
        for method in ["POST", "PUT", "DELETE"] {
            let answer = api.send(with_key(call(method, &name), key)).await;
            assert_eq!(answer.status == 403, change == 403, "{key} {method}");
        }
        for force in [
            delete(&format!("{name}?force=true&reason=stuck")),
            delete(&name).form("force=true"),
            delete(&name).json("{\"force\":true}"),
        ] {
            let answer = api.send(with_key(force, key)).await;
            assert_eq!(answer.status, evict, "{key}");
            if evict != 200 {
                assert_eq!(answer.code(), "forbidden");
            }
        }
    }
}

/// A proxy in front may check another one than the service does.
#[tokio::test]
async fn two_different_keys_in_one_request_are_refused_in_any_order() {
    let api = with_every_role().await;
    let evict = || delete("/locks/a?force=true");
    for [first, second] in [["client", "admin"], ["admin", "client"]] {
        let request = with_key(with_key(evict(), first), second);
        let words = "two different keys are given; send one";
        refused(&api, request, "invalid_field", "authorization", words).await;
    }
    let same = with_key(with_key(post("/locks/a"), "client"), "client");
    assert_eq!(api.send(same).await.status, 201);
}

#[tokio::test]
async fn keys_can_be_replaced_while_requests_are_served() {
    let ring = KeyRing::new([(Role::Client, "before")]);
    let api = guarded_by(&ring).await;
    let status = async |key| api.send(with_key(get("/locks"), key)).await.status;
    assert_eq!((status("before").await, status("after").await), (200, 401));
    ring.replace([(Role::Client, "before"), (Role::Client, "after")]);
    assert_eq!((status("before").await, status("after").await), (200, 200));
    ring.replace([(Role::Client, "after")]);
    assert_eq!((status("before").await, status("after").await), (401, 200));
}

#[tokio::test]
async fn the_metrics_can_be_open_while_locks_are_not() {
    let api = Api::with(|settings| {
        let ring = KeyRing::new([(Role::Client, "s3cret")]);
        settings.access = Access::Keys(ring, Failures::new(FAILURES_MAX));
        settings.is_metrics_open = true;
    })
    .await;
    assert_eq!(api.send(get("/metrics")).await.status, 200);
    assert_eq!(api.send(post("/metrics")).await.status, 405);
    assert_eq!(api.send(get("/locks")).await.status, 401);
}

/// The response to a peer without a key after it has used up its failures.
async fn worn_out(api: &Api, peer: [u8; 4]) -> Answer {
    for _ in 0..FAILURES_MAX {
        let answer = api.send(from(post("/locks/a"), peer)).await;
        assert_eq!(answer.status, 401);
    }
    api.send(from(post("/locks/a"), peer)).await
}

#[tokio::test(start_paused = true)]
async fn a_peer_without_a_key_is_rate_limited_and_affects_no_others() {
    let api = guarded().await;
    let (one, other) = ([192, 0, 2, 1], [192, 0, 2, 2]);
    let answer = worn_out(&api, one).await;
    assert_eq!(answer.refusal(), (429, "rate_limited".to_owned()));
    assert_eq!(answer.header("retry-after"), "60");
    // Many clients may share one address: the one with a valid key is not refused.
    let right = with_key(from(post("/locks/a"), one), "s3cret");
    assert_eq!(api.send(right).await.status, 201);
    let elsewhere = from(post("/locks/a"), other);
    assert_eq!(api.send(elsewhere).await.status, 401);
    pass(Duration::from_secs(60)).await;
    let later = api.send(from(post("/locks/a"), one)).await;
    assert_eq!(later.status, 401);
}

#[tokio::test]
async fn a_trusted_proxy_is_not_rate_limited_for_its_clients() {
    let api = guarded().await;
    let proxy = Peer::unlimited(([192, 0, 2, 1], 40_000).into()).trusted();
    for _ in 0..=FAILURES_MAX {
        let answer = api.send(post("/locks/a").extension(proxy.clone())).await;
        assert_eq!(answer.status, 401);
    }
}

#[tokio::test]
async fn refusals_are_counted_by_their_reason() {
    let api = with_every_role().await;
    worn_out(&api, [192, 0, 2, 1]).await;
    api.send(with_key(post("/locks/a"), "reader")).await;
    api.send(with_key(delete("/locks/a?force=true"), "client"))
        .await;
    let metrics = api.send(with_key(get("/metrics"), "reader")).await;
    for (reason, count) in [
        ("unauthorized", FAILURES_MAX),
        ("rate_limited", 1),
        ("role", 2),
        ("cross_site", 0),
        ("unknown_host", 0),
    ] {
        let line = format!("leasehold_access_refusals_total{{reason=\"{reason}\"}} {count}");
        assert!(metrics.text().contains(&line), "{line}");
    }
}
