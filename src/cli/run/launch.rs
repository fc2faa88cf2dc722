//! Starts the command, by way of one more process that turns into it.
//!
//! That process asks the system to kill it when the guard dies, which the guard cannot ask in its place. So a command
//! whose guard is killed does not go on while the runner is stopped.

use std::fs::OpenOptions;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use clap::{Arg, ArgMatches, value_parser};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, close, getpid, getppid, pipe2};

use super::super::Exit;

/// This program, also if its file was replaced since it was started.
pub(super) const THIS_PROGRAM: &str = "/proc/self/exe";
/// The name of the command that the guard starts. It is not for people.
pub(in crate::cli) const COMMAND: &str = "launch-command";

pub(in crate::cli) fn command() -> clap::Command {
    clap::Command::new(COMMAND)
        .about("Turn into the command of `leasehold run`, which starts this by itself")
        .hide(true)
        .args([number_argument("guard"), number_argument("failure")])
        .arg(super::options::command_argument())
}

/// A required number.
pub(super) fn number_argument(name: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .required(true)
        .value_parser(value_parser!(i32))
}

/// The value of a [`number_argument`].
pub(super) fn number(matches: &ArgMatches, name: &str) -> i32 {
    *matches.get_one(name).expect("it is required")
}

/// Turns into the command. It returns only if that fails, after it has reported the reason to the guard.
pub(in crate::cli) fn run(matches: &ArgMatches) -> Exit {
    // Closed when this turns into the command, by which the guard learns that it has.
    let Ok(mut failure) = inherited(number(matches, "failure"), true) else {
        return Exit::Failed;
    };
    let error = launch(matches);
    let errno = error.raw_os_error().unwrap_or(Errno::EINVAL as i32);
    let _ = write!(failure, "{errno}");
    Exit::Failed
}

fn launch(matches: &ArgMatches) -> io::Error {
    if let Err(errno) = prctl::set_pdeathsig(Signal::SIGKILL) {
        return errno.into();
    }
    // A guard that died before that causes no signal.
    if getppid() != Pid::from_raw(number(matches, "guard")) {
        return Errno::ESRCH.into();
    }
    let mut words = super::options::command_words(matches);
    match words.next() {
        Some(program) => Command::new(program).args(words).exec(),
        None => Errno::EINVAL.into(),
    }
}

/// Starts the command in a process group of its own, and returns when it runs.
///
/// # Errors
/// It cannot be executed, for the reason of the system.
pub(super) fn spawn(matches: &ArgMatches) -> io::Result<Pid> {
    let (failure, failure_of_child) = pipe2(OFlag::O_CLOEXEC)?;
    let mut child = Command::new(THIS_PROGRAM)
        .arg0("leasehold")
        .args([COMMAND, "--guard", &getpid().to_string()])
        .args(["--failure", &inheritable(&failure_of_child)?, "--"])
        .args(super::options::command_words(matches))
        .process_group(0)
        .spawn()?;
    drop(failure_of_child);
    let mut errno = String::new();
    std::fs::File::from(failure).read_to_string(&mut errno)?;
    if let Ok(errno) = errno.parse() {
        child.wait()?;
        return Err(io::Error::from_raw_os_error(errno));
    }
    let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
    Ok(Pid::from_raw(pid))
}

/// Lets the next process that is started inherit this pipe, and returns its number.
pub(super) fn inheritable(pipe: impl AsFd) -> io::Result<String> {
    fcntl(&pipe, FcntlArg::F_SETFD(FdFlag::empty()))?;
    Ok(pipe.as_fd().as_raw_fd().to_string())
}

/// Takes over a pipe of this number. It is opened again, because only the number is known, not that nothing else uses
/// it; and what is started from here does not inherit what is opened here.
pub(super) fn inherited(number: i32, is_for_writing: bool) -> io::Result<std::fs::File> {
    let mut options = OpenOptions::new();
    options.read(!is_for_writing).write(is_for_writing);
    // Otherwise it would wait for the other end, which may be gone.
    options.custom_flags(OFlag::O_NONBLOCK.bits());
    let file = options.open(format!("/proc/self/fd/{number}"));
    close(number)?;
    file
}
