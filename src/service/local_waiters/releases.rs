//! The traced releases that this process sends while it has waiters for the same locks: the span of a wait links to the
//! release that ended it. Nothing else depends on them.

use tokio::time::Instant;

use super::{LocalWaiters, WaiterTable};
use crate::domain::LockName;
use crate::telemetry::traces::SpanContext;

/// How many releases of a lock are noted at once: more than one, because the last of them may have freed nothing.
const NOTED_MAX: usize = 4;

/// A release, or an eviction.
#[derive(Clone, Copy, Debug)]
pub(in crate::service) struct SentRelease {
    /// The span of its request.
    pub(in crate::service) span: SpanContext,
    pub(in crate::service) sent_at: Instant,
}

impl LocalWaiters {
    /// A release of these locks is about to be sent. Noted before its answer, because a waiter may be granted the lock
    /// before that arrives.
    pub(in crate::service) fn releasing(&self, names: &[LockName], span: SpanContext) {
        let sent_at = Instant::now();
        let mut state = self.lock();
        for name in names {
            if let Some(queue) = state.queues.get_mut(name) {
                if queue.releases.len() == NOTED_MAX {
                    queue.releases.remove(0);
                }
                queue.releases.push(SentRelease { span, sent_at });
            }
        }
    }

    /// That release has freed none of these locks.
    pub(in crate::service) fn not_released(&self, names: &[LockName], span: SpanContext) {
        let mut state = self.lock();
        for name in names {
            if let Some(queue) = state.queues.get_mut(name) {
                queue.releases.retain(|release| release.span != span);
            }
        }
    }
}

impl WaiterTable {
    /// The last releases of these locks, each of which ends the wait of one claim.
    pub(super) fn take_releases(&mut self, names: &[LockName]) -> Vec<SentRelease> {
        let queues = &mut self.queues;
        let last = |name| std::mem::take(&mut queues.get_mut(name)?.releases).pop();
        names.iter().filter_map(last).collect()
    }
}
