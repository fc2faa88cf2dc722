//! A claim as the state machine keeps it: by its keys, and with its public text, which is counted. Tokens are not kept.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::domain::{Claim, ClaimDigest, LockName, LockNames, Metadata, Owner, Token};

/// This many bytes count as much as a lease.
const BYTES_PER_COUNT: usize = 256;

/// The key of a claim on one lock.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimKey {
    /// The lock.
    pub name: LockName,
    /// The claim.
    pub claim: ClaimDigest,
}

impl ClaimKey {
    pub(super) fn new(name: &LockName, claim: ClaimDigest) -> Self {
        let name = name.clone();
        Self { name, claim }
    }

    fn of(name: &LockName, token: Token) -> Self {
        Self::new(name, token.digest(name))
    }
}

/// The keys of a claim on all of its locks, in the order of names.
#[derive(Clone, Debug)]
pub struct ClaimKeys(KeyList);

#[derive(Clone, Debug)]
enum KeyList {
    One([ClaimKey; 1]),
    Several(Box<[ClaimKey]>),
}

impl ClaimKeys {
    /// The keys of the claims of a token.
    #[must_use]
    pub fn of(names: &LockNames, token: Token) -> Self {
        Self(match &names[..] {
            [name] => KeyList::One([ClaimKey::of(name, token)]),
            names => KeyList::Several(names.iter().map(|name| ClaimKey::of(name, token)).collect()),
        })
    }
}

impl Deref for ClaimKeys {
    type Target = [ClaimKey];

    fn deref(&self) -> &[ClaimKey] {
        match &self.0 {
            KeyList::One(key) => key,
            KeyList::Several(keys) => keys,
        }
    }
}

/// A claim with its keys.
#[derive(Debug)]
pub struct KeyedClaim<'a> {
    claim: &'a Claim,
    pub(super) keys: ClaimKeys,
}

impl<'a> KeyedClaim<'a> {
    /// Derives the keys of a claim.
    #[must_use]
    pub fn new(claim: &'a Claim) -> Self {
        let keys = ClaimKeys::of(&claim.names, claim.token);
        Self { claim, keys }
    }
}

impl Deref for KeyedClaim<'_> {
    type Target = Claim;

    fn deref(&self) -> &Claim {
        self.claim
    }
}

/// Owner and metadata of a claim: kept once for all of its locks, and counted for as long as they are kept. Cloning is cheap, and clones count once.
#[derive(Clone, Debug)]
pub(super) enum Text {
    /// Just an owner, too short to count. Most claims have no more, and there may be millions of them.
    Owner(Owner),
    Whole(Arc<Whole>),
}

#[derive(Debug)]
pub(super) struct Whole {
    owner: Owner,
    metadata: Option<Metadata>,
    counts: usize,
    total: TextTotal,
}

/// How much of `locks_max` all texts use together. Clones share it.
#[derive(Clone, Default)]
pub(super) struct TextTotal(Arc<AtomicUsize>);

impl TextTotal {
    pub(super) fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for TextTotal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TextTotal")
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        self.total.0.fetch_sub(self.counts, Ordering::Relaxed);
    }
}

impl Default for Text {
    fn default() -> Self {
        Self::Owner(Owner::default())
    }
}

impl Text {
    /// The text of a claim without metadata, unless its owner is so long that it counts.
    pub(super) fn of_owner_alone(owner: &Owner, metadata: Option<&Metadata>) -> Option<Self> {
        let is_alone = metadata.is_none() && counts(owner, None) == 0;
        is_alone.then(|| Self::Owner(owner.clone()))
    }

    /// The text of a claim, counted from now on.
    pub(super) fn whole(owner: &Owner, metadata: Option<&Metadata>, total: &TextTotal) -> Self {
        let counts = counts(owner, metadata);
        total.0.fetch_add(counts, Ordering::Relaxed);
        Self::Whole(Arc::new(Whole {
            owner: owner.clone(),
            metadata: metadata.cloned(),
            counts,
            total: total.clone(),
        }))
    }

    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Owner(owner) => owner.as_str().is_empty(),
            Self::Whole(_) => false,
        }
    }

    /// Whether it equals the claim's text.
    pub(super) fn is_of(&self, claim: &Claim) -> bool {
        *self.owner() == claim.owner && self.metadata() == claim.metadata.as_ref()
    }

    pub(super) fn owner(&self) -> &Owner {
        match self {
            Self::Owner(owner) => owner,
            Self::Whole(whole) => &whole.owner,
        }
    }

    pub(super) fn metadata(&self) -> Option<&Metadata> {
        match self {
            Self::Owner(_) => None,
            Self::Whole(whole) => whole.metadata.as_ref(),
        }
    }
}

/// How much of `locks_max` the text of a claim uses.
fn counts(owner: &Owner, metadata: Option<&Metadata>) -> usize {
    let metadata = metadata.map_or("", Metadata::as_json);
    (owner.as_str().len() + metadata.len()) / BYTES_PER_COUNT
}
