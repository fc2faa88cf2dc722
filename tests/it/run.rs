//! `leasehold run` with real processes: exit codes, signals, the terminal, lost leases, and what happens when one of its
//! processes is stopped or killed.

mod answers;
mod codes;
pub(crate) mod loss;
mod nested;
mod overlap;
mod pauses;
mod remaining;
mod signals;
pub(crate) mod terminal;
mod waiting;

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStderr, ChildStdout, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::process::Serving;
use crate::support::eventually;

/// Starts a program with the signals of a terminal at their default. A shell makes what it starts in the background
/// ignore them, these tests too, and a run leaves ignored what is ignored.
pub(crate) fn with_signals(program: &str) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=INT,QUIT", program]);
    command
}

/// A client command against this service. Its environment has nothing but what a command needs to be found.
pub(crate) fn client(serving: &Serving, arguments: &[&str]) -> Command {
    let mut command = with_signals(env!("CARGO_BIN_EXE_leasehold"));
    command
        .args(arguments)
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("LEASEHOLD_URL", &serving.url)
        .stdin(Stdio::null());
    command
}

/// `leasehold run` against this service.
fn run(serving: &Serving, arguments: &[&str]) -> Command {
    client(serving, &[&["run"], arguments].concat())
}

fn output(serving: &Serving, arguments: &[&str]) -> Output {
    run(serving, arguments).output().unwrap()
}

/// The exit code of a run, whose stderr is shown if it is another.
#[track_caller]
pub(crate) fn assert_code(output: &Output, code: i32) {
    assert_eq!(output.status.code(), Some(code), "{output:?}");
}

/// A run that goes on, with what its command prints. It is killed, and its guard with it, when it is dropped.
struct Running {
    child: Child,
    lines: BufReader<ChildStdout>,
    messages: BufReader<ChildStderr>,
}

impl Running {
    fn start(serving: &Serving, arguments: &[&str]) -> Self {
        Self::of(&mut run(serving, arguments))
    }

    fn of(runner: &mut Command) -> Self {
        let mut child = runner
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let messages = BufReader::new(child.stderr.take().unwrap());
        Self {
            child,
            lines,
            messages,
        }
    }

    /// The next line that the command prints.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// The next line, which is the number of a process.
    fn pid(&mut self) -> Pid {
        let line = self.line();
        Pid::from_raw(line.parse().unwrap_or_else(|_| panic!("{line:?}")))
    }

    fn runner(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().unwrap())
    }

    fn guard(&self) -> Pid {
        guard_of(self.runner())
    }

    fn signal(&self, signal: Signal) {
        kill(self.runner(), signal).unwrap();
    }

    fn end(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }

    /// The next line that the runner writes for people.
    fn stderr_line(&mut self) -> String {
        let mut line = String::new();
        self.messages.read_line(&mut line).unwrap();
        line
    }

    /// All that the runner has written, once it has ended.
    fn stderr(&mut self) -> String {
        std::io::read_to_string(&mut self.messages).unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The guard is the only child of the runner.
fn guard_of(runner: Pid) -> Pid {
    let children = format!("/proc/{runner}/task/{runner}/children");
    let children = std::fs::read_to_string(children).unwrap();
    Pid::from_raw(children.trim().parse().unwrap())
}

/// Whether the process goes on: it is there and not a zombie.
fn is_running(process: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map(|(_, rest)| &rest[..1]);
    state.is_some_and(|state| state != "Z" && state != "X")
}

async fn until_gone(process: Pid) {
    eventually("the process ends", async || {
        (!is_running(process)).then_some(())
    })
    .await;
}

/// The state of a lock.
pub(crate) async fn state(serving: &Serving, name: &str) -> serde_json::Value {
    let answer = reqwest::get(format!("{}/locks/{name}", serving.url)).await;
    let text = answer.unwrap().text().await.unwrap();
    serde_json::from_str(&text).unwrap()
}

pub(crate) async fn until_held(serving: &Serving, name: &str) {
    eventually("the lock is held", async || {
        (state(serving, name).await["state"] == "held").then_some(())
    })
    .await;
}

pub(crate) async fn until_queued(serving: &Serving, name: &str) {
    eventually("somebody waits", async || {
        (state(serving, name).await["queue_length"] == 1).then_some(())
    })
    .await;
}

/// Takes the lock away from its holder.
pub(crate) async fn evict(serving: &Serving, name: &str) {
    let url = format!("{}/locks/{name}?force=true&reason=test", serving.url);
    let answer = reqwest::Client::new().delete(url).send().await.unwrap();
    assert_eq!(answer.status(), 200);
}
