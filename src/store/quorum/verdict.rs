//! What the answers of the nodes to an acquire mean together.

use std::time::Duration;

use super::answers::{ByNode, Effect, LATE_ANSWERS_MAX};
use super::drift::Drift;
use super::grants::{
    agree_on_terms, agreed_fences, granted, held_before, largest_fences, were_held,
};
use super::late_changes::CHANGE_WITHIN;
use super::merge;
use crate::backoff::up_to;
use crate::domain::{
    Acquired, Conflict, Fence, GrantKind, LockName, Mismatch, NotHolder, Refused, Ticket, Waiting,
};
use crate::store::StoreError;

/// The longest pause before a claim asks again that has got some nodes, but not a majority.
const SPLIT_PAUSE: Duration = Duration::from_millis(40);

/// Recognizes answers of one kind.
type IsOfKind = fn(&Acquired) -> bool;

/// The answers to a claim that can be neither granted nor enqueued. In this order if there are several: an end is final,
/// and what contradicts a claim cannot be waited for.
const REFUSALS: [IsOfKind; 8] = [
    was_ended,
    is_mismatched,
    is_over_quota,
    is_superseded,
    has_waited,
    has_run_out,
    is_queue_full,
    is_recovering,
];

/// Those of which one node is enough unless a majority grants the locks or has the claim wait: somebody has ended it.
const ENDS_OF_CLAIM: [IsOfKind; 2] = [was_ended, is_superseded];

/// Those of which one node is enough, unless the claim may hold its locks already: what they depend on may be left at that
/// node alone.
const REFUSALS_OF_CLAIM: [IsOfKind; 3] = [is_contradicted, is_over_quota, has_waited];

/// Those that may be so at one node alone: it has kept a lease that no majority had, it has more waiters than the others,
/// or it has lost its data. Such a node only has no vote.
const REFUSALS_OF_NODES: [IsOfKind; 3] = [has_run_out, is_queue_full, is_recovering];

/// The meaning of the answers.
#[derive(Debug)]
pub(super) enum Verdict {
    /// A majority has granted the locks; these are the fencing tokens of the leases.
    Granted(Vec<Fence>),
    /// The claim waits at a majority, but not at one place. It has to take this one at all nodes.
    Unplaced(u64),
    /// The claim is not granted.
    Answered(Acquired),
    /// There is a majority for nothing, because contenders have got some nodes each. Asked again later, nodes may answer
    /// otherwise; if not, this is the answer.
    Split(Acquired),
    /// Nodes have its leases from before, and those that are silent may make them a majority. Asked again later, they may
    /// answer; if not, the outcome is unknown.
    Unclear,
    /// Too few nodes have answered.
    Failed(StoreError),
}

/// Whether further answers make no difference.
pub(super) fn is_decided(votes: &ByNode<Acquired>) -> bool {
    let majority = votes.majority();
    if released(votes).is_some() && held_before(votes) + votes.missing() < majority {
        return true;
    }
    if granted(votes).count() >= majority {
        return granted(votes).all(|granted| granted.kind == GrantKind::New)
            || agreed_fences(votes).is_some() && agree_on_terms(votes);
    }
    let blocked = blocked(votes);
    if blocked.len() >= majority {
        return merge::agree(majority, &blocked);
    }
    agreed_place(votes).is_some() || common_refusal(votes, &REFUSALS, majority).is_some()
}

/// How much longer further answers are waited for; none without a majority. If nodes have the leases from before, and others lack
/// them, the rest decides whether that is a new grant.
pub(super) fn rest_max(votes: &ByNode<Acquired>) -> Option<Duration> {
    let before = held_before(votes);
    let may_be_held = before > 0 && before + votes.missing() >= votes.majority();
    let is_open = may_be_held && !were_held(votes) && granted(votes).count() > before;
    votes.has_majority().then_some(match is_open {
        true => CHANGE_WITHIN,
        false => LATE_ANSWERS_MAX,
    })
}

