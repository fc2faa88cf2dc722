//! Processes that outlive the command.

use super::{Running, assert_code, output, state};
use crate::process::Serving;

#[tokio::test]
async fn the_lock_is_held_until_the_last_process_of_the_command_is_gone() {
    let serving = Serving::start(&[]);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("go");
    let script = format!(
        "(while [ ! -e {} ]; do sleep 0.01; done; echo late) & echo early",
        file.display()
    );
    let mut running = Running::start(&serving, &["a", "--", "sh", "-c", &script]);
    assert_eq!(running.line(), "early");
    assert_code(&output(&serving, &["-n", "a", "--", "true"]), 75);
    std::fs::write(&file, "").unwrap();
    assert_eq!(running.line(), "late");
    assert_eq!(running.end(), Some(0));
    assert_eq!(state(&serving, "a").await["state"], "free");
}

/// A job in a group of its own belongs to the command; a daemon, which makes a session of its own, has left it.
#[tokio::test]
async fn a_daemon_that_the_command_leaves_behind_neither_holds_the_lock_nor_ends() {
    let serving = Serving::start(&[]);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("daemon");
    // The rename makes the number appear in one piece.
    let script = format!(
        "setsid sh -c 'echo $$ > {0}.new; mv {0}.new {0}; exec sleep 60' >/dev/null 2>&1 & exit 0",
        file.display()
    );
    let left = output(&serving, &["a", "--", "sh", "-c", &script]);
    assert_code(&left, 0);
    assert_eq!(state(&serving, "a").await["state"], "free");
    let daemon = crate::support::eventually("the daemon runs", async || {
        std::fs::read_to_string(&file).ok()
    });
    let daemon: i32 = daemon.await.trim().parse().unwrap();
    let daemon = nix::unistd::Pid::from_raw(daemon);
    assert!(super::is_running(daemon));
    nix::sys::signal::kill(daemon, nix::sys::signal::Signal::SIGKILL).unwrap();
}
