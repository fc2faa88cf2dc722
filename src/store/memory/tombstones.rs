//! Claims that ended a short while ago, and how.

use std::collections::{BTreeSet, HashMap};

use tokio::time::Instant;

use super::clock::StoreTime;
use super::lease_record::LeaseRecord;
use crate::domain::{Attempt, Fence, LockName, NotHolder, Token};
use crate::store::TOMBSTONE_TTL;

/// The endings of the last minute, the latest of them if there are too many.
pub(super) struct Tombstones {
    max: usize,
    endings: HashMap<(LockName, Token), Tombstone>,
    /// Exactly one entry for each ending.
    forgotten: BTreeSet<(Instant, LockName, Token)>,
}

struct Tombstone {
    how: NotHolder,
    until: Instant,
    /// The grant that ran out, as long as nobody but the attempt that made it was told of it.
    unacknowledged: Option<(Attempt, Fence)>,
}

impl Tombstones {
    /// Remembers so many.
    pub(super) fn at_most(max: usize) -> Self {
        Self {
            max,
            endings: HashMap::new(),
            forgotten: BTreeSet::new(),
        }
    }

    /// How the claim ended, if it did.
    pub(super) fn get(&self, name: &LockName, token: Token, now: StoreTime) -> Option<NotHolder> {
        let ending = self.endings.get(&(name.clone(), token))?;
        (ending.until > now.instant).then(|| ending.how.clone())
    }

    pub(super) fn remember(
        &mut self,
        name: &LockName,
        token: Token,
        how: NotHolder,
        since: Instant,
    ) {
        let until = since + TOMBSTONE_TTL;
        let untold = None;
        self.insert(
            name,
            token,
            Tombstone {
                how,
                until,
                unacknowledged: untold,
            },
        );
    }

    /// A lease ran out. An attempt that nobody was told of can still be withdrawn.
    pub(super) fn remember_expired(&mut self, name: &LockName, hold: &LeaseRecord) {
        let ending = Tombstone {
            how: NotHolder::Expired,
            until: hold.until + TOMBSTONE_TTL,
            unacknowledged: hold.unacknowledged().map(|attempt| (attempt, hold.fence)),
        };
        self.insert(name, hold.token, ending);
    }

    /// Another claim was granted the lock of one whose lease ran out.
    pub(super) fn lose(&mut self, name: &LockName, token: Token) {
        if let Some(ending) = self.endings.get_mut(&(name.clone(), token)) {
            ending.how = NotHolder::Lost;
        }
    }

    /// Forgets that what this attempt was granted ran out. Says which grant that was.
    pub(super) fn withdraw(
        &mut self,
        name: &LockName,
        token: Token,
        attempt: Attempt,
    ) -> Option<Fence> {
        let (by, fence) = self.endings.get(&(name.clone(), token))?.unacknowledged?;
        if by != attempt {
            return None;
        }
        self.remove(name.clone(), token);
        Some(fence)
    }

    /// Forgets one ending whose time is over. Says whether there was one.
    pub(super) fn forget(&mut self, now: StoreTime) -> bool {
        match self.forgotten.first() {
            Some((until, name, token)) if *until <= now.instant => {
                let (name, token) = (name.clone(), *token);
                self.remove(name, token);
                true
            }
            Some(_) | None => false,
        }
    }

    fn insert(&mut self, name: &LockName, token: Token, ending: Tombstone) {
        let until = ending.until;
        if let Some(before) = self.endings.insert((name.clone(), token), ending) {
            self.forgotten.remove(&(before.until, name.clone(), token));
        }
        self.forgotten.insert((until, name.clone(), token));
        if self.endings.len() > self.max
            && let Some((_, name, token)) = self.forgotten.first().cloned()
        {
            self.remove(name, token);
        }
    }

    fn remove(&mut self, name: LockName, token: Token) {
        let claim = (name, token);
        if let Some(ending) = self.endings.remove(&claim) {
            let (name, token) = claim;
            self.forgotten.remove(&(ending.until, name, token));
        }
    }
}
