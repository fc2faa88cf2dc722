//! `GET /locks`, page by page.

use std::collections::BTreeSet;

use super::support::{Answer, Api, get, post};

#[tokio::test]
async fn held_locks_are_listed_in_the_order_of_their_names() {
    let api = Api::new().await;
    let empty = api.send(get("/locks")).await;
    assert_eq!(empty.text(), "{\"locks\":[],\"next_page_token\":\"\"}\n");
    for name in ["b", "a/2", "a/1"] {
        api.token_of(&format!("/locks/{name}?owner=pod-1")).await;
    }
    let listing = api.send(get("/locks")).await;
    assert_eq!(names(&listing), ["a/1", "a/2", "b"]);
    assert_eq!(names(&api.send(get("/locks/")).await), ["a/1", "a/2", "b"]);
    insta::assert_snapshot!("listing", api.send(get("/locks?prefix=a/1")).await.shape());
}

#[tokio::test]
async fn pages_together_have_every_lock_once() {
    let api = Api::new().await;
    for number in 0..25 {
        api.token_of(&format!("/locks/jobs/{number}")).await;
    }
    api.token_of("/locks/other").await;
    let (mut seen, mut pages, mut token) = (BTreeSet::new(), 0, String::new());
    loop {
        let path = format!("/locks?prefix=jobs/&page_size=10&page_token={token}");
        let page = api.send(get(&path)).await;
        for name in names(&page) {
            assert!(seen.insert(name.clone()), "{name} twice");
        }
        pages += 1;
        token = page.json()["next_page_token"]
            .as_str()
            .expect("text")
            .to_owned();
        if token.is_empty() {
            break;
        }
        assert!(
            token
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'.'),
            "{token} is not URL-safe"
        );
    }
    assert_eq!((seen.len(), pages), (25, 3));
}

#[tokio::test]
async fn a_page_is_never_larger_than_a_thousand() {
    let api = Api::new().await;
    for number in 0..1_001 {
        api.send(post(&format!("/locks/{number}"))).await;
    }
    assert_eq!(
        names(&api.send(get("/locks?page_size=99999999999999999999")).await).len(),
        1_000
    );
    assert_eq!(names(&api.send(get("/locks")).await).len(), 100);
}

#[tokio::test]
async fn wrong_fields_of_a_listing_are_refused() {
    let api = Api::new().await;
    let long = format!("/locks?prefix={}", "p".repeat(256));
    for (path, field) in [
        ("/locks?page_size=0", "page_size"),
        ("/locks?page_size=many", "page_size"),
        ("/locks?page_size=-1", "page_size"),
        ("/locks?page_token=zz", "page_token"),
        ("/locks?page_token=6", "page_token"),
        ("/locks?page_token=2f", "page_token"),
        ("/locks?page_token=%C3%A9", "page_token"),
        ("/locks?prefix=/a", "prefix"),
        ("/locks?prefix=a%20b", "prefix"),
        ("/locks?prefix=a//", "prefix"),
        (long.as_str(), "prefix"),
    ] {
        let answer = api.send(get(path)).await;
        assert_eq!(
            answer.refusal(),
            (400, "invalid_field".to_owned()),
            "{path}"
        );
        assert_eq!(answer.json()["field"], field, "{path}");
    }
    for prefix in ["", ".", "..", "a/", "a/.", &"p".repeat(255)] {
        let answer = api.send(get(&format!("/locks?prefix={prefix}"))).await;
        assert_eq!(answer.status, 200, "{prefix}");
    }
}

fn names(listing: &Answer) -> Vec<String> {
    let listing = listing.json();
    let locks = listing["locks"].as_array().expect("a list");
    let names = locks
        .iter()
        .map(|lock| lock["name"].as_str().expect("text").to_owned());
    names.collect()
}
