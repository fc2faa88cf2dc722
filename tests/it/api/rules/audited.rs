//! The lines of the audit stream: those of operations whose clients have gone, and how many refusals have one.

use std::sync::Arc;
use std::time::Duration;

use leasehold::config::KeyHash;
use leasehold::http::{Access, Audit, Failures, HttpSettings, KeyRing};
use leasehold::telemetry::{LineKind, LogWriter};
use serde_json::Value;
use tempfile::NamedTempFile;

use super::{FILE, by, install, key_of, ring};
use crate::api::support::{Api, Call, delete, get, post};
use crate::support::eventually;
use crate::support::scripted_store::{Behavior, Operation, ScriptedStore};

/// An audit stream, and its lines so far.
struct Stream(NamedTempFile);

impl Stream {
    fn new() -> Self {
        Self(NamedTempFile::new().unwrap())
    }

    /// Keys and audit of a service that writes to it.
    fn settings(&self) -> impl FnOnce(&mut HttpSettings) + use<> {
        self.settings_with(&ring(FILE))
    }

    fn settings_with(&self, ring: &KeyRing) -> impl FnOnce(&mut HttpSettings) + use<> {
        let access = Access::Keys(ring.clone(), Failures::new(20));
        let output = self.0.reopen().unwrap();
        let writer = LogWriter::start(LineKind::Audit, output, 1024 * 1024).unwrap();
        move |settings| {
            settings.access = access;
            settings.audit = Audit::to(writer);
        }
    }

    /// The lines about this event, once there are this many.
    async fn lines(&self, event: &str, count: usize) -> Vec<Value> {
        eventually(event, async || {
            let text = std::fs::read_to_string(self.0.path()).unwrap();
            let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
            let lines = whole
                .lines()
                .map(|line| serde_json::from_str(line).unwrap());
            let lines: Vec<Value> = lines
                .filter(|line: &Value| line["event"] == event)
                .collect();
            (lines.len() >= count).then_some(lines)
        })
        .await
    }
}

#[tokio::test]
async fn a_release_and_an_eviction_whose_clients_have_gone_have_their_lines() {
    let late = || Behavior::Late(Duration::from_millis(500));
    let store = ScriptedStore::default()
        .with(Operation::Release, late())
        .with(Operation::Evict, late());
    let stream = Stream::new();
    let api = Api::on(Arc::new(store), stream.settings());
    let token = "01890a5d-ac96-774b-bcce-b302099a8057";
    for (name, request, event) in [
        ("a", delete("/locks/a").token(token), "released"),
        ("b", delete("/locks/b?force=true&reason=stuck"), "evicted"),
        ("c", call_of_terraform("c", token), "released"),
    ] {
        let path = format!("/locks/{name}");
        let acquired = api.send(by("root", post(&path).token(token))).await;
        assert_eq!(acquired.status, 201, "{}", acquired.text());
        let ending = api.begin(by("root", request));
        // The store has done it, and its answer is still on the way.
        eventually("it is free", async || {
            let lock = api.send(by("root", get(&path))).await;
            (lock.json()["state"] == "free").then_some(())
        })
        .await;
        ending.abort();
        let lines = stream.lines(event, if name == "c" { 2 } else { 1 }).await;
        let line = lines.last().unwrap();
        assert_eq!(line["name"], name);
        assert_eq!(line["principal"], "root");
        assert!(!line.to_string().contains(token), "{line}");
    }
}

