//! Runs on a terminal, which `script` of util-linux provides.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};

use super::{Running, state, with_signals};
use crate::process::Serving;
use crate::support::{EFFECT_TIMEOUT, eventually};

const PROGRAM: &str = env!("CARGO_BIN_EXE_leasehold");

/// A shell command on a terminal of its own.
pub(crate) struct OnTerminal {
    child: Child,
    keys: ChildStdin,
    lines: Receiver<String>,
}

impl OnTerminal {
    pub(crate) fn start(serving: &Serving, command: &str) -> Self {
        let mut child = with_signals("script")
            .args(["--quiet", "--return", "--command", command, "/dev/null"])
            .env("LEASEHOLD_URL", &serving.url)
            .env("SHELL", "/bin/bash")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (tx, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.split(b'\n').map_while(Result::ok) {
                // Fails when the test has ended, which is fine.
                let _ = tx.send(String::from_utf8_lossy(&line).into_owned());
            }
        });
        Self {
            keys: child.stdin.take().unwrap(),
            lines,
            child,
        }
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Reads until a line that contains this, and returns it.
    pub(crate) fn wait_for(&mut self, text: &str) -> String {
        let mut seen = Vec::new();
        loop {
            let line = self.lines.recv_timeout(EFFECT_TIMEOUT);
            let line = line.unwrap_or_else(|_| panic!("no {text:?} in {seen:#?}"));
            if line.contains(text) {
                return line;
            }
            seen.push(line);
        }
    }

    fn end(mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        // Its end closes the terminal, which ends what is on it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_command_reads_from_the_terminal() {
    let serving = Serving::start(&[]);
    let script = "echo ready; read line; echo got $line; exit 5";
    let command = format!("{PROGRAM} run a -- sh -c '{script}'");
    let mut terminal = OnTerminal::start(&serving, &command);
    terminal.wait_for("ready");
    terminal.press("hello\n");
    terminal.wait_for("got hello");
    assert_eq!(terminal.end(), Some(5));
}

#[test]
fn ctrl_c_reaches_the_command() {
    let serving = Serving::start(&[]);
    let command = format!("exec {PROGRAM} run a -- sh -c 'echo ready; exec sleep 60'");
    let mut terminal = OnTerminal::start(&serving, &command);
    terminal.wait_for("ready");
    terminal.press("\u{3}");
    assert_eq!(terminal.end(), Some(130));
}

/// An interactive shell stops the job, continues it in the foreground, and has the terminal again after it. Its prompt is
/// waited for, because keys that come while a shell changes the mode of the terminal may be lost.
#[test]
fn ctrl_z_stops_the_job_and_fg_continues_it() {
    let serving = Serving::start(&[]);
    let mut terminal = OnTerminal::start(&serving, "exec env 'PS1=prompt\\n' bash --norc -i");
    terminal.wait_for("prompt");
    let script = "echo re''ady; read line; echo go''es on; read line; echo got \\$line";
    terminal.press(&format!("{PROGRAM} run a -- sh -c \"{script}\"\n"));
    terminal.wait_for("ready\r");
    terminal.press("\n");
    // The command has the terminal, since it has read from it.
    terminal.wait_for("goes on\r");
    terminal.press("\u{1a}");
    terminal.wait_for("Stopped");
    terminal.wait_for("prompt");
    terminal.press("fg\n");
    // The shell shows the job that it continues.
    terminal.wait_for("run a");
    terminal.press("hello\n");
    terminal.wait_for("got hello");
    terminal.wait_for("prompt");
    terminal.press("echo co''de $?\n");
    terminal.wait_for("code 0");
    terminal.press("exit\n");
    terminal.end();
}

/// The second program of the pipeline is in the same job and reads from the terminal.
#[test]
fn in_a_pipeline_the_terminal_is_left_to_the_others() {
    let serving = Serving::start(&[]);
    let reader = "cat > /dev/null; read line < /dev/tty; echo got $line";
    let command = format!("{PROGRAM} run a -- echo ready | sh -c '{reader}'");
    let mut terminal = OnTerminal::start(&serving, &command);
    terminal.press("hello\n");
    terminal.wait_for("got hello");
    assert_eq!(terminal.end(), Some(0));
}

/// On a terminal every change is said at once.
#[tokio::test]
async fn a_run_that_waits_says_whom_it_waits_for_and_at_which_place() {
    let serving = Serving::start(&["--waiting-wait-max", "1s"]);
    let [first, second] = ["alice", "bob"].map(|owner| {
        let arguments = ["-q", "a", "--owner", owner, "--", "cat"];
        let mut runner = super::run(&serving, &arguments);
        Running::of(runner.stdin(Stdio::piped()))
    });
    let holder = eventually("one holds and the other waits", async || {
        let lock = state(&serving, "a").await;
        let owner = lock["holders"][0]["owner"].as_str()?.to_owned();
        (lock["queue_length"] == 1).then_some(owner)
    })
    .await;
    let (mut one, mut two, next) = match holder.as_str() {
        "alice" => (first, second, "bob"),
        _ => (second, first, "alice"),
    };
    let command = format!("exec {PROGRAM} run a -- echo ran");
    let mut terminal = OnTerminal::start(&serving, &command);
    terminal.wait_for(&format!("waiting for a, held by {holder}; place 2 of 2"));
    drop(one.child.stdin.take());
    terminal.wait_for(&format!("waiting for a, held by {next}; place 1 of 1"));
    drop(two.child.stdin.take());
    terminal.wait_for("ran");
    assert_eq!(terminal.end(), Some(0));
    assert_eq!((one.end(), two.end()), (Some(0), Some(0)));
}

#[test]
fn colours_are_on_a_terminal_unless_its_user_wants_none() {
    let serving = Serving::start(&[]);
    for (variables, is_coloured) in [
        ("TERM=xterm", true),
        ("TERM=xterm NO_COLOR=1", false),
        ("TERM=dumb", false),
    ] {
        for (command, text) in [
            ("get a", "STATE"),
            ("nonsense", "unrecognized"),
            (
                "--listen 127.0.0.1:0 --store redis://127.0.0.1:1",
                "cannot be used",
            ),
        ] {
            // Where CI is set, every terminal has colours. A server ends with the timeout if not with its terminal.
            let command =
                format!("exec env -u CI {variables} timeout --foreground 30 {PROGRAM} {command}");
            let line = OnTerminal::start(&serving, &command).wait_for(text);
            assert_eq!(line.contains('\u{1b}'), is_coloured, "{command}: {line:?}");
        }
    }
}
