//! The binary as a child process, which is killed by its pid when it is dropped.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How long a log may be silent before the line that a test waits for. Generous, because only failing tests wait that long.
const SILENCE_MAX: Duration = Duration::from_secs(120);

/// The binary with an empty environment, so that the environment of the machine has no effect.
pub(crate) fn leasehold(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    command.args(arguments).env_clear().stdin(Stdio::null());
    command
}

pub(crate) fn output(arguments: &[&str]) -> Output {
    leasehold(arguments).output().unwrap()
}

/// A server that is listening.
pub(crate) struct Serving {
    child: Child,
    lines: Receiver<String>,
    /// The address, as a URL without a path.
    pub(crate) url: String,
    /// The address of probes and operators, if there is one, without TLS.
    pub(crate) admin_url: String,
    /// The log until it was listening.
    pub(crate) lines_so_far: Vec<serde_json::Value>,
}

impl Serving {
    /// Starts a server on a free port, and returns when it logs that it is listening.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_as(leasehold(&[]), arguments)
    }

    /// As [`start`](Self::start), with a command that runs the binary with the given arguments.
    pub(crate) fn start_as(command: Command, arguments: &[&str]) -> Self {
        Self::start_on("127.0.0.1:0", command, arguments)
    }

    /// The same on this address.
    pub(crate) fn start_on(listen: &str, mut command: Command, arguments: &[&str]) -> Self {
        let mut child = command
            .args(["--listen", listen, "--log-format", "json"])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = drain(child.stdout.take().unwrap());
        // From here on the child ends with its owner, even after a panic.
        let mut serving = Self {
            child,
            lines,
            url: String::new(),
            admin_url: String::new(),
            lines_so_far: Vec::new(),
        };
        while serving.url.is_empty() {
            let line = next_line(&serving.lines).expect("the log ended too early");
            let url = line["url"].as_str().unwrap_or_default().to_owned();
            match line["message"].as_str() {
                Some("listening") => serving.url = url,
                Some(line) if line.starts_with("listening for probes") => serving.admin_url = url,
                _ => {}
            }
            serving.lines_so_far.push(line);
        }
        serving
    }

    pub(crate) fn address(&self) -> SocketAddr {
        let address = self.url.strip_prefix("http://").unwrap();
        address.parse().unwrap()
    }

    pub(crate) fn pid(&self) -> Pid {
        pid(&self.child)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(pid(&self.child), signal).unwrap();
    }

    /// Reads the log up to the line with this message, which has to come before a long time without any line.
    pub(crate) fn wait_for_line(&mut self, message: &str) -> serde_json::Value {
        loop {
            let line = self.lines.recv_timeout(SILENCE_MAX);
            let line = line.unwrap_or_else(|error| panic!("no line {message:?}: {error}"));
            let line: serde_json::Value = serde_json::from_str(&line).expect("a line in JSON");
            if line["message"] == message {
                return line;
            }
        }
    }

    /// The next line of the log.
    pub(crate) fn next_line(&mut self) -> serde_json::Value {
        next_line(&self.lines).expect("the log ended too early")
    }

    /// The lines of the log that nobody has read, up to its end.
    pub(crate) fn rest_of_log(&mut self) -> String {
        let lines: Vec<_> = self.lines.iter().collect();
        lines.join("\n")
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if !self.has_ended() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap())
}

/// Reads the log on a thread of its own, because a process blocks when its output is not read.
fn drain(stdout: ChildStdout) -> Receiver<String> {
    let (tx, rx) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            // Fails when the test has dropped its server, which is fine.
            let _ = tx.send(line);
        }
    });
    rx
}

fn next_line(lines: &Receiver<String>) -> Option<serde_json::Value> {
    serde_json::from_str(&lines.recv().ok()?).ok()
}
