//! How long a hand-over takes: from the answer to a release until the next waiter's answer, as a ratio to an uncontended
//! acquire in the same run, with few waiters and with many.
//!
//! `cargo bench --bench hand_over` starts the binary on `memory:` and on a Redis of its own, prints a table, and writes
//! the figures to `hand_over.json` in the target directory's `tmp`. Clients and service share the machine, so the clients
//! are one thread that does next to nothing. What waiters cost while nothing happens is measured, too.

#![allow(
    clippy::unwrap_used,
    reason = "a measurement that cannot go on should stop where it stands"
)]

#[path = "../tests/it/waiters/http1.rs"]
mod http1;
#[allow(dead_code, reason = "tests need more of it than a measurement does")]
#[path = "../tests/it/support/redis_server.rs"]
mod redis_server;

use std::fmt;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use http1::{Answer, Connection, Request};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use redis_server::{RedisOptions, RedisServer};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

const WAITERS: [usize; 3] = [1, 100, 10_000];
const ROUNDS: usize = 1_000;
const WARM_UP: usize = 200;
/// How long the waiters are left alone while what they cost is measured.
const PARKED_FOR: Duration = Duration::from_secs(10);
/// Ticks of `/proc` in a second, on every Linux there is.
const TICKS_PER_SECOND: f64 = 100.0;
const PAGE_KIB: f64 = 4.0;
const WAITING: &str = "ttl=1h&wait=1h";

/// The service as a child process.
struct Service {
    child: Child,
    address: SocketAddr,
    /// A lock of its own: in a Redis, the leases of the one before are still there.
    path: String,
}

impl Service {
    fn start(store: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_leasehold"))
            .args(["--listen", "127.0.0.1:0", "--store", store])
            .args(["--log-format", "json", "--log-requests", "off"])
            .args(["--server-connections-max", "15000"])
            .args(["--waiting-wait-max", "1h"])
            .args(["--waiting-waiters-per-lock-max", "15000"])
            .env_clear()
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary was built");
        let stdout = child.stdout.take().unwrap();
        let (tx, rx) = std::sync::mpsc::channel();
        // On a thread of its own: a process whose log nobody takes stands still.
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let line: Value = serde_json::from_str(&line).unwrap_or_default();
                if let Some(url) = line["url"].as_str() {
                    let _ = tx.send(url.to_owned());
                }
            }
        });
        let url = rx.recv().expect("it says where it listens");
        let address = url.strip_prefix("http://").unwrap().parse().unwrap();
        let path = format!("/locks/bench/{}", uuid::Uuid::new_v4());
        Self {
            child,
            address,
            path,
        }
    }

    async fn client(&self) -> Client {
        Client {
            connection: Connection::open(self.address).await.expect("it listens"),
            path: self.path.clone(),
            token: uuid::Uuid::new_v4().to_string(),
        }
    }

    /// Resident memory in KiB, and the CPU time in seconds that was used so far.
    fn costs(&self) -> (f64, f64) {
        let read = |what| std::fs::read_to_string(format!("/proc/{}/{what}", self.child.id()));
        let (stat, statm) = (read("stat").unwrap(), read("statm").unwrap());
        // After the name in parentheses: the 14th and 15th fields are user and system time.
        let fields = stat.rsplit_once(") ").unwrap().1.split(' ');
        let ticks: f64 = fields.skip(11).take(2).map(number).sum();
        let pages = statm.split(' ').nth(1).map(number).unwrap();
        (pages * PAGE_KIB, ticks / TICKS_PER_SECOND)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn number(text: &str) -> f64 {
    text.trim().parse().unwrap()
}

/// A client with a token and a connection.
struct Client {
    connection: Connection,
    path: String,
    token: String,
}

impl Client {
    async fn ask(&mut self, method: &str, body: &str) -> Answer {
        let request = Request {
            method,
            path: &self.path,
            token: (method != "GET").then_some(&self.token),
            body,
        };
        let answer = self.connection.ask(request).await;
        let answer = answer.expect("it is answered");
        let is_right = answer.grants() || answer.status == 204;
        assert!(is_right, "{}: {}", answer.status, answer.json());
        answer
    }

    /// Asks until so many wait.
    async fn until_queued(&mut self, length: usize) {
        while self.ask("GET", "").await.json()["queue_length"] != length {}
    }
}

/// Clients that wait, each in a task of its own. They hang up when this is dropped.
#[derive(Default)]
struct Line(JoinSet<(Client, Instant)>);

impl Line {
    /// Lets a client wait.
    fn join(&mut self, mut client: Client) {
        self.0.spawn(async move {
            let at = client.ask("POST", WAITING).await.at;
            (client, at)
        });
    }

    /// The next one that is granted the lock, and when it was told.
    async fn next(&mut self) -> (Client, Instant) {
        let ended = self.0.join_next().await.expect("somebody waits");
        ended.expect("it is granted")
    }
}

/// What was measured of many.
struct Spread(Vec<Duration>);

impl Spread {
    fn new(mut durations: Vec<Duration>) -> Self {
        durations.sort();
        Self(durations)
    }

    /// In microseconds, what so many of a hundred do not exceed.
    fn micros(&self, percent: usize) -> f64 {
        self.0[(self.0.len() - 1) * percent / 100].as_secs_f64() * 1e6
    }

    /// The median and the 99th percentile as ratios to those of another.
    fn over(&self, other: &Self) -> [f64; 2] {
        [50, 99].map(|percent| self.micros(percent) / other.micros(percent))
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:.0} {:6.0}", self.micros(50), self.micros(99)))
    }
}

