//! A Redis process, and the library that lets a test move its clock.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Starts Redis and ends it when the standard input closes, which also happens when the test process dies.
const KEEPER: &str = r#"trap '' INT; redis-server "$@" >/dev/null 2>&1 & echo $!; read -r _; kill -KILL $! 2>/dev/null; wait"#;

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
            keeper.env("LD_PRELOAD", clock_shim());
            keeper.env("CLOCK_OFFSET_FILE", file);
        }
        let mut keeper = keeper
            .args(["-c", KEEPER, "sh"])
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

impl Drop for Process {
    fn drop(&mut self) {
        // The keeper has not reaped its child yet, so the pid still belongs to our Redis, alive or not.
        let _ = kill(self.pid, Signal::SIGKILL);
        drop(self.keeper.stdin.take());
        drop(self.keeper.wait());
    }
}

/// The library that lets a test move the clock of a Redis, compiled once.
fn clock_shim() -> &'static Path {
    static SHIM: OnceLock<PathBuf> = OnceLock::new();
    SHIM.get_or_init(|| {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/support/clock_shim.c");
        // Another test process may compile it at the same time.
        let library = format!("clock_shim.{}.so", std::process::id());
        let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join(library);
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([library.as_os_str(), source.as_ref()])
            .status();
        let is_compiled = compiled.is_ok_and(|status| status.success());
        assert!(is_compiled, "a C compiler is needed to move a clock");
        library
    })
}
