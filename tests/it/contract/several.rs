//! Contract tests of several locks at once: a claim gets all of them or none.
//!
//! Waiting for them is in `several_waiting`.

use leasehold::domain::{
    Acquired, Attempt, Claim, ConflictKind, GrantKind, Granted, Lease, LockName, LockNames,
    LockState, Mismatch, NotHolder, Refused, Released, Renewed,
};

use super::order::names_of_one_bucket;
use crate::support::fixture::{
    Fixture, LONG, READ, SHORT, at_depth, claim_mismatch, claim_on, claim_on_all, for_short,
    fresh_name, hold_count, in_mode, leases_granted, lost, names, rival, upgrade_mismatch,
};

/// A claim on `COUNT` fresh locks, and the locks in the order of names.
pub(super) fn claim_on_fresh<const COUNT: usize>() -> (Claim, [LockName; COUNT]) {
    let mut locks = [(); COUNT].map(|()| fresh_name());
    locks.sort();
    (claim_on_all(names(&locks)), locks)
}

/// A claim with the same token on some of the locks.
fn on(claim: &Claim, locks: &[&LockName]) -> Claim {
    Claim {
        names: names(locks.iter().copied()),
        ..claim.clone()
    }
}

fn evicted() -> NotHolder {
    NotHolder::Evicted {
        reason: "stuck".to_owned(),
    }
}

/// What blocks the claim, by name.
pub(super) fn blocked_by(answer: Acquired) -> Vec<(LockName, ConflictKind)> {
    let Acquired::Refused(Refused::Blocked(conflicts)) = answer else {
        panic!("something is in the way, but: {answer:?}");
    };
    let named = conflicts
        .into_iter()
        .map(|conflict| (conflict.name, conflict.by));
    named.collect()
}

async fn assert_free(fixture: &Fixture, locks: &[LockName]) {
    for lock in locks {
        assert_eq!(fixture.state(lock).await, LockState::Free, "{lock}");
    }
}

pub(super) async fn all_are_granted_in_the_order_of_names(fixture: &Fixture) {
    let (claim, locks) = claim_on_fresh::<3>();
    let mut before = Vec::new();
    for lock in &locks {
        let earlier = claim_on(lock);
        before.push(fixture.granted(&earlier).await.holder.fence);
        fixture.freed(&earlier).await;
    }
    let mut shuffled = locks.to_vec();
    shuffled.rotate_left(2);
    let claim = Claim {
        names: LockNames::several(shuffled).expect("they are different"),
        ..claim
    };
    let leases = fixture.all_granted(&claim).await;
    assert_eq!(leases.len(), 3);
    for ((lease, lock), before) in leases.iter().zip(&locks).zip(before) {
        assert_eq!(
            lease.holder.fence,
            fixture.holder(lock).await.fence,
            "{lock}"
        );
        assert!(lease.holder.fence > before, "{lock}");
        fixture.assert_left(lease.holder.expires_in, LONG);
    }
}

pub(super) async fn none_is_granted_when_one_is_not_free(fixture: &Fixture) {
    let (claim, locks) = claim_on_fresh::<4>();
    let holding = claim_on(&locks[1]);
    let cooling = Claim {
        min_hold: Some(LONG),
        ..claim_on(&locks[3])
    };
    fixture.granted(&holding).await;
    fixture.granted(&cooling).await;
    fixture.freed(&cooling).await;
    match &blocked_by(fixture.acquire(&claim).await)[..] {
        [
            (first, ConflictKind::Holders(holders)),
            (second, ConflictKind::Cooling { .. }),
        ] => {
            assert_eq!((first, second), (&locks[1], &locks[3]));
            assert_eq!(holders.total, 1);
        }
        other => panic!("two are in the way, but: {other:?}"),
    }
    assert_free(fixture, &[locks[0].clone(), locks[2].clone()]).await;
    // And no lock is kept for it.
    fixture.granted(&claim_on(&locks[0])).await;
}

pub(super) async fn a_lease_on_several_locks_is_replayed_and_re_entered(fixture: &Fixture) {
    let (claim, locks) = claim_on_fresh::<3>();
    let granted = fixture.all_granted(&claim).await;
    let fences = |leases: &[Lease]| {
        leases
            .iter()
            .map(|lease| lease.holder.fence)
            .collect::<Vec<_>>()
    };
    match fixture.acquire(&claim).await {
        Acquired::Granted(Granted {
            kind: GrantKind::Replayed,
            leases,
            ..
        }) => assert_eq!(fences(&leases), fences(&granted)),
        other => panic!("the claim holds, but: {other:?}"),
    }
    match fixture.acquire(&at_depth(&claim, 2)).await {
        Acquired::Granted(Granted {
            kind: GrantKind::Reentered,
            leases,
            ..
        }) => assert_eq!(fences(&leases), fences(&granted)),
        other => panic!("the claim goes deeper, but: {other:?}"),
    }
    for lock in &locks {
        assert_eq!(fixture.holder(lock).await.hold_count, hold_count(2));
    }
    let stepped_back = fixture.step_back_all(&claim, 1).await;
    assert_eq!(stepped_back.len(), 3);
    for released in stepped_back {
        let Released::SteppedBack(lease) = released else {
            panic!("it holds on, but: {released:?}");
        };
        assert_eq!(lease.holder.hold_count, hold_count(1));
    }
}

