//! The whole binary under attack by broken, greedy or hostile clients, while a bystander must not be affected.
//!
//! Every attack is bounded in count and time, and comes from 127.0.0.1; the bystander has an address of its own. The
//! time bounds are what operators promise their users: a lease of three seconds is not lost, a probe gets its response
//! within a second. The memory bounds follow from the configured limits, which are those of the Kubernetes manifests.
//! `scripts/abuse` runs the attacks in full size, and also checks how much slower the bystander became and whether the
//! process freed its memory.
//!
//! Beside a principal that uses up its quota, the bystander is another principal.
//!
//! There is no bystander where Redis stands still, where CPU time is measured, and where nothing but the log or the answers
//! are looked at.

mod bare_handler;
mod browsers;
mod bystander;
mod connections;
mod counted;
mod event_streams;
mod frames;
mod heads;
mod kept;
mod keys;
mod library_log;
mod listings;
mod many_locks;
mod metrics_page;
mod operations;
mod permitted;
mod process;
mod store_time;
mod tenants;
mod together;
mod unread;
mod unread_log;

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use nix::unistd::Pid;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::RwLockWriteGuard;
use tokio::time::timeout;

use crate::limits::{connect_from, peer};
use crate::process::Serving;
use crate::support::{TURN, eventually_within};

use bystander::{Bystander, Use, expect};

/// The deadline of a probe.
const PROBE: Duration = Duration::from_secs(1);
/// How much of the memory of an attack the process may keep, and how soon it must free the rest.
const KEPT: usize = 32 * MIB;
const GIVEN_BACK: Duration = Duration::from_secs(30);
const MIB: usize = 1024 * 1024;

/// The binary under attack.
struct Attacked {
    serving: Serving,
    pid: Pid,
    address: SocketAddr,
    /// Its resident memory before the first request.
    at_rest: usize,
    /// How much more its limits permit.
    permitted: usize,
    _turn: RwLockWriteGuard<'static, ()>,
}

impl Attacked {
    /// One at a time, so that an attack on one server does not starve the bystander of another.
    async fn start(arguments: &[&str]) -> Self {
        let turn = TURN.write().await;
        let quiet = ["--log-requests", "off", "--server-drain-delay", "0s"];
        let flags = permitted::flags(&[&quiet, arguments].concat());
        let (serving, pid) = start(&flags.iter().map(String::as_str).collect::<Vec<_>>());
        let mut attacked = Self {
            address: serving.address(),
            serving,
            pid,
            at_rest: 0,
            permitted: permitted::memory(&flags),
            _turn: turn,
        };
        attacked.at_rest = attacked.memory();
        attacked
    }

    /// Resident memory in bytes.
    fn memory(&self) -> usize {
        self.memory_in("VmRSS:")
    }

    /// The most resident memory that it ever had.
    fn most_memory(&self) -> usize {
        self.memory_in("VmHWM:")
    }

    fn memory_in(&self, field: &str) -> usize {
        let status = self.proc("status");
        let line = status.lines().find(|line| line.starts_with(field));
        let kib = line.and_then(|line| line.split_whitespace().nth(1));
        kib.unwrap().parse::<usize>().unwrap() * 1024
    }

    /// CPU time, in the kernel and in user space.
    fn cpu(&self) -> Duration {
        let stat = self.proc("stat");
        let fields: Vec<_> = stat
            .rsplit(')')
            .next()
            .unwrap()
            .split_whitespace()
            .collect();
        // utime and stime, counted from the field after the name, in ticks of 10 ms.
        let ticks: u64 = [11, 12]
            .map(|at: usize| fields[at].parse::<u64>().unwrap())
            .iter()
            .sum();
        Duration::from_millis(ticks * 10)
    }

    fn proc(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.pid)).unwrap()
    }

    /// How often a limit has refused or ended a request or connection.
    async fn refused(&self, limit: &str) -> f64 {
        let series = format!("leasehold_refused_total{{limit=\"{limit}\"}}");
        self.metric(&series).await
    }

    async fn metric(&self, series: &str) -> f64 {
        let metrics = expect(self.address, "GET", "/metrics", "", 200).await;
        let line = metrics
            .lines()
            .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {series}"))
            .parse()
            .unwrap()
    }

    async fn bystander(&self) -> Bystander {
        Bystander::start(self.address, Use::Locks).await
    }

    /// One that only keeps its lock, for attacks that fill the store.
    async fn holding_bystander(&self) -> Bystander {
        Bystander::start(self.address, Use::ItsLock).await
    }

    /// The process never had more memory than its limits permit, and frees it once the attackers are gone. Only a full run
    /// checks the latter, because only the release binary has an allocator that does so.
    async fn judge_memory(&self) {
        let (most, permitted) = (self.most_memory(), self.at_rest + self.permitted);
        let [most, permitted] = [most, permitted].map(|bytes| bytes / MIB);
        assert!(most <= permitted, "{most} MiB of {permitted}");
        if !is_full() {
            return;
        }
        let bound = self.at_rest + KEPT;
        let after = eventually_within(GIVEN_BACK, "memory is given back", async || {
            // An idle process returns freed memory only when it becomes active again.
            ask(self.address, "GET", "/livez", "").await.ok()?;
            let left = self.memory();
            (left <= bound).then_some(left)
        })
        .await;
        let [rest, after] = [self.at_rest, after].map(|bytes| bytes / MIB);
        println!("memory: {rest} MiB before, {most} MiB at most of {permitted}, {after} MiB after");
    }
}

/// Starts the binary, or the program that `scripts/image` names, which runs it in a container and writes the id of its process
/// to the file with `.pid` at the end.
#[allow(
    clippy::disallowed_methods,
    reason = "a knob of the tests is no configuration of the service"
)]
fn start(flags: &[&str]) -> (Serving, Pid) {
    let Ok(program) = std::env::var("LEASEHOLD_ABUSE_PROGRAM") else {
        let serving = Serving::start(flags);
        let pid = serving.pid();
        return (serving, pid);
    };
    let serving = Serving::start_as(Command::new(&program), flags);
    let pid = std::fs::read_to_string(program + ".pid").unwrap();
    (serving, Pid::from_raw(pid.trim().parse().unwrap()))
}

/// Whether to attack in full size and to time the bystander: `scripts/abuse`, on an otherwise idle machine.
#[allow(
    clippy::disallowed_methods,
    reason = "a knob of the tests is no configuration of the service"
)]
fn is_full() -> bool {
    std::env::var("LEASEHOLD_ABUSE").is_ok_and(|size| size == "full")
}

/// A count: the usual one, or the one of a full run.
fn size(usual: usize, full: usize) -> usize {
    if is_full() { full } else { usual }
}

/// Sends a request as the bystander, on a new connection, and returns status and body.
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

/// An idle connection of the attacker.
async fn connect(address: SocketAddr) -> TcpStream {
    connect_from(peer(1), address).await.unwrap()
}
