//! A service on an empty store, a builder for requests, and responses as text for comparison.

mod answer;
mod event_stream;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::Response;
use axum::http::{HeaderName, HeaderValue, Method, Request};
use leasehold::config::{LogRequests, OperatorTransport, WaitingConfig};
use leasehold::domain::{Bounds, LimitBounds};
use leasehold::http::{
    Access, App, Audit, BUCKETS, HttpSettings, OperatorRuntime, RequestLog, RequestScope,
    admin_router, router,
};
use leasehold::limits::Budget;
use leasehold::server::Workers;
use leasehold::service::LockService;
use leasehold::store::LockStore;
use leasehold::store::file::FileStore;
use leasehold::store::memory::MemoryStore;
use leasehold::telemetry::traces::Tracer;
use leasehold::telemetry::{Build, Metrics};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

pub(crate) use answer::Answer;
pub(crate) use event_stream::{Event, EventStream};

use crate::support::cluster::BorrowedCluster;
use crate::support::eventually;
use crate::support::fixture::{FixtureRedis, unused_quorum};
use crate::support::stores::{self, OPERATION_TIMEOUT, service_with, waiting_config};

/// How many locks a store without Redis may keep.
const LOCKS_MAX: usize = 10_000;

/// The API of a new service.
pub(crate) struct Api {
    pub(crate) router: RequestScope,
    app: App,
    service: LockService,
    _place: Place,
}

/// Where its store keeps the locks, if that exists as long as the store is used.
#[derive(Default)]
struct Place {
    _directory: Option<TempDir>,
    _cluster: Option<BorrowedCluster>,
}

impl Api {
    /// On an empty store, with the default settings.
    pub(crate) async fn new() -> Self {
        Self::with(|_| {}).await
    }

    /// On an empty store.
    pub(crate) async fn with(change: impl FnOnce(&mut HttpSettings)) -> Self {
        let (store, place) = empty_store().await;
        Self {
            _place: place,
            ..Self::on(store, change)
        }
    }

    /// On this store.
    pub(crate) fn on(store: Arc<dyn LockStore>, change: impl FnOnce(&mut HttpSettings)) -> Self {
        let mut settings = settings();
        change(&mut settings);
        Self::made(store, waiting_config(), settings)
    }

    /// On an empty store, with changed queue settings.
    pub(crate) async fn waiting(change: impl FnOnce(&mut WaitingConfig)) -> Self {
        let mut waiting = waiting_config();
        change(&mut waiting);
        let (store, place) = empty_store().await;
        Self {
            _place: place,
            ..Self::made(store, waiting, settings())
        }
    }

    fn made(store: Arc<dyn LockStore>, waiting: WaitingConfig, settings: HttpSettings) -> Self {
        let metrics = Arc::new(Metrics::with_buckets(&[BUCKETS]));
        let service = service_with(store, OPERATION_TIMEOUT, waiting, &metrics);
        let app = App::new(service.clone(), metrics, settings);
        Self {
            router: router(app.clone()),
            app,
            service,
            _place: Place::default(),
        }
    }

    /// The same service at its second address.
    pub(crate) fn for_operators(&self) -> Self {
        let runtime = OperatorRuntime {
            workers: Workers::here(),
            requests: Budget::new(usize::MAX),
            closing: CancellationToken::new(),
        };
        self.operated_by(runtime)
    }

    pub(crate) fn operated_by(&self, runtime: OperatorRuntime) -> Self {
        Self {
            router: admin_router(self.app.clone(), runtime),
            app: self.app.clone(),
            service: self.service.clone(),
            _place: Place::default(),
        }
    }

    /// The effect of a stop signal.
    pub(crate) fn stop(&self) {
        self.service.drain();
    }

    pub(crate) async fn send(&self, request: Call) -> Answer {
        Answer::of(self.open(request).await).await
    }

    /// The response with its body unread, which may be endless.
    pub(crate) async fn open(&self, request: Call) -> Response<Body> {
        let response = self.router.clone().oneshot(request.request).await;
        response.expect("the router never fails")
    }

    /// Sends a request in a task, because it may wait for long.
    pub(crate) fn begin(&self, request: Call) -> JoinHandle<Answer> {
        let sent = self.router.clone().oneshot(request.request);
        tokio::spawn(async move { Answer::of(sent.await.expect("the router never fails")).await })
    }

    /// Begins to wait, and returns when the lock has `count` waiters.
    pub(crate) async fn queue(&self, request: Call, name: &str, count: u64) -> JoinHandle<Answer> {
        let waiting = self.begin(request);
        self.has_waiters(name, count).await;
        waiting
    }

    pub(crate) async fn has_waiters(&self, name: &str, count: u64) {
        eventually("the claim waits", async || {
            let lock = self.send(get(&format!("/locks/{name}"))).await.json();
            (lock["queue_length"] == count).then_some(())
        })
        .await;
    }

    pub(crate) async fn is_soon(&self, name: &str, state: &str) {
        eventually(state, async || {
            let lock = self.send(get(&format!("/locks/{name}"))).await.json();
            (lock["state"] == state).then_some(())
        })
        .await;
    }

    /// Acquires and returns the token.
    pub(crate) async fn token_of(&self, path: &str) -> String {
        let answer = self.send(post(path)).await;
        assert_eq!(answer.status, 201, "{}", answer.text());
        answer.header("lock-token").to_owned()
    }
}

