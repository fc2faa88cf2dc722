//! What the whole binary endures: clients that are broken, greedy or hostile, and a bystander who must not notice.
//!
//! Every attack is bounded in count and time, and comes from 127.0.0.1; the bystander has an address of its own. What is
//! asserted about time is what people promise their own users: a lease of three seconds is not lost, a probe is answered
//! within a second. Bounds on memory follow from the limits that are configured. `scripts/abuse` runs the attacks in full
//! size, and also judges how much slower the bystander was and whether memory was given back.

mod browsers;
mod bystander;
mod connections;
mod frames;
mod heads;
mod kept;
mod keys;
mod library_log;
mod listings;
mod many_locks;
mod operations;
mod process;
mod unread;
mod unread_log;

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::MutexGuard;
use tokio::time::timeout;

use crate::limits::{connect_from, peer};
use crate::process::Serving;
use crate::support::{TURN, eventually_within};

use bystander::{Bystander, expect};

/// What a probe has to be answered within.
const PROBE: Duration = Duration::from_secs(1);
/// What the process may keep of the memory that an attack made it take, and how soon the rest is given back.
const KEPT: usize = 32 * MIB;
const GIVEN_BACK: Duration = Duration::from_secs(30);
const MIB: usize = 1024 * 1024;

/// The binary under attack.
struct Attacked {
    serving: Serving,
    address: SocketAddr,
    /// Its resident memory before anything was asked for.
    at_rest: usize,
    _turn: MutexGuard<'static, ()>,
}

impl Attacked {
    /// One at a time: an attack on one is not to starve the bystander of another.
    async fn start(arguments: &[&str]) -> Self {
        let turn = TURN.lock().await;
        let quiet = ["--log-requests", "off", "--server-drain-delay", "0s"];
        let serving = Serving::start(&[&quiet, arguments].concat());
        let mut attacked = Self {
            address: serving.address(),
            serving,
            at_rest: 0,
            _turn: turn,
        };
        attacked.at_rest = attacked.memory();
        attacked
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
        Bystander::start(self.address).await
    }

    /// Once the attackers are gone, what they made the process take is given back. Only what ships has an allocator of which
    /// this can be said, so only a full run looks.
    async fn gives_memory_back(&self) {
        if !is_full() {
            return;
        }
        let (most, bound) = (self.memory(), self.at_rest + KEPT);
        let after = eventually_within(GIVEN_BACK, "memory is given back", async || {
            // What a process that does nothing has freed is given back when it does something again.
            ask(self.address, "GET", "/livez", "").await.ok()?;
            let left = self.memory();
            (left <= bound).then_some(left)
        })
        .await;
        let [rest, most, after] = [self.at_rest, most, after].map(|bytes| bytes / MIB);
        println!(
            "memory: {rest} MiB before, {most} MiB at the end of the attack, {after} MiB after"
        );
    }
}

/// Whether an attack has its full size, and the bystander is timed: `scripts/abuse`, on a machine that does nothing else.
#[allow(
    clippy::disallowed_methods,
    reason = "a knob of the tests is no configuration of the service"
)]
fn is_full() -> bool {
    std::env::var("LEASEHOLD_ABUSE").is_ok_and(|size| size == "full")
}

/// How many there are of something, by default and in full.
fn size(usual: usize, full: usize) -> usize {
    if is_full() { full } else { usual }
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
