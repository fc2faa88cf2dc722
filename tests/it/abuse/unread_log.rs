//! A log that nobody reads: the pipe fills up, and the service must not notice.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use reqwest::Client;

use crate::process::leasehold;
use crate::support::{EFFECT_TIMEOUT, eventually};

/// A pipe takes 64 KiB and a refusal has a line of some 350 bytes, so this is several times what fits.
const REFUSALS: usize = 800;

/// A server whose log was read up to the line that says where it listens, and no further.
struct Unread {
    child: Child,
    url: String,
    log: Option<BufReader<ChildStdout>>,
}

impl Unread {
    fn start() -> Self {
        let arguments = ["--listen", "127.0.0.1:0", "--log-format", "json"];
        let mut child = leasehold(&arguments)
            .args(["--log-buffer-bytes-max", "8192", "--log-requests", "all"])
            .args(["--server-drain-delay", "0s"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::with_capacity(512, child.stdout.take().unwrap());
        let mut line = String::new();
        log.read_line(&mut line).unwrap();
        let listening: serde_json::Value = serde_json::from_str(&line).unwrap();
        let url = listening["url"].as_str().unwrap().to_owned();
        let log = Some(log);
        Self { child, url, log }
    }

    async fn ended(&mut self) -> ExitStatus {
        eventually("the process ends", async || self.child.try_wait().unwrap()).await
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn client() -> Client {
    // A service that stands still must fail the test and not hang it.
    let timeout = Duration::from_secs(20);
    Client::builder().timeout(timeout).build().unwrap()
}

async fn dropped_lines(client: &Client, url: &str) -> u64 {
    let metrics = client.get(format!("{url}/metrics")).send().await.unwrap();
    let metrics = metrics.text().await.unwrap();
    let line = metrics
        .lines()
        .find_map(|line| line.strip_prefix("leasehold_log_lines_dropped_total "));
    line.expect("the metric").parse().unwrap()
}

/// Takes a lock and is refused it so often that the log overflows; returns the token.
async fn overflow(client: &Client, url: &str) -> String {
    let lock = format!("{url}/locks/a");
    let granted = client.post(&lock).send().await.unwrap();
    let token = granted.headers()["lock-token"].to_str().unwrap().to_owned();
    for _ in 0..REFUSALS {
        let refused = client.post(&lock).send().await.unwrap();
        assert_eq!(refused.status().as_u16(), 423);
    }
    token
}

#[tokio::test]
async fn an_unread_log_stops_neither_answers_nor_renewals_nor_the_end() {
    let mut server = Unread::start();
    let client = client();
    let token = overflow(&client, &server.url).await;
    let alive = client.get(format!("{}/livez", server.url)).send().await;
    assert_eq!(alive.unwrap().status().as_u16(), 200);
    let lock = format!("{}/locks/a", server.url);
    let renewed = client.put(lock).header("Lock-Token", token).send().await;
    assert_eq!(renewed.unwrap().status().as_u16(), 200);
    assert!(dropped_lines(&client, &server.url).await > 0);
    let pid = Pid::from_raw(i32::try_from(server.child.id()).unwrap());
    kill(pid, Signal::SIGTERM).unwrap();
    assert_eq!(server.ended().await.code(), Some(0));
}

/// Reads what is there until the line comes; the log is whole lines all the way.
#[tokio::test]
async fn a_log_that_is_read_again_says_how_many_lines_are_missing() {
    let mut server = Unread::start();
    let client = client();
    overflow(&client, &server.url).await;
    let dropped = dropped_lines(&client, &server.url).await;
    let mut log = server.log.take().unwrap();
    let counted = tokio::task::spawn_blocking(move || {
        let (mut line, mut counted) = (String::new(), 0);
        while counted < dropped && log.read_line(&mut line).unwrap() > 0 {
            let event: serde_json::Value = serde_json::from_str(&line).expect("whole lines");
            // Other warnings have no such number.
            counted += event["lines"].as_u64().unwrap_or(0);
            line.clear();
        }
        counted
    });
    // Too late, the server is killed with the end of the test, and with it the reading ends.
    let counted = tokio::time::timeout(EFFECT_TIMEOUT, counted).await;
    let counted = counted.expect("counted in time").unwrap();
    // The line about the request for the number may be missing, too.
    assert!((dropped..=dropped + 1).contains(&counted), "{counted}");
}