/// An empty store of the kind that `TEST_STORE` names, and where it keeps the locks. `again` runs the tests of this module
/// with each.
#[allow(
    clippy::disallowed_methods,
    reason = "a knob of the tests is no configuration of the service"
)]
async fn empty_store() -> (Arc<dyn LockStore>, Place) {
    match std::env::var("TEST_STORE").as_deref() {
        Ok("file") => {
            let directory = stores::directory();
            let store = FileStore::open(directory.path(), LOCKS_MAX).await;
            let store = store.expect("no other process uses the directory");
            let place = Place {
                _directory: Some(directory),
                ..Place::default()
            };
            (Arc::new(store), place)
        }
        Ok("quorum") => {
            run_clock();
            (unused_quorum().await, Place::default())
        }
        Ok("redis") => {
            run_clock();
            let store = FixtureRedis::unused().await.store().await;
            (store, Place::default())
        }
        Ok("sentinel") => {
            run_clock();
            let store = FixtureRedis::confirmed().await.store().await;
            (store, Place::default())
        }
        Ok("cluster") => {
            run_clock();
            let cluster = BorrowedCluster::new().await;
            let place = Place {
                _cluster: Some(cluster.clone()),
                ..Place::default()
            };
            (cluster.store().await, place)
        }
        Ok(other) => panic!("TEST_STORE: there is no store {other:?}"),
        Err(_) => (Arc::new(MemoryStore::new(LOCKS_MAX)), Place::default()),
    }
}

/// Answers come from another process, for which a stopped clock would not wait.
fn run_clock() {
    if is_clock_stopped() {
        tokio::time::resume();
    }
}

/// A running clock never shows the same time for so long.
fn is_clock_stopped() -> bool {
    let now = Instant::now();
    (0..10_000).all(|_| Instant::now() == now)
}

/// Lets time pass.
pub(crate) async fn pass(duration: Duration) {
    if is_clock_stopped() {
        tokio::time::advance(duration).await;
    } else {
        // Not a synchronisation: the passing of time is what the test is about.
        tokio::time::sleep(duration).await;
    }
}

fn settings() -> HttpSettings {
    HttpSettings {
        bounds: Bounds {
            ttl_default: Duration::from_secs(30),
            ttl_min: Duration::from_millis(100),
            ttl_max: Duration::from_secs(3_600),
            max_hold_max: Duration::from_secs(30 * 86_400),
            lock_delay_max: Duration::from_secs(60),
            limits: LimitBounds::ANY,
        },
        body_bytes_max: 65_536,
        body_timeout: Duration::from_secs(10),
        access: Access::open(),
        audit: Audit::default(),
        is_metrics_open: false,
        tls: None,
        operators: OperatorTransport::Any,
        body_bytes_total_max: 16 * 1024 * 1024,
        answer_bytes_max: 32 * 1024 * 1024,
        operations_max: 1_024,
        requests: None,
        locks_max: None,
        listings_max: 4,
        event_streams_max: 100,
        renewals_max: 1_024,
        admission_timeout: Duration::from_secs(2),
        request_log: RequestLog {
            mode: LogRequests::Failed,
            slow: Duration::from_secs(1),
        },
        tracer: Tracer::default(),
        scheme: "http",
        store: "memory",
        build: Build {
            version: "1.2.3",
            revision: "abcdef0",
            rustc: "1.95.0",
        },
    }
}

/// A builder for requests.
pub(crate) struct Call {
    request: Request<Body>,
}

pub(crate) fn call(method: &str, path: &str) -> Call {
    let mut request = Request::new(Body::empty());
    *request.method_mut() = Method::from_bytes(method.as_bytes()).expect("a method");
    *request.uri_mut() = path.parse().expect("a path");
    Call { request }
}

pub(crate) fn post(path: &str) -> Call {
    call("POST", path)
}

pub(crate) fn get(path: &str) -> Call {
    call("GET", path)
}

pub(crate) fn put(path: &str) -> Call {
    call("PUT", path)
}

pub(crate) fn delete(path: &str) -> Call {
    call("DELETE", path)
}

impl Call {
    pub(crate) fn header(mut self, name: &'static str, value: impl AsRef<[u8]>) -> Self {
        let value = HeaderValue::from_bytes(value.as_ref()).expect("a header value");
        let name = HeaderName::from_static(name);
        self.request.headers_mut().append(name, value);
        self
    }

    /// An extension that the server would add, such as the address of the peer.
    pub(crate) fn extension<T: Clone + Send + Sync + 'static>(mut self, extension: T) -> Self {
        self.request.extensions_mut().insert(extension);
        self
    }

    pub(crate) fn token(self, token: &str) -> Self {
        self.header("lock-token", token)
    }

    pub(crate) fn json(self, body: impl Into<Body>) -> Self {
        self.header("content-type", "application/json").body(body)
    }

    /// What `curl -d` sends.
    pub(crate) fn form(self, body: impl Into<Body>) -> Self {
        self.header("content-type", "application/x-www-form-urlencoded")
            .body(body)
    }

    pub(crate) fn body(mut self, body: impl Into<Body>) -> Self {
        *self.request.body_mut() = body.into();
        self
    }
}

/// Sends a request and checks that it is refused because of a field, with these words in the detail.
pub(crate) async fn refused(api: &Api, request: Call, code: &str, field: &str, words: &str) {
    let answer = api.send(request).await;
    assert_eq!(
        answer.refusal(),
        (400, code.to_owned()),
        "{field}: {}",
        answer.text()
    );
    assert_eq!(answer.json()["field"], field, "{}", answer.text());
    assert!(
        answer.detail().contains(words),
        "{words:?} in {}",
        answer.detail()
    );
}
