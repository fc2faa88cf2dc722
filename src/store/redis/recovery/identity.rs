//! Which Redis the connections of an epoch lead to.

use std::sync::Arc;

use super::{Recovery, UNPOISONED};

impl Recovery {
    /// The Redis that connections of this epoch lead to; none if they are not used any more.
    pub(in crate::store::redis) fn run_id_at(&self, epoch: u64) -> Option<Arc<str>> {
        let known = self.known.lock().expect(UNPOISONED);
        let server = known.server.as_ref().filter(|_| epoch == self.epoch())?;
        Some(Arc::from(server.run_id.as_str()))
    }

    /// Whether connections of this epoch are still used, and lead to this Redis.
    pub(in crate::store::redis) fn is_at(&self, epoch: u64, run_id: &str) -> bool {
        self.is_now_at(run_id) && epoch == self.epoch()
    }

    /// Whether this is the Redis that was verified last.
    pub(in crate::store::redis) fn is_now_at(&self, run_id: &str) -> bool {
        let known = self.known.lock().expect(UNPOISONED);
        known.server.as_ref().is_some_and(|it| it.run_id == run_id)
    }
}
