//! A claim as the state machine keeps it: by its keys, with its public text, which is counted, and while it waits with
//! the names of its locks. Tokens are not kept.

use std::ops::Deref;
use std::sync::Arc;

use super::register::{Register, Registered};
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
    Whole(Arc<Registered<Whole>>),
}

#[derive(Debug)]
pub(super) struct Whole {
    pub(super) owner: Owner,
    pub(super) metadata: Option<Metadata>,
}

/// All texts with rows of their own.
pub(super) type Texts = Register<Whole>;

/// All locks of a waiting claim: kept once for all of its places, in memory and as a row. Cloning is cheap.
#[derive(Clone, Debug)]
pub(super) enum TicketNames {
    /// The lock that the ticket is for.
    One(LockNames),
    Several(Arc<Registered<LockNames>>),
}

/// All lists of names with rows of their own.
pub(super) type NameLists = Register<LockNames>;

impl TicketNames {
    /// The names of a claim that waits from now on.
    pub(super) fn new(names: &LockNames, lists: &NameLists) -> Self {
        match names.len() {
            1 => Self::One(names.clone()),
            _ => Self::Several(lists.add(names.clone(), 0)),
        }
    }
}

impl Deref for TicketNames {
    type Target = LockNames;

    fn deref(&self) -> &LockNames {
        match self {
            Self::One(names) => names,
            Self::Several(list) => &list.value,
        }
    }
}

impl Whole {
    fn new(owner: &Owner, metadata: Option<&Metadata>) -> Self {
        Self {
            owner: owner.clone(),
            metadata: metadata.cloned(),
        }
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
        let counts = counts(owner, metadata);
        Self::Whole(texts.add(Whole::new(owner, metadata), counts))
    }

    /// The text of a row that was loaded.
    pub(super) fn restored(
        number: u64,
        owner: &Owner,
        metadata: Option<&Metadata>,
        texts: &Texts,
    ) -> Self {
        let counts = counts(owner, metadata);
        Self::Whole(texts.restore(number, Whole::new(owner, metadata), counts))
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
            Self::Whole(whole) => &whole.value.owner,
        }
    }

    pub(super) fn metadata(&self) -> Option<&Metadata> {
        match self {
            Self::Owner(_) => None,
            Self::Whole(whole) => whole.value.metadata.as_ref(),
        }
    }
}

/// How much of `locks_max` the text of a claim uses.
fn counts(owner: &Owner, metadata: Option<&Metadata>) -> usize {
    let metadata = metadata.map_or("", Metadata::as_json);
    (owner.as_str().len() + metadata.len()) / BYTES_PER_COUNT
}