pub(super) async fn a_claim_on_other_locks_beside_those_it_holds_is_another(fixture: &Fixture) {
    let (claim, [first, second]) = claim_on_fresh();
    let third = fresh_name();
    fixture.all_granted(&claim).await;
    let more = on(&claim, &[&first, &second, &third]);
    assert_eq!(fixture.acquire(&more).await, claim_mismatch(&third));
    let other = on(&claim, &[&second, &third]);
    assert_eq!(fixture.acquire(&other).await, claim_mismatch(&third));
    assert_free(fixture, &[third]).await;
    // A claim on fewer locks finds that it holds them.
    let fewer = fixture.acquire(&on(&claim, &[&second])).await;
    assert!(
        matches!(&fewer, Acquired::Granted(Granted { kind: GrantKind::Replayed, leases, .. }) if leases.len() == 1)
    );
}

pub(super) async fn a_claim_that_ended_on_one_lock_is_not_granted_the_others(fixture: &Fixture) {
    let (claim, [first, second, third]) = claim_on_fresh();
    fixture.all_granted(&claim).await;
    fixture.freed(&on(&claim, &[&second])).await;
    let ended = Acquired::Refused(Refused::Ended(lost(&second, NotHolder::Released)));
    assert_eq!(fixture.acquire(&claim).await, ended);
    fixture.release_all(&claim).await;
    fixture.granted(&claim_on(&first)).await;
    fixture.granted(&claim_on(&third)).await;
}

pub(super) async fn a_contradiction_on_one_lock_changes_nothing_on_the_others(fixture: &Fixture) {
    let (claim, [first, second]) = claim_on_fresh();
    fixture.all_granted(&on(&claim, &[&first])).await;
    let reading = in_mode(&on(&claim, &[&second]), READ);
    fixture.all_granted(&reading).await;
    let answer = fixture.acquire(&at_depth(&claim, 2)).await;
    assert_eq!(answer, upgrade_mismatch(&second));
    assert_eq!(fixture.holder(&first).await.hold_count, hold_count(1));
    let answer = fixture.acquire(&in_mode(&at_depth(&claim, 2), READ)).await;
    assert_eq!(answer, claim_mismatch(&first));
    assert_eq!(fixture.holder(&second).await.hold_count, hold_count(1));
}

pub(super) async fn one_renewal_and_one_release_apply_to_all(fixture: &Fixture) {
    let (claim, locks) = claim_on_fresh::<3>();
    fixture.all_granted(&claim).await;
    let Renewed::Extended(renewals) = fixture.renew_for(&claim, Some(LONG * 2)).await else {
        panic!("the claim holds");
    };
    assert_eq!(renewals.len(), 3);
    for (renewal, lock) in renewals.iter().zip(&locks) {
        fixture.assert_left(renewal.lease.holder.expires_in, LONG * 2);
        let seen = fixture.holder(lock).await;
        assert_eq!(seen.fence, renewal.lease.holder.fence);
        fixture.assert_left(seen.expires_in, LONG * 2);
    }
    let released = fixture.release_all(&claim).await;
    assert_eq!(released.len(), 3);
    let freed = |released: &Released| matches!(released, Released::Freed { .. });
    assert!(released.iter().all(freed), "{released:?}");
    assert_free(fixture, &locks).await;
    assert_eq!(
        fixture.release_all(&claim).await,
        vec![Released::Repeated; 3]
    );
}

pub(super) async fn a_renewal_reports_which_locks_were_lost_and_renews_none(fixture: &Fixture) {
    let (claim, locks) = claim_on_fresh::<4>();
    fixture.all_granted(&claim).await;
    fixture.evict(&locks[1], "stuck").await;
    fixture.freed(&on(&claim, &[&locks[3]])).await;
    let answer = fixture.renew_for(&claim, Some(LONG * 10)).await;
    let released = NotHolder::Released;
    let lost = vec![lost(&locks[1], evicted()), lost(&locks[3], released)];
    assert_eq!(answer, Renewed::NotHolder(lost));
    for lock in [&locks[0], &locks[2]] {
        fixture.assert_left(fixture.holder(lock).await.expires_in, LONG);
    }
    // The remaining locks can be renewed.
    let rest = on(&claim, &[&locks[0], &locks[2]]);
    let answer = fixture.renew(&rest).await;
    assert!(matches!(answer, Renewed::Extended(_)), "{answer:?}");
}

