//! Contract tests of permits: a lock with a limit is a counting semaphore.

use std::time::Duration;

use leasehold::domain::{Claim, ConflictKind, LockState, NotHolder};

use super::expiry::assert_ended;
use crate::support::fixture::{
    Fixture, LONG, READ, SHORT, Waiter, assert_behind_waiters, assert_held, blocker, claim,
    for_short, holders_in_the_way, in_mode, leases_granted, limit_mismatch, lock_of, permits,
    rival, ttl,
};

/// Another claim on the same lock that takes some of its permits.
pub(super) fn taking(claim: &Claim, permitted: u64, limit: u64) -> Claim {
    in_mode(&rival(claim), permits(permitted, limit))
}

pub(super) async fn as_many_hold_as_there_are_permits(fixture: &Fixture) {
    let lock = claim();
    let holding = [(); 3].map(|()| taking(&lock, 1, 3));
    for claim in &holding {
        fixture.granted(claim).await;
    }
    let refused = taking(&lock, 1, 3);
    let holders = holders_in_the_way(fixture.acquire(&refused).await);
    assert_eq!(holders.total, 3);
    assert!(
        holders
            .listed
            .iter()
            .all(|holder| holder.mode == permits(1, 3))
    );
    fixture.freed(&holding[1]).await;
    fixture.granted(&refused).await;
    assert_held(&fixture.acquire(&taking(&lock, 1, 3)).await);
}

pub(super) async fn a_claim_may_take_several_permits(fixture: &Fixture) {
    let lock = claim();
    let [two, another_two, one] = [2, 2, 1].map(|permits| taking(&lock, permits, 3));
    fixture.granted(&two).await;
    assert_held(&fixture.acquire(&another_two).await);
    fixture.granted(&one).await;
    fixture.freed(&two).await;
    fixture.granted(&another_two).await;
    assert_held(&fixture.acquire(&taking(&lock, 1, 3)).await);
}

pub(super) async fn claims_of_any_size_fill_the_limit_and_never_exceed_it(fixture: &Fixture) {
    for held in [1, 2, 3, 4, 7, 100] {
        for left in [1, 2, 3, 4, 7, 100] {
            let (lock, limit) = (claim(), held + left);
            fixture.granted(&taking(&lock, held, limit)).await;
            assert_held(&fixture.acquire(&taking(&lock, left + 1, limit)).await);
            fixture.granted(&taking(&lock, left, limit)).await;
            assert_held(&fixture.acquire(&taking(&lock, 1, limit)).await);
        }
    }
}

pub(super) async fn a_lock_with_one_permit_is_held_alone(fixture: &Fixture) {
    let lock = claim();
    let only = taking(&lock, 1, 1);
    fixture.granted(&only).await;
    assert_held(&fixture.acquire(&taking(&lock, 1, 1)).await);
    fixture.freed(&only).await;
    fixture.granted(&lock).await;
}

pub(super) async fn small_claims_do_not_overtake_a_large_one_that_waits(fixture: &Fixture) {
    let lock = claim();
    let holding = taking(&lock, 2, 3);
    fixture.granted(&holding).await;
    let mut large = fixture.waiting(&taking(&lock, 3, 3)).await;
    // There is a permit for it, but an earlier waiter.
    let small = taking(&lock, 1, 3);
    assert_behind_waiters(fixture.acquire(&small).await);
    let mut small = fixture.waiting(&small).await;
    fixture.freed(&holding).await;
    fixture.still_waits(&mut small).await;
    leases_granted(fixture.poll(&mut large).await);
    fixture.still_waits(&mut small).await;
    fixture.freed(&large.claim).await;
    fixture.granted_after_wait(&mut small).await;
}

pub(super) async fn holders_agree_on_the_limit(fixture: &Fixture) {
    let (three, unlimited) = (taking(&claim(), 1, 3), in_mode(&claim(), READ));
    fixture.granted(&three).await;
    fixture.granted(&unlimited).await;
    for (holding, mode, in_force) in [
        (&three, permits(1, 4), Some(3)),
        (&three, permits(1, 2), Some(3)),
        (&three, READ, Some(3)),
        (&unlimited, permits(1, 3), None),
        (&unlimited, permits(1, 1), None),
    ] {
        let other = in_mode(&rival(holding), mode);
        let refused = limit_mismatch(lock_of(holding), in_force);
        assert_eq!(fixture.acquire(&other).await, refused, "{mode:?}");
        // Waiting would not help.
        let answer = fixture.poll(&mut Waiter::new(other)).await;
        assert_eq!(answer, refused, "{mode:?}");
        assert_eq!(fixture.queue(lock_of(holding)).await.length, 0);
    }
    fixture.freed(&three).await;
    fixture.granted(&taking(&three, 4, 4)).await;
}

