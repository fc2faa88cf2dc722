//! What operators do at the second address: exactly what is served, over which connections, and on which thread.

use std::collections::BTreeSet;
use std::sync::{Arc, mpsc};

use leasehold::config::OperatorTransport;
use leasehold::http::{Access, Failures, KeyRing, OperatorRuntime, Role, Route};
use leasehold::limits::Budget;
use leasehold::server::{Peer, Workers};
use leasehold::store::memory::MemoryStore;
use tokio_util::sync::CancellationToken;

use super::support::{Api, Call, call, delete, get, post};

const WORKERS: usize = 2;
const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"];
const PROBES: [&str; 5] = ["/livez", "/readyz", "/healthz", "/version", "/metrics"];
const PAGES: [&str; 6] = [
    "/locks",
    "/locks/{name}",
    "/ui",
    "/ui/",
    "/ui/ui.js",
    "/ui/ui.css",
];

/// Each method and route that is neither 404 nor 405. No answer may be a stream, whatever the client accepts: those have no
/// length.
async fn served(api: &Api, change: impl Fn(Call) -> Call) -> BTreeSet<String> {
    let mut served = BTreeSet::new();
    let others = ["/docs/", "/ui/", "/ui/ui.js", "/ui/ui.css", "/locks/", "/x"];
    let routes = Route::ALL.map(Route::template);
    for template in routes.into_iter().chain(others) {
        let path = template.replace("{name}", "a");
        let path = path.replace("{code}", "lock_held");
        for method in METHODS {
            let request = call(method, &path).header("accept", "text/event-stream");
            let answer = api.open(change(request)).await;
            let size = axum::body::HttpBody::size_hint(answer.body());
            assert!(size.exact().is_some(), "{method} {path} has no end");
            if ![404, 405].contains(&answer.status().as_u16()) {
                served.insert(format!("{method} {template}"));
            }
        }
    }
    served
}

fn reads_of(paths: &[&str]) -> BTreeSet<String> {
    let reads = paths.iter();
    reads
        .flat_map(|path| ["GET", "HEAD"].map(|method| format!("{method} {path}")))
        .collect()
}

fn everything() -> BTreeSet<String> {
    let mut expected = reads_of(&PROBES);
    expected.extend(reads_of(&PAGES));
    expected.insert("DELETE /locks/{name}".to_owned());
    expected
}

#[tokio::test]
async fn operators_read_and_evict_and_nothing_else() {
    let api = Api::new().await;
    api.token_of("/locks/a").await;
    assert_eq!(
        served(&api.for_operators(), |call| call).await,
        everything()
    );
}

#[tokio::test]
async fn where_operators_are_not_served_there_are_probes_and_metrics_alone() {
    let api = Api::with(|settings| settings.operators = OperatorTransport::None).await;
    let operators = api.for_operators();
    assert_eq!(served(&operators, |call| call).await, reads_of(&PROBES));
    let answer = operators.send(get("/ui")).await;
    assert!(answer.detail().contains("to serve /ui and /locks too"));
}

#[tokio::test]
async fn where_clients_need_tls_operators_need_it_too() {
    let api = Api::with(|settings| settings.operators = OperatorTransport::Encrypted).await;
    let operators = api.for_operators();
    let peer = || Peer::unlimited(([192, 0, 2, 1], 40_000).into());
    let plain = served(&operators, |call| call.extension(peer())).await;
    assert_eq!(plain, reads_of(&PROBES));
    assert_eq!(
        served(&operators, |call| call).await,
        plain,
        "an unknown peer"
    );
    let answer = operators.send(get("/locks").extension(peer())).await;
    assert!(answer.detail().contains("over TLS, as https://"));
    let encrypted = served(&operators, |call| {
        call.extension(peer().after_handshake(None))
    });
    assert_eq!(encrypted.await, everything());
}

#[tokio::test]
async fn a_delete_there_never_releases() {
    let api = Api::new().await;
    let operators = api.for_operators();
    let token = api.token_of("/locks/a").await;
    for request in [
        delete("/locks/a").token(&token),
        delete("/locks/a?force=false").token(&token),
        delete("/locks/a"),
        delete("/locks/a?reason=x"),
    ] {
        let answer = operators.send(request).await;
        assert_eq!(answer.refusal(), (400, "invalid_field".to_owned()));
        assert!(answer.detail().contains("only evicts"));
    }
    for (method, path) in [
        ("POST", "/locks/a"),
        ("PUT", "/locks/a"),
        ("DELETE", "/locks"),
    ] {
        let answer = operators.send(call(method, path).token(&token)).await;
        assert_eq!(answer.status, 405, "{method} {path}");
    }
    let lock = operators.send(get("/locks/a")).await.json();
    assert_eq!(lock["state"], "held");
    let listed = operators.send(get("/locks?prefix=a")).await;
    assert_eq!(listed.json()["locks"][0]["name"], "a");
    assert!(!listed.text().contains(&token));
    let evicted = operators
        .send(delete("/locks/a?force=true&reason=stuck"))
        .await;
    assert_eq!(evicted.status, 200);
    assert_eq!(evicted.json()["evicted_total"], 1);
    let renewed = api.send(call("PUT", "/locks/a").token(&token)).await;
    assert_eq!(renewed.refusal(), (412, "lease_evicted".to_owned()));
}

