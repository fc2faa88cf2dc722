//! What holds while rules and keys change: new ones at once, and no request is refused for the change itself.

use std::sync::Arc;
use std::time::Duration;

use leasehold::config::{KeyHash, KeysFile, PrincipalEntry};
use leasehold::http::{Access, Failures, KeyRing, Role};
use tokio::time::timeout;

use super::{FILE, api_with, assert_permitted, by, install, key_of, ring};
use crate::api::support::{Api, Event, EventStream, delete, get, pass, post};
use crate::support::scripted_store::{Behavior, Operation, ScriptedStore};
use crate::support::{EFFECT_TIMEOUT, eventually};

#[tokio::test]
async fn new_rules_hold_at_once_and_end_the_streams_of_whom_they_change() {
    let ring = ring(FILE);
    let api = api_with(&ring).await;
    let [mut changed, mut same] = [
        EventStream::of(api.open(by("lister", get("/events"))).await),
        EventStream::of(api.open(by("orders", get("/events?prefix=orders"))).await),
    ];
    let without_pay = FILE.replace("  { prefix = \"pay\", verbs = [\"list\"] },\n", "");
    assert_ne!(without_pay, FILE);
    install(&ring, &without_pay);
    let refused = api.send(by("lister", get("/locks?prefix=pay"))).await;
    assert_permitted(&refused, false, "pay");
    let end = async { while changed.next().await.is_some() {} };
    let ended = tokio::time::timeout(Duration::from_secs(30), end).await;
    assert!(ended.is_ok(), "the stream of the changed principal goes on");
    api.send(by("root", post("/locks/orders/eu/7"))).await;
    assert_eq!(same.expect("acquired").await["name"], "orders/eu/7");
}

const NO_ROLES: [(Role, &str); 0] = [];

/// A principal that may do everything, with these keys.
fn with_keys(keys: &[&str]) -> Vec<PrincipalEntry> {
    let hash = |key: &&str| format!("\"{}\"", KeyHash::of(key_of(key).as_bytes()));
    let hashes: Vec<_> = keys.iter().map(hash).collect();
    let text = format!(
        "[principals.a]\nkeys = [{}]\nrules = [{{ prefix = \"\", verbs = [\"admin\"] }}]\n",
        hashes.join(", ")
    );
    let file = crate::config::file(&text);
    KeysFile::read(file.path()).unwrap().principals
}

/// As after a key has leaked: its principal has another one and the same rules.
#[tokio::test]
async fn what_began_with_a_key_ends_when_the_key_is_no_longer_valid() {
    let ring = KeyRing::new(NO_ROLES);
    ring.replace_all(NO_ROLES, &with_keys(&["leaked", "new"]));
    let api = api_with(&ring).await;
    let [mut leaked, mut other] = [
        EventStream::of(api.open(by("leaked", get("/events"))).await),
        EventStream::of(api.open(by("new", get("/events"))).await),
    ];
    let held = api.send(by("new", post("/locks/wanted?ttl=1h"))).await;
    let waiting = api.begin(by("leaked", post("/locks/wanted?wait=30s")));
    eventually("it waits", async || {
        let lock = api.send(by("new", get("/locks/wanted"))).await.json();
        (lock["queue_length"] == 1).then_some(())
    })
    .await;
    ring.replace_all(NO_ROLES, &with_keys(&["new"]));
    let end = async { while leaked.next().await.is_some() {} };
    let ended = tokio::time::timeout(Duration::from_secs(30), end).await;
    assert!(ended.is_ok(), "the stream goes on");
    let release = delete("/locks/wanted").token(held.header("lock-token"));
    assert_eq!(api.send(by("new", release)).await.status, 204);
    assert_eq!(waiting.await.unwrap().status, 401);
    eventually("it holds nothing", async || {
        let acquired = api.send(by("new", post("/locks/wanted"))).await;
        (acquired.status == 201).then_some(())
    })
    .await;
    assert_eq!(other.expect("acquired").await["name"], "wanted");
}

/// The file in which the principal `orders` may only read and list.
fn without_acquire() -> String {
    let text = FILE.replace("\"acquire\", \"read\", \"list\"", "\"read\", \"list\"");
    assert_ne!(text, FILE);
    text
}

/// The file in which the principal `orders` has another rule more.
fn with_more() -> String {
    let first = "rules = [{ prefix = \"orders\", verbs = [\"acquire\"";
    let more = "rules = [{ prefix = \"more\", verbs = [\"read\"] }, { prefix = \"orders\", verbs = [\"acquire\"";
    let text = FILE.replace(first, more);
    assert_ne!(text, FILE);
    text
}

/// The file without the principal `orders`.
fn without_key() -> String {
    let (before, after) = FILE.split_once("[principals.orders]").unwrap();
    let (_, after) = after.split_once("[principals.reader]").unwrap();
    format!("{before}[principals.reader]{after}")
}

