//! What the partitions of a cluster answer to a claim on locks of several of them, taken together.

use std::time::Duration;

use crate::domain::{
    Acquired, AnswerRoom, Claim, Conflict, ConflictKind, GrantKind, Granted, LockName, LockNames,
    Mismatch, Position, Refused, Waiting,
};
use crate::store::redis::operations::AskReply;

/// A lease that was granted less than this long ago may be one of several that its claim is just being granted.
const NEW: Duration = Duration::from_millis(250);

/// What the partitions answer to a claim.
#[derive(Default)]
pub(super) struct PartitionAnswers {
    /// The locks that the claim does not hold.
    not_held: Vec<LockName>,
    /// How long the last of the partitions with these locks waits before it grants any, if one does: its leases may be lost.
    grace_left: Option<Duration>,
    /// Whether it holds some that a client has received.
    holds: bool,
    /// Whether it holds some by this attempt that no client has received.
    pub(super) holds_unreported: bool,
    /// How many partitions have answered.
    count: usize,
    /// For each partition in whose queues the claim has a place: its first lock, its number among those that were asked,
    /// and the sequence number of the place.
    places: Vec<(LockName, usize, u64)>,
    pub(super) waiting: Option<Waiting>,
    pub(super) conflicts: Vec<Conflict>,
    /// Whether a lock is not free.
    pub(super) is_blocked: bool,
    /// The answer that ends the matter, and its rank: the smallest counts.
    pub(super) decided: Option<(u8, Acquired)>,
}

/// Whether a lock was granted so lately that its claim may have yet to be granted others.
pub(super) fn is_new(conflict: &Conflict) -> bool {
    let ConflictKind::Holders(holders) = &conflict.by else {
        return false;
    };
    holders.listed.iter().any(|holder| holder.held_for() < NEW)
}

impl PartitionAnswers {
    /// What one partition answers about its locks, and how long it still waits before it grants any.
    pub(super) fn add(
        &mut self,
        names: &LockNames,
        reply: Result<Acquired, AskReply>,
        grace_left: Option<Duration>,
    ) {
        let number = self.count;
        self.count += 1;
        match reply {
            Err(AskReply::Holds { is_acknowledged }) => return self.hold(is_acknowledged),
            // A partition that recovers grants nothing, and is not asked whether it would: this is a replay.
            Ok(Acquired::Granted(granted)) => {
                return self.hold(granted.kind != GrantKind::New);
            }
            Err(AskReply::Queued(waiting)) => self.wait(waiting),
            Err(AskReply::NotQueued { ticket, conflicts }) => {
                let place = names.first().cloned().zip(ticket);
                let place = place.map(|(name, sequence)| (name, number, sequence));
                self.places.extend(place);
                self.block(conflicts);
            }
            Ok(Acquired::Waiting(waiting)) => {
                self.is_blocked = true;
                self.wait(waiting);
            }
            Ok(Acquired::Refused(Refused::Blocked(conflicts))) => {
                self.block(conflicts);
            }
            Ok(answer) => self.decide(answer),
        }
        self.not_held.extend(names.iter().cloned());
        self.grace_left = self.grace_left.max(grace_left);
    }

    fn hold(&mut self, is_acknowledged: bool) {
        self.holds |= is_acknowledged;
        self.holds_unreported |= !is_acknowledged;
    }

    fn decide(&mut self, answer: Acquired) {
        let rank = match &answer {
            Acquired::Refused(Refused::Ended(_)) => 0,
            Acquired::Refused(Refused::Mismatched(_)) => 1,
            Acquired::Refused(Refused::Recovering { .. }) => 3,
            Acquired::Granted(_)
            | Acquired::Waiting(_)
            | Acquired::Superseded
            | Acquired::WaitExpired
            | Acquired::Refused(
                Refused::Blocked(_)
                | Refused::TooManyWaiters { .. }
                | Refused::TooManyLeases { .. },
            ) => 2,
        };
        let is_before = |(other_rank, other): &(u8, Acquired)| {
            (rank, name_in(&answer)) < (*other_rank, name_in(other))
        };
        if self.decided.as_ref().is_none_or(is_before) {
            self.decided = Some((rank, answer));
        }
    }

