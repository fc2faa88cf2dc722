//! Laws of `min_hold`, `max_hold` and `lock_delay`: how long a lock is kept from others, and from its holder.

use std::time::Duration;

use leasehold::domain::{Blocker, Claim, LockName, LockState, NotHolder};

use super::expiry::assert_told;
use crate::support::bench::{Bench, LONG, SHORT, blocker, claim, ended, lock_of, rival, ttl};

/// Fails unless the lock is closed for `left` to everybody.
async fn assert_cooling(bench: &Bench, name: &LockName, asking: &Claim, left: Duration) {
    match blocker(bench.acquire(asking).await) {
        Blocker::Cooling { free_in } => bench.assert_left(free_in, left),
        other => panic!("the lock is cooling, but: {other:?}"),
    }
    match bench.state(name).await {
        LockState::Cooling { free_in } => bench.assert_left(free_in, left),
        other => panic!("the lock is cooling, but: {other:?}"),
    }
}

pub(super) async fn a_lock_released_before_min_hold_is_cooling_until_then(bench: &Bench) {
    let claim = Claim {
        min_hold: Some(SHORT * 2),
        ..claim()
    };
    let next = rival(&claim);
    bench.granted(&claim).await;
    bench.advance(SHORT).await;
    bench.freed(&claim).await;
    assert_cooling(bench, lock_of(&claim), &next, SHORT).await;
    bench.outlast(SHORT).await;
    assert_eq!(bench.state(lock_of(&claim)).await, LockState::Free);
    bench.granted(&next).await;
}

pub(super) async fn a_claim_released_before_min_hold_has_ended(bench: &Bench) {
    let claim = Claim {
        min_hold: Some(LONG),
        ..claim()
    };
    bench.granted(&claim).await;
    bench.freed(&claim).await;
    let ended = ended(&claim, NotHolder::Released);
    assert_eq!(bench.acquire(&claim).await, ended);
}

pub(super) async fn a_lock_released_after_min_hold_is_free_at_once(bench: &Bench) {
    let claim = Claim {
        min_hold: Some(SHORT),
        ..claim()
    };
    bench.granted(&claim).await;
    bench.outlast(SHORT).await;
    bench.freed(&claim).await;
    bench.granted(&rival(&claim)).await;
}

pub(super) async fn a_lease_that_ran_out_before_min_hold_leaves_the_lock_cooling(bench: &Bench) {
    let claim = Claim {
        ttl: ttl(SHORT),
        min_hold: Some(SHORT * 4),
        ..claim()
    };
    let next = rival(&claim);
    bench.granted(&claim).await;
    bench.advance(SHORT * 2).await;
    assert_cooling(bench, lock_of(&claim), &next, SHORT * 2).await;
    assert_told(bench, &claim, NotHolder::Expired).await;
    bench.outlast(SHORT * 2).await;
    bench.granted(&next).await;
}

pub(super) async fn an_expired_lease_with_a_lock_delay_leaves_the_lock_cooling(bench: &Bench) {
    let claim = Claim {
        ttl: ttl(SHORT),
        lock_delay: Some(SHORT * 3),
        ..claim()
    };
    let next = rival(&claim);
    bench.granted(&claim).await;
    bench.advance(SHORT * 2).await;
    assert_cooling(bench, lock_of(&claim), &next, SHORT * 2).await;
    assert_told(bench, &claim, NotHolder::Expired).await;
    bench.outlast(SHORT * 2).await;
    assert_eq!(bench.state(lock_of(&claim)).await, LockState::Free);
    bench.granted(&next).await;
    assert_told(bench, &claim, NotHolder::Lost).await;
}

pub(super) async fn an_evicted_lease_with_a_lock_delay_leaves_the_lock_cooling(bench: &Bench) {
    let claim = Claim {
        lock_delay: Some(SHORT * 2),
        ..claim()
    };
    let next = rival(&claim);
    bench.granted(&claim).await;
    bench.advance(SHORT).await;
    bench.evict(lock_of(&claim), "").await;
    assert_cooling(bench, lock_of(&claim), &next, SHORT * 2).await;
    bench.outlast(SHORT * 2).await;
    bench.granted(&next).await;
}

pub(super) async fn a_release_ignores_the_lock_delay(bench: &Bench) {
    let claim = Claim {
        lock_delay: Some(LONG),
        ..claim()
    };
    bench.granted(&claim).await;
    bench.freed(&claim).await;
    bench.granted(&rival(&claim)).await;
}

pub(super) async fn max_hold_caps_the_grant(bench: &Bench) {
    let claim = Claim {
        max_hold: Some(LONG / 2),
        ..claim()
    };
    let lease = bench.granted(&claim).await;
    bench.assert_left(lease.holder.expires_in, LONG / 2);
    assert_eq!(lease.ttl, claim.ttl, "the TTL is still the claim's own");
}

pub(super) async fn max_hold_caps_every_renewal(bench: &Bench) {
    let claim = Claim {
        max_hold: Some(LONG),
        ..claim()
    };
    bench.granted(&claim).await;
    for passed in [SHORT, SHORT * 2] {
        bench.advance(SHORT).await;
        let renewal = bench.renewed(&claim, Some(LONG * 2)).await;
        bench.assert_left(renewal.lease.holder.expires_in, LONG - passed);
    }
}

pub(super) async fn a_lease_at_its_max_hold_ends_however_often_it_is_renewed(bench: &Bench) {
    let claim = Claim {
        max_hold: Some(SHORT * 4),
        ..claim()
    };
    bench.granted(&claim).await;
    bench.advance(SHORT).await;
    bench.renewed(&claim, Some(LONG)).await;
    bench.outlast(SHORT * 3).await;
    assert_told(bench, &claim, NotHolder::Expired).await;
    bench.granted(&rival(&claim)).await;
}
