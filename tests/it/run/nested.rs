//! A run within the command of another run of the same lock, or with the environment of one.

use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Running, assert_code, is_running, output, run, state, until_gone};
use crate::process::Serving;

const PROGRAM: &str = env!("CARGO_BIN_EXE_leasehold");

#[tokio::test]
async fn a_nested_run_of_the_same_lock_re_enters() {
    let serving = Serving::start(&[]);
    let arguments = [
        "a", "--", PROGRAM, "run", "a", "--", PROGRAM, "run", "a", "--",
    ];
    let script = "echo $LEASEHOLD_HOLD_COUNT $LEASEHOLD_LOCK_NAME";
    let nested = output(&serving, &[&arguments[..], &["sh", "-c", script]].concat());
    assert_code(&nested, 0);
    assert_eq!(nested.stdout, b"3 a\n");
    assert_eq!(state(&serving, "a").await["state"], "free");
}

#[test]
fn a_nested_run_of_one_of_the_locks_re_enters() {
    let serving = Serving::start(&[]);
    let arguments = ["a", "b", "--", PROGRAM, "run", "b", "--", "echo", "inside"];
    let nested = output(&serving, &arguments);
    assert_code(&nested, 0);
    assert_eq!(nested.stdout, b"inside\n");
}

#[tokio::test]
async fn the_outer_run_still_holds_after_a_nested_one() {
    let serving = Serving::start(&[]);
    let script = format!("{PROGRAM} run a -- true; curl -s $LEASEHOLD_URL/locks/a");
    let outer = output(&serving, &["a", "--", "sh", "-c", &script]);
    let lock: serde_json::Value = serde_json::from_slice(&outer.stdout).unwrap();
    assert_eq!(lock["state"], "held", "{outer:?}");
    assert_eq!(lock["holders"][0]["hold_count"], 1);
}

#[test]
fn a_nested_run_that_wants_more_locks_is_refused_instead_of_waiting_for_ever() {
    let serving = Serving::start(&[]);
    let arguments = ["a", "--", PROGRAM, "run", "a", "b", "--", "true"];
    assert_code(&output(&serving, &arguments), 64);
}

#[test]
fn a_nested_run_of_another_lock_takes_it() {
    let serving = Serving::start(&[]);
    let arguments = ["a", "--", PROGRAM, "run", "-n", "b", "--", "true"];
    assert_code(&output(&serving, &arguments), 0);
}