/// The next event that is not the position in the queue, which is told as often as it changes.
async fn after_queue(stream: &mut EventStream) -> Event {
    loop {
        let event = timeout(EFFECT_TIMEOUT, stream.next()).await;
        let event = event
            .expect("there is an event")
            .expect("the stream goes on");
        if event.kind != "queued" {
            return event;
        }
    }
}

async fn stream_of_orders(api: &Api, path: &str) -> EventStream {
    let stream = post(path).header("accept", "text/event-stream");
    EventStream::of(api.open(by("orders", stream)).await)
}

#[tokio::test]
async fn a_stream_that_waits_is_refused_when_it_loses_its_key_or_its_right() {
    for (text, code) in [
        (without_acquire(), "forbidden"),
        (without_key(), "unauthorized"),
    ] {
        let ring = ring(FILE);
        let api = api_with(&ring).await;
        let held = api.send(by("root", post("/locks/orders/1?ttl=1h"))).await;
        let mut waiting = stream_of_orders(&api, "/locks/orders/1").await;
        waiting.expect("queued").await;
        install(&ring, &with_more());
        install(&ring, &text);
        let refused = after_queue(&mut waiting).await;
        assert_eq!(
            (&*refused.kind, &refused.data["code"]),
            ("refused", &code.into())
        );
        assert!(waiting.next().await.is_none(), "the stream goes on");
        let release = delete("/locks/orders/1").token(held.header("lock-token"));
        assert_eq!(api.send(by("root", release)).await.status, 204);
        eventually("the lock is free for others", async || {
            let acquired = api.send(by("root", post("/locks/orders/1"))).await;
            (acquired.status == 201).then_some(())
        })
        .await;
    }
}

/// It is not released, because its holder may be in the middle of its work.
#[tokio::test]
async fn a_stream_that_holds_is_no_longer_renewed_when_it_loses_its_key_or_its_right() {
    for (text, code) in [
        (without_acquire(), "forbidden"),
        (without_key(), "unauthorized"),
    ] {
        let ring = ring(FILE);
        let api = api_with(&ring).await;
        let mut lasting = stream_of_orders(&api, "/locks/orders/lasting?ttl=1h").await;
        lasting.expect("acquired").await;
        let mut brief = stream_of_orders(&api, "/locks/orders/brief?ttl=3s").await;
        brief.expect("acquired").await;
        // Read all the time, because the lease of a stream that nobody reads ends without any change.
        let brief = tokio::spawn(async move {
            loop {
                let event = brief.next().await.expect("the stream goes on");
                if event.kind != "renewed" {
                    return event;
                }
            }
        });
        install(&ring, &text);
        let lost = after_queue(&mut lasting).await;
        assert_eq!((&*lost.kind, &lost.data["code"]), ("lost", &code.into()));
        assert!(lasting.next().await.is_none(), "the stream goes on");
        drop(lasting);
        let lost = brief.await.unwrap();
        assert_eq!((&*lost.kind, &lost.data["code"]), ("lost", &code.into()));
        eventually("the lease that is not renewed ends", async || {
            let lock = api.send(by("root", get("/locks/orders/brief"))).await;
            (lock.json()["state"] == "free").then_some(())
        })
        .await;
        let lock = api.send(by("root", get("/locks/orders/lasting"))).await;
        assert_eq!(lock.json()["state"], "held", "it was not released");
    }
}