pub(super) async fn former_holders_do_not_fix_the_limit(fixture: &Fixture) {
    let (ended, lapsed) = (taking(&claim(), 1, 3), for_short(&taking(&claim(), 1, 3)));
    fixture.granted(&ended).await;
    fixture.granted(&lapsed).await;
    fixture.evict(lock_of(&ended), "").await;
    fixture.outlast(SHORT).await;
    fixture.granted(&in_mode(&rival(&ended), READ)).await;
    fixture.granted(&taking(&lapsed, 1, 5)).await;
    assert_ended(fixture, &lapsed, NotHolder::Expired).await;
}

pub(super) async fn permits_of_a_former_holder_are_free_again(fixture: &Fixture) {
    let lock = claim();
    let lapsing = for_short(&taking(&lock, 2, 3));
    let staying = taking(&lock, 1, 3);
    fixture.granted(&lapsing).await;
    fixture.granted(&staying).await;
    let mut waiter = fixture.waiting(&taking(&lock, 2, 3)).await;
    let recheck_in = fixture.still_waits(&mut waiter).await.recheck_in;
    assert!(
        recheck_in.expect("permits come back") <= SHORT,
        "{recheck_in:?}"
    );
    fixture.outlast(SHORT).await;
    leases_granted(fixture.poll(&mut waiter).await);
    fixture.renewed(&staying, None).await;
    assert_held(&fixture.acquire(&taking(&lock, 1, 3)).await);
}

pub(super) async fn permits_released_before_min_hold_stay_taken_until_then(fixture: &Fixture) {
    let lock = claim();
    let early = Claim {
        min_hold: Some(SHORT),
        ..taking(&lock, 2, 3)
    };
    let staying = taking(&lock, 1, 3);
    fixture.granted(&early).await;
    fixture.granted(&staying).await;
    fixture.freed(&early).await;
    // They are not listed as held.
    let next = taking(&lock, 1, 3);
    let holders = holders_in_the_way(fixture.acquire(&next).await);
    assert_eq!(holders.total, 1);
    let seen = fixture.holder(lock_of(&lock)).await;
    assert_eq!(seen.mode, permits(1, 3));
    fixture.outlast(SHORT).await;
    fixture.granted(&next).await;
    fixture.granted(&taking(&lock, 1, 3)).await;
}

pub(super) async fn a_lock_with_only_permits_that_stay_taken_is_cooling(fixture: &Fixture) {
    let lock = claim();
    let early = Claim {
        min_hold: Some(SHORT),
        ..taking(&lock, 2, 3)
    };
    fixture.granted(&early).await;
    fixture.freed(&early).await;
    for refused in [taking(&lock, 2, 3), rival(&lock)] {
        match blocker(fixture.acquire(&refused).await) {
            ConflictKind::Cooling { free_in } => fixture.assert_left(free_in, SHORT),
            other => panic!("the lock is cooling, but: {other:?}"),
        }
    }
    let state = fixture.state(lock_of(&lock)).await;
    assert!(matches!(state, LockState::Cooling { .. }), "{state:?}");
    // The remaining permits are free.
    let fitting = taking(&lock, 1, 3);
    fixture.granted(&fitting).await;
    fixture.freed(&fitting).await;
    fixture.outlast(SHORT).await;
    assert_eq!(fixture.state(lock_of(&lock)).await, LockState::Free);
    fixture.granted(&rival(&lock)).await;
}

