//! API keys and their roles, and the limit on requests without a valid key.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::config::API_KEY_CHARS_MAX;
use crate::http::peers::PeerCounts;
use crate::http::problem::Problem;
use crate::http::requester::Requester;

/// What a key allows. Each role includes the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Read locks, events and metrics.
    Reader,
    /// Acquire, renew and release.
    Client,
    /// Take locks away from their holders.
    Admin,
}

impl Role {
    /// The role in the log.
    pub(in crate::http) fn label(self) -> &'static str {
        match self {
            Self::Reader => "reader",
            Self::Client => "client",
            Self::Admin => "admin",
        }
    }
}

/// The valid keys. Clones share them.
#[derive(Clone)]
pub struct KeyRing(Arc<RwLock<Vec<KeyDigest>>>);

/// One key, of which only the SHA-256 is kept.
struct KeyDigest {
    role: Role,
    digest: [u8; 32],
}

impl KeyRing {
    /// Creates a ring with these keys.
    #[must_use]
    pub fn new<K: AsRef<[u8]>>(keys: impl IntoIterator<Item = (Role, K)>) -> Self {
        Self(Arc::new(RwLock::new(digests(keys))))
    }

    /// Replaces all keys by these.
    pub fn replace<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = (Role, K)>) {
        let keys = digests(keys);
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = keys;
    }

    /// The role of a key, if it is valid. Compares all digests in constant time, so that response times reveal nothing
    /// about any key, not even its length.
    pub(super) fn role_of(&self, presented: &[u8]) -> Option<Role> {
        // No key is this long, and hashing longer input would let any client cause work.
        if presented.len() > API_KEY_CHARS_MAX {
            return None;
        }
        let presented: [u8; 32] = Sha256::digest(presented).into();
        let keys = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut found = None;
        for key in keys.iter() {
            if bool::from(key.digest.ct_eq(&presented)) {
                found = Some(key.role);
            }
        }
        found
    }

    /// Whether any key has this role.
    pub(super) fn has(&self, role: Role) -> bool {
        let keys = self.0.read().unwrap_or_else(PoisonError::into_inner);
        keys.iter().any(|key| key.role == role)
    }
}

impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

fn digests<K: AsRef<[u8]>>(keys: impl IntoIterator<Item = (Role, K)>) -> Vec<KeyDigest> {
    let keys = keys.into_iter().map(|(role, key)| KeyDigest {
        role,
        digest: Sha256::digest(key).into(),
    });
    keys.collect()
}

/// The counts of failed authentications in this process. Clones share them.
#[derive(Clone, Debug)]
pub struct Failures {
    per_minute_max: u32,
    counts: PeerCounts,
}

impl Failures {
    /// After `per_minute_max` failures of a peer in a minute, further ones get 429.
    #[must_use]
    pub fn new(per_minute_max: u32) -> Self {
        Self {
            per_minute_max,
            counts: PeerCounts::default(),
        }
    }

    /// Counts the failure and returns the problem for it. Trusted proxies are never limited, because they forward
    /// requests of many clients.
    pub(super) fn refuse(&self, requester: &Requester, detail: &'static str) -> Problem {
        let counted = self.counts.count(requester.network());
        if requester.is_trusted_proxy() || counted.count <= self.per_minute_max {
            Problem::unauthorized(detail)
        } else {
            Problem::rate_limited(counted.over_in)
        }
    }
}