/// What the answers mean.
pub(super) fn judge(drift: Drift, votes: &ByNode<Acquired>) -> Verdict {
    let majority = votes.majority();
    if let Some(released) = released(votes) {
        return Verdict::Answered(released);
    }
    if granted(votes).count() >= majority {
        if let Some(mismatched) = held_shared(votes) {
            return Verdict::Answered(mismatched);
        }
        let fences = agreed_fences(votes).unwrap_or_else(|| largest_fences(votes));
        return Verdict::Granted(fences);
    }
    if let Some(refused) = common_refusal(votes, &REFUSALS, majority) {
        return Verdict::Answered(refused);
    }
    if waiting(votes).count() >= majority {
        return place(votes);
    }
    if !votes.has_majority() {
        let unknown = votes.0.iter().filter(|vote| match vote {
            Some(Err(error)) => matches!(error, StoreError::Unknown { .. }),
            Some(Ok(_)) => false,
            None => true,
        });
        let effect = match granted(votes).count() + unknown.count() >= majority {
            true => Effect::MayBeDone,
            false => Effect::None,
        };
        return Verdict::Failed(votes.no_majority(effect));
    }
    if let Some(ended) = common_refusal(votes, &ENDS_OF_CLAIM, 1) {
        return Verdict::Answered(ended);
    }
    let does_wait = waiting(votes).count() > 0;
    if !does_wait && may_hold_already(votes) {
        return Verdict::Unclear;
    }
    if let Some(refused) = refusal_of_few(votes) {
        return Verdict::Answered(refused);
    }
    if does_wait {
        return Verdict::Split(Acquired::Waiting(merged_waiting(votes)));
    }
    let blocked = blocked(votes);
    // Without a conflict, what is left prevents a majority only together with the rest. A node may have another limit alone,
    // because it has missed the release of the last claim that used it.
    let left = [has_other_limit, is_queue_full, is_recovering];
    let refused = common_refusal(votes, &left, 1);
    if let Some(refused) = refused.filter(|_| blocked.is_empty()) {
        return Verdict::Split(refused);
    }
    let needed = merge::needed(votes.0.len(), votes.received().count());
    let conflicts = match merge::conflicts(drift, needed, &blocked) {
        common if common.is_empty() => merge::conflicts(drift, 1, &blocked),
        common => common,
    };
    let refused = Acquired::Refused(Refused::Blocked(conflicts));
    match blocked.len() >= majority && merge::agree(majority, &blocked) {
        true => Verdict::Answered(refused),
        false => Verdict::Split(refused),
    }
}

/// Whether the claim may hold its locks since an earlier request: nodes have its leases from then, and with those that
/// have not answered they would be a majority. What another node says against it may be left from before.
fn may_hold_already(votes: &ByNode<Acquired>) -> bool {
    let before = held_before(votes);
    let silent = votes.0.iter().filter(|vote| match vote {
        Some(Ok(_)) => false,
        // A node without room has none of its leases, because to repeat their grant would need no room.
        Some(Err(StoreError::Unavailable { fault, .. })) => !fault.is_full(),
        Some(Err(StoreError::Unknown { .. })) | None => true,
    });
    let silent = silent.count();
    before > 0 && before + silent >= votes.majority()
}

/// The answer of a node that has the claim's leases shared, if the claim asks for them alone and may hold them since an earlier
/// request: such nodes, and those that repeat their grant, are a majority, although the latter alone are none. The others
/// lack the leases, and would grant them anew, with another token.
fn held_shared(votes: &ByNode<Acquired>) -> Option<Acquired> {
    let majority = votes.majority();
    let before = held_before(votes);
    let shared = || votes.received().filter(|vote| is_shared(vote));
    let is_held = before < majority && before + shared().count() >= majority;
    shared().next().filter(|_| is_held).cloned()
}