pub(super) async fn a_release_frees_what_is_still_held(fixture: &Fixture) {
    let (claim, locks) = claim_on_fresh::<3>();
    fixture.all_granted(&claim).await;
    fixture.evict(&locks[1], "stuck").await;
    let released = fixture.release_all(&claim).await;
    assert!(
        matches!(released[0], Released::Freed { .. }),
        "{released:?}"
    );
    assert_eq!(released[1], Released::NotHolder(evicted()));
    assert!(
        matches!(released[2], Released::Freed { .. }),
        "{released:?}"
    );
    assert_free(fixture, &locks).await;
}

pub(super) async fn several_locks_are_lost_together(fixture: &Fixture) {
    let (claim, locks) = claim_on_fresh::<2>();
    let claim = for_short(&claim);
    fixture.all_granted(&claim).await;
    fixture.outlast(SHORT).await;
    assert_free(fixture, &locks).await;
    let lost = locks.map(|lock| lost(&lock, NotHolder::Expired)).to_vec();
    let first = lost[0].clone();
    assert_eq!(fixture.renew(&claim).await, Renewed::NotHolder(lost));
    assert_eq!(
        fixture.acquire(&claim).await,
        Acquired::Refused(Refused::Ended(first))
    );
}

pub(super) async fn a_withdrawn_attempt_frees_all_its_locks(fixture: &Fixture) {
    let (claim, locks) = claim_on_fresh::<3>();
    let attempt = Attempt::random();
    let answer = fixture.attempt(&claim, attempt).await;
    leases_granted(answer.expect("the store answers"));
    fixture.withdraw(&claim, attempt).await;
    assert_free(fixture, &locks).await;
    fixture.all_granted(&claim).await;
    // A grant that was replayed to a second attempt stays.
    fixture.withdraw(&claim, attempt).await;
    fixture.renew(&claim).await;
    for lock in &locks {
        fixture.holder(lock).await;
    }
}

pub(super) async fn of_many_simultaneous_claims_on_several_locks_one_is_granted(fixture: &Fixture) {
    let (claim, _) = claim_on_fresh::<3>();
    let claims: Vec<_> = (0..30).map(|_| rival(&claim)).collect();
    let requests = claims.iter().map(|claim| fixture.acquire(claim));
    let mut granted = 0;
    for answer in futures_util::future::join_all(requests).await {
        match answer {
            Acquired::Granted(Granted {
                kind: GrantKind::New,
                leases,
                ..
            }) => {
                assert_eq!(leases.len(), 3);
                granted += 1;
            }
            // A partial grant would show here.
            refused => assert_eq!(blocked_by(refused).len(), 3),
        }
    }
    assert_eq!(granted, 1);
}

pub(super) async fn several_locks_are_shared_as_one_is(fixture: &Fixture) {
    let (claim, [first, second]) = claim_on_fresh();
    let readers = [(); 2].map(|()| in_mode(&rival(&claim), READ));
    for reader in &readers {
        fixture.all_granted(reader).await;
    }
    assert_eq!(fixture.holders(&first).await.len(), 2);
    assert_eq!(blocked_by(fixture.acquire(&claim).await).len(), 2);
    let upgrade = fixture.renew_in_mode(&readers[0], claim.mode).await;
    let refused = Mismatch::Upgrade {
        name: first.clone(),
    };
    assert_eq!(upgrade, Renewed::Mismatched(refused));
    for reader in &readers {
        fixture.release_all(reader).await;
    }
    fixture.all_granted(&claim).await;
    let answer = fixture.renew_in_mode(&claim, READ).await;
    assert!(matches!(answer, Renewed::Extended(_)), "{answer:?}");
    for lock in [&first, &second] {
        assert_eq!(fixture.holder(lock).await.mode, READ);
    }
}

pub(super) async fn as_many_locks_as_a_claim_may_name_are_granted(fixture: &Fixture) {
    let (claim, locks) = claim_on_fresh::<{ LockNames::COUNT_MAX }>();
    assert_eq!(fixture.all_granted(&claim).await.len(), locks.len());
    for lock in &locks {
        fixture.holder(lock).await;
    }
    assert_eq!(fixture.release_all(&claim).await.len(), locks.len());
    assert_free(fixture, &locks).await;
}

pub(super) async fn locks_that_share_a_counter_have_growing_fences(fixture: &Fixture) {
    let mut locks = names_of_one_bucket(3);
    locks.sort();
    let mut last = None;
    for _ in 0..3 {
        let claim = claim_on_all(names(&locks));
        let leases = fixture.all_granted(&claim).await;
        let mut granted: Vec<_> = leases.iter().map(|lease| lease.holder.fence).collect();
        granted.sort();
        assert!(
            last < granted.first().copied(),
            "{granted:?} after {last:?}"
        );
        last = granted.last().copied();
        fixture.release_all(&claim).await;
    }
}
