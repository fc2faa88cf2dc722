//! A claim as the state machine keeps it: by its keys, and with its public text, which is counted. Tokens are not kept.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

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

/// Owner and metadata of a claim: kept once for all of its locks, in memory and as a row, and counted for as long as they
/// are kept. Cloning is cheap, and clones count once.
#[derive(Clone, Debug)]
pub(super) enum Text {
    /// Just an owner, too short to count. Most claims have no more, and there may be millions of them.
    Owner(Owner),
    Whole(Arc<Whole>),
}

#[derive(Debug)]
pub(super) struct Whole {
    /// The number of its row.
    pub(super) number: u64,
    pub(super) owner: Owner,
    pub(super) metadata: Option<Metadata>,
    counts: usize,
    texts: Texts,
}

/// All texts with rows of their own. Clones are the same texts.
#[derive(Clone, Default)]
pub(super) struct Texts(Arc<TextsShared>);

#[derive(Default)]
struct TextsShared {
    /// How much of `locks_max` they use together.
    counted: AtomicUsize,
    rows: Mutex<TextRows>,
}

#[derive(Default)]
struct TextRows {
    kept: BTreeMap<u64, Weak<Whole>>,
    /// Those that came or went since they were taken last.
    changed: Vec<u64>,
}

impl Texts {
    /// How much of `locks_max` they use.
    pub(super) fn count(&self) -> usize {
        self.0.counted.load(Ordering::Relaxed)
    }

    /// The text of a row, if a claim still has it.
    pub(super) fn get(&self, number: u64) -> Option<Arc<Whole>> {
        self.rows().kept.get(&number)?.upgrade()
    }

    /// The rows that came or went.
    pub(super) fn take_changed(&self) -> Vec<u64> {
        std::mem::take(&mut self.rows().changed)
    }

    /// A text with this number, or the next if there is none.
    fn add(&self, number: Option<u64>, owner: &Owner, metadata: Option<&Metadata>) -> Arc<Whole> {
        let counts = counts(owner, metadata);
        self.0.counted.fetch_add(counts, Ordering::Relaxed);
        let mut rows = self.rows();
        let next = || rows.kept.last_key_value().map_or(1, |(last, _)| last + 1);
        let number = number.unwrap_or_else(next);
        let whole = Arc::new(Whole {
            number,
            owner: owner.clone(),
            metadata: metadata.cloned(),
            counts,
            texts: self.clone(),
        });
        rows.kept.insert(number, Arc::downgrade(&whole));
        rows.changed.push(number);
        whole
    }

    fn rows(&self) -> MutexGuard<'_, TextRows> {
        let rows = self.0.rows.lock();
        rows.unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Texts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Texts")
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        let texts = &self.texts;
        texts.0.counted.fetch_sub(self.counts, Ordering::Relaxed);
        let mut rows = texts.rows();
        rows.kept.remove(&self.number);
        rows.changed.push(self.number);
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
    pub(super) fn whole(owner: &Owner, metadata: Option<&Metadata>, texts: &Texts) -> Self {
        Self::Whole(texts.add(None, owner, metadata))
    }

    /// The text of a row that was loaded.
    pub(super) fn restored(
        number: u64,
        owner: &Owner,
        metadata: Option<&Metadata>,
        texts: &Texts,
    ) -> Self {
        Self::Whole(texts.add(Some(number), owner, metadata))
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
