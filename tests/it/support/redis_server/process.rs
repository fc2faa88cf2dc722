//! A Redis process, and the library that lets a test move its clock.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::preloaded;

/// Starts Redis and ends it when the standard input closes, which also happens when the test process dies.
const KEEPER: &str =
    r#"trap '' INT; "$@" >/dev/null 2>&1 & echo $!; read -r _; kill -KILL $! 2>/dev/null; wait"#;

/// A Redis process, and the shell that ends it when the test process is gone.
pub(crate) struct Process {
    keeper: Child,
    pid: Pid,
}

impl Process {
    /// Starts it. With `clock_offset`, its clock can be moved.
    pub(crate) fn start(
        arguments: &[String],
        clock_offset: Option<&Path>,
        environment: &[(&'static str, String)],
    ) -> Self {
        let mut keeper = Command::new("sh");
        keeper.envs(environment.iter().cloned());
        if let Some(file) = clock_offset {
            keeper.env("LD_PRELOAD", preloaded("clock_shim"));
            keeper.env("CLOCK_OFFSET_FILE", file);
        }
        let mut keeper = keeper
            .args(["-c", KEEPER, "sh"])
            .arg(program())
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("there is a shell");
        let mut line = String::new();
        BufReader::new(keeper.stdout.take().expect("it is piped"))
            .read_line(&mut line)
            .expect("the keeper prints the pid");
        let pid = Pid::from_raw(line.trim().parse().expect("a pid"));
        Self { keeper, pid }
    }

    /// The pid of the Redis process itself.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }
}

/// `TEST_REDIS` names one of the servers of `scripts/setup-servers`, such as `valkey-9`, instead of the installed one.
#[allow(
    clippy::disallowed_methods,
    reason = "a knob of the tests is no configuration of the service"
)]
fn program() -> PathBuf {
    let Some(name) = std::env::var_os("TEST_REDIS") else {
        return PathBuf::from("redis-server");
    };
    let servers = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/servers");
    let program = servers.join(name).join("server");
    assert!(
        program.exists(),
        "{} is missing: run scripts/setup-servers, which unpacks it from Debian's archive",
        program.display()
    );
    program
}

impl Drop for Process {
    fn drop(&mut self) {
        // The keeper has not reaped its child yet, so the pid still belongs to our Redis, alive or not.
        let _ = kill(self.pid, Signal::SIGKILL);
        drop(self.keeper.stdin.take());
        drop(self.keeper.wait());
    }
}
