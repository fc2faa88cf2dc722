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

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use http1::{Answer, Connection, Request};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use redis_server::{RedisOptions, RedisServer};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

const WAITERS: [usize; 3] = [1, 100, 10_000];
const ROUNDS: usize = 1_000;
const WARM_UP: usize = 200;
/// How long the waiters are left alone while what they cost is measured.
const PARKED_FOR: Duration = Duration::from_secs(10);
/// Ticks of `/proc` in a second, on every Linux there is.
const TICKS_PER_SECOND: f64 = 100.0;
const PAGE_KIB: f64 = 4.0;
const LOCK: &str = "/locks/bench";
const WAITING: &str = "ttl=1h&wait=1h";

/// The service as a child process.
struct Service {
    child: Child,
    address: SocketAddr,
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
        Self { child, address }
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
    token: String,
}

impl Client {
    async fn connect(address: SocketAddr) -> Self {
        Self {
            connection: Connection::open(address).await.expect("it listens"),
            token: uuid::Uuid::new_v4().to_string(),
        }
    }

    async fn ask(&mut self, method: &str, body: &str) -> Answer {
        let request = Request {
            method,
            path: LOCK,
            token: (method != "GET").then_some(&self.token),
            body,
        };
        let answer = self.connection.ask(request).await;
        let answer = answer.expect("it is answered");
        let is_right = answer.grants() || answer.status == 204;
        assert!(is_right, "{}: {}", answer.status, answer.json());
        answer
    }

    /// Waits for the lock in a task of its own and is handed over together with it.
    fn stand(mut self, granted: &mpsc::UnboundedSender<(Self, Instant)>) {
        let granted = granted.clone();
        tokio::spawn(async move {
            let at = self.ask("POST", WAITING).await.at;
            // At the end nobody takes it any more.
            let _ = granted.send((self, at));
        });
    }
}

/// Asks until so many wait.
async fn until_queued(watcher: &mut Client, length: usize) {
    while watcher.ask("GET", "").await.json()["queue_length"] != length {}
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
}

/// How long an acquire takes that meets nobody.
async fn uncontended(address: SocketAddr) -> Spread {
    let mut client = Client::connect(address).await;
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
    hand_over: Spread,
    /// KiB of memory for each waiter, and CPU time for each second in which nothing happened.
    memory_kib: f64,
    cpu: f64,
}

async fn hand_overs(service: &Service, waiters: usize) -> Measured {
    let mut watcher = Client::connect(service.address).await;
    let mut holder = Client::connect(service.address).await;
    holder.ask("POST", WAITING).await;
    let (tx, mut granted) = mpsc::unbounded_channel();
    let (memory_before, _) = service.costs();
    for _ in 0..waiters {
        Client::connect(service.address).await.stand(&tx);
    }
    until_queued(&mut watcher, waiters).await;
    let (memory, cpu_before) = service.costs();
    sleep(PARKED_FOR).await;
    let (_, cpu) = service.costs();
    let mut took = Vec::new();
    for _ in 0..WARM_UP + ROUNDS {
        let released = holder.ask("DELETE", "").await.at;
        // Back to the end of the line, once the next one is there.
        let (next, at) = granted.recv().await.unwrap();
        took.push(at.saturating_duration_since(released));
        holder.token = uuid::Uuid::new_v4().to_string();
        std::mem::replace(&mut holder, next).stand(&tx);
        until_queued(&mut watcher, waiters).await;
    }
    Measured {
        waiters,
        hand_over: Spread::new(took.split_off(WARM_UP)),
        memory_kib: (memory - memory_before) / waiters as f64,
        cpu: (cpu - cpu_before) / PARKED_FOR.as_secs_f64(),
    }
}

/// Measures one store, prints its part of the table, and returns the figures.
async fn measure(store: &str, url: &str) -> Vec<Value> {
    let mut figures = Vec::new();
    for waiters in WAITERS {
        // A process of its own for each: memory that one has left behind would hide what the next one needs.
        let service = Service::start(url);
        let alone = uncontended(service.address).await;
        let measured = hand_overs(&service, waiters).await;
        let Measured {
            hand_over,
            memory_kib,
            cpu,
            ..
        } = &measured;
        let ratio = |percent| hand_over.micros(percent) / alone.micros(percent);
        println!(
            "{store:8} {:7} {:9.0} {:9.0} {:9.0} {:9.0} {:7.2} {:7.2} {memory_kib:9.1} {:9.2}",
            measured.waiters,
            alone.micros(50),
            alone.micros(99),
            hand_over.micros(50),
            hand_over.micros(99),
            ratio(50),
            ratio(99),
            cpu * 100.0,
        );
        figures.push(json!({
            "store": store,
            "waiters": measured.waiters,
            "uncontended_us": { "p50": alone.micros(50), "p99": alone.micros(99) },
            "hand_over_us": { "p50": hand_over.micros(50), "p99": hand_over.micros(99) },
            "ratio": { "p50": ratio(50), "p99": ratio(99) },
            "memory_per_waiter_kib": memory_kib,
            "cpu_while_parked": cpu,
        }));
    }
    figures
}

async fn run() {
    println!(
        "{:8} {:>7} {:>9} {:>9} {:>9} {:>9} {:>7} {:>7} {:>9} {:>9}",
        "", "", "acquire", "us", "hand-over", "us", "ratio", "", "KiB", "CPU %"
    );
    println!(
        "{:8} {:>7} {:>9} {:>9} {:>9} {:>9} {:>7} {:>7} {:>9} {:>9}",
        "store", "waiters", "p50", "p99", "p50", "p99", "p50", "p99", "a waiter", "parked"
    );
    let mut figures = measure("memory:", "memory:").await;
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    figures.extend(measure("redis://", &format!("redis://{}", redis.address())).await);
    let path = concat!(env!("CARGO_TARGET_TMPDIR"), "/hand_over.json");
    std::fs::write(path, format!("{:#}\n", Value::from(figures))).expect("a place for it");
    println!("written to {path}");
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