/// Whoever held the lock before the request that is refused may be in the middle of its work.
#[tokio::test(start_paused = true)]
async fn a_lease_that_a_refused_request_repeats_is_not_rolled_back() {
    const TOKEN: &str = "01890a5d-ac96-774b-bcce-b302099a8057";
    let stream = || post("/locks/orders/1?ttl=1h").header("accept", "text/event-stream");
    let plain = || post("/locks/orders/1?ttl=1h");
    let info = || post("/terraform/orders/1").json(format!(r#"{{"ID":"{TOKEN}"}}"#));
    for (first, second) in [
        (plain().token(TOKEN), stream().token(TOKEN)),
        (stream().token(TOKEN), plain().token(TOKEN)),
        (stream().token(TOKEN), info()),
    ] {
        let ring = ring(FILE);
        let late = Behavior::Late(Duration::from_millis(500));
        let store = ScriptedStore::default().with(Operation::Acquire, late);
        let access = Access::Keys(ring.clone(), Failures::new(20));
        let api = Api::on(Arc::new(store), |settings| settings.access = access);
        let first = api.open(by("orders", first)).await;
        assert!(first.status().is_success(), "{first:?}");
        let change = async {
            // The store has done the second one, and its answer is still on the way. A stream that closes now leaves the lease
            // to it.
            tokio::time::sleep(Duration::from_millis(100)).await;
            drop(first);
            tokio::time::sleep(Duration::from_millis(100)).await;
            install(&ring, &without_acquire());
        };
        let (second, ()) = tokio::join!(api.open(by("orders", second)), change);
        if second.status() == 200 {
            let mut second = EventStream::of(second);
            assert_eq!(second.expect("lost").await["code"], "forbidden");
            assert!(second.next().await.is_none(), "the stream goes on");
        } else {
            assert_eq!(second.status(), 403);
        }
        pass(Duration::from_secs(5)).await;
        let lock = api.send(by("root", get("/locks/orders/1"))).await;
        assert_eq!(lock.json()["state"], "held", "it was rolled back");
    }
}

#[tokio::test]
async fn what_waits_and_holds_goes_on_when_a_change_leaves_it_its_right() {
    let ring = ring(FILE);
    let api = api_with(&ring).await;
    let mut holds = stream_of_orders(&api, "/locks/orders/held?ttl=5s").await;
    holds.expect("acquired").await;
    // Read all the time, as its client would.
    let holds = tokio::spawn(async move { while holds.expect("renewed").await.is_object() {} });
    let held = api.send(by("root", post("/locks/orders/1?ttl=1h"))).await;
    let mut waits = stream_of_orders(&api, "/locks/orders/1").await;
    waits.expect("queued").await;
    let polls = api.begin(by("orders", post("/locks/orders/1?wait=30s")));
    eventually("it waits", async || {
        let lock = api.send(by("root", get("/locks/orders/1"))).await.json();
        (lock["queue_length"] == 2).then_some(())
    })
    .await;
    install(&ring, &with_more());
    // The lease lasts longer again without any request but those of its stream.
    let mut left = None;
    for _ in 0..2 {
        eventually("it is renewed after the change", async || {
            let lock = api.send(by("root", get("/locks/orders/held"))).await;
            let now = lock.json()["holders"][0]["expires_in_ms"].as_u64();
            let before = left.replace(now.expect("it is held"));
            (before < left && before.is_some()).then_some(())
        })
        .await;
    }
    assert!(!holds.is_finished(), "the stream goes on");
    let release = delete("/locks/orders/1").token(held.header("lock-token"));
    assert_eq!(api.send(by("root", release)).await.status, 204);
    assert_eq!(after_queue(&mut waits).await.kind, "acquired");
    drop(waits);
    let polled = polls.await.unwrap();
    assert_eq!(polled.status, 201, "{}", polled.text());
}

#[tokio::test]
async fn a_claim_that_waits_is_forbidden_when_only_its_rules_have_changed() {
    for terraform in [false, true] {
        let ring = ring(FILE);
        let api = api_with(&ring).await;
        let held = api.send(by("root", post("/locks/orders/1?ttl=1h"))).await;
        let id = r#"{"ID":"01890a5d-ac96-774b-bcce-b302099a8057"}"#;
        let waiting = api.begin(match terraform {
            true => by("orders", post("/terraform/orders/1?wait=30s").json(id)),
            false => by("orders", post("/locks/orders/1?wait=30s")),
        });
        eventually("it waits", async || {
            let lock = api.send(by("root", get("/locks/orders/1"))).await.json();
            (lock["queue_length"] == 1).then_some(())
        })
        .await;
        install(&ring, &without_acquire());
        let release = delete("/locks/orders/1").token(held.header("lock-token"));
        assert_eq!(api.send(by("root", release)).await.status, 204);
        let answer = waiting.await.unwrap();
        assert_permitted(&answer, false, "orders");
        eventually("it holds nothing", async || {
            let acquired = api.send(by("root", post("/locks/orders/1"))).await;
            (acquired.status == 201).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_key_is_changed_without_a_refused_request() {
    let ring = KeyRing::new(NO_ROLES);
    ring.replace_all(NO_ROLES, &with_keys(&["old"]));
    let api = api_with(&ring).await;
    let load = |key: &'static str, rounds: usize| {
        let api = &api;
        async move {
            for round in 0..rounds {
                let path = format!("/locks/{key}/{round}");
                let answer = api.send(by(key, post(&path))).await;
                assert_eq!(answer.status, 201, "{key} {}", answer.text());
                tokio::task::yield_now().await;
            }
        }
    };
    let change = async {
        for _ in 0..50 {
            ring.replace_all(NO_ROLES, &with_keys(&["old", "new"]));
            tokio::task::yield_now().await;
            ring.replace_all(NO_ROLES, &with_keys(&["new", "old"]));
            tokio::task::yield_now().await;
        }
    };
    ring.replace_all(NO_ROLES, &with_keys(&["old", "new"]));
    tokio::join!(load("old", 300), load("new", 300), change);
    ring.replace_all(NO_ROLES, &with_keys(&["new"]));
    assert_eq!(api.send(by("old", post("/locks/late"))).await.status, 401);
    assert_eq!(api.send(by("new", post("/locks/late"))).await.status, 201);
}

#[tokio::test]
async fn readiness_says_that_the_keys_are_older_than_their_files() {
    let ring = ring(FILE);
    let api = api_with(&ring).await;
    for is_outdated in [false, true, false] {
        ring.set_outdated(is_outdated);
        let health = api.send(get("/readyz?verbose")).await;
        assert_eq!(health.status, 200, "the old keys still work");
        let checks = health.json()["checks"].clone();
        let mut checks = checks.as_array().unwrap().iter();
        let keys = checks.find(|check| check["name"] == "keys").unwrap();
        assert_eq!(keys["ok"], !is_outdated, "{keys}");
    }
}
