//! A runner or a guard that is stopped or killed. In each test another run waits for the lock, and its command looks
//! whether that of the first is still there.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Running, guard_of, is_running, until_gone, until_queued};
use crate::process::Serving;
use crate::support::eventually;

/// Ignores SIGTERM, so that only a kill ends it.
const STUBBORN: &str = "trap '' TERM; echo $$; while :; do sleep 0.01; done";

/// A run whose lease is short, and the process of its command.
fn holder(serving: &Serving) -> (Running, Pid) {
    let mut running = Running::start(serving, &["-t", "1s", "a", "--", "sh", "-c", STUBBORN]);
    let command = running.pid();
    (running, command)
}

/// Waits for the lock, and then says whether the process is there.
async fn witness(serving: &Serving, process: Pid) -> Running {
    // A process that has ended and is not yet reaped is a zombie.
    let script =
        format!("grep -sq '^State:.[^Z]' /proc/{process}/status && echo overlap || echo alone");
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

/// The renewals go on, so only the runner can notice.
#[tokio::test]
async fn the_command_of_a_stopped_guard_is_killed_before_another_starts() {
    let serving = Serving::start(&[]);
    let (mut running, command) = holder(&serving);
    let mut witness = witness(&serving, command).await;
    kill(running.guard(), Signal::SIGSTOP).unwrap();
    assert_eq!(witness.line(), "alone");
    assert_eq!(running.end(), Some(70));
    let printed = running.stderr();
    assert!(
        printed.contains("the guard of the command does not answer"),
        "{printed}"
    );
}

#[tokio::test]
async fn a_stopped_guard_does_not_keep_the_lock_when_the_command_has_ended() {
    let serving = Serving::start(&[]);
    for on_lost in ["kill", "ignore"] {
        let script = "echo $$; while :; do sleep 0.01; done";
        let arguments = [
            "-t",
            "1s",
            "--on-lost",
            on_lost,
            "a",
            "--",
            "sh",
            "-c",
            script,
        ];
        let mut running = Running::start(&serving, &arguments);
        let command = running.pid();
        kill(running.guard(), Signal::SIGSTOP).unwrap();
        kill(command, Signal::SIGKILL).unwrap();
        assert_eq!(running.end(), Some(70), "{on_lost}");
        assert_eq!(super::state(&serving, "a").await["state"], "free");
    }
}

#[tokio::test]
async fn the_command_of_a_killed_guard_is_gone_although_the_runner_is_stopped() {
    let serving = Serving::start(&[]);
    let (mut running, command) = holder(&serving);
    let guard = running.guard();
    let mut witness = witness(&serving, command).await;
    running.signal(Signal::SIGSTOP);
    kill(guard, Signal::SIGKILL).unwrap();
    assert_eq!(witness.line(), "alone");
    running.signal(Signal::SIGCONT);
    assert_eq!(running.end(), Some(76));
}

#[tokio::test]
async fn the_command_is_gone_after_runner_and_guard_are_killed_together() {
    let serving = Serving::start(&[]);
    let (mut running, command) = holder(&serving);
    let guard = running.guard();
    running.signal(Signal::SIGSTOP);
    kill(guard, Signal::SIGKILL).unwrap();
    running.signal(Signal::SIGKILL);
    until_gone(command).await;
    running.end();
}

#[tokio::test]
async fn the_guard_releases_the_lock_of_a_killed_runner() {
    let serving = Serving::start(&[]);
    let script = "echo $$; exec sleep 600";
    let arguments = ["-t", "10m", "a", "b", "--", "sh", "-c", script];
    let mut running = Running::start(&serving, &arguments);
    let command = running.pid();
    running.signal(Signal::SIGKILL);
    for name in ["a", "b"] {
        eventually("the lock is free", async || {
            (super::state(&serving, name).await["state"] == "free").then_some(())
        })
        .await;
    }
    assert!(!is_running(command));
}

#[tokio::test]
async fn the_guard_of_a_nested_run_leaves_the_lock_to_the_outer_one() {
    let serving = Serving::start(&[]);
    let program = env!("CARGO_BIN_EXE_leasehold");
    let inner = format!("{program} run a -- sh -c 'echo $$; exec sleep 600'");
    // The inner command is read from a file, after the number of its runner.
    let script = format!("exec 3< <({inner}); echo $!; cat <&3; exec sleep 600");
    let mut running = Running::start(&serving, &["-t", "10m", "a", "--", "bash", "-c", &script]);
    let (runner, command) = (running.pid(), running.pid());
    let guard = guard_of(runner);
    kill(runner, Signal::SIGKILL).unwrap();
    until_gone(command).await;
    until_gone(guard).await;
    assert_eq!(super::state(&serving, "a").await["state"], "held");
}
