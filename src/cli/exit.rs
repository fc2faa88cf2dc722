//! The exit codes of every command, in one table. `docs/reference/command-line.md` shows it, and a test keeps the two equal.

use std::process::ExitCode;

use crate::server::shutdown::Stop;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// The command did what it was asked for.
    Done,
    /// The server cannot start, or the server that was asked is not healthy.
    Failed,
    /// The arguments make no command.
    Misused,
    /// The configuration is wrong, or the store is configured so that it would lose leases.
    Misconfigured,
    /// A second signal ended the process while it drained.
    Stopped(Stop),
}

impl Exit {
    /// All of them, in the order of their codes.
    pub const ALL: [Self; 7] = [
        Self::Done,
        Self::Failed,
        Self::Misused,
        Self::Misconfigured,
        Self::Stopped(Stop::HangUp),
        Self::Stopped(Stop::Interrupt),
        Self::Stopped(Stop::Terminate),
    ];

    /// The number that the shell sees. 64 and 78 are those of `sysexits.h`, which service managers know.
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

    /// What it means, for people.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Done => {
                "The command succeeded. For the server: a signal stopped it, and it drained."
            }
            Self::Failed => {
                "The server could not start, for example because the port is in use; or the server that `healthcheck` \
                 asked is not ready."
            }
            Self::Misused => {
                "A command or flag does not exist, or a flag has a value that it cannot take."
            }
            Self::Misconfigured => {
                "A setting is wrong, or a file that it names cannot be read; or the store answers, but is configured so \
                 that it would lose leases."
            }
            Self::Stopped(Stop::HangUp) => {
                "A second signal ended the server while it drained: SIGHUP."
            }
            Self::Stopped(Stop::Interrupt) => {
                "A second signal ended the server while it drained: SIGINT."
            }
            Self::Stopped(Stop::Terminate) => {
                "A second signal ended the server while it drained: SIGTERM."
            }
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}
