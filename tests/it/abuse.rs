//! What the whole binary endures: clients that are broken, greedy or hostile, and a bystander who must not notice.
//!
//! Every attack is bounded in count and time, and comes from 127.0.0.1; the bystander has an address of its own. What is
//! asserted about time is what people promise their own users: a lease of three seconds is not lost, a probe is answered
//! within a second. Bounds on memory follow from the limits that are configured.

mod browsers;
mod connections;
mod heads;
mod keys;
mod library_log;
mod listings;
mod many_locks;
mod operations;
mod process;
mod unread;
mod unread_log;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::MutexGuard;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use crate::limits::{connect_from, peer};
use crate::process::Serving;
use crate::support::TURN;

/// What a probe has to be answered within.
const PROBE: Duration = Duration::from_secs(1);
/// The lease that the bystander must not lose.
const LEASE: &str = "ttl=3s";
const MIB: usize = 1024 * 1024;

/// The binary under attack.
struct Attacked {
    serving: Serving,
    address: SocketAddr,
    _turn: MutexGuard<'static, ()>,
}

impl Attacked {
    /// One at a time: an attack on one is not to starve the bystander of another.
    async fn start(arguments: &[&str]) -> Self {
        let turn = TURN.lock().await;
        let quiet = ["--log-requests", "off", "--server-drain-delay", "0s"];
        let serving = Serving::start(&[&quiet, arguments].concat());
        let address = serving.url.strip_prefix("http://").unwrap();
        Self {
            address: address.parse().unwrap(),
            serving,
            _turn: turn,
        }
    }

    /// Resident memory in bytes.
    fn memory(&self) -> usize {
        let status = self.proc("status");
        let line = status.lines().find(|line| line.starts_with("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().nth(1));
        kib.unwrap().parse::<usize>().unwrap() * 1024
    }

    /// CPU time, in the kernel and outside of it.
    fn cpu(&self) -> Duration {
        let stat = self.proc("stat");
        let fields: Vec<_> = stat
            .rsplit(')')
            .next()
            .unwrap()
            .split_whitespace()
            .collect();
        // utime and stime, counted from the field behind the name, in ticks of which a second has a hundred.
        let ticks: u64 = [11, 12]
            .map(|at: usize| fields[at].parse::<u64>().unwrap())
            .iter()
            .sum();
        Duration::from_millis(ticks * 10)
    }

    fn proc(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.serving.pid())).unwrap()
    }

    /// How often a limit has refused or ended something.
    async fn refused(&self, limit: &str) -> f64 {
        let metrics = ask(self.address, "GET", "/metrics", "")
            .await
            .expect("an answer");
        let series = format!("leasehold_refused_total{{limit=\"{limit}\"}} ");
        let line = metrics
            .1
            .lines()
            .find_map(|line| line.strip_prefix(&series));
        line.unwrap_or_else(|| panic!("no {series}"))
            .parse()
            .unwrap()
    }

    fn bystander(&self) -> Bystander {
        let ends = Arc::new(AtomicBool::new(false));
        let cycles = tokio::spawn(bystand(self.address, Arc::clone(&ends)));
        Bystander { ends, cycles }
    }
}

/// A client that holds a lock, uses others, and asks whether the process lives.
struct Bystander {
    ends: Arc<AtomicBool>,
    cycles: JoinHandle<usize>,
}

impl Bystander {
    /// Fails if the bystander has noticed anything.
    async fn noticed_nothing(self) {
        self.ends.store(true, Ordering::Relaxed);
        let cycles = self.cycles.await.expect("the bystander noticed");
        assert!(cycles > 0, "the bystander did nothing");
    }
}

async fn bystand(address: SocketAddr, ends: Arc<AtomicBool>) -> usize {
    let held = expect(address, "POST", "/locks/bystander", LEASE, 201).await;
    let held: serde_json::Value = serde_json::from_str(&held).unwrap();
    let token = format!("token={}&{LEASE}", held["token"].as_str().unwrap());
    let mut cycles = 0;
    loop {
        let is_last = ends.load(Ordering::Relaxed);
        // A machine that is busy with other tests may let one probe wait, but hardly the next one too.
        let took = [probe(address).await, probe(address).await];
        assert!(
            took.iter().any(|took| *took < PROBE),
            "probes took {took:?}"
        );
        let other = expect(address, "POST", "/locks/other", LEASE, 201).await;
        expect(address, "PUT", "/locks/bystander", &token, 200).await;
        let other: serde_json::Value = serde_json::from_str(&other).unwrap();
        let other = format!("token={}", other["token"].as_str().unwrap());
        expect(address, "DELETE", "/locks/other", &other, 204).await;
        cycles += 1;
        if is_last {
            return cycles;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn probe(address: SocketAddr) -> Duration {
    let asked = Instant::now();
    expect(address, "GET", "/livez", "", 200).await;
    asked.elapsed()
}

async fn expect(address: SocketAddr, method: &str, path: &str, form: &str, status: u16) -> String {
    let (answered, body) = ask(address, method, path, form)
        .await
        .unwrap_or_else(|error| panic!("{method} {path}: {error}"));
    assert_eq!(answered, status, "{method} {path}: {body}");
    body
}

/// Asks as the bystander does, on a connection of its own, and returns status and body.
async fn ask(
    address: SocketAddr,
    method: &str,
    path: &str,
    form: &str,
) -> std::io::Result<(u16, String)> {
    let asked = async {
        let mut stream = connect_from(peer(9), address).await?;
        let length = form.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{form}"
        );
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let status = answer.get(9..12).and_then(|status| status.parse().ok());
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        Ok((status.unwrap_or(0), body.to_owned()))
    };
    timeout(Duration::from_secs(5), asked).await?
}

/// An idle connection of the attacker's.
async fn connect(address: SocketAddr) -> TcpStream {
    connect_from(peer(1), address).await.unwrap()
}