/// However many ended leases keep permits taken, and however briefly. Behind very many it is counted, if not listed.
pub(super) async fn a_holder_behind_many_permits_that_stay_taken_is_seen(fixture: &Fixture) {
    let lock = claim();
    let reads = || in_mode(&rival(&lock), READ);
    let (holder, writer) = (reads(), rival(&lock));
    for (more, listed) in [(150, Some(1)), (900, None)] {
        for _ in 0..more {
            let early = Claim {
                min_hold: Some(LONG / 2),
                ..reads()
            };
            fixture.granted(&early).await;
            fixture.freed(&early).await;
        }
        fixture.acquire(&holder).await;
        match fixture.state(lock_of(&lock)).await {
            LockState::Held(holders) => {
                assert_eq!(holders.total, 1);
                assert_eq!(holders.listed.len(), listed.unwrap_or(holders.listed.len()));
            }
            other => panic!("it is held, but: {other:?}"),
        }
        assert_eq!(holders_in_the_way(fixture.acquire(&writer).await).total, 1);
    }
    let listing = fixture.page(lock_of(&lock).as_str(), None, 1).await;
    assert_eq!(listing.locks.len(), 1);
    fixture.freed(&holder).await;
    let state = fixture.state(lock_of(&lock)).await;
    assert!(matches!(state, LockState::Cooling { .. }), "{state:?}");
}

pub(super) async fn a_reader_released_before_min_hold_keeps_writers_out(fixture: &Fixture) {
    let early = Claim {
        min_hold: Some(SHORT),
        ..in_mode(&claim(), READ)
    };
    let (another, writer) = (in_mode(&rival(&early), READ), rival(&early));
    fixture.granted(&early).await;
    fixture.freed(&early).await;
    let blocker = blocker(fixture.acquire(&writer).await);
    assert!(
        matches!(blocker, ConflictKind::Cooling { .. }),
        "{blocker:?}"
    );
    fixture.granted(&another).await;
    fixture.freed(&another).await;
    fixture.outlast(SHORT).await;
    fixture.granted(&writer).await;
}

pub(super) async fn permits_of_a_lease_with_a_lock_delay_stay_taken_after_its_end(
    fixture: &Fixture,
) {
    let lock = claim();
    let delayed = |permits: u64| Claim {
        lock_delay: Some(SHORT * 2),
        ..for_short(&taking(&lock, permits, 3))
    };
    let (lapsing, staying) = (delayed(2), taking(&lock, 1, 3));
    fixture.granted(&lapsing).await;
    fixture.granted(&staying).await;
    fixture.outlast(SHORT).await;
    assert_eq!(fixture.holder(lock_of(&lock)).await.mode, permits(1, 3));
    assert_ended(fixture, &lapsing, NotHolder::Expired).await;
    assert_held(&fixture.acquire(&taking(&lock, 1, 3)).await);
    fixture.outlast(SHORT * 2).await;
    let evicted = delayed(2);
    fixture.granted(&evicted).await;
    fixture.evict(lock_of(&lock), "").await;
    let state = fixture.state(lock_of(&lock)).await;
    assert!(matches!(state, LockState::Cooling { .. }), "{state:?}");
    fixture.granted(&taking(&lock, 1, 3)).await;
    assert_held(&fixture.acquire(&taking(&lock, 1, 3)).await);
    fixture.outlast(SHORT * 2).await;
    fixture.granted(&taking(&lock, 2, 3)).await;
}

pub(super) async fn a_lock_delay_does_not_outlive_a_release(fixture: &Fixture) {
    let released = Claim {
        lock_delay: Some(LONG),
        ..taking(&claim(), 2, 2)
    };
    fixture.granted(&released).await;
    fixture.freed(&released).await;
    fixture.granted(&taking(&released, 2, 2)).await;
}

pub(super) async fn permits_that_only_stay_taken_do_not_fix_the_limit(fixture: &Fixture) {
    // A busy machine may take a while for the claims below.
    const COOLING: Duration = SHORT.saturating_mul(6);
    let early = Claim {
        min_hold: Some(COOLING),
        ..taking(&claim(), 1, 3)
    };
    fixture.granted(&early).await;
    fixture.freed(&early).await;
    // Waiting helps, so it is no contradiction.
    for mode in [permits(1, 4), READ] {
        let other = in_mode(&rival(&early), mode);
        let blocker = blocker(fixture.acquire(&other).await);
        assert!(
            matches!(blocker, ConflictKind::Cooling { .. }),
            "{blocker:?}"
        );
    }
    let mut waiter = fixture.waiting(&taking(&early, 1, 4)).await;
    fixture.outlast(COOLING).await;
    fixture.granted_after_wait(&mut waiter).await;
}

