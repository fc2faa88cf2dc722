//! The audit stream of a running service: a line for each event, with who caused it, and no secret there or anywhere else.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use leasehold::config::KeyHash;
use leasehold::http::AuditEvent;
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use reqwest::{Method, Response};
use serde_json::Value;

use crate::process::Serving;
use crate::support::eventually;
use crate::support::http2::Http2;

const AUDIT_PAGE: &str = include_str!("../../docs/reference/audit.md");
const TOKEN: &str = "6f1c2b7e-3a64-4d09-9b5e-0d6f0a7c1e21";
const OTHER_TOKEN: &str = "7a2d3c8f-4b75-4e1a-8c6f-1e7a1b8d2f32";
const BILLING: &str = "lk_billing-key-that-nobody-may-see";
const OPERATOR: &str = "lk_operator-key-that-nobody-may-see";
const WRONG: &str = "lk_wrong-key-that-nobody-may-see";

fn keys_file(verb: &str) -> String {
    let [billing, operator] = [BILLING, OPERATOR].map(|key| KeyHash::of(key.as_bytes()));
    format!(
        "[principals.billing]\nkeys = [\"{billing}\"]\n\
         rules = [{{ prefix = \"billing\", verbs = [\"acquire\", \"{verb}\"] }}]\n\
         [principals.operator]\nkeys = [\"{operator}\"]\n\
         rules = [{{ prefix = \"\", verbs = [\"admin\"] }}]\n"
    )
}

async fn ask(serving: &Serving, method: Method, path: &str, key: &str, token: &str) -> Response {
    let url = format!("{}{path}", serving.url);
    let request = reqwest::Client::new().request(method, url);
    let request = request.bearer_auth(key).header("lock-token", token);
    request.send().await.unwrap()
}

fn lines(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap();
    let lines = text.lines().map(serde_json::from_str);
    lines.map(|line| line.expect("each line is JSON")).collect()
}

/// The lines, once there are this many.
async fn audited(file: &Path, count: usize) -> Vec<Value> {
    eventually("the audit lines are written", async || {
        let lines = lines(file);
        (lines.len() >= count).then_some(lines)
    })
    .await
}

fn word<'a>(line: &'a Value, field: &str) -> &'a str {
    line[field].as_str().unwrap_or_default()
}

#[tokio::test]
async fn each_event_has_a_line_with_who_caused_it_and_no_secret_is_anywhere() {
    let directory = tempfile::tempdir().unwrap();
    let [keys, audit] = ["keys.toml", "audit.jsonl"].map(|name| directory.path().join(name));
    fs::write(&keys, keys_file("read")).unwrap();
    let serving = Serving::start(&[
        "--auth-keys-file",
        keys.to_str().unwrap(),
        "--audit-output",
        audit.to_str().unwrap(),
        "--log-requests",
        "all",
    ]);
    let granted = ask(&serving, Method::POST, "/locks/billing/1", BILLING, TOKEN).await;
    assert_eq!(granted.status(), 201);
    let (id, fence) = ["x-request-id", "fencing-token"]
        .map(|name| granted.headers()[name].to_str().unwrap().to_owned())
        .into();
    // A repeated request and a renewal are no grants.
    for method in [Method::POST, Method::PUT] {
        let again = ask(&serving, method, "/locks/billing/1", BILLING, TOKEN).await;
        assert_eq!(again.status(), 200);
    }
    ask(&serving, Method::DELETE, "/locks/billing/1", BILLING, TOKEN).await;
    ask(&serving, Method::POST, "/locks/pay%2F1", BILLING, TOKEN).await;
    ask(&serving, Method::POST, "/locks/billing/1", WRONG, TOKEN).await;
    ask(
        &serving,
        Method::POST,
        "/locks/billing/2",
        BILLING,
        OTHER_TOKEN,
    )
    .await;
    let force = "/locks/billing/2?force=true&reason=stuck";
    ask(&serving, Method::DELETE, force, OPERATOR, TOKEN).await;
    fs::write(&keys, keys_file("list")).unwrap();
    serving.signal(Signal::SIGHUP);
    let lines = audited(&audit, 6).await;

    let told: Vec<_> = lines
        .iter()
        .map(|line| ["event", "principal", "name"].map(|field| word(line, field)))
        .collect();
    assert_eq!(
        told,
        [
            ["granted", "billing", "billing/1"],
            ["released", "billing", "billing/1"],
            ["refused", "billing", "pay/1"],
            ["granted", "billing", "billing/2"],
            ["evicted", "operator", "billing/2"],
            ["keys_reloaded", "", ""],
        ]
    );
    assert_eq!(word(&lines[0], "request_id"), id);
    assert_eq!(lines[0]["fencing_token"].to_string(), fence);
    assert!(word(&lines[0], "peer").starts_with("127.0.0.1:"));
    assert_eq!(word(&lines[2], "verb"), "acquire");
    assert_eq!(lines[4]["evicted"][0], lines[3]["fencing_token"]);
    assert_eq!(lines[1]["fencing_token"].to_string(), fence);
    assert_eq!(word(&lines[4], "reason"), "stuck");
    lines.iter().for_each(assert_documented);

    no_secret_is_in_what_others_read(serving, &audit).await;
}

