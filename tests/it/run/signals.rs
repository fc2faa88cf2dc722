//! Signals that the runner passes on.

use std::process::Stdio;

use nix::sys::signal::Signal;

use super::{Running, run};
use crate::process::Serving;

const FORWARDED: [(Signal, &str); 6] = [
    (Signal::SIGINT, "INT"),
    (Signal::SIGTERM, "TERM"),
    (Signal::SIGHUP, "HUP"),
    (Signal::SIGQUIT, "QUIT"),
    (Signal::SIGUSR1, "USR1"),
    (Signal::SIGUSR2, "USR2"),
];

#[test]
fn each_signal_reaches_the_command_which_decides_what_to_do() {
    let serving = Serving::start(&[]);
    // The last one ends nothing that does not handle it.
    for (signal, name) in FORWARDED.into_iter().chain([(Signal::SIGWINCH, "WINCH")]) {
        let script = format!(
            "trap 'echo got {name}; exit 9' {name}; echo ready; while :; do sleep 0.01; done"
        );
        let mut running = Running::start(&serving, &["a", "--", "sh", "-c", &script]);
        assert_eq!(running.line(), "ready");
        running.signal(signal);
        assert_eq!(running.line(), format!("got {name}"));
        assert_eq!(running.end(), Some(9), "{name}");
    }
}

/// The runner says that it holds the lock before it starts anything.
#[test]
fn a_signal_before_the_command_runs_is_not_lost() {
    let serving = Serving::start(&[]);
    for _ in 0..20 {
        let mut running = Running::start(&serving, &["-v", "a", "--", "sleep", "20"]);
        while !running.stderr_line().contains("holding a") {}
        running.signal(Signal::SIGTERM);
        assert_eq!(running.end(), Some(143));
    }
}

#[test]
fn a_command_that_does_not_handle_the_signal_ends_with_it() {
    let serving = Serving::start(&[]);
    for (signal, name) in FORWARDED {
        let mut running = Running::start(
            &serving,
            &["a", "--", "sh", "-c", "echo ready; exec sleep 60"],
        );
        assert_eq!(running.line(), "ready");
        running.signal(signal);
        assert_eq!(running.end(), Some(128 + signal as i32), "{name}");
    }
}

/// The whole group gets the signal, not only its leader.
#[test]
fn a_signal_reaches_the_processes_that_the_command_started() {
    let serving = Serving::start(&[]);
    let script = "trap : TERM; (trap 'echo child; exit' TERM; echo ready; while :; do sleep 0.01; done) & wait $!; wait $!";
    let mut running = Running::start(&serving, &["a", "--", "sh", "-c", script]);
    assert_eq!(running.line(), "ready");
    running.signal(Signal::SIGTERM);
    assert_eq!(running.line(), "child");
    running.end();
}

#[test]
fn a_signal_that_was_ignored_before_stays_ignored() {
    let serving = Serving::start(&[]);
    let mut command = run(
        &serving,
        &["a", "--", "sh", "-c", "kill -HUP $$; echo still here"],
    );
    let program = command.get_program().to_owned();
    let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
    command = std::process::Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]);
    command.arg(program).args(arguments);
    let output = command
        .env("LEASEHOLD_URL", &serving.url)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.stdout, b"still here\n", "{output:?}");
    assert_eq!(output.status.code(), Some(0));
}