    /// Whether it holds some of its locks and not the others, and may hold all in a moment: another request of it may just be
    /// granted them.
    pub(super) fn is_held_in_part(&self) -> bool {
        let is_in_part = self.holds && !self.not_held.is_empty();
        is_in_part && self.decided.is_none() && self.grace_left.is_none()
    }

    /// The answer that ends the matter, if there is one: some lock cannot be granted, or the claim is another one.
    pub(super) fn end(&mut self, claim: &Claim, waits: bool) -> Option<Acquired> {
        match self.decided.take() {
            // A partition that recovers grants nothing, but keeps a waiting claim in its queues, and takes a new one.
            Some((_, Acquired::Refused(Refused::Recovering { .. })))
                if waits && (self.waiting.is_some() || !self.holds) =>
            {
                self.is_blocked = true;
            }
            // What is in the way elsewhere counts, as it does where all locks are in one place.
            Some((_, Acquired::Refused(Refused::Recovering { .. })))
                if self.is_blocked && !self.holds => {}
            Some((_, answer)) => return Some(answer),
            None => {}
        }
        if self.holds
            && let Some(retry_in) = self.grace_left
        {
            // It may have held the others, too, and lost them.
            return Some(Acquired::Refused(Refused::Recovering { retry_in }));
        }
        let is_missing = |name: &&LockName| self.not_held.contains(name);
        let stray = match self.holds {
            true => claim.names.iter().find(is_missing),
            false => self.stray_place(),
        };
        let name = stray?.clone();
        Some(Acquired::Refused(Refused::Mismatched(Mismatch::Claim {
            name,
        })))
    }

    /// The number of a partition in whose queues the claim has a place, if there is one.
    pub(super) fn has_place_in(&self) -> Option<usize> {
        self.places.first().map(|(_, number, _)| *number)
    }

    /// A lock on which the claim has another place than on others. Locks on which it has none have lost it with their data:
    /// tickets identify all locks of their claim, so a place of another claim is a mismatch before this is asked.
    fn stray_place(&self) -> Option<&LockName> {
        let (_, _, first) = self.places.first()?;
        let is_stray = self.places.iter().any(|(_, _, place)| place != first);
        let names = self.places.iter().map(|(name, ..)| name);
        names.min().filter(|_| is_stray)
    }

    fn block(&mut self, conflicts: Vec<Conflict>) {
        self.is_blocked |= !conflicts.is_empty();
        self.conflicts.extend(conflicts);
    }

    fn wait(&mut self, also: Waiting) {
        let Some(waiting) = self.waiting else {
            self.waiting = Some(also);
            return;
        };
        let soonest = waiting.recheck_in.into_iter().chain(also.recheck_in).min();
        self.waiting = Some(Waiting {
            ticket: waiting.ticket,
            recheck_in: soonest,
            position: later(waiting.position, also.position),
            // After a failed grant the other partitions have no place any more, which proves no loss.
            restored: waiting.restored,
            has_ambiguous_attempt: waiting.has_ambiguous_attempt || also.has_ambiguous_attempt,
        });
    }
}

/// The lock because of which a claim is refused for good.
fn name_in(answer: &Acquired) -> Option<&LockName> {
    match answer {
        Acquired::Refused(Refused::Ended(not_held)) => Some(&not_held.name),
        Acquired::Refused(Refused::Mismatched(mismatch)) => Some(name_of(mismatch)),
        Acquired::Refused(Refused::TooManyWaiters { name, .. }) => Some(name),
        Acquired::Granted(_)
        | Acquired::Waiting(_)
        | Acquired::Superseded
        | Acquired::WaitExpired
        | Acquired::Refused(
            Refused::Blocked(_) | Refused::Recovering { .. } | Refused::TooManyLeases { .. },
        ) => None,
    }
}

