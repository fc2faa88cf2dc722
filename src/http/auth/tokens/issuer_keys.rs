//! The keys of the issuer: replaced when they are read again, and dropped when they could not be read for too long.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _};
use jsonwebtoken::Algorithm;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::config::SigningKey;

/// How long a request waits for keys that are just being read. Then it is answered without them.
const REFRESH_WAIT: Duration = Duration::from_secs(5);
/// When to repeat a request whose key may have been read by then.
const RETRY_MIN: Duration = Duration::from_secs(1);

/// The keys of the issuer, and when they were read.
pub struct IssuerKeys {
    state: Mutex<IssuerState>,
    refresh_min: Duration,
    stale_max: Duration,
    /// Asks the task that reads the keys to read them now.
    wanted: Notify,
    /// When the last reading began that has ended, whether or not the keys could be read.
    done: watch::Sender<Option<Instant>>,
}

struct IssuerState {
    keys: Vec<IssuerKey>,
    /// When the keys were read the last time; `None` before the first time.
    read_at: Option<Instant>,
    /// When the reading began by which they were read.
    read_began_at: Option<Instant>,
    /// When the last reading began.
    began_at: Option<Instant>,
    /// Whether it has not ended yet.
    is_reading: bool,
    /// When a request caused a reading the last time. Others do not count: a key may be newer than they are.
    asked_at: Option<Instant>,
    /// Whether a request wants the keys to be read, and no reading has begun since.
    is_wanted: bool,
    is_outdated: bool,
}

/// A key, and the signal of its end.
#[derive(Clone)]
pub(super) struct IssuerKey {
    pub(super) signing: SigningKey,
    pub(super) end: KeyEnd,
}

/// The end of the time in which a key is used. Clones share it.
#[derive(Clone, Default)]
pub(super) struct KeyEnd {
    over: CancellationToken,
    /// Set before, if no other key was known from then on either.
    is_of_all: Arc<AtomicBool>,
}

impl KeyEnd {
    pub(super) fn is_over(&self) -> bool {
        self.over.is_cancelled()
    }

    /// Whether it is over because no key of the issuer was known any more: so nobody knows whether it is still valid.
    pub(super) fn is_of_all(&self) -> bool {
        self.is_of_all.load(Ordering::Acquire)
    }

    /// Completes when it is over.
    pub(super) async fn reached(&self) {
        self.over.cancelled().await;
    }

    pub(super) fn end(&self, is_of_all: bool) {
        self.is_of_all.store(is_of_all, Ordering::Release);
        self.over.cancel();
    }
}

/// Whether there is a key for a token.
pub(super) enum FoundKey {
    Key(IssuerKey),
    /// There is one of this name, for other algorithms.
    OtherAlgorithm,
    /// The token names none, and there are several for its algorithm.
    Ambiguous,
    Unknown,
    /// None is known at all.
    NoKeys,
}

/// Whether the keys are those that the issuer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeysState {
    /// They were read.
    Current,
    /// They could not be read the last time; those of the time before are used.
    Outdated,
    /// There are none: they were never read, or not for too long.
    Unknown,
}

impl IssuerKeys {
    pub(super) fn new(keys: Vec<SigningKey>, refresh_min: Duration, stale_max: Duration) -> Self {
        let read_at = (!keys.is_empty()).then(Instant::now);
        let keys = keys.into_iter().map(IssuerKey::new).collect();
        Self {
            state: Mutex::new(IssuerState {
                keys,
                read_at,
                read_began_at: read_at,
                began_at: read_at,
                is_reading: false,
                asked_at: None,
                is_wanted: false,
                is_outdated: false,
            }),
            refresh_min,
            stale_max,
            wanted: Notify::new(),
            done: watch::Sender::default(),
        }
    }

    /// The keys are being read from now on, until [`replace`](Self::replace) or [`keep`](Self::keep).
    pub fn begin(&self) {
        let mut state = self.state();
        state.began_at = Some(Instant::now());
        state.is_reading = true;
        state.is_wanted = false;
    }

    /// Takes over the keys that were read. Requests and streams of keys that stay go on.
    pub fn replace(&self, keys: Vec<SigningKey>) {
        let mut state = self.state();
        let mut old = std::mem::take(&mut state.keys);
        let kept = keys.into_iter().map(|key| {
            let same = old.iter().position(|old| old.signing == key);
            same.map_or_else(|| IssuerKey::new(key), |same| old.swap_remove(same))
        });
        let kept: Vec<_> = kept.collect();
        remove(old, kept.is_empty());
        state.keys = kept;
        state.read_at = Some(Instant::now());
        state.read_began_at = state.began_at;
        state.is_outdated = false;
        self.ended(state);
    }

    /// The keys could not be read. Those of before are used until they are too old.
    pub fn keep(&self) {
        let mut state = self.state();
        state.is_outdated = true;
        self.ended(state);
    }

