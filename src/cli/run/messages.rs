//! The messages between runner and guard: one line of JSON each, over two pipes; and the guard's ends of these.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};

use serde::{Deserialize, Serialize};

use super::super::boottime::BootTime;

/// When a command has to end unless its lease is renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CommandDeadline {
    /// When its processes are asked to end.
    pub(super) terminate_at: BootTime,
    /// When they are killed, which is before the lease can run out.
    pub(super) kill_at: BootTime,
}

/// From the runner to the guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Order {
    /// The lease was renewed. The guard confirms this.
    Until(CommandDeadline),
    /// Only confirm: the command may go on without its lease.
    Confirm,
    /// The lease is lost: end the command now, and kill it at this moment.
    End { kill_at: BootTime },
    /// Pass this signal on to the command.
    Signal(i32),
}

/// From the guard to the runner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Report {
    /// The command runs, as the leader of a process group.
    Started { command: i32 },
    /// The command cannot be executed, for this reason of the system: `ECANCELED` if the lease was over before.
    NotStarted { errno: i32 },
    /// The guard has received an order that it has to confirm.
    Confirmed,
    /// A signal stopped the command.
    Paused { signal: i32 },
    /// The deadline has passed without a renewal: the command is asked to end.
    Ending,
    /// The command has ended, and this many of its processes go on.
    Remaining { processes: usize },
    /// The command and its processes are gone. This is the exit code, or 128 and the signal that ended the command.
    Gone { code: u8, signal: Option<i32> },
}

/// A message with the end of its line.
pub(super) fn line(message: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).expect("numbers and names make JSON");
    line.push(b'\n');
    line
}

/// Reads the orders of the runner.
pub(super) struct OrderReader {
    pipe: File,
    unread: Vec<u8>,
}

impl OrderReader {
    pub(super) fn new(pipe: File) -> Self {
        let unread = Vec::new();
        Self { pipe, unread }
    }

    /// The orders that have arrived, or none if the runner is gone.
    pub(super) fn read(&mut self) -> Option<Vec<Order>> {
        let mut buffer = [0; 4096];
        match self.pipe.read(&mut buffer) {
            Ok(0) => return None,
            Ok(count) => self.unread.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return None,
        }
        let end = self.unread.iter().rposition(|byte| *byte == b'\n');
        let complete: Vec<u8> = self.unread.drain(..end.map_or(0, |end| end + 1)).collect();
        let lines = complete.split(|byte| *byte == b'\n');
        Some(
            lines
                .filter_map(|line| serde_json::from_slice(line).ok())
                .collect(),
        )
    }
}

impl AsFd for OrderReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

/// Writes the reports of the guard.
pub(super) struct ReportWriter(File);

impl ReportWriter {
    pub(super) fn new(pipe: File) -> Self {
        Self(pipe)
    }

    /// If the runner is gone, it is not read.
    pub(super) fn write(&mut self, report: &Report) {
        let _ = self.0.write_all(&line(report));
    }
}
