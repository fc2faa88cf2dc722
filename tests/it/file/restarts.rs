//! Restarts in the process of the test, on a stopped clock: what is kept, and for how long.

use std::time::Duration;

use leasehold::domain::{
    Acquired, Attempt, Claim, GrantKind, LockState, NotHolder, Refused, Released, Renewed,
};
use leasehold::store::TOMBSTONE_TTL;

use crate::support::fixture::{
    Fixture, LONG, READ, SHORT, at_depth, claim, claim_on, ended, for_short, in_mode, lock_of,
    metadata, names, not_holder, only, owned_by, permits, rival,
};

#[tokio::test(start_paused = true)]
async fn a_lease_goes_on_as_it_was() {
    let fixture = Fixture::file().await;
    let claim = Claim {
        metadata: metadata(r#"{"of":"a test"}"#),
        max_hold: Some(LONG * 2),
        ..owned_by(&at_depth(&claim(), 3), "pod-1")
    };
    let before = fixture.granted(&claim).await.holder;
    fixture.advance(SHORT).await;
    let fixture = fixture.restarted().await;
    let after = fixture.holder(lock_of(&claim)).await;
    // The restart took time of the system's clock, by which the lease ends later.
    assert!(after.expires_at >= before.expires_at);
    fixture.assert_left(after.expires_in, LONG - SHORT);
    let same = |holder: &leasehold::domain::Holder| {
        let (owner, metadata) = (holder.owner.clone(), holder.metadata.clone());
        let (mode, fence, depth) = (holder.mode, holder.fence, holder.hold_count);
        (owner, metadata, mode, fence, depth, holder.acquired_at)
    };
    assert_eq!(same(&after), same(&before));
    assert_eq!(
        fixture.acquire(&claim).await.kind(),
        Some(GrantKind::Replayed)
    );
    // The end of max_hold has moved as little.
    fixture.advance(LONG - SHORT * 2).await;
    let renewal = fixture.renewed(&claim, None).await;
    fixture.assert_left(renewal.lease.holder.expires_in, LONG);
    fixture.freed(&claim).await;
}

#[tokio::test(start_paused = true)]
async fn a_grant_after_a_restart_has_a_larger_fence() {
    let mut fixture = Fixture::file().await;
    let name = lock_of(&claim()).clone();
    let mut last = None;
    for _ in 0..5 {
        let claim = claim_on(&name);
        let fence = fixture.granted(&claim).await.holder.fence;
        assert!(Some(fence) > last);
        last = Some(fence);
        fixture.freed(&claim).await;
        // The store's clock is ahead of the system's now, as if that had been set back.
        fixture.advance(LONG * 60).await;
        fixture = fixture.restarted().await;
    }
}

#[tokio::test(start_paused = true)]
async fn ended_claims_are_remembered() {
    let fixture = Fixture::file().await;
    let [released, expired, lost, evicted] =
        [claim(), for_short(&claim()), for_short(&claim()), claim()];
    for claim in [&released, &expired, &lost, &evicted] {
        fixture.granted(claim).await;
    }
    fixture.freed(&released).await;
    fixture.evict(lock_of(&evicted), "stuck").await;
    fixture.outlast(SHORT).await;
    fixture.state(lock_of(&expired)).await;
    fixture.granted(&rival(&lost)).await;
    let fixture = fixture.restarted().await;
    let reason = "stuck".to_owned();
    let ends = [
        (&released, NotHolder::Released),
        (&expired, NotHolder::Expired),
        (&lost, NotHolder::Lost),
        (&evicted, NotHolder::Evicted { reason }),
    ];
    for (claim, reason) in &ends {
        assert_eq!(fixture.acquire(claim).await, ended(claim, reason.clone()));
        assert_eq!(
            fixture.renew(claim).await,
            not_holder(claim, reason.clone())
        );
    }
    assert_eq!(fixture.release(&released).await, Released::Repeated);
    fixture.outlast(TOMBSTONE_TTL).await;
    let unknown = not_holder(&released, NotHolder::Unknown);
    assert_eq!(fixture.renew(&released).await, unknown);
}

#[tokio::test(start_paused = true)]
async fn closed_locks_stay_closed() {
    let fixture = Fixture::file().await;
    let early = Claim {
        min_hold: Some(LONG),
        ..claim()
    };
    let held = Claim {
        min_hold: Some(LONG),
        ..claim()
    };
    let delayed = Claim {
        lock_delay: Some(LONG),
        ..for_short(&claim())
    };
    for claim in [&early, &held, &delayed] {
        fixture.granted(claim).await;
    }
    fixture.freed(&early).await;
    fixture.advance(SHORT).await;
    fixture.state(lock_of(&delayed)).await;
    let fixture = fixture.restarted().await;
    fixture.freed(&held).await;
    for (claim, left) in [
        (&early, LONG - SHORT),
        (&held, LONG - SHORT),
        (&delayed, LONG),
    ] {
        match fixture.state(lock_of(claim)).await {
            // What is left of min_hold counts from a time on the system's clock, which went on during the restart.
            LockState::Cooling { free_in } => assert!(free_in + Duration::from_millis(1) >= left),
            other => panic!("the lock is cooling, but: {other:?}"),
        }
    }
    fixture.outlast(LONG * 2).await;
    for claim in [&early, &held, &delayed] {
        fixture.granted(&rival(claim)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_claims_keep_their_places() {
    let fixture = Fixture::file().await;
    let holding = claim();
    fixture.granted(&holding).await;
    let first = fixture.waiting(&rival(&holding)).await;
    let second = fixture.waiting(&rival(&holding)).await;
    let fixture = fixture.restarted().await;
    assert_eq!(fixture.queue(lock_of(&holding)).await.length, 0);
    // They come back in another order, and a newcomer is behind both.
    let [mut second, mut first] = [second.again(), first.again()];
    fixture.still_waits(&mut second).await;
    let mut third = fixture.waiting(&rival(&holding)).await;
    fixture.still_waits(&mut first).await;
    fixture.freed(&holding).await;
    for waiter in [&mut first, &mut second, &mut third] {
        fixture.granted_after_wait(waiter).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_does_not_come_back_is_passed_over() {
    let fixture = Fixture::file().await;
    let holding = claim();
    fixture.granted(&holding).await;
    fixture.waiting(&rival(&holding)).await;
    let mut second = fixture.waiting(&rival(&holding)).await.again();
    let fixture = fixture.restarted().await;
    fixture.still_waits(&mut second).await;
    fixture.freed(&holding).await;
    fixture.granted_after_wait(&mut second).await;
}

#[tokio::test(start_paused = true)]
async fn shared_leases_and_permits_go_on() {
    let fixture = Fixture::file().await;
    let two = in_mode(&claim(), permits(2, 5));
    let closed = Claim {
        min_hold: Some(LONG),
        ..in_mode(&rival(&two), permits(1, 5))
    };
    let reader = in_mode(&claim(), READ);
    for claim in [&two, &closed, &reader] {
        fixture.granted(claim).await;
    }
    fixture.freed(&closed).await;
    let fixture = fixture.restarted().await;
    let three = in_mode(&rival(&two), permits(3, 5));
    assert!(matches!(
        fixture.acquire(&three).await,
        Acquired::Refused(Refused::Blocked(_))
    ));
    fixture.granted(&in_mode(&rival(&two), permits(2, 5))).await;
    let writer = rival(&reader);
    assert!(matches!(
        fixture.acquire(&writer).await,
        Acquired::Refused(Refused::Blocked(_))
    ));
    fixture.granted(&in_mode(&rival(&reader), READ)).await;
}

#[tokio::test(start_paused = true)]
async fn several_locks_are_held_by_one_token() {
    let fixture = Fixture::file().await;
    let both = [claim(), claim()];
    let both = Claim {
        names: names(both.iter().map(lock_of)),
        ..claim()
    };
    fixture.all_granted(&both).await;
    let fixture = fixture.restarted().await;
    assert!(matches!(fixture.renew(&both).await, Renewed::Extended(all) if all.len() == 2));
    assert_eq!(fixture.release_all(&both).await.len(), 2);
}

/// The client that retries after the crash gets the grant, and the withdrawal of the request before comes too late.
#[tokio::test(start_paused = true)]
async fn a_grant_can_be_withdrawn_by_the_attempt_that_received_it_and_by_no_other() {
    let fixture = Fixture::file().await;
    let [undone, passed_on] = [claim(), claim()];
    let [first, second] = [Attempt(1), Attempt(2)];
    for claim in [&undone, &passed_on] {
        let granted = fixture.attempt(claim, first).await;
        assert!(matches!(&granted, Ok(granted) if granted.kind() == Some(GrantKind::New)));
    }
    let fixture = fixture.restarted().await;
    let replayed = fixture.attempt(&passed_on, second).await;
    assert!(matches!(&replayed, Ok(granted) if granted.kind() == Some(GrantKind::Replayed)));
    for claim in [&undone, &passed_on] {
        fixture.withdraw(claim, first).await;
    }
    assert_eq!(fixture.state(lock_of(&undone)).await, LockState::Free);
    assert_eq!(
        only(fixture.holders(lock_of(&passed_on)).await).expires_in,
        LONG
    );
}

/// What counts is what was left when the store was last written.
#[tokio::test(start_paused = true)]
async fn many_restarts_do_not_shorten_a_lease() {
    let mut fixture = Fixture::file().await;
    let claim = claim();
    fixture.granted(&claim).await;
    for _ in 0..5 {
        fixture = fixture.restarted().await;
    }
    let left = fixture.holder(lock_of(&claim)).await.expires_in;
    fixture.assert_left(left, LONG);
    fixture.outlast(LONG).await;
    assert_eq!(fixture.state(lock_of(&claim)).await, LockState::Free);
}

/// Each commit takes a synchronization of the disk.
#[tokio::test(start_paused = true)]
async fn each_grant_is_one_commit() {
    let fixture = Fixture::file().await;
    let commits = || fixture.store().health().disk.map(|disk| disk.commits);
    let before = commits().expect("it has a disk");
    for _ in 0..50 {
        fixture.granted(&claim()).await;
    }
    assert_eq!(commits(), Some(before + 50));
}
