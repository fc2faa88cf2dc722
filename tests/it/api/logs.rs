//! What is logged about a request, and what never is.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use leasehold::config::LogRequests;
use leasehold::http::{Access, Failures, KeyRing, Role};
use leasehold::server::Peer;
use tracing::Dispatch;
use tracing::subscriber::{DefaultGuard, NoSubscriber};
use tracing_subscriber::fmt::MakeWriter;

use super::support::{Api, Call, EventStream, call, delete, get, pass, post, put};
use crate::support::scripted_store::ScriptedStore;

/// The captured log, as JSON lines.
#[derive(Clone, Default)]
pub(super) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Captures the log of this thread, at all levels.
    pub(super) fn capture() -> (Self, DefaultGuard) {
        // With only one subscriber, tracing caches the interest of the thread that reaches an event first, and a thread
        // without a subscriber would disable the event for all.
        static ANOTHER: OnceLock<Dispatch> = OnceLock::new();
        ANOTHER.get_or_init(|| Dispatch::new(NoSubscriber::default()));
        let log = Self::default();
        let subscriber = tracing_subscriber::fmt()
            .json()
            .with_max_level(tracing::Level::TRACE)
            .with_writer(log.clone())
            .finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("no panic").clone()).expect("UTF-8")
    }

    /// The level and the fields of each request's line.
    pub(super) fn requests(&self) -> Vec<(String, serde_json::Value)> {
        let text = self.text();
        let lines = text
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"));
        let requests =
            lines.filter(|line: &serde_json::Value| line["fields"]["request_id"].is_string());
        requests
            .map(|line| {
                (
                    line["level"].as_str().expect("text").to_owned(),
                    line["fields"].clone(),
                )
            })
            .collect()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic").write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[tokio::test(start_paused = true)]
async fn no_token_is_ever_logged() {
    let (log, _guard) = Log::capture();
    let api = Api::with(|settings| settings.request_log.mode = LogRequests::All).await;
    let token = api.token_of("/locks/a?ttl=1s").await;
    for request in [
        post("/locks/a").token(&token),
        post("/locks/a").form(format!("token={token}&hold_count=2")),
        post("/locks/a"),
        put("/locks/a").token(&token),
        put("/locks/a").json(format!("{{\"token\":\"{token}\"}}")),
        get("/locks/a"),
        get(&format!("/locks/a?token={token}")),
        get(&format!("/nothing/{token}?token={token}")),
        delete("/locks/a?hold_count=1").token(&token),
        delete("/locks/a").token(&token),
        delete("/locks/a").token(&token),
        post("/locks/a").token(&token),
        post("/locks/a").token(&token).json("{"),
        post("/locks?names=b&names=c").token(&token),
        put("/locks?names=b&names=d").token(&token),
        delete("/locks?names=b&names=c").token(&token),
        post("/locks/d?wait=1s").token(&token),
    ] {
        api.send(request).await;
    }
    pass(Duration::from_secs(100)).await;
    api.send(put("/locks/a").token(&token)).await;
    let (text, token) = (log.text(), token.to_lowercase());
    assert!(!text.is_empty());
    assert!(!text.to_lowercase().contains(&token), "{text}");
    assert!(
        !text.to_lowercase().contains(&token.replace('-', "")),
        "{text}"
    );
}

#[tokio::test]
async fn a_refused_request_is_logged_once_with_what_an_operator_needs() {
    let (log, _guard) = Log::capture();
    let api = Api::new().await;
    api.token_of("/locks/a").await;
    api.send(get("/locks/a")).await;
    assert_eq!(log.requests(), [], "what went well is not news");
    let request = from_peer(put("/locks/a?ttl=1ms")).header("x-request-id", "job-7");
    api.send(request).await;
    let [(level, fields)] = &log.requests()[..] else {
        panic!("{}", log.text());
    };
    assert_eq!(
        (level.as_str(), &fields["message"]),
        ("INFO", &"The request was refused.".into())
    );
    assert_eq!(fields["lock.name"], "a");
    assert_eq!(
        (&fields["outcome"], &fields["status"]),
        (&"invalid_field".into(), &400.into())
    );
    assert_eq!(fields["peer"], "192.0.2.7:40000");
    assert_eq!(
        (&fields["request_id"], &fields["method"]),
        (&"job-7".into(), &"PUT".into())
    );
    assert!(fields["duration_ms"].is_f64());
    assert!(!log.text().contains("ttl"), "the query string was logged");
}

/// Refusing a lock that is held is what the service is for.
#[tokio::test(start_paused = true)]
async fn a_lock_that_is_held_has_no_line() {
    let (log, _guard) = Log::capture();
    let api = Api::new().await;
    api.token_of("/locks/a?ttl=1h").await;
    assert_eq!(api.send(post("/locks/a")).await.status, 423);
    assert_eq!(api.send(post("/locks/a?wait=2s")).await.status, 423);
    let request = post("/locks/a?wait=2s").header("accept", "text/event-stream");
    let mut stream = EventStream::of(api.open(request).await);
    stream.expect("queued").await;
    assert_eq!(stream.expect("refused").await["code"], "wait_timeout");
    assert_eq!(log.requests(), []);
}

#[tokio::test]
async fn a_path_that_does_not_exist_is_logged_without_what_may_be_a_token() {
    let (log, _guard) = Log::capture();
    let api = Api::new().await;
    let token = "6f1c3b0e-8f0a-4f57-9c55-0d5d3f1f4a1b";
    let long = "x".repeat(60_000);
    for (path, logged) in [
        ("/lock/orders?ttl=5s", "/lock/orders"),
        (&format!("/v1/{token}/a"), "/v1/*/a"),
        (&format!("/v1/x{}/a", token.replace('-', "")), "/v1/*/a"),
        ("/v1/%36f1c/a", "/v1/*/a"),
        (&format!("/{long}"), &format!("/{}…", "x".repeat(63))),
    ] {
        api.send(get(path)).await;
        let requests = log.requests();
        let (_, fields) = requests.last().expect("a line");
        assert_eq!(fields["path"], logged);
    }
}

#[tokio::test]
async fn a_method_is_logged_as_shortly_as_a_path() {
    let (log, _guard) = Log::capture();
    let method = "X".repeat(60_000);
    Api::new().await.send(call(&method, "/locks/x")).await;
    let requests = log.requests();
    let (_, fields) = requests.last().expect("a line");
    assert_eq!(fields["method"], format!("{}…", "X".repeat(64)));
}

#[tokio::test]
async fn a_request_that_the_store_did_not_answer_is_a_warning_with_its_cause() {
    let (log, _guard) = Log::capture();
    let error = leasehold::store::StoreError::Unavailable {
        fault: leasehold::store::Fault::Io,
        detail: "connection to 10.0.0.7:6379 refused".to_owned(),
    };
    let store = Arc::new(ScriptedStore::failing(error));
    Api::on(store, |_| {}).send(get("/locks/a")).await;
    let [(level, fields)] = &log.requests()[..] else {
        panic!("{}", log.text());
    };
    assert_eq!(
        (level.as_str(), &fields["message"]),
        ("WARN", &"The request could not be answered.".into())
    );
    assert!(
        fields["cause"]
            .as_str()
            .expect("a cause")
            .contains("10.0.0.7")
    );
}

#[tokio::test]
async fn the_log_can_be_full_or_off() {
    let (log, _guard) = Log::capture();
    Api::with(|settings| settings.request_log.mode = LogRequests::All)
        .await
        .send(get("/livez"))
        .await;
    let [(level, fields)] = &log.requests()[..] else {
        panic!("{}", log.text());
    };
    assert_eq!(
        (level.as_str(), &fields["message"]),
        ("INFO", &"The request was answered.".into())
    );
    let slow = Api::with(|settings| settings.request_log.slow = Duration::ZERO).await;
    slow.send(get("/livez")).await;
    assert_eq!(log.requests()[1].1["message"], "The request was slow.");
    Api::with(|settings| settings.request_log.mode = LogRequests::Off)
        .await
        .send(get("/nothing"))
        .await;
    assert_eq!(log.requests().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waited_is_not_slow_and_says_how_long_it_waited() {
    let (log, _guard) = Log::capture();
    let api = Api::new().await;
    let token = api.token_of("/locks/a").await;
    let waiting = api.queue(post("/locks/a?wait=20s"), "a", 1).await;
    pass(Duration::from_secs(10)).await;
    api.send(delete("/locks/a").token(&token)).await;
    assert_eq!(waiting.await.expect("an answer").status, 201);
    assert_eq!(log.requests(), [], "what went well is not news");
    let waiting = api.queue(post("/locks/a?wait=20s"), "a", 1).await;
    pass(Duration::from_secs(5)).await;
    api.stop();
    assert_eq!(waiting.await.expect("an answer").status, 503);
    let (_, fields) = &log.requests()[0];
    assert_eq!(fields["message"], "The request was refused.");
    let waited_ms = fields["wait_ms"].as_f64().expect("a number");
    assert!((5_000.0..6_000.0).contains(&waited_ms), "{waited_ms}");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_while_draining_is_not_a_warning() {
    let (log, _guard) = Log::capture();
    let api = Api::new().await;
    api.token_of("/locks/a").await;
    let waiting = api.queue(post("/locks/a?wait=20s"), "a", 1).await;
    api.stop();
    assert_eq!(waiting.await.expect("an answer").status, 503);
    let (level, fields) = &log.requests()[0];
    assert_eq!(
        (level.as_str(), &fields["outcome"]),
        ("INFO", &"draining".into())
    );
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_loses_its_lock_is_logged_with_its_request() {
    let (log, _guard) = Log::capture();
    let api = Api::new().await;
    let request = post("/locks/a?ttl=3s").header("accept", "text/event-stream");
    let response = api.open(request.header("x-request-id", "job-7")).await;
    let mut stream = EventStream::of(response);
    stream.expect("acquired").await;
    api.send(delete("/locks/a?force=true")).await;
    stream.expect("lost").await;
    let requests = log.requests();
    let is_lost = |fields: &&serde_json::Value| fields["outcome"] == "lease_evicted";
    let fields = requests.iter().map(|(_, fields)| fields).find(is_lost);
    let fields = fields.expect("a line");
    assert_eq!(fields["request_id"], "job-7");
    assert_eq!(fields["lock.name"], "a");
}

#[tokio::test]
async fn an_invalid_name_is_not_logged() {
    let (log, _guard) = Log::capture();
    Api::new().await.send(post("/locks/a%0Aforged")).await;
    assert_eq!(log.requests()[0].1["outcome"], "invalid_name");
    assert!(log.requests()[0].1.get("lock.name").is_none());
    assert!(!log.text().contains("forged"), "{}", log.text());
}

#[tokio::test]
async fn a_probe_that_fails_is_not_logged_as_fine() {
    let (log, _guard) = Log::capture();
    let api = Api::new().await;
    api.stop();
    api.send(get("/readyz")).await;
    let (level, fields) = &log.requests()[0];
    assert_eq!(
        (level.as_str(), &fields["outcome"]),
        ("WARN", &"unavailable".into())
    );
}

pub(super) fn from_peer(request: Call) -> Call {
    let peer: SocketAddr = ([192, 0, 2, 7], 40_000).into();
    request.extension(Peer::unlimited(peer))
}

#[tokio::test]
async fn a_refusal_and_an_eviction_are_logged_with_their_sender() {
    let (log, _guard) = Log::capture();
    let api = Api::with(|settings| {
        let ring = KeyRing::new([(Role::Admin, "s3cret")]);
        settings.access = Access::Keys(ring, Failures::new(60));
    })
    .await;
    api.send(from_peer(post("/locks/a")).header("x-request-id", "job-7"))
        .await;
    let held = post("/locks/a").header("authorization", "Bearer s3cret");
    assert_eq!(api.send(held).await.status, 201);
    let evict = from_peer(delete("/locks/a?force=true&reason=stuck"))
        .header("x-request-id", "job-8")
        .header("authorization", "Bearer s3cret");
    assert_eq!(api.send(evict).await.status, 200);
    let [(_, refused), (_, evicted)] = &log.requests()[..] else {
        panic!("{}", log.text());
    };
    for (fields, request_id, outcome) in [
        (refused, "job-7", "unauthorized"),
        (evicted, "job-8", "evicted"),
    ] {
        assert_eq!(fields["peer"], "192.0.2.7:40000");
        assert_eq!(fields["request_id"], request_id);
        assert_eq!(fields["outcome"], outcome);
    }
    assert_eq!(
        (&evicted["role"], &evicted["reason"]),
        (&"admin".into(), &"stuck".into())
    );
    assert!(!log.text().contains("s3cret"), "{}", log.text());
}

#[tokio::test]
async fn a_line_is_short_however_long_the_request_was() {
    let (log, _guard) = Log::capture();
    let api = Api::new().await;
    let long = "x".repeat(60_000);
    for request in [
        post(&format!("/locks/a?{long}=1")),
        post(&format!("/locks/{long}")),
        get(&format!("/{long}")),
        post("/locks/a").form(format!("ttl={long}")),
        post("/locks/a").token(&long),
    ] {
        assert!(api.send(request).await.status >= 400);
    }
    let requests = log.requests();
    assert_eq!(requests.len(), 5);
    for (_, fields) in requests {
        assert!(fields.to_string().len() < 1_024, "{fields}");
    }
}