/// The answer of fewer nodes than a majority to a claim that can be neither granted nor enqueued.
fn refusal_of_few(votes: &ByNode<Acquired>) -> Option<Acquired> {
    // The other nodes cannot make up a majority of grants without these.
    let least = votes.received().count() + 1 - votes.majority();
    common_refusal(votes, &REFUSALS_OF_CLAIM, 1)
        .or_else(|| common_refusal(votes, &REFUSALS_OF_NODES, least))
}

/// The answer of a node that remembers the claim's release, unless a majority has its leases from before. Only the claim's
/// own client releases it, and one of the others may have missed that, and another one the grant: they would grant it
/// again. But if a majority has the leases still, no majority has released them: the node has, for a stream that was
/// closed when another one had taken them over.
fn released(votes: &ByNode<Acquired>) -> Option<Acquired> {
    common_refusal(votes, &[was_released], 1).filter(|_| !were_held(votes))
}

/// The first of these kinds of answers that at least `least` nodes give.
fn common_refusal(votes: &ByNode<Acquired>, kinds: &[IsOfKind], least: usize) -> Option<Acquired> {
    kinds.iter().find_map(|is_of_kind| {
        let same = || votes.received().filter(|vote| is_of_kind(vote));
        (same().count() >= least).then(|| same().next().cloned())?
    })
}

/// Whether nodes refuse the claim because each lacks another one of its locks, of which a majority may have each. Each names the
/// first that it lacks. If a majority names the same, it lacks that one, or holds it in another mode.
pub(super) fn lack_different_locks(votes: &ByNode<Acquired>) -> bool {
    let named = lacking(votes);
    !named.is_empty() && merge::agreed(votes.majority(), &named).is_none()
}

/// Whether a majority may have each lock of the claim, although no majority has all: too few nodes have none of them.
pub(super) fn may_have_each(votes: &ByNode<Acquired>) -> bool {
    let have_some = lacking(votes).len();
    have_some > 0 && !were_held(votes) && held_before(votes) + have_some >= votes.majority()
}

/// The first locks that nodes lack which have others of the claim.
fn lacking(votes: &ByNode<Acquired>) -> Vec<&LockName> {
    let named = votes.received().filter_map(|vote| match vote {
        Acquired::Refused(Refused::Mismatched(Mismatch::Claim { name })) => Some(name),
        Acquired::Refused(_)
        | Acquired::Granted(_)
        | Acquired::Waiting(_)
        | Acquired::Superseded
        | Acquired::WaitExpired => None,
    });
    named.collect()
}

fn was_released(vote: &Acquired) -> bool {
    matches!(vote, Acquired::Refused(Refused::Ended(ended)) if ended.reason == NotHolder::Released)
}

fn was_ended(vote: &Acquired) -> bool {
    matches!(vote, Acquired::Refused(Refused::Ended(ended)) if !ended.reason.ran_out())
}

fn has_run_out(vote: &Acquired) -> bool {
    matches!(vote, Acquired::Refused(Refused::Ended(ended)) if ended.reason.ran_out())
}

fn is_mismatched(vote: &Acquired) -> bool {
    matches!(vote, Acquired::Refused(Refused::Mismatched(_)))
}

/// Whether another claim has the lock with another limit.
fn has_other_limit(vote: &Acquired) -> bool {
    matches!(
        vote,
        Acquired::Refused(Refused::Mismatched(Mismatch::Limit { .. }))
    )
}

/// Whether the claim contradicts what it was made with before.
fn is_contradicted(vote: &Acquired) -> bool {
    is_mismatched(vote) && !has_other_limit(vote)
}

fn is_shared(vote: &Acquired) -> bool {
    matches!(
        vote,
        Acquired::Refused(Refused::Mismatched(Mismatch::Upgrade { .. }))
    )
}

fn is_over_quota(vote: &Acquired) -> bool {
    matches!(vote, Acquired::Refused(Refused::TooManyLeases { .. }))
}

