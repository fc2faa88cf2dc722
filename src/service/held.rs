//! Which streams of this process hold, or are about to hold, which locks, so that they learn of an eviction at once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use crate::domain::{LockName, LockNames};

/// The streams of each lock, by numbers of their own. There is an entry for each lock of a stream, and none when the stream
/// has ended.
#[derive(Debug, Default)]
pub(super) struct HeldByStreams(Mutex<Streams>);

#[derive(Debug, Default)]
struct Streams {
    by_name: BTreeMap<(LockName, u64), Arc<Notify>>,
    last_number: u64,
}

/// A stream among those of its locks, for as long as the value lives.
#[derive(Debug)]
pub(super) struct HeldByStream {
    registry: Arc<HeldByStreams>,
    names: LockNames,
    number: u64,
    /// Keeps one notification for a stream that is busy: that it has to ask again is all there is to know.
    evicted: Arc<Notify>,
}

impl HeldByStreams {
    pub(super) fn register(self: &Arc<Self>, names: LockNames) -> HeldByStream {
        let evicted = Arc::new(Notify::new());
        let number = self.with(|streams| {
            streams.last_number += 1;
            let number = streams.last_number;
            for name in names.iter() {
                let entry = (name.clone(), number);
                streams.by_name.insert(entry, Arc::clone(&evicted));
            }
            number
        });
        HeldByStream {
            registry: Arc::clone(self),
            names,
            number,
            evicted,
        }
    }

    /// Makes the streams that hold the lock ask what is left of their leases.
    pub(super) fn evicted(&self, name: &LockName) {
        self.with(|streams| {
            let of_lock = (name.clone(), 0)..=(name.clone(), u64::MAX);
            for (_, stream) in streams.by_name.range(of_lock) {
                stream.notify_one();
            }
        });
    }

    fn with<T>(&self, use_them: impl FnOnce(&mut Streams) -> T) -> T {
        use_them(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
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
        self.registry.with(|streams| {
            for name in self.names.iter() {
                streams.by_name.remove(&(name.clone(), self.number));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn name(text: &str) -> LockName {
        LockName::parse(text.as_bytes()).expect(text)
    }

    #[test]
    fn the_streams_of_a_lock_hear_of_its_evictions_and_leave_nothing_behind() {
        let registry = Arc::new(HeldByStreams::default());
        let several = LockNames::several(vec![name("a"), name("b")]).expect("two names");
        let streams = [
            registry.register(several),
            registry.register(name("b").into()),
        ];
        let [of_both, of_one] = &streams;
        let is_told = |stream: &HeldByStream| stream.evicted().now_or_never().is_some();
        registry.evicted(&name("a"));
        assert!(is_told(of_both) && !is_told(of_one));
        registry.evicted(&name("b"));
        registry.evicted(&name("b"));
        assert!(is_told(of_both) && is_told(of_one));
        assert!(!is_told(of_both), "twice is told once");
        drop(streams);
        registry.with(|streams| assert!(streams.by_name.is_empty()));
    }
}
