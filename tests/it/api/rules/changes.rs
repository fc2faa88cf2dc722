//! What holds while rules and keys change: new ones at once, and no request is refused for the change itself.

use std::time::Duration;

use leasehold::config::{KeyHash, KeysFile};
use leasehold::http::{KeyRing, Role};

use super::{FILE, api_with, assert_permitted, by, install, ring};
use crate::api::support::{EventStream, get, post};

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

#[tokio::test]
async fn a_key_is_changed_without_a_refused_request() {
    let file = |keys: &[&str]| {
        let hashes: Vec<_> = keys
            .iter()
            .map(|key| format!("\"{}\"", KeyHash::of(key.as_bytes())))
            .collect();
        let text = format!(
            "[principals.a]\nkeys = [{}]\nrules = [{{ prefix = \"\", verbs = [\"acquire\"] }}]\n",
            hashes.join(", ")
        );
        let file = crate::config::file(&text);
        KeysFile::read(file.path()).unwrap().principals
    };
    let no_roles: [(Role, &str); 0] = [];
    let ring = KeyRing::new(no_roles);
    ring.replace_all(no_roles, &file(&["old"]));
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
            ring.replace_all(no_roles, &file(&["old", "new"]));
            tokio::task::yield_now().await;
            ring.replace_all(no_roles, &file(&["new", "old"]));
            tokio::task::yield_now().await;
        }
    };
    ring.replace_all(no_roles, &file(&["old", "new"]));
    tokio::join!(load("old", 300), load("new", 300), change);
    ring.replace_all(no_roles, &file(&["new"]));
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
