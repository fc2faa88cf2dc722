//! A lease that is lost while the command runs.

use std::process::{Child, Stdio};

use nix::sys::signal::{Signal, kill};

use super::{Running, evict, is_running, until_held};
use crate::process::{Serving, leasehold};
use crate::support::eventually;

#[tokio::test]
async fn an_evicted_run_ends_its_command_and_exits_76() {
    let serving = Serving::start(&[]);
    let script = "trap 'echo asked; exit 0' TERM; echo $$; while :; do sleep 0.01; done";
    let arguments = ["-t", "1s", "a", "--", "sh", "-c", script];
    let mut running = Running::start(&serving, &arguments);
    let command = running.pid();
    evict(&serving, "a").await;
    assert_eq!(running.line(), "asked");
    assert_eq!(running.end(), Some(76));
    assert!(!is_running(command));
    let printed = running.stderr();
    assert!(printed.contains("the lock is lost"), "{printed}");
}

/// The command, a child in its group, one in a group of its own and one in a session of its own, and all ignore SIGTERM.
#[tokio::test]
async fn processes_that_ignore_the_request_to_end_are_killed() {
    let serving = Serving::start(&[]);
    let stubborn = "trap \"\" TERM; echo $$; while :; do sleep 0.01; done";
    let script = format!(
        "sh -c '{stubborn}' & setsid sh -c '{stubborn}' & timeout 60 sh -c '{stubborn}' & {stubborn}"
    );
    let arguments = ["-t", "1s", "a", "--", "sh", "-c", &script];
    let mut running = Running::start(&serving, &arguments);
    let processes = [(); 4].map(|()| running.pid());
    evict(&serving, "a").await;
    assert_eq!(running.end(), Some(76));
    for process in processes {
        assert!(!is_running(process), "{process}");
    }
}

/// Without the flag this command had 600 ms.
#[tokio::test]
async fn a_command_has_as_long_to_end_as_it_was_given() {
    let serving = Serving::start(&[]);
    let script =
        "trap 'sleep 1; echo cleaned up; exit' TERM; echo $$; while :; do sleep 0.01; done";
    let arguments = ["-t", "3s", "--kill-after", "1500ms", "a", "--"];
    let arguments = [&arguments[..], &["sh", "-c", script]].concat();
    let mut running = Running::start(&serving, &arguments);
    running.pid();
    evict(&serving, "a").await;
    assert_eq!(running.line(), "cleaned up");
    assert_eq!(running.end(), Some(76));
}

#[tokio::test]
async fn a_run_may_go_on_without_its_lease_and_says_so() {
    let serving = Serving::start(&[]);
    let script = "echo ready; read line; echo done";
    let mut command = super::run(
        &serving,
        &[
            "-t",
            "300ms",
            "--on-lost",
            "ignore",
            "a",
            "--",
            "sh",
            "-c",
            script,
        ],
    );
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until_held(&serving, "a").await;
    evict(&serving, "a").await;
    let mut printed = std::io::BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut printed, &mut line).unwrap();
    assert!(line.contains("goes on without it"), "{line}");
    drop(child.stdin.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.stdout, b"ready\ndone\n");
    assert_eq!(output.status.code(), Some(76));
}

/// A stopped server answers nothing, and to a killed one nobody can connect.
#[tokio::test]
async fn without_any_answer_the_command_is_gone_before_the_lease_is_over() {
    for signal in [Signal::SIGSTOP, Signal::SIGKILL] {
        is_gone_before_the_lease_is_over(signal).await;
    }
}

async fn is_gone_before_the_lease_is_over(signal: Signal) {
    let serving = Serving::start(&[]);
    let script = "echo $$; trap '' TERM; while :; do sleep 0.01; done";
    let arguments = ["-t", "2s", "a", "--", "sh", "-c", script];
    let mut running = Running::start(&serving, &arguments);
    let command = running.pid();
    let expiry = super::state(&serving, "a").await["holders"][0]["expires_at"].clone();
    let expiry = humantime::parse_rfc3339(expiry.as_str().unwrap()).unwrap();
    // From here on no renewal can move the end of the lease.
    serving.signal(signal);
    let gone_at = eventually("the command is gone", async || {
        (!is_running(command)).then(std::time::SystemTime::now)
    })
    .await;
    if signal == Signal::SIGSTOP {
        serving.signal(Signal::SIGCONT);
    }
    assert!(
        gone_at < expiry + TTL_AFTER_A_RENEWAL,
        "{signal}: {gone_at:?} {expiry:?}"
    );
    assert_eq!(running.end(), Some(76));
}

/// One renewal may have moved the end of the lease after it was read.
const TTL_AFTER_A_RENEWAL: std::time::Duration = std::time::Duration::from_secs(2);

/// A server on a given address, killed when it is dropped.
pub(crate) struct Replacement(Child);

impl Replacement {
    pub(crate) fn start(address: &str, arguments: &[&str]) -> Self {
        let mut command = leasehold(&[&["--listen", address], arguments].concat());
        Self(command.stdout(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn a_server_that_is_replaced_costs_no_lease() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("file:{}", directory.path().display());
    let mut serving = Serving::start(&["--store", &store]);
    let address = serving.address().to_string();
    let signs = tempfile::tempdir().unwrap();
    let file = signs.path().join("go");
    let script = format!(
        "echo ready; while [ ! -e {} ]; do sleep 0.01; done",
        file.display()
    );
    let arguments = ["-v", "-t", "3s", "a", "--", "sh", "-c", &script];
    let mut running = Running::start(&serving, &arguments);
    assert_eq!(running.line(), "ready");
    kill(serving.pid(), Signal::SIGKILL).unwrap();
    serving.wait();
    let _replacement = Replacement::start(&address, &["--store", &store]);
    let renewals = format!("http://{address}/metrics");
    eventually("the replacement renews the lease", async || {
        let metrics = reqwest::get(&renewals).await.ok()?.text().await.ok()?;
        let renewed = metrics
            .lines()
            .find(|line| line.starts_with("leasehold_renewals_total") && line.contains("\"ok\""))?;
        (!renewed.ends_with(" 0")).then_some(())
    })
    .await;
    std::fs::write(&file, "").unwrap();
    assert_eq!(running.end(), Some(0), "{}", running.stderr());
}