/// The environment of the command of a run that has ended, as a daemon keeps it.
fn left_over(serving: &Serving) -> Vec<(String, String)> {
    let output = output(serving, &["a", "--", "env"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let variables = text.lines().filter_map(|line| line.split_once('='));
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
    variables.collect()
}

#[tokio::test]
async fn the_environment_of_a_run_that_has_ended_gives_no_claim() {
    let serving = Serving::start(&[]);
    let left_over = left_over(&serving);
    let script = "echo $LEASEHOLD_LOCK_TOKEN; cat";
    let mut holder = run(&serving, &["-n", "a", "--", "sh", "-c", script]);
    let holder = holder.envs(left_over.clone()).stdin(Stdio::piped());
    let mut holder = Running::of(holder);
    let (_, inherited) = left_over
        .iter()
        .find(|(name, _)| name == "LEASEHOLD_LOCK_TOKEN")
        .unwrap();
    assert_ne!(&holder.line(), inherited);
    let mut second = run(&serving, &["-n", "a", "--", "true"]);
    assert_code(&second.envs(left_over).output().unwrap(), 75);
    drop(holder.child.stdin.take());
    assert_eq!(holder.end(), Some(0));
}

#[tokio::test]
async fn an_environment_that_somebody_made_up_gives_no_claim() {
    let serving = Serving::start(&[]);
    let made_up = [
        ("LEASEHOLD_LOCK_NAME", "a"),
        (
            "LEASEHOLD_LOCK_TOKEN",
            "11111111-1111-4111-8111-111111111112",
        ),
        ("LEASEHOLD_HOLD_COUNT", "1"),
    ];
    let mut runner = run(&serving, &["a", "--", "sh", "-c", "echo ready; cat"]);
    let mut holder = Running::of(runner.envs(made_up).stdin(Stdio::piped()));
    assert_eq!(holder.line(), "ready");
    // The pipes of processes that are there, and of none.
    let pid = std::process::id();
    for place in ["", "1", "1:2:3", &format!("{pid}:0:1"), "x:y:z", "1:2:3:4"] {
        let mut second = run(&serving, &["-n", "a", "--", "true"]);
        second.envs(made_up).env("LEASEHOLD_RUN_PIPE", place);
        assert_code(&second.output().unwrap(), 75);
    }
    drop(holder.child.stdin.take());
    assert_eq!(holder.end(), Some(0));
}

/// An outer run whose command ends when the nested run holds, which is in a session of its own. The nested command says
/// its number and goes on until a file is there.
struct NestedSession {
    outer: Running,
    command: Pid,
    directory: tempfile::TempDir,
}

impl NestedSession {
    fn start(serving: &Serving) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let [joined, end, runner] = ["joined", "end", "runner"].map(|name| {
            let path = directory.path().join(name);
            path.to_str().unwrap().to_owned()
        });
        let inner = format!(
            "trap \"\" TERM; echo $$; echo > {joined}; while [ ! -e {end} ]; do sleep 0.01; done"
        );
        let script = format!(
            "setsid sh -c 'echo $$ > {runner}; exec {PROGRAM} run a -- sh -c \"$0\"' '{}' & \
             while [ ! -e {joined} ]; do sleep 0.01; done",
            inner
        );
        let arguments = ["-t", "2s", "a", "--", "sh", "-c", &script];
        let mut outer = Running::start(serving, &arguments);
        let command = outer.pid();
        Self {
            outer,
            command,
            directory,
        }
    }

    fn end_nested(&self) {
        std::fs::write(self.directory.path().join("end"), "").unwrap();
    }

    fn nested_runner(&self) -> Pid {
        let text = std::fs::read_to_string(self.directory.path().join("runner")).unwrap();
        Pid::from_raw(text.trim().parse().unwrap())
    }
}

impl Drop for NestedSession {
    fn drop(&mut self) {
        self.end_nested();
    }
}

#[tokio::test]
async fn the_lock_is_held_until_a_nested_run_in_a_session_of_its_own_has_ended() {
    let serving = Serving::start(&[]);
    let mut session = NestedSession::start(&serving);
    let printed = session.outer.stderr_line();
    assert!(
        printed.contains("until the runs within it have ended"),
        "{printed}"
    );
    assert_code(&output(&serving, &["-n", "a", "--", "true"]), 75);
    session.end_nested();
    assert_eq!(session.outer.end(), Some(0));
    assert!(!is_running(session.command));
    assert_eq!(state(&serving, "a").await["state"], "free");
}

#[tokio::test]
async fn an_outer_run_that_is_asked_to_stop_leaves_the_lock_to_the_nested_one() {
    let serving = Serving::start(&[]);
    let mut session = NestedSession::start(&serving);
    session.outer.stderr_line();
    session.outer.signal(Signal::SIGTERM);
    assert_eq!(session.outer.end(), Some(143));
    assert!(is_running(session.command));
    assert_code(&output(&serving, &["-n", "a", "--", "true"]), 75);
    session.end_nested();
    until_gone(session.command).await;
    assert_code(&output(&serving, &["-w", "20s", "a", "--", "true"]), 0);
}

/// The guard of the nested run, which ends its command, has the pipe of the outer run open too.
#[tokio::test]
async fn the_lock_is_held_until_the_command_of_a_killed_nested_run_is_gone() {
    let serving = Serving::start(&[]);
    let mut session = NestedSession::start(&serving);
    session.outer.stderr_line();
    kill(session.nested_runner(), Signal::SIGKILL).unwrap();
    assert_eq!(session.outer.end(), Some(0));
    assert!(!is_running(session.command));
}

#[tokio::test]
async fn a_nested_run_whose_outer_run_has_lost_the_lock_does_not_use_its_claim() {
    let serving = Serving::start(&[]);
    let script = format!(
        "curl -s -X DELETE \"$LEASEHOLD_URL/locks/a?force=true\" >&2; {PROGRAM} run -n a -- sh -c \
         'echo $LEASEHOLD_HOLD_COUNT $LEASEHOLD_LOCK_TOKEN'; echo 0 $LEASEHOLD_LOCK_TOKEN"
    );
    let arguments = ["--on-lost", "ignore", "a", "--", "sh", "-c", &script];
    let outer = output(&serving, &arguments);
    assert_code(&outer, 76);
    let text = String::from_utf8(outer.stdout.clone()).unwrap();
    let words: Vec<_> = text.split_whitespace().collect();
    assert_eq!(words[0], "1", "{outer:?}");
    assert_ne!(words[1], words[3], "{outer:?}");
}

/// The guard leaves the command alone, which may go on without the lease, and releases the lock in place of its runner.
#[tokio::test]
async fn the_guard_of_a_killed_runner_waits_for_a_nested_run_before_it_releases_the_lock() {
    let serving = Serving::start(&[]);
    let directory = tempfile::tempdir().unwrap();
    let [go, end] = ["go", "end"].map(|name| directory.path().join(name));
    let inner = format!(
        "echo $$; while [ ! -e {} ]; do sleep 0.01; done",
        end.display()
    );
    let script = format!(
        "echo $$; setsid {PROGRAM} run a -- sh -c '{inner}' & while [ ! -e {} ]; do sleep 0.01; done",
        go.display()
    );
    let flags = ["-t", "10m", "--on-lost", "ignore"];
    let arguments = [&flags[..], &["a", "--", "sh", "-c", &script]].concat();
    let mut outer = Running::start(&serving, &arguments);
    let (command, nested) = (outer.pid(), outer.pid());
    outer.signal(Signal::SIGKILL);
    outer.end();
    std::fs::write(&go, "").unwrap();
    until_gone(command).await;
    assert!(is_running(nested));
    assert_code(&output(&serving, &["-n", "a", "--", "true"]), 75);
    std::fs::write(&end, "").unwrap();
    assert_code(&output(&serving, &["-w", "20s", "a", "--", "true"]), 0);
}
