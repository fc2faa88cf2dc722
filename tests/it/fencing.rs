//! Edge cases of fencing tokens: the largest number, a missing counter, and many grants in one microsecond.
//!
//! The contract tests (`contract::order`) check that they increase at all.

use leasehold::domain::{Acquired, Attempt, Claim, Fence, LockState};
use leasehold::store::{Fault, StoreError};

use crate::contract::names_of_one_bucket;
use crate::support::eventually;
use crate::support::fixture::{
    Fixture, READ, at_depth, claim, claim_on, claim_on_all, for_short, in_mode, leases_granted,
    lock_of, names, only, rival,
};

/// The key of the counter that serves a claim's lock, as the documentation of the storage format names it.
fn counter_of(claim: &Claim) -> String {
    format!("lh:1:{{{}}}:f", lock_of(claim).bucket().index())
}

async fn fence_of(fixture: &Fixture, claim: &Claim) -> u64 {
    fixture.granted(claim).await.holder.fence.get()
}

#[tokio::test]
async fn redis_grants_the_last_number_exactly_and_nothing_after_it() {
    let fixture = Fixture::redis().await;
    let redis = fixture.redis_behind();
    let [last, none] = names_of_one_bucket(2).try_into().expect("two names");
    let (last, none) = (claim_on(&last), claim_on(&none));
    let before_the_last = (Fence::MAX - 1).to_string();
    let set = ["SET", &counter_of(&last), &before_the_last];
    redis.server.command_in(redis.database, &set).await;

    let fence = fence_of(&fixture, &last).await;
    assert_eq!(fence, 9_007_199_254_740_991);
    // It is exact when it is read back, as when it was created.
    let renewal = fixture.renewed(&last, None).await;
    assert_eq!(renewal.lease.holder.fence.get(), fence);

    match fixture.attempt(&none, Attempt::random()).await {
        Err(StoreError::Unavailable { fault, .. }) => assert_eq!(fault, Fault::Corrupt),
        other => panic!("the numbers are used up, but: {other:?}"),
    }
    assert_eq!(fixture.state(lock_of(&none)).await, LockState::Free);
    // Existing leases continue.
    fixture.renewed(&last, None).await;
    fixture.freed(&last).await;
}

/// The store detects the loss, and delays grants for the length of the lease that it reported.
#[tokio::test]
async fn a_lost_counter_never_leads_to_a_smaller_fence() {
    let fixture = Fixture::redis().await;
    let redis = fixture.redis_behind();
    let first = for_short(&claim());
    let before = fence_of(&fixture, &first).await;
    fixture.freed(&first).await;
    let delete = ["DEL", &counter_of(&first)];
    let deleted = redis.server.integer(redis.database, &delete).await;
    assert_eq!(deleted, 1, "the counter is where the format says");
    let next = rival(&first);
    let after = eventually("the lock is granted again", async || {
        match fixture.acquire(&next).await {
            Acquired::Granted(grants) => Some(only(grants).lease.holder.fence.get()),
            Acquired::Recovering { .. } => None,
            other => panic!("nobody holds the lock, but: {other:?}"),
        }
    })
    .await;
    assert!(after > before, "{after} after {before}");
}

#[tokio::test]
async fn a_counter_ahead_of_the_clock_is_followed() {
    let fixture = Fixture::redis().await;
    let redis = fixture.redis_behind();
    let claim = claim();
    let ahead: u64 = 8_000_000_000_000_000;
    let set = ["SET", &counter_of(&claim), &ahead.to_string()];
    redis.server.command_in(redis.database, &set).await;
    assert_eq!(fence_of(&fixture, &claim).await, ahead + 1);
}

