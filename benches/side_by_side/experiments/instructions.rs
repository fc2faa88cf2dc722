//! The instructions of Redis for each operation that meets nobody, beside scripts that do less. Unlike times, they hold
//! from run to run, whatever else the machine does.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use redis::aio::MultiplexedConnection;
use tempfile::TempDir;
use tokio::time::sleep;

use crate::contestants::LEAST_SCRIPT;
use crate::http1::{Connection, Request};
use crate::machine::{Served, free_address};
use crate::report::Finding;

const NAME: &str = "instructions";
/// What Redis does once, or now and then, cancels out between a short and a long run.
const COUNTS: [usize; 2] = [200, 600];
/// Redis starts slowly under valgrind.
const TRIES: usize = 200;

const EMPTY: &str = "return ''";

pub(super) async fn run() -> Vec<Finding> {
    let control = of_script(LEAST_SCRIPT, [1, 2]).await;
    let empty = of_script(EMPTY, [4, 4]).await;
    let acquire = of_operations(&["POST"]).await;
    let renew = of_operations(&["POST", "PUT"]).await - acquire;
    let release = of_operations(&["POST", "DELETE"]).await - acquire;
    let figure = |name: &str, count: f64| {
        let name = format!("instructions of Redis: {name}");
        Finding::new(NAME, name, "", vec![count.round()])
    };
    let ratio = |name: &str, count: f64, most: f64| {
        let name = format!("{name} over a script of GET, SET and TIME");
        Finding::new(NAME, name, "", vec![count / control]).at_most(most)
    };
    vec![
        ratio("acquire", acquire, 1.2),
        ratio("renew", renew, 1.0),
        ratio("release", release, 1.0),
        figure("acquire", acquire),
        figure("renew", renew),
        figure("release", release),
        figure("a script of GET, SET and TIME", control),
        figure("an empty script with as many keys as acquire", empty),
    ]
}

/// A Redis whose instructions are counted.
struct Counted {
    child: Child,
    url: String,
    directory: TempDir,
}

impl Counted {
    async fn start() -> (Self, MultiplexedConnection) {
        let (address, directory) = (free_address(), tempfile::tempdir().unwrap());
        let child = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=counts"])
            .args(["redis-server", "--save", "", "--hz", "1", "--port"])
            .arg(address.port().to_string())
            .current_dir(&directory)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("valgrind is installed (scripts/bench does it)");
        let url = format!("redis://{address}");
        let redis = Self {
            child,
            url,
            directory,
        };
        let client = redis::Client::open(redis.url.as_str()).unwrap();
        for _ in 0..TRIES {
            if let Ok(connection) = client.get_multiplexed_async_connection().await {
                return (redis, connection);
            }
            sleep(Duration::from_millis(50)).await;
        }
        panic!("Redis does not start under valgrind");
    }

    /// Ends it, and returns how many instructions it has executed.
    fn end(mut self) -> f64 {
        let pid = i32::try_from(self.child.id()).unwrap();
        kill(Pid::from_raw(pid), Signal::SIGTERM).unwrap();
        self.child.wait().unwrap();
        let counts: PathBuf = self.directory.path().join("counts");
        let counts = std::fs::read_to_string(counts).unwrap();
        let count = counts
            .lines()
            .find_map(|line| line.strip_prefix("summary: "));
        count.and_then(|count| count.parse().ok()).unwrap()
    }
}

fn for_each(totals: [f64; 2]) -> f64 {
    (totals[1] - totals[0]) / (COUNTS[1] - COUNTS[0]) as f64
}

/// For one call of a script with this many keys and arguments.
async fn of_script(text: &str, [keys, arguments]: [usize; 2]) -> f64 {
    let mut totals = [0.0; 2];
    for (count, total) in COUNTS.into_iter().zip(&mut totals) {
        let (redis, mut connection) = Counted::start().await;
        let mut load = redis::cmd("SCRIPT");
        let load = load.arg("LOAD").arg(text);
        let sha: String = load.query_async(&mut connection).await.unwrap();
        for number in 0..count {
            let mut call = redis::cmd("EVALSHA");
            call.arg(&sha).arg(keys);
            for key in 0..keys {
                call.arg(format!("lh:1:{{897}}:{key}:orders-{number:06}"));
            }
            for _ in 0..arguments {
                call.arg("120000");
            }
            let _: redis::Value = call.query_async(&mut connection).await.unwrap();
        }
        *total = redis.end();
    }
    for_each(totals)
}

/// For these operations on one lock.
async fn of_operations(methods: &[&str]) -> f64 {
    let mut totals = [0.0; 2];
    for (count, total) in COUNTS.into_iter().zip(&mut totals) {
        let (redis, connection) = Counted::start().await;
        drop(connection);
        let flags = ["--redis-check-interval", "1h"];
        let served = Served::leasehold(&redis.url, &flags);
        let mut client = Connection::open(served.address).await.unwrap();
        for number in 0..count {
            let path = format!("/locks/orders-{number:06}");
            let token = format!("6f1c3b0e-8f0a-4f57-9c55-{number:012}");
            for method in methods {
                let request = Request {
                    method,
                    path: &path,
                    token: Some(&token),
                    body: "",
                };
                let status = client.ask(request).await.unwrap().status;
                assert!(matches!(status, 200 | 201 | 204), "{status}");
            }
        }
        drop(served);
        *total = redis.end();
    }
    for_each(totals)
}
