//! The guard: the process between the runner and its command.
//!
//! It starts the command, and ends it when the deadline passes without news, when the runner orders it, and when the
//! runner is gone. If the guard does not act, the runner kills the command itself. So the command does not go on past its
//! lease, whichever of the two is stopped or killed. The guard releases the lock of a runner that is gone. It is in a
//! process group of its own and blocks all signals, so that a signal to the group of the runner does not reach both.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use clap::{Arg, ArgMatches, value_parser};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{Pid, getpid};
use rustix::process::{WaitId, WaitIdOptions};

use super::super::boottime::{Alarm, BootTime};
use super::super::{Environment, Exit, flags};
use super::launch::{self, THIS_PROGRAM, inherited, number, number_argument};
use super::messages::{CommandDeadline, Order, OrderReader, Report, ReportWriter};
use super::processes::{ProcessTable, signal_all};
use super::{HOLD_COUNT_VARIABLE, NAME_VARIABLE};

/// How often to look for processes that outlive the command, in milliseconds.
const REMAINING_POLL_MS: u16 = 50;
/// After how many polls to report them to the runner. Most are gone at once.
const REPORTED_POLL: u32 = 20;
/// How often to look for killed processes that are not gone yet, in milliseconds.
const KILLED_POLL_MS: u16 = 10;

/// The name of the command that the runner starts the guard with. It is not for people.
pub(in crate::cli) const COMMAND: &str = "guard-command";

pub(in crate::cli) fn command() -> clap::Command {
    clap::Command::new(COMMAND)
        .about("Guard the command of `leasehold run`, which starts this by itself")
        .hide(true)
        .args(["orders", "reports", "nested"].map(number_argument))
        .arg(
            Arg::new("outer")
                .long("outer")
                .value_parser(value_parser!(i32)),
        )
        .arg(super::options::command_argument())
}

/// Runs until the command and its processes are gone.
pub(in crate::cli) fn run(matches: &ArgMatches, environment: &Environment) -> Exit {
    match Guard::start(matches).and_then(Guard::watch) {
        Ok(RunnerEnd::Waits) => Exit::Done,
        Ok(RunnerEnd::Gone { nested }) => {
            until_closed(nested);
            release_in_place_of_runner(environment);
            Exit::Done
        }
        // The runner notices that its guard is gone.
        Err(_) => Exit::Failed,
    }
}

/// Whether the runner is there to release the lock.
enum RunnerEnd {
    Waits,
    Gone { nested: File },
}

struct Guard {
    orders: Option<OrderReader>,
    reports: ReportWriter,
    alarm: Alarm,
    children: SignalFd,
    /// The command, which is also its process group. It is reaped last, so that this number is not used again before.
    command: Pid,
    /// None while the lease is unknown, or if it does not matter.
    deadline: Option<CommandDeadline>,
    /// When the processes are killed, once they have been asked to end.
    kill_at: Option<BootTime>,
    /// The report of the end of the command.
    ended: Option<Report>,
    /// The pipe of the outer run, which waits until no process has it open.
    _outer: Option<File>,
    /// The pipe that nested runs have open.
    nested: File,
    /// How many polls have found processes that outlive the command.
    polls: u32,
}

impl Guard {
    /// Starts the command, unless the lease is already over.
    fn start(matches: &ArgMatches) -> io::Result<Self> {
        let mut orders = OrderReader::new(inherited(number(matches, "orders"), false)?);
        let mut reports = ReportWriter::new(inherited(number(matches, "reports"), true)?);
        let nested = inherited(number(matches, "nested"), false)?;
        let outer = matches.get_one("outer");
        let outer = outer.and_then(|outer| inherited(*outer, true).ok());
        prctl::set_child_subreaper(true)?;
        let alarm = Alarm::new()?;
        // The deadline, which was there before the guard, and what has followed it, such as a signal.
        let first = orders.read().ok_or(io::ErrorKind::BrokenPipe)?;
        let started = match is_over(&first) {
            true => Err(Errno::ECANCELED.into()),
            false => launch::spawn(matches),
        };
        let command = started.inspect_err(|error: &io::Error| {
            let errno = error.raw_os_error().unwrap_or_default();
            reports.write(&Report::NotStarted { errno });
        })?;
        // From here on only SIGKILL and SIGSTOP act on the guard. Not earlier, because the command would inherit the
        // blocked signals.
        SigSet::all().thread_block()?;
        let mut child_ended = SigSet::empty();
        child_ended.add(Signal::SIGCHLD);
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let children = SignalFd::with_flags(&child_ended, flags)?;
        reports.write(&Report::Started {
            command: command.as_raw(),
        });
        let mut guard = Self {
            orders: Some(orders),
            reports,
            alarm,
            children,
            command,
            deadline: None,
            kill_at: None,
            ended: None,
            _outer: outer,
            nested,
            polls: 0,
        };
        guard.obey(first);
        Ok(guard)
    }

