//! Which streams of this process hold, or are about to hold, which locks, so that they learn of an eviction at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::domain::{LockName, LockNames};

/// The streams of each lock. There are as many entries as streams hold locks, and none when they have ended.
#[derive(Debug, Default)]
pub(super) struct HeldByStreams {
    by_name: Mutex<HashMap<LockName, Vec<Arc<Notify>>>>,
}

/// A stream among those of its locks, for as long as the value lives.
#[derive(Debug)]
pub(super) struct HeldByStream {
    registry: Arc<HeldByStreams>,
    names: LockNames,
    /// Keeps one notification for a stream that is busy: that it has to ask again is all there is to know.
    evicted: Arc<Notify>,
}

impl HeldByStreams {
    pub(super) fn register(self: &Arc<Self>, names: LockNames) -> HeldByStream {
        let evicted = Arc::new(Notify::new());
        let mut by_name = self.by_name();
        for name in names.iter() {
            let streams = by_name.entry(name.clone()).or_default();
            streams.push(Arc::clone(&evicted));
        }
        drop(by_name);
        HeldByStream {
            registry: Arc::clone(self),
            names,
            evicted,
        }
    }

    /// Makes the streams that hold the lock ask what is left of their leases.
    pub(super) fn evicted(&self, name: &LockName) {
        for stream in self.by_name().get(name).into_iter().flatten() {
            stream.notify_one();
        }
    }

    fn by_name(&self) -> MutexGuard<'_, HashMap<LockName, Vec<Arc<Notify>>>> {
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HeldByStream {
    /// Completes when one of the locks was taken from its holders since the last time.
    ///
    /// # Cancel safety
    /// An eviction is not lost when the future is dropped.
    pub(super) async fn evicted(&self) {
        self.evicted.notified().await;
    }
}

impl Drop for HeldByStream {
    fn drop(&mut self) {
        let mut by_name = self.registry.by_name();
        for name in self.names.iter() {
            if let Some(streams) = by_name.get_mut(name) {
                streams.retain(|stream| !Arc::ptr_eq(stream, &self.evicted));
                if streams.is_empty() {
                    by_name.remove(name);
                }
            }
        }
    }
}
