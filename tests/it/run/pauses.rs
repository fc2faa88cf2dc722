//! A runner or a guard that is stopped or killed. In each test another run waits for the lock, and its command looks
//! whether that of the first is still there.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Running, is_running, until_gone, until_queued};
use crate::process::Serving;

/// Ignores SIGTERM, so that only a kill ends it.
const STUBBORN: &str = "trap '' TERM; echo $$; while :; do sleep 0.01; done";

/// A run whose lease is short, and the process of its command.
fn holder(serving: &Serving) -> (Running, Pid) {
    let mut running = Running::start(serving, &["-t", "1s", "a", "--", "sh", "-c", STUBBORN]);
    let command = running.pid();
    (running, command)
}

/// Waits in line, and then says whether the process is there.
async fn witness(serving: &Serving, process: Pid) -> Running {
    let script = format!("kill -0 {process} 2>/dev/null && echo overlap || echo alone");
    let running = Running::start(serving, &["a", "--", "sh", "-c", &script]);
    until_queued(serving, "a").await;
    running
}

#[tokio::test]
async fn the_command_of_a_stopped_runner_is_gone_before_another_starts() {
    let serving = Serving::start(&[]);
    let (mut stopped, command) = holder(&serving);
    let mut witness = witness(&serving, command).await;
    stopped.signal(Signal::SIGSTOP);
    assert_eq!(witness.line(), "alone");
    stopped.signal(Signal::SIGCONT);
    assert_eq!(stopped.end(), Some(76));
}

#[tokio::test]
async fn the_command_of_a_stopped_guard_ends_when_the_lease_is_lost() {
    let serving = Serving::start(&[]);
    let (mut running, command) = holder(&serving);
    kill(running.guard(), Signal::SIGSTOP).unwrap();
    super::evict(&serving, "a").await;
    assert_eq!(running.end(), Some(76));
    assert!(!is_running(command));
}

#[tokio::test]
async fn the_command_of_a_killed_runner_is_gone_before_another_starts() {
    let serving = Serving::start(&[]);
    let (mut killed, command) = holder(&serving);
    let mut witness = witness(&serving, command).await;
    killed.signal(Signal::SIGKILL);
    assert_eq!(witness.line(), "alone");
    killed.end();
}

/// The shell makes groups of their own for its jobs, as an interactive one does.
#[tokio::test]
async fn jobs_of_a_killed_runner_end_too() {
    let serving = Serving::start(&[]);
    let script = format!("set -m; sh -c \"{}\" & wait", STUBBORN.replace('$', "\\$"));
    let arguments = ["-t", "1s", "a", "--", "sh", "-c", &script];
    let mut running = Running::start(&serving, &arguments);
    let job = running.pid();
    running.signal(Signal::SIGKILL);
    until_gone(job).await;
}

#[tokio::test]
async fn a_runner_whose_guard_is_killed_kills_the_command() {
    let serving = Serving::start(&[]);
    let (mut running, command) = holder(&serving);
    kill(running.guard(), Signal::SIGKILL).unwrap();
    assert_eq!(running.end(), Some(70));
    assert!(!is_running(command));
    assert_eq!(super::state(&serving, "a").await["state"], "free");
}
