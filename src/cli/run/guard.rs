//! The guard: the process between the runner and its command.
//!
//! It starts the command and ends it when the deadline passes without news, when the runner says so, and when the runner
//! is gone. So neither a runner that is stopped or killed, nor a guard that is, lets the command go on past its lease: a
//! runner whose guard does not act kills the command itself. The guard is in a process group of its own and blocks all
//! signals, so that what is sent to the group of the runner does not reach both.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use clap::{Arg, ArgMatches, value_parser};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{Pid, close, getpid};

use super::super::Exit;
use super::boottime::{Alarm, BootTime};
use super::messages::{CommandDeadline, Order, Report};
use super::orders::{OrderReader, ReportWriter};
use super::processes::{ProcessTable, signal_all};

/// How often processes are looked for that outlive the command, in milliseconds.
const REMAINING_POLL_MS: u16 = 50;
/// After how many polls the runner learns of them. Most are gone at once.
const REPORTED_POLL: u32 = 20;
/// How often processes that were killed are looked for, in milliseconds.
const KILLED_POLL_MS: u16 = 10;

/// The name of the command that the runner starts the guard with. It is not for people.
pub(in crate::cli) const COMMAND: &str = "guard-command";

pub(in crate::cli) fn command() -> clap::Command {
    let descriptor = |name: &'static str| {
        Arg::new(name)
            .long(name)
            .required(true)
            .value_parser(value_parser!(i32))
    };
    clap::Command::new(COMMAND)
        .about("Guard the command of `leasehold run`, which starts this by itself")
        .hide(true)
        .args([descriptor("orders"), descriptor("reports")])
        .arg(super::options::command_argument())
}

/// Runs until the command and its processes are gone.
pub(in crate::cli) fn run(matches: &ArgMatches) -> Exit {
    match Guard::start(matches).and_then(Guard::watch) {
        Ok(()) => Exit::Done,
        // The runner notices that its guard is gone.
        Err(_) => Exit::Failed,
    }
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
    ended: Option<WaitStatus>,
    /// How often processes were found that outlive the command.
    polls: u32,
}

impl Guard {
    /// Starts the command.
    fn start(matches: &ArgMatches) -> io::Result<Self> {
        let descriptor = |name| *matches.get_one::<i32>(name).expect("it is required");
        let mut orders = OrderReader::new(inherited(descriptor("orders"), false)?);
        let mut reports = ReportWriter::new(inherited(descriptor("reports"), true)?);
        prctl::set_child_subreaper(true)?;
        let (alarm, deadline) = (Alarm::new()?, first_deadline(&mut orders)?);
        let command = spawn(matches).inspect_err(|error| {
            let errno = error.raw_os_error().unwrap_or_default();
            reports.write(&Report::NotStarted { errno });
        })?;
        // From here on only SIGKILL and SIGSTOP act on the guard. Not before, because the command inherits what is blocked.
        SigSet::all().thread_block()?;
        let mut child_ended = SigSet::empty();
        child_ended.add(Signal::SIGCHLD);
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let children = SignalFd::with_flags(&child_ended, flags)?;
        reports.write(&Report::Started {
            command: command.as_raw(),
        });
        Ok(Self {
            orders: Some(orders),
            reports,
            alarm,
            children,
            command,
            deadline,
            kill_at: None,
            ended: None,
            polls: 0,
        })
    }

    fn watch(mut self) -> io::Result<()> {
        // The command may have ended before its signal could be received.
        self.look_after_children()?;
        loop {
            self.check_deadline()?;
            if self.ended.is_some() && self.is_all_gone()? {
                return Ok(());
            }
            self.wait()?;
            self.obey();
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

    fn obey(&mut self) {
        let Some(orders) = &mut self.orders else {
            return;
        };
        let Some(received) = orders.read() else {
            self.orders = None;
            return self.end_without_runner();
        };
        for order in received {
            match order {
                Order::Until(deadline) => self.deadline = Some(deadline),
                Order::End { kill_at } => self.terminate(kill_at),
                Order::Signal(signal) => {
                    if let Ok(signal) = Signal::try_from(signal) {
                        let _ = killpg(self.command, signal);
                    }
                }
            }
        }
    }

    /// Nobody renews the lease any more. If the command may go on without one, there is no deadline.
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
            let peek = WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
            let peek = peek | WaitPidFlag::WSTOPPED | WaitPidFlag::WEXITED;
            let status = waitid(Id::Pid(self.command), peek)?;
            if let WaitStatus::Stopped(_, signal) = status {
                let stopped = WaitPidFlag::WSTOPPED | WaitPidFlag::WNOHANG;
                waitid(Id::Pid(self.command), stopped)?;
                let signal = signal as i32;
                self.reports.write(&Report::Paused { signal });
            } else if status != WaitStatus::StillAlive {
                self.ended = Some(status);
            }
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
        if let Some(status) = self.ended {
            self.reports.write(&gone(status));
        }
        Ok(true)
    }
}

/// Reads the deadline, which the runner has written before it started the guard, if there is one.
fn first_deadline(orders: &mut OrderReader) -> io::Result<Option<CommandDeadline>> {
    let received = orders.read().ok_or(io::ErrorKind::BrokenPipe)?;
    Ok(received.into_iter().find_map(|order| match order {
        Order::Until(deadline) => Some(deadline),
        Order::End { .. } | Order::Signal(_) => None,
    }))
}

/// Takes over a pipe of this number. It is opened again, because only the number is known, not that nothing else uses
/// it; and the command does not inherit what is opened here.
fn inherited(number: i32, is_for_writing: bool) -> io::Result<std::fs::File> {
    let mut options = OpenOptions::new();
    options.read(!is_for_writing).write(is_for_writing);
    // Otherwise it would wait for the runner, which may be gone.
    options.custom_flags(OFlag::O_NONBLOCK.bits());
    let file = options.open(format!("/proc/self/fd/{number}"))?;
    close(number)?;
    Ok(file)
}

fn spawn(matches: &ArgMatches) -> io::Result<Pid> {
    let mut words = super::options::command_words(matches);
    let program = words.next().ok_or(io::ErrorKind::InvalidInput)?;
    let child = Command::new(program).args(words).process_group(0).spawn()?;
    let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
    Ok(Pid::from_raw(pid))
}

fn reap(process: Pid) {
    let ended = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG;
    let _ = waitid(Id::Pid(process), ended);
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "only these two are the end of a process"
)]
fn gone(status: WaitStatus) -> Report {
    match status {
        WaitStatus::Signaled(_, signal, _) => Report::Gone {
            code: u8::try_from(128 + signal as i32).unwrap_or(u8::MAX),
            signal: Some(signal as i32),
        },
        WaitStatus::Exited(_, code) => Report::Gone {
            code: u8::try_from(code).unwrap_or(u8::MAX),
            signal: None,
        },
        _ => unreachable!("the process has ended"),
    }
}
