//! Runs each of the examples, with several instances at once, against a service of its own.

mod refusals;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;
use tokio::time::Instant;

use crate::process::Serving;
use crate::support::eventually;

/// Logs that it is in, stays until the test opens the gate, and logs that it is out.
const STAY: &str = "echo in $0 >>log; until [ -e go ]; do sleep 0.02; done; echo out $0 >>log";
/// Logs that it leads, and that it was stopped. It ends with its parent, so that a failed test leaves none behind.
const LEAD: &str = "trap 'echo stopped $$ >>log; exit' TERM; echo leads $$ $LEASEHOLD_FENCING_TOKEN >>log; \
    while kill -0 $PPID; do sleep 0.02; done";

/// A directory for commands to write to.
struct Stage {
    directory: TempDir,
    url: String,
}

/// A running script. Dropping this kills the script and everything that it started.
struct Run(Child);

impl Stage {
    fn new(url: &str) -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            url: url.to_owned(),
        }
    }

    fn run(&self, script: &str, ttl_s: u32, arguments: &[&str]) -> Run {
        Run(self.command(script, ttl_s, arguments).spawn().unwrap())
    }

    fn command(&self, script: &str, ttl_s: u32, arguments: &[&str]) -> Command {
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
        let mut command = Command::new(examples.join(script));
        command
            .args(arguments)
            .envs([("LEASEHOLD_URL", self.url.as_str()), ("no_proxy", "*")])
            .env("TTL_S", ttl_s.to_string())
            .current_dir(&self.directory)
            .stdin(Stdio::null())
            .process_group(0);
        command
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The log of the commands, by line and word.
    fn log(&self) -> Vec<Vec<String>> {
        let log = fs::read_to_string(self.path("log")).unwrap_or_default();
        let words = |line: &str| line.split(' ').map(str::to_owned).collect();
        log.lines().map(words).collect()
    }

    async fn log_of(&self, lines: usize) -> Vec<Vec<String>> {
        eventually("the commands say so much", async || {
            Some(self.log()).filter(|log| log.len() >= lines)
        })
        .await
    }

    async fn lock(&self, name: &str) -> Value {
        let url = format!("{}/locks/{name}", self.url);
        reqwest::get(url).await.unwrap().json().await.unwrap()
    }

    async fn queue_of(&self, name: &str, length: u64) {
        eventually("so many wait", async || {
            (self.lock(name).await["queue_length"] == length).then_some(())
        })
        .await;
    }

    async fn is_free(&self, name: &str) {
        eventually("the lock is free", async || {
            (self.lock(name).await["state"] == "free").then_some(())
        })
        .await;
    }

    async fn is_renewed(&self, name: &str) {
        let end = async || self.lock(name).await["holders"][0]["expires_at"].clone();
        let first_end = end().await;
        assert!(first_end.is_string(), "{name} is held");
        eventually("the lease is renewed", async || {
            (end().await.as_str()? > first_end.as_str()?).then_some(())
        })
        .await;
    }

    async fn evict(&self, name: &str) {
        let url = format!("{}/locks/{name}?force=true", self.url);
        let evicted = reqwest::Client::new().delete(url).send().await.unwrap();
        assert_eq!(evicted.status(), 200);
    }

    /// Opens the gate: all commands end.
    fn open(&self) {
        fs::write(self.path("go"), "").unwrap();
    }
}

impl Run {
    async fn end(&mut self) -> ExitStatus {
        eventually("the script ends", async || self.0.try_wait().unwrap()).await
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.0.id()).unwrap())
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // Fails if it has ended already, which is fine.
        let _ = killpg(self.pid(), Signal::SIGKILL);
        let _ = self.0.wait();
    }
}

/// The number of commands inside after each line.
fn inside_counts(log: &[Vec<String>]) -> Vec<i32> {
    let steps = log.iter().map(|line| if line[0] == "in" { 1 } else { -1 });
    let inside_counts = steps.scan(0, |inside, step| {
        *inside += step;
        Some(*inside)
    });
    inside_counts.collect()
}

