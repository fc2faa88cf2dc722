//! What one commit of the [journal](super::journal) writes, and how the requests that wait for it learn of its end.

use tokio::sync::watch;

use super::super::state::{Notification, StoreTime};
use super::rows::Rows;

/// What one commit writes, and the notifications that follow it.
pub(super) struct Batch {
    pub(super) rows: Rows,
    pub(super) notifications: Vec<Notification>,
    /// The time of the last step.
    pub(super) now: StoreTime,
    /// Whether there is something to do.
    pub(super) is_due: bool,
    pub(super) progress: watch::Sender<Progress>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    Pending,
    Written,
    Failed,
}

impl Batch {
    /// Nothing to write yet.
    pub(super) fn new(now: StoreTime) -> Self {
        Self {
            rows: Rows::new(),
            notifications: Vec::new(),
            now,
            is_due: false,
            progress: watch::Sender::new(Progress::Pending),
        }
    }
}
