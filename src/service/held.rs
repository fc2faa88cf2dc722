//! The streams of this process that hold or request locks, so that an eviction, or a release by another request,
//! notifies them at once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use crate::domain::{ClaimDigest, LockName, LockNames, Token};

/// The streams of each lock, by stream number: one entry for each lock of a stream, removed when the stream ends.
#[derive(Debug, Default)]
pub(super) struct HeldByStreams(Mutex<Streams>);

#[derive(Debug, Default)]
struct Streams {
    by_name: BTreeMap<(LockName, u64), StreamEntry>,
    last_number: u64,
}

#[derive(Debug)]
struct StreamEntry {
    claim: ClaimDigest,
    stream: Arc<Notify>,
}

/// The registration of one stream, for as long as the value lives.
#[derive(Debug)]
pub(super) struct HeldByStream {
    registry: Arc<HeldByStreams>,
    names: LockNames,
    number: u64,
    /// Stores one notification for a busy stream. One is enough: it only means that the stream must renew.
    ended: Arc<Notify>,
}

impl HeldByStreams {
    pub(super) fn register(self: &Arc<Self>, names: LockNames, token: Token) -> HeldByStream {
        let ended = Arc::new(Notify::new());
        let number = self.with(|streams| {
            streams.last_number += 1;
            let number = streams.last_number;
            for name in names.iter() {
                let entry = StreamEntry {
                    claim: token.digest(name),
                    stream: Arc::clone(&ended),
                };
                streams.by_name.insert((name.clone(), number), entry);
            }
            number
        });
        HeldByStream {
            registry: Arc::clone(self),
            names,
            number,
            ended,
        }
    }

    /// Makes the lock's streams renew, to learn whether they still hold.
    pub(super) fn evicted(&self, name: &LockName) {
        self.notify(name, |_| true);
    }

    /// Makes the lock's streams of this claim renew.
    pub(super) fn released(&self, name: &LockName, claim: ClaimDigest) {
        self.notify(name, |entry| entry.claim == claim);
    }

    fn notify(&self, name: &LockName, concerns: impl Fn(&StreamEntry) -> bool) {
        self.with(|streams| {
            let of_lock = (name.clone(), 0)..=(name.clone(), u64::MAX);
            for (_, entry) in streams.by_name.range(of_lock) {
                if concerns(entry) {
                    entry.stream.notify_one();
                }
            }
        });
    }

    fn with<T>(&self, act: impl FnOnce(&mut Streams) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl HeldByStream {
    /// Completes when a lease of the stream was evicted or released since the last completion.
    ///
    /// # Cancel safety
    /// Dropping the future loses no notification.
    pub(super) async fn ended(&self) {
        self.ended.notified().await;
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
    fn the_streams_of_a_lock_are_notified_when_a_lease_ends_and_leave_no_entries() {
        let registry = Arc::new(HeldByStreams::default());
        let several = LockNames::several(vec![name("a"), name("b")]).expect("two names");
        let [first, second] = [Token::random(), Token::random()];
        let streams = [
            registry.register(several, first),
            registry.register(name("b").into(), second),
        ];
        let [of_both, of_one] = &streams;
        let is_notified = |stream: &HeldByStream| stream.ended().now_or_never().is_some();
        registry.evicted(&name("a"));
        assert!(is_notified(of_both) && !is_notified(of_one));
        registry.evicted(&name("b"));
        registry.evicted(&name("b"));
        assert!(is_notified(of_both) && is_notified(of_one));
        assert!(!is_notified(of_both), "two notifications are stored as one");
        registry.released(&name("b"), second.digest(&name("b")));
        assert!(is_notified(of_one) && !is_notified(of_both));
        drop(streams);
        registry.with(|streams| assert!(streams.by_name.is_empty()));
    }
}