async fn no_secret_is_in_what_others_read(mut serving: Serving, audit: &Path) {
    let locks = ask(&serving, Method::GET, "/locks", OPERATOR, TOKEN).await;
    let metrics = ask(&serving, Method::GET, "/metrics", OPERATOR, TOKEN).await;
    let (locks, metrics) = (locks.text().await.unwrap(), metrics.text().await.unwrap());
    serving.signal(Signal::SIGTERM);
    let log = serving.rest_of_log();
    assert!(log.contains("The request was refused."), "{log}");
    let stream = fs::read_to_string(audit).unwrap();
    for secret in [TOKEN, OTHER_TOKEN, BILLING, OPERATOR, WRONG] {
        let hash = KeyHash::of(secret.as_bytes()).to_string();
        for place in [&locks, &metrics, &log, &stream] {
            assert!(!place.contains(secret), "{secret} in {place}");
            assert!(
                !place.contains(&hash[7..]),
                "the hash of {secret} in {place}"
            );
        }
    }
}

/// Each end of a lease has the fencing token of its grant.
#[tokio::test]
async fn each_grant_has_a_line_and_so_has_its_end() {
    let directory = tempfile::tempdir().unwrap();
    let audit = directory.path().join("audit.jsonl");
    let serving = Serving::start(&["--audit-output", audit.to_str().unwrap()]);
    let client = reqwest::Client::new();
    let several = format!("{}/locks", serving.url);
    let body = format!(r#"{{"names":["b","a"],"token":"{TOKEN}"}}"#);
    let granted = client.post(&several).body(body.clone()).send().await;
    assert_eq!(granted.unwrap().status(), 201);
    // The second one finds only that the claim has ended.
    for _ in 0..2 {
        let released = client.delete(&several).body(body.clone()).send().await;
        assert_eq!(released.unwrap().status(), 204);
    }
    let stream = client.post(format!("{}/locks/c", serving.url));
    let stream = stream.header("accept", "text/event-stream").send().await;
    let mut stream = stream.unwrap();
    assert!(stream.chunk().await.unwrap().is_some());
    drop(stream);
    audited(&audit, 6).await;
    // The client has no room for the response.
    let address = serving.url.trim_start_matches("http://").parse().unwrap();
    let mut cramped = Http2::open(address, 0).await.unwrap();
    cramped.ask("POST", "/locks/d?ttl=1h").await.unwrap();
    audited(&audit, 7).await;
    drop(cramped);
    let lines = audited(&audit, 8).await;

    let told: Vec<_> = lines
        .iter()
        .map(|line| ["event", "name", "by"].map(|field| word(line, field)))
        .collect();
    assert_eq!(
        told,
        [
            ["granted", "a", ""],
            ["granted", "b", ""],
            ["released", "a", ""],
            ["released", "b", ""],
            ["granted", "c", ""],
            ["released", "c", "stream"],
            ["granted", "d", ""],
            ["rolled_back", "d", ""],
        ]
    );
    for (grant, end) in [(0, 2), (1, 3), (4, 5), (6, 7)] {
        let [grant, end] = [grant, end].map(|line| &lines[line]["fencing_token"]);
        assert!(grant.is_u64(), "{grant}");
        assert_eq!(grant, end);
    }
    for line in &lines {
        // Without keys nobody is known.
        assert!(line.get("principal").is_none(), "{line}");
        assert_documented(line);
    }
}

/// The client of a named proxy is in the audit stream and in the log, and has its own count of wrong keys.
#[tokio::test]
async fn behind_a_named_proxy_the_client_is_the_peer() {
    let directory = tempfile::tempdir().unwrap();
    let [keys, audit] = ["keys.toml", "audit.jsonl"].map(|name| directory.path().join(name));
    fs::write(&keys, keys_file("read")).unwrap();
    let mut serving = Serving::start(&[
        "--auth-keys-file",
        keys.to_str().unwrap(),
        "--auth-failures-max",
        "1",
        "--audit-output",
        audit.to_str().unwrap(),
        "--server-trusted-proxies",
        "127.0.0.1",
        "--server-forwarded-for",
    ]);
    let proxy = reqwest::Client::new();
    let status = async |key: &str, forwarded_for: &str| {
        let request = proxy.post(format!("{}/locks/billing/1", serving.url));
        let request = request
            .bearer_auth(key)
            .header("x-forwarded-for", forwarded_for);
        request.send().await.unwrap().status().as_u16()
    };
    assert_eq!(status(BILLING, "203.0.113.9, 192.0.2.7").await, 201);
    for (client, expected) in [
        ("192.0.2.8", 401),
        ("192.0.2.8", 429),
        // It cannot become somebody else, and nobody else is limited for it.
        ("203.0.113.9, 192.0.2.8", 429),
        ("192.0.2.9", 401),
    ] {
        assert_eq!(status(WRONG, client).await, expected, "{client}");
    }
    let lines = audited(&audit, 1).await;
    assert_eq!(word(&lines[0], "peer"), "192.0.2.7");
    serving.signal(Signal::SIGTERM);
    let log = serving.rest_of_log();
    assert!(log.contains("\"peer\":\"192.0.2.8\""), "{log}");
    assert!(!log.contains("203.0.113.9"), "{log}");
}

/// The rows of the page for events, by name: the last cell.
fn rows() -> BTreeMap<&'static str, &'static str> {
    let rows = AUDIT_PAGE.lines().filter_map(|line| {
        let [events, _, fields] = line
            .strip_prefix("| `")?
            .strip_suffix(" |")?
            .split(" | ")
            .collect::<Vec<_>>()[..]
        else {
            return None;
        };
        Some((events, fields))
    });
    rows.flat_map(|(events, fields)| {
        let names = events
            .split(", ")
            .map(move |name| (name.trim_matches('`'), fields));
        names.collect::<Vec<_>>()
    })
    .collect()
}

/// The fields that every line may have, and the page describes in a table of their own.
const COMMON: [&str; 5] = ["at", "event", "principal", "peer", "request_id"];

/// The line has no field that the page does not have for its event.
fn assert_documented(line: &Value) {
    let fields = rows()[word(line, "event")];
    for field in line.as_object().unwrap().keys() {
        let is_known = COMMON.contains(&&**field) || fields.contains(&format!("`{field}`"));
        assert!(is_known, "{field} of {line}");
    }
}

#[test]
fn the_page_has_every_event_and_every_common_field_and_no_other() {
    let events = AuditEvent::ALL.map(|event| serde_json::to_value(event).unwrap());
    let mut events = events.each_ref().map(|event| event.as_str().unwrap());
    events.sort_unstable();
    assert_eq!(rows().into_keys().collect::<Vec<_>>(), events);
    let fields = AUDIT_PAGE
        .lines()
        .skip_while(|line| !line.starts_with("| common field"));
    let fields = fields
        .skip(2)
        .map_while(|line| line.strip_prefix("| `")?.split_once('`'));
    let mut fields: Vec<_> = fields.map(|(field, _)| field).collect();
    // The page explains an event before its other fields.
    fields.push("event");
    fields.sort_unstable();
    let mut common = COMMON;
    common.sort_unstable();
    assert_eq!(fields, common);
}

#[test]
fn an_audit_stream_that_cannot_be_opened_is_an_error() {
    let output = crate::process::output(&[
        "--audit-output",
        "/nowhere/audit.jsonl",
        "--listen",
        "127.0.0.1:0",
    ]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    let expected = "cannot open the audit stream /nowhere/audit.jsonl: No such file";
    assert!(said.contains(expected), "{said}");
}

/// Opened without a reader, it would keep the process from its start.
#[test]
fn a_fifo_that_nobody_reads_is_no_audit_stream() {
    let directory = tempfile::tempdir().unwrap();
    let fifo = directory.path().join("fifo");
    mkfifo(&fifo, Mode::S_IRWXU).unwrap();
    let output = crate::process::output(&[
        "--audit-output",
        fifo.to_str().unwrap(),
        "--listen",
        "127.0.0.1:0",
    ]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("it is a FIFO that nobody reads"), "{said}");
}