/// Sets the counter between a release and the next waiter's claim, and returns the outcome of that claim.
async fn claimed_after_setting(fixture: &Fixture, holding: &Claim, counter: u64) -> Acquired {
    let redis = fixture.redis_behind();
    let mut waiter = fixture.waiting(&rival(holding)).await;
    fixture.freed(holding).await;
    let set = ["SET", &counter_of(holding), &counter.to_string()];
    redis.server.command_in(redis.database, &set).await;
    fixture.poll(&mut waiter).await
}

#[tokio::test]
async fn a_waiter_follows_a_counter_ahead_of_the_clock() {
    let fixture = Fixture::redis().await;
    let holding = claim();
    fixture.granted(&holding).await;
    let ahead = 8_000_000_000_000_000;
    let answer = claimed_after_setting(&fixture, &holding, ahead).await;
    let lease = only(leases_granted(answer));
    assert_eq!(lease.holder.fence.get(), ahead + 1);
}

#[tokio::test]
async fn a_waiter_keeps_waiting_for_a_lock_that_may_still_be_held() {
    let fixture = Fixture::redis().await;
    let holding = claim();
    let before = fence_of(&fixture, &holding).await;
    let answer = claimed_after_setting(&fixture, &holding, before - 1).await;
    assert!(matches!(answer, Acquired::Waiting(_)), "{answer:?}");
}

#[tokio::test]
async fn no_kind_of_claim_is_granted_a_lock_that_may_still_be_held() {
    let several = claim_on_all(names(&names_of_one_bucket(2)));
    for again in [
        claim(),
        at_depth(&claim(), 2),
        in_mode(&claim(), READ),
        several,
    ] {
        let fixture = Fixture::redis().await;
        let redis = fixture.redis_behind();
        let first = claim_on(&again.names[0]);
        let before = fence_of(&fixture, &first).await;
        fixture.freed(&first).await;
        let set = ["SET", &counter_of(&first), &(before - 1).to_string()];
        redis.server.command_in(redis.database, &set).await;
        let answer = fixture.acquire(&again).await;
        assert!(matches!(answer, Acquired::Recovering { .. }), "{answer:?}");
    }
}

/// The clock is stopped, so every grant falls into the same microsecond.
#[tokio::test(start_paused = true)]
async fn a_hundred_thousand_grants_in_one_microsecond_are_all_in_order() {
    let fixture = Fixture::memory().await;
    let claim = claim();
    let mut last = 0;
    for _ in 0..100_000 {
        let attempt = Attempt::random();
        match fixture.attempt(&claim, attempt).await {
            Ok(Acquired::Granted(grants)) => {
                let fence = only(grants).lease.holder.fence.get();
                assert!(fence > last, "{fence} after {last}");
                last = fence;
            }
            other => panic!("the lock is free, but: {other:?}"),
        }
        // Rolled back rather than released, because a release would leave a tombstone.
        fixture.withdraw(&claim, attempt).await;
    }
}

#[tokio::test]
async fn many_simultaneous_grants_of_one_bucket_have_different_fences() {
    let fixture = Fixture::redis().await;
    let names = names_of_one_bucket(8);
    let mut fences = Vec::new();
    for _ in 0..10 {
        let claims: Vec<_> = names.iter().map(claim_on).collect();
        let grants = claims.iter().map(|claim| fence_of(&fixture, claim));
        fences.extend(futures_util::future::join_all(grants).await);
        for claim in &claims {
            fixture.freed(claim).await;
        }
    }
    let granted = fences.len();
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), granted);
}

/// JSON parsers that use doubles, which most do, read the largest one exactly.
#[test]
fn the_largest_fence_survives_json_readers_that_use_doubles() {
    let json = serde_json::to_string(&Fence::MAX).expect("a number");
    let double: f64 = serde_json::from_str(&json).expect("a number");
    assert_eq!(format!("{double:.0}"), json);
    let one_less: f64 = serde_json::from_str(&(Fence::MAX - 1).to_string()).expect("a number");
    assert!(one_less < double, "neighbours stay apart");
    assert_eq!(Fence::new(Fence::MAX + 1), None);
}
