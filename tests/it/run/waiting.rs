//! Waiting for the lock.

use std::process::Stdio;

use nix::sys::signal::Signal;

use super::{Running, assert_code, output, run, state, until_held, until_queued};
use crate::process::Serving;
use crate::support::eventually;

#[tokio::test]
async fn a_busy_lock_exits_75_or_as_asked() {
    let serving = Serving::start(&[]);
    let mut holder = Running::start(&serving, &["a", "--owner", "alice", "--", "sleep", "60"]);
    until_held(&serving, "a").await;
    let busy = output(&serving, &["-n", "a", "--", "true"]);
    assert_code(&busy, 75);
    let text = String::from_utf8_lossy(&busy.stderr).into_owned();
    assert!(text.contains("held by alice"), "{text}");
    let code = |arguments: &[&str]| {
        let arguments = [arguments, &["a", "--", "true"]].concat();
        output(&serving, &arguments).status.code()
    };
    assert_eq!(code(&["-w", "10ms"]), Some(75));
    assert_eq!(code(&["-n", "-E", "1"]), Some(1));
    assert_eq!(code(&["-n", "--skip-ok"]), Some(0));
    assert_eq!(state(&serving, "a").await["queue_length"], 0);
    holder.signal(Signal::SIGTERM);
    assert_eq!(holder.end(), Some(143));
}

/// Its stderr is the log of a job, where silence would look like a fault.
#[tokio::test]
async fn a_run_that_waits_off_a_terminal_says_so_once_and_one_that_need_not_wait_says_nothing() {
    let serving = Serving::start(&["--waiting-wait-max", "1s"]);
    let free = output(&serving, &["a", "--", "true"]);
    assert_eq!((free.status.code(), free.stderr.len()), (Some(0), 0));
    let holder = Running::start(&serving, &["a", "--owner", "alice", "--", "sleep", "60"]);
    until_held(&serving, "a").await;
    let mut quiet = Running::start(&serving, &["-q", "a", "--", "true"]);
    until_queued(&serving, "a").await;
    let mut waiting = Running::start(&serving, &["a", "--", "true"]);
    let told = waiting.stderr_line();
    // The quiet run is not counted at a moment at which it repeats its request.
    assert!(
        told.starts_with("leasehold: waiting for a, held by alice; place "),
        "{told}"
    );
    holder.signal(Signal::SIGTERM);
    assert_eq!((quiet.end(), quiet.stderr()), (Some(0), String::new()));
    assert_eq!((waiting.end(), waiting.stderr()), (Some(0), String::new()));
}

/// The server ends polls after a second, so the run has to repeat its request to keep its place.
#[tokio::test]
async fn a_run_keeps_its_place_beyond_the_longest_poll_of_the_server() {
    let serving = Serving::start(&["--waiting-wait-max", "1s"]);
    let mut holder = Running::start(&serving, &["a", "--", "sleep", "60"]);
    until_held(&serving, "a").await;
    let mut first = Running::start(&serving, &["-v", "a", "--", "echo", "first"]);
    let printed = first.stderr_line();
    assert!(printed.contains("waiting for a, held by"), "{printed}");
    assert!(printed.contains("place 1 of 1"), "{printed}");
    let mut second = Running::start(&serving, &["a", "--", "echo", "second"]);
    eventually("both wait", async || {
        (state(&serving, "a").await["queue_length"] == 2).then_some(())
    })
    .await;
    holder.signal(Signal::SIGTERM);
    assert_eq!(holder.end(), Some(143));
    assert_eq!((first.line(), first.end()), ("first".to_owned(), Some(0)));
    assert_eq!(
        (second.line(), second.end()),
        ("second".to_owned(), Some(0))
    );
}

#[tokio::test]
async fn a_signal_while_waiting_leaves_the_queue() {
    let serving = Serving::start(&[]);
    let _holder = Running::start(&serving, &["a", "--", "sleep", "60"]);
    until_held(&serving, "a").await;
    let mut waiting = Running::start(&serving, &["a", "--", "true"]);
    until_queued(&serving, "a").await;
    waiting.signal(Signal::SIGINT);
    assert_eq!(waiting.end(), Some(130));
    assert_eq!(state(&serving, "a").await["queue_length"], 0);
}

#[tokio::test]
async fn shared_runs_hold_together_up_to_the_limit() {
    let serving = Serving::start(&[]);
    let shared = ["-n", "--shared", "--limit", "2", "a", "--"];
    let _one = Running::start(&serving, &[&shared[..], &["sleep", "60"]].concat());
    until_held(&serving, "a").await;
    let _two = Running::start(&serving, &[&shared[..], &["sleep", "60"]].concat());
    eventually("both hold", async || {
        (state(&serving, "a").await["holders_total"] == 2).then_some(())
    })
    .await;
    assert_code(&output(&serving, &[&shared[..], &["true"]].concat()), 75);
}

/// Each command reads the number in a file, adds one and writes it back, which loses updates unless it is alone.
#[test]
fn two_hundred_runs_on_one_counter_lose_no_update() {
    const RUNS: usize = 200;
    let serving = Serving::start(&[]);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("counter");
    std::fs::write(&file, "0").unwrap();
    let script = format!("read n < {0}; echo $((n + 1)) > {0}", file.display());
    let mut runs: Vec<_> = (0..RUNS)
        .map(|_| {
            let mut command = run(&serving, &["counter", "--", "sh", "-c", &script]);
            command.stderr(Stdio::inherit()).spawn().unwrap()
        })
        .collect();
    for run in &mut runs {
        assert_eq!(run.wait().unwrap().code(), Some(0));
    }
    let counted = std::fs::read_to_string(&file).unwrap();
    assert_eq!(counted.trim(), RUNS.to_string());
}