/// How long an acquire takes that meets nobody.
async fn uncontended(service: &Service) -> Spread {
    let mut client = service.client().await;
    let mut took = Vec::new();
    for _ in 0..WARM_UP + ROUNDS * 5 {
        client.token = uuid::Uuid::new_v4().to_string();
        let asked = Instant::now();
        took.push(client.ask("POST", "ttl=1h").await.at - asked);
        client.ask("DELETE", "").await;
    }
    Spread::new(took.split_off(WARM_UP))
}

/// What so many waiters cost.
struct Measured {
    waiters: usize,
    /// From the answer to the release until the next waiter's answer.
    from_answer: Spread,
    /// From the release's request, which does not depend on which of the two answers is read first.
    from_request: Spread,
    /// Memory of the service for each waiter.
    memory_kib: f64,
    /// CPU time of the service while nothing happens, in percent of one core.
    cpu_percent: f64,
}

impl Measured {
    fn print(&self, store: &str, alone: &Spread) {
        let ratio = |spread: &Spread| {
            let [p50, p99] = spread.over(alone);
            format!("{p50:.2} {p99:5.2}")
        };
        println!(
            "{store:8} {:7} {alone:>13} {:>15} {:>13} {:>15} {:>13} {:5.1} KiB {:5.1} %",
            self.waiters,
            self.from_answer,
            ratio(&self.from_answer),
            self.from_request,
            ratio(&self.from_request),
            self.memory_kib,
            self.cpu_percent,
        );
    }

    fn to_json(&self, store: &str, alone: &Spread) -> Value {
        let figures = |spread: &Spread| {
            let [p50, p99] = [50, 99].map(|percent| spread.micros(percent));
            let [ratio_p50, ratio_p99] = spread.over(alone);
            json!({ "p50_us": p50, "p99_us": p99, "ratio_p50": ratio_p50, "ratio_p99": ratio_p99 })
        };
        json!({
            "store": store,
            "waiters": self.waiters,
            "uncontended_acquire": figures(alone),
            "hand_over_from_release_answer": figures(&self.from_answer),
            "hand_over_from_release_request": figures(&self.from_request),
            "memory_per_waiter_kib": self.memory_kib,
            "cpu_while_parked_percent": self.cpu_percent,
        })
    }
}

async fn hand_overs(service: &Service, waiters: usize) -> Measured {
    let mut watcher = service.client().await;
    watcher.until_queued(0).await;
    let mut holder = service.client().await;
    holder.ask("POST", WAITING).await;
    let mut line = Line::default();
    let (memory_before, _) = service.costs();
    for _ in 0..waiters {
        line.join(service.client().await);
    }
    watcher.until_queued(waiters).await;
    let (memory, cpu_before) = service.costs();
    sleep(PARKED_FOR).await;
    let (_, cpu) = service.costs();
    let (mut from_answer, mut from_request) = (Vec::new(), Vec::new());
    for _ in 0..WARM_UP + ROUNDS {
        let asked = Instant::now();
        let released = holder.ask("DELETE", "").await.at;
        let (next, at) = line.next().await;
        from_answer.push(at.saturating_duration_since(released));
        from_request.push(at - asked);
        // Back to the end of the line.
        holder.token = uuid::Uuid::new_v4().to_string();
        line.join(std::mem::replace(&mut holder, next));
        watcher.until_queued(waiters).await;
    }
    Measured {
        waiters,
        from_answer: Spread::new(from_answer.split_off(WARM_UP)),
        from_request: Spread::new(from_request.split_off(WARM_UP)),
        memory_kib: (memory - memory_before) / waiters as f64,
        cpu_percent: (cpu - cpu_before) / PARKED_FOR.as_secs_f64() * 100.0,
    }
}

/// Measures one store, prints its part of the table, and returns the figures.
async fn measure(store: &str, url: &str) -> Vec<Value> {
    let mut figures = Vec::new();
    for waiters in WAITERS {
        // A process of its own for each: memory that one has left behind would hide what the next one needs.
        let service = Service::start(url);
        let alone = uncontended(&service).await;
        let measured = hand_overs(&service, waiters).await;
        measured.print(store, &alone);
        figures.push(measured.to_json(store, &alone));
    }
    figures
}

async fn run() {
    println!("Times in microseconds, as p50 and p99; ratios are to the acquire.\n");
    println!(
        "{:8} {:>7} {:>13} {:>15} {:>13} {:>15} {:>13} {:>9} {:>7}",
        "store",
        "waiters",
        "acquire",
        "since release's",
        "",
        "since release's",
        "",
        "memory of",
        "CPU"
    );
    println!(
        "{:8} {:>7} {:>13} {:>15} {:>13} {:>15} {:>13} {:>9} {:>7}",
        "", "", "uncontended", "answer", "ratio", "request", "ratio", "a waiter", "parked"
    );
    let mut figures = measure("memory:", "memory:").await;
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    figures.extend(measure("redis://", &format!("redis://{}", redis.address())).await);
    let path = concat!(env!("CARGO_TARGET_TMPDIR"), "/hand_over.json");
    std::fs::write(path, format!("{:#}\n", Value::from(figures))).expect("a place for it");
    println!("\nwritten to {path}");
}

fn main() {
    // Each waiter is a socket here and one in the service.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("the system says");
    setrlimit(Resource::RLIMIT_NOFILE, most, most).expect("up to what is allowed");
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(run());
}
