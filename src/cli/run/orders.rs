//! The guard's ends of the two pipes.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};

use super::messages::{Order, Report, line};

/// Reads what the runner orders.
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

/// Writes what the guard reports.
pub(super) struct ReportWriter(File);

impl ReportWriter {
    pub(super) fn new(pipe: File) -> Self {
        Self(pipe)
    }

    /// Nobody reads it if the runner is gone.
    pub(super) fn write(&mut self, report: &Report) {
        let _ = self.0.write_all(&line(report));
    }
}