fn call_of_terraform(name: &str, token: &str) -> Call {
    delete(&format!("/terraform/{name}")).json(format!(r#"{{"ID":"{token}"}}"#))
}

/// The client goes between the head of the response and the first event.
#[tokio::test]
async fn a_stream_of_which_its_client_reads_nothing_has_a_line_of_its_grant_and_one_of_its_end() {
    let stream = Stream::new();
    let api = Api::with(stream.settings()).await;
    let opened = post("/locks/a").header("accept", "text/event-stream");
    let response = api.open(by("root", opened)).await;
    assert_eq!(response.status(), 200);
    drop(response);
    let released = stream.lines("released", 1).await;
    let granted = stream.lines("granted", 1).await;
    assert_eq!((granted.len(), released.len()), (1, 1));
    assert_eq!(granted[0]["fencing_token"], released[0]["fencing_token"]);
    assert_eq!(granted[0]["principal"], "root");
}

#[tokio::test]
async fn of_many_refusals_the_first_of_each_principal_and_verb_have_lines() {
    let stream = Stream::new();
    let api = Api::with(stream.settings()).await;
    for number in 0..40 {
        let acquire = post(&format!("/locks/orders/{number}"));
        assert_eq!(api.send(by("evictor", acquire)).await.status, 403);
    }
    let evict = delete("/locks/pay/1?force=true");
    assert_eq!(api.send(by("evictor", evict)).await.status, 403);
    assert_eq!(api.send(by("nobody", post("/locks/a"))).await.status, 403);
    let lines = stream.lines("refused", 10).await;
    let seen = lines.iter().map(|line| {
        let [principal, verb] = ["principal", "verb"].map(|field| line[field].as_str().unwrap());
        (principal, verb, line["left_out"].as_u64().unwrap_or(0))
    });
    let of_acquires = [0, 0, 0, 0, 0, 2, 7, 15].map(|left_out| ("evictor", "acquire", left_out));
    let others = [("evictor", "evict", 0), ("nobody", "acquire", 0)];
    assert_eq!(
        seen.collect::<Vec<_>>(),
        [&of_acquires[..], &others].concat()
    );
}

/// Their bodies are not read, so the line has what the head of the request says.
#[tokio::test]
async fn the_refusal_of_a_sender_that_may_only_read_has_the_lock_and_what_was_asked_for() {
    let stream = Stream::new();
    let api = Api::with(stream.settings()).await;
    let requests = [
        (post("/locks/orders/1"), "acquire", "orders/1"),
        (delete("/locks/orders/2"), "acquire", "orders/2"),
        (
            delete("/locks/orders%2F3?reason=x&force=true"),
            "evict",
            "orders/3",
        ),
    ];
    for (number, (request, verb, name)) in (1..).zip(requests) {
        assert_eq!(api.send(by("reader", request)).await.status, 403);
        let lines = stream.lines("refused", number).await;
        let last = lines.last().unwrap();
        assert_eq!((&last["verb"], &last["name"]), (&verb.into(), &name.into()));
    }
}

/// Nobody has more lines by having two keys, and no change makes the service forget how many lines were left out.
#[tokio::test]
async fn refusals_are_counted_by_principal_whatever_its_key_and_its_rules_are() {
    let second = KeyHash::of(key_of("second").as_bytes());
    let text = |rule: &str| {
        let of_file = "[principals.evictor]\nkeys = [\"KEY\"]\nrules = [";
        let with_second =
            format!("[principals.evictor]\nkeys = [\"KEY\", \"{second}\"]\nrules = [{rule}");
        let text = FILE.replace(of_file, &with_second);
        assert_ne!(text, FILE);
        text
    };
    let ring = ring(&text(""));
    let stream = Stream::new();
    let api = Api::with(stream.settings_with(&ring)).await;
    for number in 0..40 {
        if number == 20 {
            install(&ring, &text(r#"{ prefix = "more", verbs = ["read"] }, "#));
        }
        let key = if number % 2 == 0 { "evictor" } else { "second" };
        let acquire = post(&format!("/locks/orders/{number}"));
        assert_eq!(api.send(by(key, acquire)).await.status, 403);
    }
    let evict = delete("/locks/pay/1?force=true");
    assert_eq!(api.send(by("second", evict)).await.status, 403);
    let lines = stream.lines("refused", 9).await;
    let left_out = lines
        .iter()
        .map(|line| line["left_out"].as_u64().unwrap_or(0));
    let left_out: Vec<_> = left_out.collect();
    assert_eq!(left_out, [0, 0, 0, 0, 0, 2, 7, 15, 0]);
}
