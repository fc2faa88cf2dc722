//! The keys of the issuer: replaced when they are read again, and dropped when they could not be read for too long.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _};
use jsonwebtoken::Algorithm;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::config::SigningKey;

/// How long a request waits for keys that are just being read. Then its token is refused.
const REFRESH_WAIT: Duration = Duration::from_secs(5);

/// The keys of the issuer, and when they were read.
pub struct IssuerKeys {
    state: Mutex<State>,
    refresh_min: Duration,
    stale_max: Duration,
    /// Asks whoever reads the keys to read them now.
    wanted: Notify,
    /// Sent whenever the keys have been read, or could not be.
    done: watch::Sender<()>,
}

struct State {
    keys: Vec<IssuerKey>,
    /// When the keys were read the last time; `None` before the first time.
    read_at: Option<Instant>,
    /// When reading was tried the last time.
    tried_at: Option<Instant>,
    /// Whether a request wants the keys to be read, which has not been tried since.
    is_wanted: bool,
    is_outdated: bool,
}

/// A key, with what began with it.
#[derive(Clone)]
pub(super) struct IssuerKey {
    pub(super) signing: SigningKey,
    /// Cancelled once the issuer no longer has it.
    pub(super) removed: CancellationToken,
}

/// Whether there is a key for a token.
pub(super) enum Found {
    Key(IssuerKey),
    /// There is one of this name, for other algorithms.
    OtherAlgorithm,
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
            state: Mutex::new(State {
                keys,
                read_at,
                tried_at: read_at,
                is_wanted: false,
                is_outdated: false,
            }),
            refresh_min,
            stale_max,
            wanted: Notify::new(),
            done: watch::Sender::default(),
        }
    }

    /// Takes over what was read. Keys that stay keep what began with them.
    pub fn replace(&self, keys: Vec<SigningKey>) {
        let mut state = self.state();
        let mut old = std::mem::take(&mut state.keys);
        let kept = keys.into_iter().map(|key| {
            let same = old.iter().position(|old| old.signing == key);
            same.map_or_else(|| IssuerKey::new(key), |same| old.swap_remove(same))
        });
        let kept: Vec<_> = kept.collect();
        state.keys = kept;
        remove(old);
        state.read_at = Some(Instant::now());
        state.is_outdated = false;
        self.tried(state);
    }

    /// The keys could not be read. Those of before are used until they are too old.
    pub fn keep(&self) {
        let mut state = self.state();
        state.is_outdated = true;
        self.tried(state);
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
        remove(old);
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

    pub(super) fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Found {
        let state = self.state();
        // Also if nobody has dropped them yet.
        if state.keys.is_empty() || self.stale_in(&state) == Some(Duration::ZERO) {
            return Found::NoKeys;
        }
        let is_meant = |key: &&IssuerKey| id.is_none_or(|id| key.signing.id.as_deref() == Some(id));
        let fits = |key: &&IssuerKey| key.signing.algorithms.contains(&algorithm);
        let mut named = state.keys.iter().filter(is_meant).filter(fits);
        match (named.next(), named.next(), id) {
            // A token without a name for its key is of the only key there is: trying one after the other would let it
            // choose.
            (Some(key), None, _) | (Some(key), Some(_), Some(_)) => Found::Key(key.clone()),
            (Some(_), Some(_), None) => Found::Unknown,
            (None, _, _) if state.keys.iter().any(|key| is_meant(&key)) => Found::OtherAlgorithm,
            (None, _, _) => Found::Unknown,
        }
    }

    /// Asks for the keys to be read again, and completes when they have been; `None` if that was done shortly before.
    /// Unknown keys, which any client can invent, cause it once for each interval.
    pub(super) fn refreshed(&self) -> Option<BoxFuture<'static, ()>> {
        let mut done = self.done.subscribe();
        let mut state = self.state();
        let is_recent = |at: Instant| at.elapsed() < self.refresh_min;
        if !state.is_wanted {
            if state.tried_at.is_some_and(is_recent) {
                return None;
            }
            state.is_wanted = true;
            self.wanted.notify_one();
        }
        let read = async move {
            let _ = tokio::time::timeout(REFRESH_WAIT, done.changed()).await;
        };
        Some(read.boxed())
    }

    fn tried(&self, mut state: MutexGuard<'_, State>) {
        state.tried_at = Some(Instant::now());
        state.is_wanted = false;
        drop(state);
        self.done.send_replace(());
    }

    fn stale_in(&self, state: &State) -> Option<Duration> {
        let read_at = state.read_at?;
        Some(self.stale_max.saturating_sub(read_at.elapsed()))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl IssuerKey {
    fn new(signing: SigningKey) -> Self {
        Self {
            signing,
            removed: CancellationToken::new(),
        }
    }
}

fn remove(keys: Vec<IssuerKey>) {
    for key in keys {
        key.removed.cancel();
    }
}