#[tokio::test]
async fn what_needs_a_right_needs_it_there_too() {
    let api = Api::with(|settings| {
        let ring = KeyRing::new([
            (Role::Reader, "reader"),
            (Role::Client, "client"),
            (Role::Admin, "admin"),
        ]);
        settings.access = Access::Keys(ring, Failures::new(60));
    })
    .await;
    let operators = api.for_operators();
    let with = |request: Call, key: &str| request.header("authorization", format!("Bearer {key}"));
    let granted = api.send(with(post("/locks/a"), "client")).await;
    assert_eq!(granted.status, 201);
    let evict = || delete("/locks/a?force=true");
    for request in [get("/locks"), get("/locks/a"), evict(), get("/metrics")] {
        assert_eq!(operators.send(request).await.status, 401);
    }
    let listed = operators.send(with(get("/locks"), "reader")).await;
    assert_eq!(listed.status, 200);
    for key in ["reader", "client"] {
        let answer = operators.send(with(evict(), key)).await;
        assert_eq!(answer.refusal(), (403, "forbidden".to_owned()), "{key}");
    }
    assert_eq!(operators.send(with(evict(), "admin")).await.status, 200);
    assert_eq!(operators.send(get("/ui")).await.status, 200);
    // Methods come after keys, on both addresses.
    for api in [&api, &operators] {
        let answer = api.send(post("/metrics")).await;
        assert_eq!(answer.status, 401);
        assert!(!answer.headers.contains_key("allow"));
        assert!(!answer.detail().contains("only"), "{}", answer.detail());
        let answer = api.send(with(post("/metrics"), "admin")).await;
        assert_eq!(answer.refusal(), (405, "method_not_allowed".to_owned()));
        assert!(answer.detail().ends_with("only GET, HEAD"));
    }
}

/// With its clock stopped, time passes as soon as everything else waits for it.
#[tokio::test(start_paused = true)]
async fn probes_are_answered_while_all_workers_are_busy_and_operators_are_told() {
    let api = Api::on(Arc::new(MemoryStore::new(10)), |_| {});
    let workers = Workers::start(WORKERS).unwrap();
    let (busy, begun) = mpsc::channel::<()>();
    let (free, held) = mpsc::channel::<()>();
    let held = Arc::new(std::sync::Mutex::new(held));
    workers.on_each(|| {
        let (busy, held) = (busy.clone(), Arc::clone(&held));
        async move {
            busy.send(()).unwrap();
            let _ = held.lock().unwrap().recv();
        }
    });
    for _ in 0..WORKERS {
        begun.recv().unwrap();
    }
    let operators = api.operated_by(OperatorRuntime {
        workers,
        requests: Budget::new(usize::MAX),
        closing: CancellationToken::new(),
    });
    for path in PROBES {
        assert_eq!(operators.send(get(path)).await.status, 200, "{path}");
    }
    for (request, outcome) in [
        (get("/ui"), "nothing_done"),
        (get("/locks"), "nothing_done"),
        (get("/locks/a"), "nothing_done"),
        (delete("/locks/a?force=true"), "unknown"),
    ] {
        let answer = operators.send(request).await;
        assert_eq!(answer.refusal(), (503, "overloaded".to_owned()));
        assert_eq!(answer.json()["outcome"], outcome);
    }
    drop(free);
}

#[tokio::test]
async fn no_request_of_an_operator_begins_once_the_first_address_is_closed() {
    let api = Api::new().await;
    let closing = CancellationToken::new();
    let operators = api.operated_by(OperatorRuntime {
        workers: Workers::here(),
        requests: Budget::new(usize::MAX),
        closing: closing.clone(),
    });
    api.stop();
    assert_eq!(operators.send(get("/locks")).await.status, 200);
    closing.cancel();
    for request in [get("/locks"), delete("/locks/a?force=true")] {
        let answer = operators.send(request).await;
        assert_eq!(answer.refusal(), (503, "draining".to_owned()));
    }
    assert_eq!(operators.send(get("/livez")).await.status, 200);
}

/// They are needed most while slow clients of the first address keep all bytes that may be in flight.
#[tokio::test]
async fn metrics_there_are_answered_whatever_clients_of_the_first_address_leave_unread() {
    let api = Api::with(|settings| settings.answer_bytes_max = 1).await;
    // One response may be larger than the limit, but not beside others.
    let unread = api.open(get("/metrics")).await;
    assert_eq!(unread.status(), 200);
    for path in ["/metrics", "/locks"] {
        let refused = api.send(get(path)).await;
        assert_eq!(refused.refusal(), (503, "overloaded".to_owned()));
        assert_eq!(
            refused.json()["outcome"],
            "nothing_done",
            "it changes nothing"
        );
    }
    assert_eq!(api.for_operators().send(get("/metrics")).await.status, 200);
}
