//! Processes that are measured: how they are started, what they cost, and how they end.

use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::sleep;

use crate::http1::{Answer, Connection, Request};

/// Ticks of `/proc` in a second, on every Linux there is.
const TICKS_PER_SECOND: f64 = 100.0;
const PAGE_KIB: f64 = 4.0;
/// Of the time of all cores, in a measurement that counts. A quiet host takes less than half a percent.
const STOLEN_MAX: f64 = 0.02;
const ATTEMPTS: usize = 5;

/// A process that serves HTTP until this is dropped.
pub(crate) struct Served {
    child: Child,
    scheme: &'static str,
    pub(crate) address: SocketAddr,
    _directory: Option<TempDir>,
}

impl Served {
    /// The service with everything at its default, but for `flags`.
    pub(crate) fn leasehold(store: &str, flags: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
        command.args([
            "--listen",
            "127.0.0.1:0",
            "--store",
            store,
            "--log-format",
            "json",
        ]);
        Self::announced(command.args(flags).env_clear())
    }

    /// One of the handlers in `contestants`.
    pub(crate) fn contestant(name: &str, redis: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        Self::announced(command.args(["serve", name, redis]))
    }

    /// A process that says on its standard output where it listens.
    fn announced(command: &mut Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .expect("it was built");
        let stdout = child.stdout.take().unwrap();
        let (tx, rx) = std::sync::mpsc::channel();
        // On a thread of its own: a process whose log nobody takes stands still.
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                for scheme in ["http", "https"] {
                    if let Some((_, rest)) = line.split_once(&format!("{scheme}://")) {
                        let end = rest.find(['"', '/']).unwrap_or(rest.len());
                        let _ = tx.send((scheme, rest[..end].to_owned()));
                    }
                }
            }
        });
        let (scheme, address) = rx
            .recv_timeout(Duration::from_secs(10))
            .expect("it says where it listens");
        Self {
            child,
            scheme,
            address: address.parse().unwrap(),
            _directory: None,
        }
    }

    /// An etcd of one node with its data in a directory, and a lease that lasts as long as it does.
    pub(crate) async fn etcd(directory: TempDir) -> (Self, String) {
        let (client, peer) = (free_address(), free_address());
        let [client_url, peer_url] = [client, peer].map(|address| format!("http://{address}"));
        let served = Self::etcd_member(
            client,
            directory,
            &[
                ("--listen-client-urls", &client_url),
                ("--advertise-client-urls", &client_url),
                ("--listen-peer-urls", &peer_url),
                ("--initial-advertise-peer-urls", &peer_url),
                ("--initial-cluster", &format!("default={peer_url}")),
            ],
        );
        for _ in 0..200 {
            if let Ok(answer) = served.post("/v3/lease/grant", r#"{"TTL":3600}"#).await
                && let Some(lease) = answer.json()["ID"].as_str()
            {
                return (served, lease.to_owned());
            }
            sleep(Duration::from_millis(50)).await;
        }
        panic!("etcd does not grant a lease");
    }

    /// A process of etcd that serves clients at this address.
    pub(crate) fn etcd_member(
        client: SocketAddr,
        directory: TempDir,
        flags: &[(&str, &str)],
    ) -> Self {
        let child = Command::new("etcd")
            .args(["--log-level", "error", "--data-dir"])
            .arg(directory.path())
            .args(flags.iter().flat_map(|(flag, value)| [*flag, *value]))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("etcd is installed (scripts/bench does it)");
        Self {
            child,
            scheme: "http",
            address: client,
            _directory: Some(directory),
        }
    }

    pub(crate) async fn post(&self, path: &str, body: &str) -> std::io::Result<Answer> {
        let mut connection = Connection::open(self.address).await?;
        let token = None;
        connection
            .ask(Request {
                method: "POST",
                path,
                token,
                body,
            })
            .await
    }

    pub(crate) fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An address of which nobody else knows.
pub(crate) fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
}

/// The CPU time in seconds that a process has used so far.
pub(crate) fn cpu_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // After the name in parentheses: the 14th and 15th fields are user and system time.
    let fields = stat.rsplit_once(") ").unwrap().1.split(' ');
    let ticks: f64 = fields.skip(11).take(2).map(number).sum();
    ticks / TICKS_PER_SECOND
}

/// Resident memory in KiB.
pub(crate) fn resident_kib(pid: u32) -> f64 {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    statm.split(' ').nth(1).map(number).unwrap() * PAGE_KIB
}

fn number(text: &str) -> f64 {
    text.trim().parse().unwrap()
}

/// The least disturbed of a few measurements: the first during which a virtual machine had its cores for itself, if there is
/// one. What the host gave to others meanwhile would be measured otherwise, and nobody knows for which contestant.
pub(crate) async fn undisturbed<T>(mut measure: impl AsyncFnMut() -> T) -> T {
    let mut least: Option<(f64, T)> = None;
    for _ in 0..ATTEMPTS {
        let (before, found, after) = (cpu_ticks(), measure().await, cpu_ticks());
        let stolen = (after.stolen - before.stolen) / (after.all - before.all).max(1.0);
        if stolen <= STOLEN_MAX {
            return found;
        }
        eprintln!(
            "    disturbed: the host took {:.0} % of the cores' time",
            stolen * 100.0
        );
        if least.as_ref().is_none_or(|(least, _)| stolen < *least) {
            least = Some((stolen, found));
        }
    }
    least.expect("there was an attempt").1
}

/// How the time of all cores was spent since the start of the system.
struct CpuTicks {
    all: f64,
    stolen: f64,
}

/// See `proc_stat(5)`: user, nice, system, idle, iowait, irq, softirq, steal; what follows is contained in these.
fn cpu_ticks() -> CpuTicks {
    let text = std::fs::read_to_string("/proc/stat").unwrap();
    let ticks = text.lines().next().unwrap().split_whitespace().skip(1);
    let ticks: Vec<f64> = ticks.take(8).map(|ticks| ticks.parse().unwrap()).collect();
    CpuTicks {
        all: ticks.iter().sum(),
        stolen: ticks[7],
    }
}

/// What all of this ran on.
pub(crate) fn described() -> Value {
    let first_line = |command: &str, argument: &str| {
        let output = Command::new(command).arg(argument).output();
        let output = output
            .map(|output| [output.stdout, output.stderr].concat())
            .unwrap_or_default();
        String::from_utf8_lossy(&output)
            .lines()
            .next()
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    json!({
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "processor": model.map_or("unknown", |(_, model)| model),
        "kernel": first_line("uname", "-sr"),
        "redis": first_line("redis-server", "--version"),
        "etcd": first_line("etcd", "--version"),
        "wrk": first_line("wrk", "--version"),
        "rustc": leasehold::telemetry::BUILD.rustc,
        "date": first_line("date", "-I"),
    })
}
