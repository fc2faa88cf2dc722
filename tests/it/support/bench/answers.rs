//! What laws expect to be answered, in a word.

use leasehold::domain::{
    Acquired, Blockade, Blocker, Claim, Contradiction, Grant, Holders, Lease, LockName, Lost,
    NotHolder, Renewed,
};

use super::claims::lock_of;

/// The only lease of an answer.
#[track_caller]
pub(crate) fn only<T: std::fmt::Debug>(mut several: Vec<T>) -> T {
    assert_eq!(several.len(), 1, "one is expected: {several:?}");
    several.remove(0)
}

/// The leases that were granted just now.
#[track_caller]
pub(crate) fn leases_granted(answer: Acquired) -> Vec<Lease> {
    match answer {
        Acquired::Granted(grants) => grants
            .into_iter()
            .map(|Grant { lease, .. }| lease)
            .collect(),
        other => panic!("it must be granted, but: {other:?}"),
    }
}

/// Who holds the only lock that is in the way.
#[track_caller]
pub(crate) fn holders_in_the_way(answer: Acquired) -> Holders {
    match blocker(answer) {
        Blocker::Holders(holders) => holders,
        other => panic!("others hold the lock, but: {other:?}"),
    }
}

/// What makes the only lock that is in the way unavailable.
#[track_caller]
pub(crate) fn blocker(answer: Acquired) -> Blocker {
    match answer {
        Acquired::Blocked(blockades) => only(blockades).by,
        other => panic!("something is in the way, but: {other:?}"),
    }
}

/// Whether nothing but holders of one lock is in the way.
pub(crate) fn is_held(answer: &Acquired) -> bool {
    matches!(answer, Acquired::Blocked(blockades)
        if matches!(&blockades[..], [Blockade { by: Blocker::Holders(_), .. }]))
}

/// Fails unless holders of one lock are in the way.
#[track_caller]
pub(crate) fn assert_held(answer: &Acquired) {
    assert!(is_held(answer), "others hold the lock, but: {answer:?}");
}

/// Fails unless the lock could be granted but for those who came first.
#[track_caller]
pub(crate) fn assert_behind_waiters(answer: Acquired) {
    let blocker = blocker(answer);
    assert_eq!(blocker, Blocker::Waiters);
}

/// Fails unless the claim stands in the queue.
#[track_caller]
pub(crate) fn assert_waiting(answer: &Acquired) {
    assert!(
        matches!(answer, Acquired::Waiting(_)),
        "it waits, but: {answer:?}"
    );
}

/// What a claim on one lock is answered that has ended.
pub(crate) fn ended(claim: &Claim, how: NotHolder) -> Acquired {
    Acquired::Ended(lost(lock_of(claim), how))
}

/// What a renewal on one lock is answered whose token does not hold it.
pub(crate) fn not_holder(claim: &Claim, how: NotHolder) -> Renewed {
    Renewed::NotHolder(vec![lost(lock_of(claim), how)])
}

/// A lock that a token does not hold.
pub(crate) fn lost(name: &LockName, how: NotHolder) -> Lost {
    Lost {
        name: name.clone(),
        how,
    }
}

/// The answer to a claim that was made otherwise before.
pub(crate) fn contradicts_claim(name: &LockName) -> Acquired {
    Acquired::Contradicts(Contradiction::Claim { name: name.clone() })
}

/// The answer to a claim with another limit than the holders'.
pub(crate) fn contradicts_limit(name: &LockName, in_force: Option<u32>) -> Acquired {
    Acquired::Contradicts(Contradiction::Limit {
        name: name.clone(),
        in_force,
    })
}

/// The answer to a claim that holds together with others and wants to be alone.
pub(crate) fn contradicts_upgrade(name: &LockName) -> Acquired {
    Acquired::Contradicts(Contradiction::Upgrade { name: name.clone() })
}