    /// Returns when the command and its processes are gone.
    fn watch(mut self) -> io::Result<RunnerEnd> {
        // The command may have ended before its signal could be received.
        self.look_after_children()?;
        loop {
            self.check_deadline()?;
            if self.ended.is_some() && self.is_all_gone()? {
                return Ok(match self.orders {
                    Some(_) => RunnerEnd::Waits,
                    None => RunnerEnd::Gone {
                        nested: self.nested,
                    },
                });
            }
            self.wait()?;
            self.read_orders();
            if self.children.read_signal()?.is_some() {
                self.look_after_children()?;
            }
        }
    }

    /// Waits for an order, the end of a child, the alarm, or the time to look again.
    fn wait(&mut self) -> io::Result<()> {
        let is_killing = self.kill_at.is_some_and(BootTime::has_passed);
        let timeout = match (is_killing, self.ended.is_some()) {
            (true, _) => PollTimeout::from(KILLED_POLL_MS),
            (false, true) => PollTimeout::from(REMAINING_POLL_MS),
            (false, false) => PollTimeout::NONE,
        };
        let mut sources = vec![
            PollFd::new(self.children.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.alarm.as_fd(), PollFlags::POLLIN),
        ];
        if let Some(orders) = &self.orders {
            sources.push(PollFd::new(orders.as_fd(), PollFlags::POLLIN));
        }
        match poll(&mut sources, timeout) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Asks the processes to end at the deadline, and kills them when that did not help.
    fn check_deadline(&mut self) -> io::Result<()> {
        self.alarm.has_gone_off();
        if let (None, Some(deadline)) = (self.kill_at, self.deadline)
            && deadline.terminate_at.has_passed()
        {
            self.reports.write(&Report::Ending);
            self.terminate(deadline.kill_at);
        }
        match (self.kill_at, self.deadline) {
            (Some(kill_at), _) if kill_at.has_passed() => self.signal_everything(Signal::SIGKILL),
            (Some(kill_at), _) => self.alarm.set(kill_at)?,
            (None, Some(deadline)) => self.alarm.set(deadline.terminate_at)?,
            (None, None) => {}
        }
        Ok(())
    }

    fn read_orders(&mut self) {
        let Some(orders) = &mut self.orders else {
            return;
        };
        let Some(received) = orders.read() else {
            self.orders = None;
            return self.end_without_runner();
        };
        self.obey(received);
    }

    fn obey(&mut self, orders: Vec<Order>) {
        for order in orders {
            match order {
                Order::Until(deadline) => {
                    self.deadline = Some(deadline);
                    self.reports.write(&Report::Confirmed);
                }
                Order::Confirm => self.reports.write(&Report::Confirmed),
                Order::End { kill_at } => self.terminate(kill_at),
                Order::Signal(signal) => {
                    if let Ok(signal) = Signal::try_from(signal) {
                        let _ = killpg(self.command, signal);
                    }
                }
            }
        }
    }

    /// The lease is not renewed any more. If the command may go on without one, there is no deadline.
    fn end_without_runner(&mut self) {
        if let Some(deadline) = self.deadline {
            let kill_after = deadline.terminate_at.until(deadline.kill_at);
            self.terminate(deadline.kill_at.min(BootTime::now().after(kill_after)));
        }
    }

    fn terminate(&mut self, kill_at: BootTime) {
        if self.kill_at.is_none() {
            self.signal_everything(Signal::SIGTERM);
            // A stopped process handles the signal only when it goes on.
            self.signal_everything(Signal::SIGCONT);
        }
        self.kill_at = Some(self.kill_at.map_or(kill_at, |earlier| earlier.min(kill_at)));
    }

    /// Signals the group as one, so that no member that is just being made is missed, and then all other descendants.
    fn signal_everything(&self, signal: Signal) {
        let _ = killpg(self.command, signal);
        let others = ProcessTable::read().under_outside(getpid(), self.command);
        signal_all(&others, signal);
    }

    fn look_after_children(&mut self) -> io::Result<()> {
        if self.ended.is_none() {
            self.look_after_command()?;
        }
        // The table is read only if there is something to reap.
        let ended = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        if waitid(Id::All, ended) == Ok(WaitStatus::StillAlive) {
            return Ok(());
        }
        for orphan in ProcessTable::read().zombies_of(getpid()) {
            if orphan != self.command {
                reap(orphan);
            }
        }
        Ok(())
    }

    fn look_after_command(&mut self) -> io::Result<()> {
        let command = rustix::process::Pid::from_raw(self.command.as_raw());
        let command = WaitId::Pid(command.ok_or(io::ErrorKind::NotFound)?);
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        let peek = stopped | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let Some(status) = rustix::process::waitid(command.clone(), peek)? else {
            return Ok(());
        };
        if let Some(signal) = status.stopping_signal() {
            rustix::process::waitid(command, stopped)?;
            self.reports.write(&Report::Paused { signal });
            return Ok(());
        }
        let signal = status.terminating_signal();
        let code = signal.map(|signal| 128 + signal);
        let code = code.or(status.exit_status()).unwrap_or(i32::from(u8::MAX));
        let code = u8::try_from(code).unwrap_or(u8::MAX);
        self.ended = Some(Report::Gone { code, signal });
        Ok(())
    }

    /// Whether nothing of the command goes on. If so, the command is reaped and its status reported.
    fn is_all_gone(&mut self) -> io::Result<bool> {
        let table = ProcessTable::read();
        let remaining = match self.kill_at {
            // A process in a session of its own has to end too when the lease is lost.
            Some(_) => table.of_group_or_under(self.command, getpid()),
            None => table.of_command(self.command, getpid()),
        };
        if !remaining.is_empty() {
            self.polls += 1;
            if self.polls == REPORTED_POLL {
                let processes = remaining.len();
                self.reports.write(&Report::Remaining { processes });
            }
            return Ok(false);
        }
        reap(self.command);
        // A process of another user may be hidden from the table.
        if killpg(self.command, None) != Err(Errno::ESRCH) {
            return Ok(false);
        }
        if let Some(ended) = &self.ended {
            self.reports.write(ended);
        }
        Ok(true)
    }
}

/// Whether the lease is lost or has run out before the command was started.
fn is_over(orders: &[Order]) -> bool {
    let mut deadline = None;
    for order in orders {
        match order {
            Order::Until(later) => deadline = Some(later),
            Order::End { .. } => return true,
            Order::Confirm | Order::Signal(_) => {}
        }
    }
    deadline.is_some_and(|deadline| deadline.terminate_at.has_passed())
}

/// Waits until no nested run goes on. It shares the claim, and renews the lease meanwhile.
fn until_closed(mut nested: File) {
    let mut buffer = [0; 64];
    loop {
        match nested.read(&mut buffer) {
            Ok(0) => return,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let timeout = PollTimeout::from(REMAINING_POLL_MS);
                let _ = poll(&mut [], timeout);
            }
            Ok(_) => {}
            Err(_) => return,
        }
    }
}

/// Releases the lock of a runner that was killed, so that others need not wait until its lease is over. A lock that an
/// outer run holds too stays with that.
fn release_in_place_of_runner(environment: &Environment) {
    let variable = |name| flags::variable(environment, name);
    let is_outermost = variable(HOLD_COUNT_VARIABLE).is_some_and(|depth| depth == "1");
    if let (Some(names), true) = (variable(NAME_VARIABLE), is_outermost) {
        // It finds the service and the token where the command did. If it fails, the lease ends by itself.
        let _ = Command::new(THIS_PROGRAM)
            .arg0("leasehold")
            .args(["release", "--quiet"])
            .args(names.split(' '))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
    }
}

fn reap(process: Pid) {
    let ended = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG;
    let _ = waitid(Id::Pid(process), ended);
}
