//! The runner's end of the guard: starting it, giving it orders, and reading its reports.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getpid, pipe2};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::net::unix::pipe::Receiver;

use super::guard;
use super::launch::{THIS_PROGRAM, inheritable};
use super::messages::{Order, Report, line};
use super::nested::NestedRuns;
use super::processes::{ProcessTable, signal_all};

const KILLED_POLL: Duration = Duration::from_millis(10);
/// How long processes may take to disappear after they were killed, before the runner goes on without them.
const KILLED_TIMEOUT: Duration = Duration::from_secs(5);

/// A command with its guard.
pub(super) struct GuardedCommand {
    guard: Child,
    orders: File,
    reports: Lines<BufReader<Receiver>>,
}

impl GuardedCommand {
    /// Starts a guard, which starts the command. The first order is there before the guard is.
    pub(super) fn start(
        command: &[OsString],
        variables: &[(&'static str, String)],
        first: Order,
        nested: &NestedRuns,
        outer: Option<&File>,
    ) -> io::Result<Self> {
        let (orders_of_guard, orders) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        let (reports, reports_of_guard) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        let mut orders = File::from(orders);
        orders.write_all(&line(&first))?;
        let mut guard = Command::new(THIS_PROGRAM);
        guard
            .arg0("leasehold")
            .args([guard::COMMAND, "--orders", &inheritable(&orders_of_guard)?])
            .args(["--reports", &inheritable(&reports_of_guard)?])
            .args(["--nested", &inheritable(nested.reader())?]);
        if let Some(outer) = outer {
            guard.args(["--outer", &inheritable(outer)?]);
        }
        let guard = guard
            .arg("--")
            .args(command)
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .process_group(0)
            .spawn()?;
        let reports = Receiver::from_owned_fd(reports)?;
        Ok(Self {
            guard,
            orders,
            reports: BufReader::new(reports).lines(),
        })
    }

    /// Gives an order. A guard that is stopped does not read, and one that is gone is noticed by its reports.
    pub(super) fn order(&mut self, order: Order) {
        let _ = self.orders.write_all(&line(&order));
    }

    /// The next report, or none if the guard is gone.
    ///
    /// # Cancel safety
    /// No report is lost.
    pub(super) async fn report(&mut self) -> Option<Report> {
        loop {
            let line = self.reports.next_line().await.ok()??;
            if let Ok(report) = serde_json::from_str(&line) {
                return Some(report);
            }
        }
    }

    /// Kills everything that the command has started, without the guard, and returns what cannot be killed.
    pub(super) async fn kill(&mut self) -> Vec<Pid> {
        let guard = i32::try_from(self.guard.id()).map_or(getpid(), Pid::from_raw);
        let give_up = tokio::time::Instant::now() + KILLED_TIMEOUT;
        loop {
            // The guard is the leader of its group, in which it is alone.
            let processes = ProcessTable::read().under_outside(getpid(), guard);
            if processes.is_empty() || tokio::time::Instant::now() >= give_up {
                return processes;
            }
            signal_all(&processes, Signal::SIGKILL);
            tokio::time::sleep(KILLED_POLL).await;
        }
    }

    /// Ends the guard, which may be stopped, and reaps it.
    pub(super) fn dismiss(&mut self) {
        let _ = self.guard.kill();
        let _ = self.guard.wait();
    }
}
