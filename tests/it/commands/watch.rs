//! `watch`.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Stdio};

use serde_json::Value;

use super::{acquired, printed};
use crate::process::Serving;
use crate::run::client;
use crate::run::loss::Replacement;
use crate::run::terminal::OnTerminal;

/// A watch that goes on, with what it prints.
pub(super) struct Watching {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Watching {
    pub(super) fn start(serving: &Serving, arguments: &[&str]) -> Self {
        let mut command = client(serving, &[&["watch"], arguments].concat());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line
    }

    pub(super) fn event(&mut self) -> Value {
        serde_json::from_str(&self.line()).unwrap()
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn each_event_is_a_line_for_programs_or_for_people() {
    let serving = Serving::start(&[]);
    let mut programs = Watching::start(&serving, &["a", "--json"]);
    let mut people = Watching::start(&serving, &["a"]);
    let first = programs.event();
    assert_eq!(
        (&first["event"], &first["data"]["state"]),
        (&"state".into(), &"free".into())
    );
    assert!(people.line().contains("free      a\n"));
    let token = acquired(&serving, "a");
    let event = programs.event();
    assert_eq!(
        (&event["event"], &event["data"]["owner"]),
        (&"acquired".into(), &"alice".into())
    );
    assert!(event["id"].is_string(), "{event}");
    let line = people.line();
    assert!(line.contains("Z  acquired  a  alice  "), "{line}");
    printed(&serving, &["release", "a", "--token", &token]);
    assert_eq!(programs.event()["event"], "released");
}

#[test]
fn a_prefix_selects_locks() {
    let serving = Serving::start(&[]);
    let mut watching = Watching::start(&serving, &["--prefix", "jobs/", "--json"]);
    // Nothing says that the stream has begun, so the locks are taken until one is seen.
    let taking = (0..).map(|number| format!("jobs/{number}"));
    let line = std::thread::scope(|scope| {
        let seen = scope.spawn(|| watching.event());
        for name in taking {
            if seen.is_finished() {
                break;
            }
            acquired(&serving, &format!("other/{name}"));
            acquired(&serving, &name);
        }
        seen.join().unwrap()
    });
    let name = line["data"]["name"].as_str().unwrap();
    assert!(name.starts_with("jobs/"), "{line}");
}

#[test]
fn a_terminal_shows_the_lock_as_it_is_now_and_the_time_that_is_left() {
    let serving = Serving::start(&[]);
    let token = acquired(&serving, "a");
    let command = format!("exec {} watch a", env!("CARGO_BIN_EXE_leasehold"));
    let mut terminal = OnTerminal::start(&serving, &command);
    terminal.wait_for("alice");
    terminal.wait_for("29s");
    terminal.wait_for("28s");
    printed(&serving, &["release", "a", "--token", &token]);
    terminal.wait_for("free");
}

#[test]
fn a_terminal_that_cannot_move_its_cursor_shows_lines() {
    let serving = Serving::start(&[]);
    acquired(&serving, "a");
    let program = env!("CARGO_BIN_EXE_leasehold");
    let command = format!("exec env TERM=dumb {program} watch a");
    let mut terminal = OnTerminal::start(&serving, &command);
    // The table has no such word.
    terminal.wait_for("now                       held      a  alice");
}

#[test]
fn a_watch_goes_on_when_the_service_was_restarted() {
    let serving = Serving::start(&[]);
    let address = serving.address().to_string();
    let mut watching = Watching::start(&serving, &["a", "--json"]);
    assert_eq!(watching.event()["event"], "state");
    drop(serving);
    let _replacement = Replacement::start(&address, &[]);
    // The stream that is opened again begins with the lock as it is.
    loop {
        let event = watching.event();
        if event["event"] == "state" {
            assert_eq!(event["data"]["state"], "free");
            return;
        }
        assert_eq!(event["event"], "reset");
    }
}
