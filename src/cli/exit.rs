//! The exit codes of all commands, in one table. A test keeps `docs/reference/command-line.md` equal to it.

use std::process::ExitCode;

use crate::server::shutdown::Stop;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// The command succeeded.
    Done,
    /// The server cannot start, or the server that `healthcheck` asked is not healthy.
    Failed,
    /// The arguments are not a valid command.
    Misused,
    /// The configuration is invalid; or the store would lose leases, or refuses this process.
    Misconfigured,
    /// A second signal ended the process during the drain.
    Stopped(Stop),
}

impl Exit {
    /// All variants, in the order of their codes.
    pub const ALL: [Self; 7] = [
        Self::Done,
        Self::Failed,
        Self::Misused,
        Self::Misconfigured,
        Self::Stopped(Stop::HangUp),
        Self::Stopped(Stop::Interrupt),
        Self::Stopped(Stop::Terminate),
    ];

    /// The exit code. 64 and 78 are from `sysexits.h`, which service managers know.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Misused => 64,
            Self::Misconfigured => 78,
            Self::Stopped(stop) => stop.exit_code(),
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
                 server is not ready."
            }
            Self::Misused => {
                "Unknown command or flag, a flag without its value, or an invalid value for `--url` or `--timeout`."
            }
            Self::Misconfigured => {
                "A setting is invalid, also if a flag sets it, or a file that it names cannot be read; or the store is \
                 reachable but configured in a way that would lose leases, or refuses this process; or its directory is \
                 in use or damaged."
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
