//! The exit codes of all commands, in one table. A test keeps `docs/reference/command-line.md` equal to it.

use std::process::ExitCode;

use crate::server::shutdown::Stop;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// The command succeeded.
    Done,
    /// The server cannot start, the server that `healthcheck` asked is not healthy, or `doctor` has a warning.
    Failed,
    /// The arguments are not a valid command.
    Misused,
    /// The configuration is invalid; or the store would lose leases, or refuses this process.
    Misconfigured,
    /// The service that a client command asked cannot be reached.
    Unreachable,
    /// The system refused what a command needs.
    Internal,
    /// The lock is taken, or the wait for it is over, or a quota is used up.
    Busy,
    /// The lock was lost.
    Lost,
    /// The command of `run` is there and cannot be executed.
    NotExecutable,
    /// The command of `run` is not there.
    NotFound,
    /// A second signal ended the process during the drain.
    Stopped(Stop),
    /// The command of `run` ended with this code.
    Command(u8),
}

impl Exit {
    /// All variants in the order of their codes, without the codes that `run` passes on.
    pub const ALL: [Self; 13] = [
        Self::Done,
        Self::Failed,
        Self::Misused,
        Self::Unreachable,
        Self::Internal,
        Self::Busy,
        Self::Lost,
        Self::Misconfigured,
        Self::NotExecutable,
        Self::NotFound,
        Self::Stopped(Stop::HangUp),
        Self::Stopped(Stop::Interrupt),
        Self::Stopped(Stop::Terminate),
    ];

    /// The exit code. 64 to 78 are from `sysexits.h`, which service managers know; 126 and 127 are those of shells.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Misused => 64,
            Self::Unreachable => 69,
            Self::Internal => 70,
            Self::Busy => 75,
            Self::Lost => 76,
            Self::Misconfigured => 78,
            Self::NotExecutable => 126,
            Self::NotFound => 127,
            Self::Stopped(stop) => stop.exit_code(),
            Self::Command(code) => code,
        }
    }

    /// The meaning, as the documentation shows it.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Done => {
                "The command succeeded. For the server: a signal stopped it, and the drain finished."
            }
            Self::Failed => {
                "The server could not start, for example because the port is in use; or `healthcheck` found that the \
                 server is not ready; or `doctor` found something that should be improved."
            }
            Self::Misused => {
                "Unknown command or flag, a flag without its value, or a value that a client command or the service refuses."
            }
            Self::Unreachable => {
                "The service cannot be reached, or another server answers in its place, or its store does not answer or \
                 has no room, and retries did not help."
            }
            Self::Internal => {
                "The system refused a resource that a command needs, such as room for its output, a process or an open \
                 file; or something killed or stopped the guard process of `run`."
            }
            Self::Busy => "The lock is taken, or the wait for it is over; or a quota is used up.",
            Self::Lost => "The lock was lost. `run` then stops its command, if that still runs.",
            Self::NotExecutable => "The command of `run` cannot be executed.",
            Self::NotFound => "The command of `run` was not found.",
            Self::Command(_) => "The exit code of the command of `run`.",
            Self::Misconfigured => {
                "A setting is invalid, also if a flag sets it, or a file that it names cannot be read; or the key is \
                 missing, wrong or has no right; or the store is reachable but configured in a way that would lose \
                 leases, or refuses this process; or its directory is in use or damaged; or `keys check` \
                 found that a principal may not do what was asked."
            }
            Self::Stopped(Stop::HangUp) => {
                "A second signal, SIGHUP, ended the server during the drain."
            }
            Self::Stopped(Stop::Interrupt) => {
                "A second signal, SIGINT, ended the server during the drain."
            }
            Self::Stopped(Stop::Terminate) => {
                "A second signal, SIGTERM, ended the server during the drain."
            }
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}