pub(super) async fn a_waiter_with_another_limit_than_the_holders_stops_waiting(fixture: &Fixture) {
    let holding = claim();
    fixture.granted(&holding).await;
    let mut first = fixture.waiting(&taking(&holding, 1, 3)).await;
    let mut other = fixture.waiting(&taking(&holding, 1, 4)).await;
    let mut last = fixture.waiting(&taking(&holding, 1, 3)).await;
    fixture.freed(&holding).await;
    leases_granted(fixture.poll(&mut first).await);
    let refused = limit_mismatch(lock_of(&holding), Some(3));
    assert_eq!(fixture.poll(&mut other).await, refused);
    // Waiting would not help it, and it must not block others.
    assert_eq!(fixture.queue(lock_of(&holding)).await.length, 1);
    fixture.granted_after_wait(&mut last).await;
}

pub(super) async fn a_reader_that_ran_out_before_min_hold_leaves_the_lock_cooling(
    fixture: &Fixture,
) {
    let early = Claim {
        min_hold: Some(LONG),
        ..for_short(&in_mode(&claim(), READ))
    };
    fixture.granted(&early).await;
    fixture.advance(SHORT).await;
    match fixture.state(lock_of(&early)).await {
        LockState::Cooling { free_in } => fixture.assert_left(free_in, LONG - SHORT),
        other => panic!("the lock is cooling, but: {other:?}"),
    }
}

/// Permits that stay taken belong to the lease that ended, not to the next one with the same token.
pub(super) async fn permits_that_stay_taken_outlive_the_next_lease_of_their_claim(
    fixture: &Fixture,
) {
    let lock = claim();
    let early = Claim {
        min_hold: Some(fixture.forgetting_takes() + SHORT * 4),
        ..taking(&lock, 1, 3)
    };
    fixture.granted(&early).await;
    fixture.freed(&early).await;
    fixture.forget(lock_of(&lock)).await;
    let again = Claim {
        min_hold: None,
        ..early.clone()
    };
    fixture.granted(&again).await;
    // One permit stays taken, one is held.
    assert_held(&fixture.acquire(&taking(&lock, 2, 3)).await);
    let third = taking(&lock, 1, 3);
    fixture.granted(&third).await;
    assert_held(&fixture.acquire(&taking(&lock, 1, 3)).await);
    fixture.freed(&again).await;
    fixture.granted(&taking(&lock, 1, 3)).await;
    assert_held(&fixture.acquire(&taking(&lock, 1, 3)).await);
    assert_eq!(fixture.holders(lock_of(&lock)).await.len(), 2);
    fixture.outlast(SHORT * 4).await;
    fixture.granted(&taking(&lock, 1, 3)).await;
    assert_held(&fixture.acquire(&taking(&lock, 1, 3)).await);
    assert_eq!(fixture.holders(lock_of(&lock)).await.len(), 3);
}

pub(super) async fn permits_that_stay_taken_after_an_end_outlive_the_next_lease_of_their_claim(
    fixture: &Fixture,
) {
    let lock = claim();
    let staying = Claim {
        ttl: ttl(LONG * 3),
        ..taking(&lock, 1, 3)
    };
    fixture.granted(&staying).await;
    let lapsing = Claim {
        min_hold: Some(fixture.forgetting_takes() + SHORT * 5),
        ..for_short(&taking(&lock, 1, 3))
    };
    fixture.granted(&lapsing).await;
    fixture.outlast(SHORT).await;
    assert_ended(fixture, &lapsing, NotHolder::Expired).await;
    assert_eq!(fixture.holders(lock_of(&lock)).await.len(), 1);
    fixture.forget(lock_of(&lock)).await;
    let again = Claim {
        min_hold: None,
        ttl: ttl(LONG * 2),
        ..lapsing.clone()
    };
    fixture.granted(&again).await;
    assert_held(&fixture.acquire(&taking(&lock, 1, 3)).await);
    fixture.outlast(SHORT * 4).await;
    fixture.granted(&taking(&lock, 1, 3)).await;
    assert_held(&fixture.acquire(&taking(&lock, 1, 3)).await);
}
