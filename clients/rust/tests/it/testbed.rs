//! The control of clients/testbed.py, which starts servers, and a proxy in front of each that fails on request.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use leasehold_client::Client;
use serde_json::Value;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

/// One for all tests. It ends with this process, whose end closes its standard input.
struct Testbed {
    url: String,
    /// Held for writing by the test that pauses the process of all tests.
    running: Arc<RwLock<()>>,
    _process: Child,
}

/// A server, behind a proxy.
pub(crate) struct Server {
    id: u64,
    pub(crate) url: String,
    pub(crate) api_key: String,
    _running: Running,
}

enum Running {
    Together { _guard: OwnedRwLockReadGuard<()> },
    Alone { _guard: OwnedRwLockWriteGuard<()> },
}

fn testbed() -> &'static Testbed {
    static TESTBED: OnceLock<Testbed> = OnceLock::new();
    TESTBED.get_or_init(|| {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../testbed.py");
        let mut command = Command::new("python3");
        command
            .arg(script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut url = String::new();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        output.read_line(&mut url).unwrap();
        Testbed {
            url: url.trim().to_owned(),
            running: Arc::default(),
            _process: process,
        }
    })
}

async fn call(method: &str, path: &str) -> Value {
    let method = method.parse().unwrap();
    let url = format!("{}{path}", testbed().url);
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let response = http.request(method, url).send().await.unwrap();
    assert!(response.status().is_success(), "{path}");
    serde_json::from_slice(&response.bytes().await.unwrap()).unwrap()
}

/// Stops this process soon, for this time.
pub(crate) async fn pause_this_process(seconds: u32) {
    let pid = std::process::id();
    call("POST", &format!("/pause?pid={pid}&seconds={seconds}")).await;
}

impl Server {
    pub(crate) async fn start() -> Self {
        let _guard = testbed().running.clone().read_owned().await;
        Self::start_while(Running::Together { _guard }).await
    }

    /// A server for a test that disturbs others.
    pub(crate) async fn start_alone() -> Self {
        let _guard = testbed().running.clone().write_owned().await;
        Self::start_while(Running::Alone { _guard }).await
    }

    async fn start_while(running: Running) -> Self {
        let server = call("POST", "/servers").await;
        Self {
            id: server["id"].as_u64().unwrap(),
            url: server["url"].as_str().unwrap().to_owned(),
            api_key: server["api_key"].as_str().unwrap().to_owned(),
            _running: running,
        }
    }

    pub(crate) fn client(&self) -> Client {
        self.client_that_retries_for(Duration::from_secs(30))
    }

    pub(crate) fn client_that_retries_for(&self, duration: Duration) -> Client {
        let builder = Client::builder(&self.url).api_key(&self.api_key);
        builder.retry_for(duration).build().unwrap()
    }

    async fn call(&self, method: &str, action: &str) -> Value {
        call(method, &format!("/servers/{}/{action}", self.id)).await
    }

    pub(crate) async fn restart(&self) {
        self.call("POST", "restart").await;
    }

    pub(crate) async fn evict(&self, name: &str) {
        let evicted = self.call("POST", &format!("evict?name={name}")).await;
        assert_eq!(evicted["status"], 200);
    }

    pub(crate) async fn fault(&self, kind: &str, method: &str, times: u32) {
        let action = format!("fault?kind={kind}&method={method}&times={times}");
        self.call("POST", &action).await;
    }

    /// The next requests with this method get this answer; the status, header and body are encoded for a URL.
    pub(crate) async fn answer(&self, method: &str, times: u32, answer: &str) {
        let action = format!("fault?kind=answer&method={method}&times={times}&{answer}");
        self.call("POST", &action).await;
    }

    pub(crate) async fn lock(&self, name: &str) -> Value {
        self.call("GET", &format!("lock?name={name}")).await
    }

    /// What the proxy received for the lock `a`.
    pub(crate) async fn requests(&self) -> Vec<Value> {
        let requests = self.call("GET", "requests?name=a").await;
        requests.as_array().unwrap().clone()
    }

    pub(crate) async fn count(&self, method: &str) -> usize {
        let requests = self.requests().await;
        requests
            .iter()
            .filter(|request| request["method"] == method)
            .count()
    }
}

/// Polls until it is so.
pub(crate) async fn eventually(mut what: impl AsyncFnMut() -> bool) {
    let poll = async {
        while !what().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let happened = tokio::time::timeout(Duration::from_secs(30), poll).await;
    happened.expect("it never happened");
}
