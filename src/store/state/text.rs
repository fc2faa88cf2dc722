//! The public text of a claim: kept once for all of its locks, and counted for as long as it is kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::domain::{Claim, Metadata, Owner};

/// This many bytes count as much as a lease.
const BYTES_PER_COUNT: usize = 256;

/// Owner and metadata of a claim. Cloning is cheap, and clones count once.
#[derive(Clone)]
pub(super) enum Text {
    /// Just an owner, too short to count. Most claims have no more, and there may be millions of them.
    Owner(Owner),
    Whole(Arc<Whole>),
}

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
    pub(super) fn of_owner_alone(claim: &Claim) -> Option<Self> {
        let is_alone = claim.metadata.is_none() && counts(claim) == 0;
        is_alone.then(|| Self::Owner(claim.owner.clone()))
    }

    /// The text of a claim, counted from now on.
    pub(super) fn whole(claim: &Claim, total: &TextTotal) -> Self {
        let counts = counts(claim);
        total.0.fetch_add(counts, Ordering::Relaxed);
        Self::Whole(Arc::new(Whole {
            owner: claim.owner.clone(),
            metadata: claim.metadata.clone(),
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
fn counts(claim: &Claim) -> usize {
    let metadata = claim.metadata.as_ref().map_or("", Metadata::as_json);
    (claim.owner.as_str().len() + metadata.len()) / BYTES_PER_COUNT
}