/// The lock on which a claim has other parameters.
pub(super) fn name_of(mismatch: &Mismatch) -> &LockName {
    match mismatch {
        Mismatch::Claim { name } | Mismatch::Upgrade { name } | Mismatch::Limit { name, .. } => {
            name
        }
    }
}

/// The worse one of two positions; the first if both are the same.
pub(super) fn later(one: Option<Position>, other: Option<Position>) -> Option<Position> {
    other.into_iter().chain(one).max_by_key(|it| it.position)
}

/// The conflicts in the order of names, with as many of their holders as one answer lists.
pub(super) fn listed(claim: &Claim, mut conflicts: Vec<Conflict>) -> Vec<Conflict> {
    conflicts.sort_by(|one, other| one.name.cmp(&other.name));
    let mut room = AnswerRoom::for_locks(claim.names.len());
    for conflict in &mut conflicts {
        if let ConflictKind::Holders(holders) = &mut conflict.by {
            let listed = std::mem::take(&mut holders.listed);
            holders.listed = room.take(listed.into_iter());
        }
    }
    conflicts
}

/// One grant of all locks, in the order of names.
pub(super) fn merged(claim: &Claim, parts: Vec<(LockNames, Granted)>) -> Granted {
    let kinds = parts.iter().map(|(_, granted)| granted.kind);
    let kind = [GrantKind::New, GrantKind::Reentered]
        .into_iter()
        .find(|kind| kinds.clone().any(|it| it == *kind))
        .unwrap_or(GrantKind::Replayed);
    let mut leases = Vec::with_capacity(claim.names.len());
    let (mut options, mut expired) = (Vec::new(), Vec::new());
    for (names, granted) in parts {
        leases.extend(names.iter().cloned().zip(granted.leases));
        options.extend(names.iter().cloned().zip(granted.options));
        expired.extend(granted.expired);
    }
    leases.sort_by(|(one, _), (other, _)| one.cmp(other));
    options.sort_by(|(one, _), (other, _)| one.cmp(other));
    expired.sort_by(|one, other| one.name.cmp(&other.name));
    Granted {
        kind,
        leases: leases.into_iter().map(|(_, lease)| lease).collect(),
        options: match kind {
            GrantKind::New => Vec::new(),
            GrantKind::Reentered | GrantKind::Replayed => {
                options.into_iter().map(|(_, options)| options).collect()
            }
        },
        expired,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::domain::{Token, Ttl};

    fn names(texts: &[&str]) -> LockNames {
        let name = |text: &&str| LockName::parse(text.as_bytes()).expect("a name");
        LockNames::several(texts.iter().map(name).collect()).expect("names")
    }

    /// It is not asked whether it would grant its locks, because it grants none.
    #[test]
    fn what_a_recovering_partition_replays_is_no_grant_of_the_other_locks() {
        let names = [names(&["a"]), names(&["b"])];
        let all = self::names(&["a", "b"]);
        let ttl = Ttl::from_store(Duration::from_secs(30));
        let claim = Claim::plain(all, Token::random(), ttl);
        let replayed = |kind| {
            let granted = Granted::before(kind, Vec::new());
            Ok(Acquired::Granted(granted))
        };
        let open = || {
            Err(AskReply::NotQueued {
                ticket: None,
                conflicts: Vec::new(),
            })
        };

        let mut of_both = PartitionAnswers::default();
        for names in &names {
            of_both.add(names, replayed(GrantKind::Replayed), None);
        }
        assert!(of_both.end(&claim, false).is_none() && !of_both.is_blocked);

        let mut of_one = PartitionAnswers::default();
        of_one.add(&names[0], replayed(GrantKind::Replayed), None);
        of_one.add(&names[1], open(), None);
        let end = of_one.end(&claim, false);
        assert!(matches!(
            end,
            Some(Acquired::Refused(Refused::Mismatched(_)))
        ));

        let mut unreported = PartitionAnswers::default();
        unreported.add(&names[0], replayed(GrantKind::New), None);
        unreported.add(&names[1], open(), None);
        assert!(unreported.end(&claim, false).is_none() && unreported.holds_unreported);
    }
}