/// Kills a leader's command, which is a process group of its own.
fn kill_command(log_line: &[String]) {
    let pid = log_line[1].parse().unwrap();
    killpg(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
}

#[tokio::test]
async fn a_job_that_five_start_at_once_is_run_by_one() {
    let serving = Serving::start(&[]);
    let stage = Stage::new(&serving.url);
    let job = [
        "nightly",
        "1m",
        "sh",
        "-c",
        "echo $LEASEHOLD_FENCING_TOKEN >>log",
    ];
    let mut runs: Vec<_> = (0..5).map(|_| stage.run("run-once.sh", 30, &job)).collect();
    for run in &mut runs {
        assert!(run.end().await.success());
    }
    let log = stage.log();
    assert_eq!(log.len(), 1, "{log:?}");
    assert!(log[0][0].parse::<u64>().unwrap() > 0);
    // A machine whose clock is late finds the lock still closed.
    assert_eq!(stage.lock("nightly").await["state"], "cooling");
    assert!(stage.run("run-once.sh", 30, &job).end().await.success());
    assert_eq!(stage.log().len(), 1);
}

#[tokio::test]
async fn the_status_of_a_job_is_the_status_of_the_script() {
    let serving = Serving::start(&[]);
    let stage = Stage::new(&serving.url);
    let job = ["failing/job", "100ms", "sh", "-c", "exit 7"];
    let status = stage.run("run-once.sh", 30, &job).end().await;
    assert_eq!(status.code(), Some(7));
    let refused = ["no name", "1m", "true"];
    let status = stage.run("run-once.sh", 30, &refused).end().await;
    assert_eq!(status.code(), Some(64));
}

#[tokio::test]
async fn a_job_is_renewed_and_stopped_when_its_lease_is_lost() {
    let serving = Serving::start(&[]);
    let stage = Stage::new(&serving.url);
    let mut run = stage.run("run-once.sh", 2, &["long", "1s", "sh", "-c", STAY, "job"]);
    stage.log_of(1).await;
    stage.is_renewed("long").await;
    stage.evict("long").await;
    let status = run.end().await;
    assert_eq!(status.code(), Some(128 + Signal::SIGTERM as i32));
    assert_eq!(stage.log().len(), 1, "it did not come to its end");
}

#[tokio::test]
async fn a_semaphore_of_two_has_two_inside_and_never_three() {
    let serving = Serving::start(&[]);
    let stage = Stage::new(&serving.url);
    let mut runs: Vec<_> = ["a", "b", "c", "d", "e"]
        .map(|name| stage.run("semaphore.sh", 30, &["gpu", "2", "sh", "-c", STAY, name]))
        .into();
    stage.log_of(2).await;
    stage.queue_of("gpu", 3).await;
    assert_eq!(stage.log().len(), 2);
    stage.open();
    for run in &mut runs {
        assert!(run.end().await.success());
    }
    let log = stage.log();
    assert_eq!(log.len(), 10);
    assert_eq!(inside_counts(&log).into_iter().max(), Some(2), "{log:?}");
    assert_eq!(stage.lock("gpu").await["state"], "free");
}

#[tokio::test]
async fn readers_read_together_and_a_writer_writes_alone() {
    let serving = Serving::start(&[]);
    let stage = Stage::new(&serving.url);
    let start = |mode, name| {
        let arguments = [mode, "catalogue", "sh", "-c", STAY, name];
        stage.run("read-write-lock.sh", 30, &arguments)
    };
    let mut runs = vec![start("read", "r1"), start("read", "r2")];
    stage.log_of(2).await;
    runs.push(start("write", "w"));
    stage.queue_of("catalogue", 1).await;
    runs.push(start("read", "r3"));
    stage.queue_of("catalogue", 2).await;
    assert_eq!(stage.log().len(), 2);
    stage.open();
    for run in &mut runs {
        assert!(run.end().await.success());
    }
    let log = stage.log();
    assert_eq!(inside_counts(&log), [1, 2, 1, 0, 1, 0, 1, 0], "{log:?}");
    assert_eq!((&*log[4][1], &*log[6][1]), ("w", "r3"));
}

#[tokio::test]
async fn another_leads_when_the_leader_dies_and_when_it_stops() {
    let serving = Serving::start(&[]);
    let stage = Stage::new(&serving.url);
    let election = ["scheduler", "sh", "-c", LEAD];
    let first = stage.run("leader-election.sh", 60, &election);
    stage.log_of(1).await;
    let mut second = stage.run("leader-election.sh", 60, &election);
    stage.queue_of("scheduler", 1).await;
    let third = stage.run("leader-election.sh", 60, &election);
    stage.queue_of("scheduler", 2).await;

    // Simulates a machine crash: the script, its connection and its command end at once.
    let killed = Instant::now();
    kill_command(&stage.log()[0]);
    drop(first);
    let log = stage.log_of(2).await;
    assert!(
        killed.elapsed() < Duration::from_secs(20),
        "it waited for the TTL"
    );
    assert_eq!(log[1][0], "leads");
    assert!(log[1][2].parse::<u64>().unwrap() > log[0][2].parse::<u64>().unwrap());

    // A leader that gets SIGTERM stops its command first.
    kill(second.pid(), Signal::SIGTERM).unwrap();
    assert_eq!(
        second.end().await.code(),
        Some(128 + Signal::SIGTERM as i32)
    );
    let log = stage.log_of(4).await;
    assert_eq!(log[2], ["stopped", &log[1][1]]);
    assert_eq!(log[3][0], "leads");
    kill_command(&log[3]);
    drop(third);
}

#[tokio::test]
async fn a_leader_that_lost_the_lock_stops_its_command_and_becomes_a_candidate_again() {
    let serving = Serving::start(&[]);
    let stage = Stage::new(&serving.url);
    let mut leader = stage.run("leader-election.sh", 3, &["scheduler", "sh", "-c", LEAD]);
    let log = stage.log_of(1).await;
    stage.evict("scheduler").await;
    let again = stage.log_of(3).await;
    assert_eq!(again[1], ["stopped", &log[0][1]]);
    assert_eq!(again[2][0], "leads");
    assert_ne!(again[2][2], log[0][2], "it is another leadership");

    // The leadership ends with the command.
    kill_command(&again[2]);
    let status = leader.end().await;
    assert_eq!(status.code(), Some(128 + Signal::SIGKILL as i32));
    assert_eq!(status.signal(), None);
    stage.is_free("scheduler").await;
}

/// A killed script cannot stop its command, so the lock must stay held.
#[tokio::test]
async fn a_leader_whose_script_is_killed_leads_as_long_as_its_command() {
    let serving = Serving::start(&[]);
    let stage = Stage::new(&serving.url);
    let election = ["scheduler", "sh", "-c", STAY, "job"];
    let leader = stage.run("leader-election.sh", 3, &election);
    stage.log_of(1).await;
    kill(leader.pid(), Signal::SIGKILL).unwrap();
    stage.is_renewed("scheduler").await;
    stage.open();
    stage.is_free("scheduler").await;
    assert_eq!(stage.log().len(), 2, "the command came to its end");
}

/// Reads a request: its method and its token.
fn read_request(stream: &TcpStream) -> (String, String) {
    let mut reader = BufReader::new(stream);
    let (mut head, mut length) = (Vec::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let line = line.trim_end().to_owned();
        if line.is_empty() {
            break;
        }
        if let Some(bytes) = line.strip_prefix("Content-Length: ") {
            length = bytes.parse().unwrap();
        }
        head.push(line);
    }
    reader.take(length).read_to_end(&mut Vec::new()).unwrap();
    let method = head[0].split(' ').next().unwrap().to_owned();
    let token = head
        .iter()
        .find_map(|line| line.strip_prefix("Lock-Token: "));
    (method, token.unwrap().to_owned())
}

/// Sends these responses to one request after the other, and returns the requests. An empty response closes the
/// connection.
fn answer(listener: &TcpListener, answers: &[&str]) -> Vec<(String, String)> {
    let requests = answers.iter().map(|answer| {
        let (mut stream, _) = listener.accept().unwrap();
        let request = read_request(&stream);
        stream.write_all(answer.as_bytes()).unwrap();
        request
    });
    requests.collect()
}

fn problem(status: u16, code: &str) -> String {
    let body = format!("{{\"status\":{status},\"code\":\"{code}\"}}");
    let length = body.len();
    format!(
        "HTTP/1.1 {status} Refused\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

/// Against a failing service: the script repeats a request of unknown outcome, and resumes a wait, with the same token.
#[tokio::test]
async fn what_is_unclear_is_asked_again_with_the_same_token() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stage = Stage::new(&format!("http://{}", listener.local_addr().unwrap()));
    let service = std::thread::spawn(move || {
        let answers = [
            &*problem(503, "store_unavailable"),
            &problem(423, "wait_timeout"),
            "",
            "HTTP/1.1 201 Created\r\nConnection: close\r\nContent-Length: 19\r\n\r\n{\"fencing_token\":7}",
            &problem(503, "draining"),
            "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n",
        ];
        answer(&listener, &answers)
    });
    let command = [
        "gpu",
        "2",
        "sh",
        "-c",
        "echo $LEASEHOLD_FENCING_TOKEN >>log",
    ];
    let status = stage.run("semaphore.sh", 30, &command).end().await;
    assert!(status.success());
    assert_eq!(stage.log(), [["7"]]);
    let requests = service.join().unwrap();
    let methods: Vec<_> = requests.iter().map(|(method, _)| &**method).collect();
    assert_eq!(
        methods,
        ["POST", "POST", "POST", "POST", "DELETE", "DELETE"]
    );
    assert!(requests.iter().all(|(_, token)| *token == requests[0].1));
}
