//! `get`, `ls` and `evict`.

use serde_json::Value;

use super::{acquired, failed, printed, table};
use crate::process::{Serving, leasehold};
use crate::run::{assert_code, client, state};

#[test]
fn a_lock_is_shown_with_its_holder_or_as_free() {
    let serving = Serving::start(&[]);
    assert_eq!(printed(&serving, &["get", "jobs/a", "--quiet"]), "free\n");
    acquired(&serving, "jobs/a");
    let text = printed(&serving, &["get", "jobs/a"]);
    let lines = table(&text);
    assert_eq!(lines[1][..4], ["jobs/a", "held", "alice", "exclusive"]);
    assert_eq!(lines[1][5], "30s");
    assert_eq!(printed(&serving, &["get", "jobs/a", "-q"]), "held\n");
    let document = printed(&serving, &["get", "jobs/a", "--json"]);
    assert!(
        document.starts_with("{\"name\":\"jobs/a\",\"state\":\"held\""),
        "{document}"
    );
}

/// What others have written may be anything that JSON allows.
#[tokio::test]
async fn json_for_a_terminal_has_the_same_value_and_nothing_that_controls_it() {
    let serving = Serving::start(&[]);
    let odd =
        "\u{7f}\u{85}\u{9b}31m\u{202e}\u{200b}\u{2028}\u{e0061}\u{feff} bücher 東京 \u{1f527}";
    let fields = serde_json::json!({"metadata": {(odd): odd}}).to_string();
    let taken = reqwest::Client::new().post(format!("{}/locks/a", serving.url));
    let taken = taken.body(fields).send().await.unwrap();
    assert_eq!(taken.status(), 201);
    for arguments in [&["get", "a", "--json"][..], &["ls", "--json"]] {
        let text = printed(&serving, arguments);
        let raw = |letter: char| {
            odd[..odd.find(" b").unwrap()].contains(letter) && !letter.is_ascii_graphic()
        };
        assert_eq!(text.find(raw), None, "{text:?}");
        assert!(
            text.contains("\\u009b31m\\u202e") && text.contains("\\udb40\\udc61"),
            "{text}"
        );
        assert!(text.contains("bücher 東京 \u{1f527}"), "{text}");
        let document: Value = serde_json::from_str(&text).unwrap();
        let lock = document["locks"].get(0).unwrap_or(&document);
        assert_eq!(lock["holders"][0]["metadata"][odd], odd);
    }
}

#[test]
fn a_listing_goes_through_all_pages() {
    let serving = Serving::start(&[]);
    let names: Vec<_> = (0..1216)
        .map(|number| format!("jobs/{number:04}"))
        .collect();
    for chunk in names.chunks(64) {
        let chunk: Vec<_> = chunk.iter().map(String::as_str).collect();
        printed(&serving, &[&["acquire", "-q"], &chunk[..]].concat());
    }
    acquired(&serving, "other");
    let listed = printed(&serving, &["ls", "-q", "jobs/"]);
    assert!(listed.lines().eq(names.iter()), "{listed}");
    let pages = printed(&serving, &["ls", "--json"]);
    let pages = pages
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let counts: Vec<_> = pages
        .map(|page| page["locks"].as_array().unwrap().len())
        .collect();
    assert_eq!(
        (counts.len() > 1, counts.iter().sum::<usize>()),
        (true, 1217)
    );
    let text = printed(&serving, &["ls", "o"]);
    assert_eq!(table(&text)[1][..3], ["other", "held", "alice"]);
}

#[tokio::test]
async fn an_eviction_says_whom_it_evicted_and_why_reaches_them() {
    let serving = Serving::start(&[]);
    let token = acquired(&serving, "a");
    let text = printed(&serving, &["evict", "a", "--reason", "maintenance"]);
    assert_eq!(table(&text)[1][..2], ["a", "alice"]);
    assert_eq!(state(&serving, "a").await["state"], "free");
    let (code, text) = failed(&serving, &["renew", "a", "--token", &token]);
    assert_eq!(code, Some(76));
    assert!(text.contains("maintenance"), "{text}");
    assert_eq!(printed(&serving, &["evict", "a"]), "nobody held a\n");
}

#[test]
fn an_eviction_without_a_holder_says_how_long_the_lock_stays_closed() {
    let serving = Serving::start(&[]);
    let options = ["acquire", "a", "-q", "-n", "--min-hold", "5m"];
    let token = printed(&serving, &options);
    let token = token.trim_end();
    printed(&serving, &["release", "a", "--token", token]);
    let text = printed(&serving, &["evict", "a"]);
    assert!(
        text.starts_with("nobody held a; it stays closed for "),
        "{text}"
    );
}

#[test]
fn only_the_key_of_an_administrator_evicts() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, key: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, key).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let key = file("key", "0123456789abcdef0123456789abcdef");
    let admin = file("admin", "abcdef0123456789abcdef0123456789");
    let serving = Serving::start(&["--api-key-file", &key, "--admin-key-file", &admin]);
    let (code, text) = failed(&serving, &["evict", "a", "--api-key-file", &key]);
    assert_eq!(code, Some(78), "{text}");
    assert!(
        text.contains("the admin_key; give that key with --api-key-file"),
        "{text}"
    );
    printed(&serving, &["evict", "a", "--api-key-file", &admin]);
}

#[test]
fn a_service_that_is_not_there_exits_69() {
    for command in ["get", "evict"] {
        let asked = leasehold(&[command, "a", "--url", "http://127.0.0.1:1"])
            .output()
            .unwrap();
        assert_code(&asked, 69);
    }
}

#[test]
fn colours_are_for_terminals_that_want_them() {
    let serving = Serving::start(&[]);
    let is_coloured = |variables: &[(&str, &str)]| {
        let mut get = client(&serving, &["get", "a"]);
        let got = get.envs(variables.iter().copied()).output().unwrap();
        got.stdout.contains(&0x1b)
    };
    assert!(!is_coloured(&[]));
    assert!(is_coloured(&[("CLICOLOR_FORCE", "1")]));
    assert!(!is_coloured(&[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]));
}