    /// Completes when a token refers to an unknown key, so that the keys should be read again.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn wanted(&self) {
        // A signal may be older than the last reading.
        loop {
            self.wanted.notified().await;
            if self.state().is_wanted {
                return;
            }
        }
    }

    /// Drops keys that are too old. Returns whether there were any.
    pub fn drop_stale(&self) -> bool {
        let mut state = self.state();
        if self.stale_in(&state) != Some(Duration::ZERO) {
            return false;
        }
        let old = std::mem::take(&mut state.keys);
        drop(state);
        let had_keys = !old.is_empty();
        remove(old, true);
        had_keys
    }

    /// When the keys become too old; `None` if there are none.
    #[must_use]
    pub fn stale_after(&self) -> Option<Duration> {
        let state = self.state();
        let has_keys = !state.keys.is_empty();
        self.stale_in(&state).filter(|_| has_keys)
    }

    /// Whether the keys are those that the issuer has.
    #[must_use]
    pub fn current_state(&self) -> KeysState {
        let state = self.state();
        if state.keys.is_empty() || self.stale_in(&state) == Some(Duration::ZERO) {
            KeysState::Unknown
        } else if state.is_outdated {
            KeysState::Outdated
        } else {
            KeysState::Current
        }
    }

    /// How many keys there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.state().keys.len()
    }

    /// How long ago they were read; `None` before the first time.
    #[must_use]
    pub fn age(&self) -> Option<Duration> {
        self.state().read_at.map(|at| at.elapsed())
    }

    pub(super) fn find(&self, id: Option<&str>, algorithm: Algorithm) -> FoundKey {
        let state = self.state();
        // Even if they were not dropped yet.
        if state.keys.is_empty() || self.stale_in(&state) == Some(Duration::ZERO) {
            return FoundKey::NoKeys;
        }
        let is_meant = |key: &&IssuerKey| id.is_none_or(|id| key.signing.id.as_deref() == Some(id));
        let fits = |key: &&IssuerKey| key.signing.algorithms.contains(&algorithm);
        let mut named = state.keys.iter().filter(is_meant).filter(fits);
        match (named.next(), named.next(), id) {
            // A token without a name for its key is of the only key there is: trying one after the other would let it
            // choose.
            (Some(key), None, _) | (Some(key), Some(_), Some(_)) => FoundKey::Key(key.clone()),
            (Some(_), Some(_), None) => FoundKey::Ambiguous,
            (None, _, _) if state.keys.iter().any(|key| is_meant(&key)) => FoundKey::OtherAlgorithm,
            (None, _, _) => FoundKey::Unknown,
        }
    }

    /// Asks for the keys to be read again, and completes when they have been; `None` if a request caused it shortly before.
    /// Unknown keys, which any client can invent, cause it once for each interval.
    pub(super) fn refreshed(&self) -> Option<BoxFuture<'static, ()>> {
        let mut done = self.done.subscribe();
        let mut state = self.state();
        let is_recent = |at: Instant| at.elapsed() < self.refresh_min;
        if !state.is_wanted && !state.asked_at.is_some_and(is_recent) {
            state.is_wanted = true;
            state.asked_at = Some(Instant::now());
            self.wanted.notify_one();
        }
        let began_at = match (state.is_wanted, state.is_reading) {
            // The one that is under way may have read what the issuer had before.
            (true, _) => Some(Instant::now()),
            (false, true) => state.began_at,
            (false, false) => return None,
        };
        let read = async move {
            let is_read = done.wait_for(|done| *done >= began_at);
            let _ = tokio::time::timeout(REFRESH_WAIT, is_read).await;
        };
        Some(read.boxed())
    }

    /// When to ask again for a key that is unknown, if the issuer may have it nevertheless, because the keys were not read
    /// since `arrived`; `None` if it has not.
    pub(in crate::http) fn unread_since(&self, arrived: Instant) -> Option<Duration> {
        let state = self.state();
        if state.read_began_at >= Some(arrived) {
            return None;
        }
        let asked = state.asked_at.map(|at| at.elapsed());
        let left = self.refresh_min.saturating_sub(asked.unwrap_or_default());
        Some(left.max(RETRY_MIN))
    }

    fn ended(&self, mut state: MutexGuard<'_, IssuerState>) {
        state.is_reading = false;
        let began_at = state.began_at;
        drop(state);
        self.done.send_replace(began_at);
    }

    fn stale_in(&self, state: &IssuerState) -> Option<Duration> {
        let read_at = state.read_at?;
        Some(self.stale_max.saturating_sub(read_at.elapsed()))
    }

    fn state(&self) -> MutexGuard<'_, IssuerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl IssuerKey {
    fn new(signing: SigningKey) -> Self {
        Self {
            signing,
            end: KeyEnd::default(),
        }
    }
}

fn remove(keys: Vec<IssuerKey>, are_all: bool) {
    for key in keys {
        key.end.end(are_all);
    }
}