fn is_superseded(vote: &Acquired) -> bool {
    matches!(vote, Acquired::Superseded)
}

fn has_waited(vote: &Acquired) -> bool {
    matches!(vote, Acquired::WaitExpired)
}

fn is_queue_full(vote: &Acquired) -> bool {
    matches!(vote, Acquired::Refused(Refused::TooManyWaiters { .. }))
}

fn is_recovering(vote: &Acquired) -> bool {
    matches!(vote, Acquired::Refused(Refused::Recovering { .. }))
}

fn waiting(votes: &ByNode<Acquired>) -> impl Iterator<Item = &Waiting> {
    votes.received().filter_map(|vote| match vote {
        Acquired::Waiting(waiting) => Some(waiting),
        Acquired::Granted(_)
        | Acquired::Superseded
        | Acquired::WaitExpired
        | Acquired::Refused(_) => None,
    })
}

fn blocked(votes: &ByNode<Acquired>) -> Vec<&[Conflict]> {
    let blocked = votes.received().filter_map(|vote| match vote {
        Acquired::Refused(Refused::Blocked(conflicts)) => Some(&conflicts[..]),
        Acquired::Refused(_)
        | Acquired::Granted(_)
        | Acquired::Waiting(_)
        | Acquired::Superseded
        | Acquired::WaitExpired => None,
    });
    blocked.collect()
}

/// The sequence number by which a majority has the claim in its queues. A node that has forgotten the claim gives a later
/// one to a request that does not say where it was, and the other nodes would follow.
fn agreed_place(votes: &ByNode<Acquired>) -> Option<u64> {
    let sequences = waiting(votes).map(|waiting| waiting.ticket.sequence);
    merge::agreed(votes.majority(), &sequences.collect::<Vec<_>>())
}

/// The claim waits. If no majority has it at one place, its sequence number is the largest that a node gave it, and so
/// larger than that of every claim that had its place at a majority before.
fn place(votes: &ByNode<Acquired>) -> Verdict {
    let waiting_at = merged_waiting(votes);
    let place = waiting_at.ticket.sequence;
    let at_place = waiting(votes).filter(|waiting| waiting.ticket.sequence == place);
    match at_place.count() >= votes.majority() {
        true => Verdict::Answered(Acquired::Waiting(waiting_at)),
        false => Verdict::Unplaced(place),
    }
}

/// The claim waits, at the place that most nodes know.
pub(super) fn waiting_at(votes: &ByNode<Acquired>) -> Acquired {
    Acquired::Waiting(merged_waiting(votes))
}

/// The place at which nodes have the claim in their queues: that of a majority, or else the last.
pub(super) fn place_known(votes: &ByNode<Acquired>) -> Option<u64> {
    let largest = || waiting(votes).map(|waiting| waiting.ticket.sequence).max();
    agreed_place(votes).or_else(largest)
}

fn merged_waiting(votes: &ByNode<Acquired>) -> Waiting {
    let majority = votes.majority();
    let all = || waiting(votes);
    let until = merge::reached_by(majority, all().filter_map(|waiting| waiting.ticket.until));
    // The claim can be granted when its conflicts at a majority have gone, but for those that may go unnoticed.
    let mut rechecks: Vec<_> = all().filter_map(|waiting| waiting.recheck_in).collect();
    rechecks.sort_unstable();
    let recheck_in = match granted(votes).count() {
        0 => rechecks.get(majority - 1).or(rechecks.last()).copied(),
        _ => Some(up_to(SPLIT_PAUSE)),
    };
    Waiting {
        ticket: Ticket {
            sequence: place_known(votes).unwrap_or_default(),
            until,
        },
        recheck_in,
        position: merge::position(majority, all().filter_map(|waiting| waiting.position)),
        restored: all().any(|waiting| waiting.restored),
        has_ambiguous_attempt: may_hold_already(votes)
            || all().any(|waiting| waiting.has_ambiguous_attempt),
    }
}
