//! Contract tests of sharing: readers hold together, a writer holds alone, and each holder has its own lease.
//!
//! Semaphores are in `permits`.

use std::cell::Cell;
use std::time::Duration;

use futures_util::future::join_all;
use leasehold::domain::{
    AnswerRoom, Attempt, Fence, GrantKind, Holder, Holders, Lease, LockState, Mismatch, Mode,
    NotHolder, Released, Renewed,
};

use super::expiry::{after_expiry_in, assert_ended};
use super::replay::replayed;
use crate::support::fixture::{
    Fixture, LONG, READ, SHORT, assert_behind_waiters, assert_held, at_depth, claim,
    claim_mismatch, claim_on, for_short, fresh_name, holders_in_the_way, in_mode, leases_granted,
    limit_mismatch, lock_of, owned_by, permits, reader, rival, ttl, upgrade_mismatch,
};

/// Two claims that hold a lock together.
async fn two_readers(fixture: &Fixture) -> [leasehold::domain::Claim; 2] {
    let first = in_mode(&claim(), READ);
    let second = reader(&first);
    fixture.granted(&first).await;
    fixture.granted(&second).await;
    [first, second]
}

fn fences(holders: &[Holder]) -> Vec<Fence> {
    let mut fences: Vec<_> = holders.iter().map(|holder| holder.fence).collect();
    fences.sort();
    fences
}

pub(super) async fn readers_hold_together_each_with_a_lease_of_its_own(fixture: &Fixture) {
    let lock = claim_on(&fresh_name());
    let mut leases: Vec<Lease> = Vec::new();
    for (owner, lasts) in [("pod-1", LONG * 3), ("pod-2", LONG), ("pod-3", LONG * 2)] {
        let mut reader = owned_by(&reader(&lock), owner);
        reader.ttl = ttl(lasts);
        let lease = fixture.granted(&reader).await;
        assert_eq!(lease.holder.mode, READ);
        assert_eq!(lease.ttl, reader.ttl);
        fixture.assert_left(lease.holder.expires_in, lasts);
        leases.push(lease);
    }
    assert!(leases.is_sorted_by(|a, b| a.holder.fence < b.holder.fence));
    // The leases that end first come first.
    let owners = fixture.holders(lock_of(&lock)).await.into_iter();
    let owners: Vec<_> = owners.map(|holder| holder.owner).collect();
    let expected = [1, 2, 0].map(|index: usize| leases[index].holder.owner.clone());
    assert_eq!(owners, expected);
}

pub(super) async fn a_writer_holds_alone(fixture: &Fixture) {
    let [first, second] = two_readers(fixture).await;
    let writer = rival(&first);
    let holders = holders_in_the_way(fixture.acquire(&writer).await);
    assert_eq!(holders.total, 2);
    fixture.freed(&first).await;
    assert_held(&fixture.acquire(&writer).await);
    fixture.freed(&second).await;
    fixture.granted(&writer).await;
    for mode in [READ, permits(1, 5)] {
        let answer = fixture.acquire(&in_mode(&rival(&first), mode)).await;
        let holders = holders_in_the_way(answer);
        assert_eq!(holders.total, 1);
        assert_eq!(holders.listed[0].mode, Mode::Exclusive);
    }
}

pub(super) async fn no_reader_comes_before_a_writer_that_waits(fixture: &Fixture) {
    let [first, second] = two_readers(fixture).await;
    let mut writer = fixture.waiting(&rival(&first)).await;
    for _ in 0..5 {
        // The waiting writer blocks it, not the holders.
        assert_behind_waiters(fixture.acquire(&reader(&first)).await);
    }
    let mut late_reader = fixture.waiting(&reader(&first)).await;
    fixture.freed(&first).await;
    fixture.still_waits(&mut late_reader).await;
    fixture.still_waits(&mut writer).await;
    fixture.freed(&second).await;
    fixture.still_waits(&mut late_reader).await;
    fixture.granted_after_wait(&mut writer).await;
    fixture.granted_after_wait(&mut late_reader).await;
}

pub(super) async fn a_reader_that_holds_is_no_newcomer(fixture: &Fixture) {
    let [first, _] = two_readers(fixture).await;
    fixture.waiting(&rival(&first)).await;
    replayed(fixture, &first).await;
    let answer = fixture.acquire(&at_depth(&first, 2)).await;
    assert_eq!(answer.kind(), Some(GrantKind::Reentered), "{answer:?}");
    fixture.renewed(&first, None).await;
}

pub(super) async fn each_of_several_holders_acts_for_itself(fixture: &Fixture) {
    let [first, second] = two_readers(fixture).await;
    let name = lock_of(&first);
    fixture.acquire(&at_depth(&first, 3)).await;
    fixture.renewed(&second, Some(LONG * 10)).await;
    let holders = fixture.holders(name).await;
    let depths: Vec<_> = holders
        .iter()
        .map(|holder| holder.hold_count.get())
        .collect();
    assert_eq!(depths, [3, 1]);
    fixture.assert_left(holders[0].expires_in, LONG);
    fixture.assert_left(holders[1].expires_in, LONG * 10);
    match fixture.step_back(&first, 2).await {
        Released::SteppedBack(lease) => assert_eq!(lease.holder.hold_count.get(), 2),
        other => panic!("it holds on, but: {other:?}"),
    }
    assert_eq!(replayed(fixture, &second).await.holder.hold_count.get(), 1);
    fixture.freed(&first).await;
    assert_eq!(fixture.release(&first).await, Released::Repeated);
    assert_eq!(fences(&fixture.holders(name).await), [holders[1].fence]);
    fixture.freed(&second).await;
    assert_eq!(fixture.state(name).await, LockState::Free);
}

pub(super) async fn a_reader_that_ran_out_has_expired_although_others_were_granted_later(
    fixture: &Fixture,
) {
    let [first, second] = two_readers(fixture).await;
    let brief = for_short(&reader(&first));
    fixture.granted(&brief).await;
    fixture.outlast(SHORT).await;
    assert_eq!(fixture.holders(lock_of(&first)).await.len(), 2);
    assert_ended(fixture, &brief, NotHolder::Expired).await;
    fixture.granted(&reader(&first)).await;
    assert_ended(fixture, &brief, NotHolder::Expired).await;
    fixture.renewed(&second, None).await;
}

pub(super) async fn a_writer_after_readers_that_ran_out_finds_them_expired(fixture: &Fixture) {
    let first = for_short(&in_mode(&claim(), READ));
    let second = for_short(&reader(&first));
    fixture.granted(&first).await;
    fixture.granted(&second).await;
    fixture.outlast(SHORT).await;
    assert_eq!(fixture.state(lock_of(&first)).await, LockState::Free);
    let writer = rival(&first);
    fixture.granted(&writer).await;
    for claim in [&first, &second] {
        assert_ended(fixture, claim, NotHolder::Expired).await;
    }
    fixture.renewed(&writer, None).await;
}

/// A store may remove expired leases in batches.
pub(super) async fn a_lock_that_very_many_readers_let_run_out_is_free(fixture: &Fixture) {
    let lock = claim_on(&fresh_name());
    let readers: Vec<_> = (0..300).map(|_| for_short(&reader(&lock))).collect();
    for reader in &readers {
        fixture.granted(reader).await;
    }
    fixture.outlast(SHORT).await;
    fixture.granted(&lock).await;
    for reader in [&readers[0], &readers[299]] {
        assert_ended(fixture, reader, NotHolder::Expired).await;
    }
}

pub(super) async fn a_reader_after_a_writer_that_ran_out_finds_it_lost(fixture: &Fixture) {
    let writer = for_short(&claim());
    fixture.granted(&writer).await;
    fixture.outlast(SHORT).await;
    let answer = fixture.acquire(&reader(&writer)).await;
    fixture.assert_passed(after_expiry_in(answer).expect("it ran out"), SHORT);
    assert_ended(fixture, &writer, NotHolder::Lost).await;
}

pub(super) async fn a_withdrawn_reader_leaves_the_others_alone(fixture: &Fixture) {
    let [first, second] = two_readers(fixture).await;
    let (withdrawn, attempt) = (reader(&first), Attempt::random());
    let answer = fixture.attempt(&withdrawn, attempt).await;
    leases_granted(answer.expect("the store answers"));
    fixture.withdraw(&withdrawn, attempt).await;
    assert_eq!(fixture.holders(lock_of(&first)).await.len(), 2);
    fixture.renewed(&second, None).await;
    // The token can be used like a new one.
    fixture.granted(&withdrawn).await;
    // And a grant that was replayed to a second attempt stays.
    fixture.withdraw(&withdrawn, attempt).await;
    assert_eq!(fixture.holders(lock_of(&first)).await.len(), 3);
}

pub(super) async fn an_eviction_takes_the_lock_from_all_holders(fixture: &Fixture) {
    let [first, second] = two_readers(fixture).await;
    let seen = fixture.holders(lock_of(&first)).await;
    let evicted = fixture.evict(lock_of(&first), "stuck").await;
    assert_eq!(fences(&evicted), fences(&seen));
    let reason = "stuck".to_owned();
    for claim in [&first, &second] {
        let reason = NotHolder::Evicted {
            reason: reason.clone(),
        };
        assert_ended(fixture, claim, reason).await;
    }
    fixture.granted(&rival(&first)).await;
}

/// A store may evict in batches; holders whose permits stay taken move to another position in its order.
pub(super) async fn an_eviction_takes_the_lock_from_very_many_holders(fixture: &Fixture) {
    const MANY: usize = 1_100;
    let lock = claim_on(&fresh_name());
    let delays = [None, Some(SHORT), Some(LONG * 2)];
    for delay in delays.into_iter().cycle().take(MANY) {
        let mut reader = reader(&lock);
        reader.lock_delay = delay;
        fixture.granted(&reader).await;
    }
    let Holders { listed, total } = fixture.evict_many(lock_of(&lock), "").await;
    assert_eq!(total, MANY as u64, "no holder is counted twice");
    assert_eq!(listed.len(), AnswerRoom::HOLDERS_MAX);
    assert!(listed.is_sorted_by_key(|holder| holder.expires_at));
    let mut fences = fences(&listed);
    fences.dedup();
    assert_eq!(fences.len(), listed.len(), "no holder is listed twice");
    let left = fixture.state(lock_of(&lock)).await;
    assert!(matches!(left, LockState::Cooling { .. }), "{left:?}");
}

/// Between the steps of a large eviction, other requests remove what earlier steps have left.
pub(super) async fn an_eviction_misses_no_holder_while_others_acquire(fixture: &Fixture) {
    const MANY: usize = 4_000;
    const DELAYED: usize = 500;
    let lock = claim_on(&fresh_name());
    for number in 0..MANY {
        let mut reader = reader(&lock);
        reader.lock_delay = (number < DELAYED).then_some(Duration::from_millis(20));
        fixture.granted(&reader).await;
    }
    let is_over = Cell::new(false);
    let asking = (0..16).map(async |_| {
        while !is_over.get() {
            fixture.acquire(&lock).await;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    let evicting = async {
        let evicted = fixture.evict_many(lock_of(&lock), "").await;
        is_over.set(true);
        evicted
    };
    let (evicted, _) = tokio::join!(evicting, join_all(asking));
    // A step whose answer is late is not counted.
    assert!(
        evicted.total <= MANY as u64,
        "a later holder: {}",
        evicted.total
    );
    fixture.outlast(SHORT).await;
    // A missed holder would block the claim.
    fixture.acquire(&lock).await;
    assert_eq!(fixture.holder(lock_of(&lock)).await.mode, lock.mode);
}

pub(super) async fn of_many_holders_those_that_end_first_are_listed(fixture: &Fixture) {
    const MANY: u64 = 120;
    let lock = claim_on(&fresh_name());
    for number in (0..MANY).rev() {
        let mut reader = owned_by(&reader(&lock), &number.to_string());
        reader.ttl = ttl(LONG * u32::try_from(number + 1).expect("few"));
        fixture.granted(&reader).await;
    }
    let LockState::Held(seen) = fixture.state(lock_of(&lock)).await else {
        panic!("many hold it");
    };
    let refused = holders_in_the_way(fixture.acquire(&rival(&lock)).await);
    for holders in [seen, refused] {
        assert_eq!(holders.total, MANY);
        let owners = holders.listed.iter().map(|holder| holder.owner.as_str());
        let first: Vec<_> = (0..AnswerRoom::HOLDERS_MAX)
            .map(|number| number.to_string())
            .collect();
        assert_eq!(owners.collect::<Vec<_>>(), first);
    }
    let evicted = fixture.evict_many(lock_of(&lock), "").await;
    assert_eq!(evicted.total, MANY);
    assert_eq!(fixture.state(lock_of(&lock)).await, LockState::Free);
}

pub(super) async fn a_shared_holder_cannot_become_exclusive(fixture: &Fixture) {
    let [first, second] = two_readers(fixture).await;
    let refused = upgrade_mismatch(lock_of(&first));
    let alone = in_mode(&first, Mode::Exclusive);
    assert_eq!(fixture.acquire(&alone).await, refused);
    // Not even as the only remaining holder.
    fixture.freed(&second).await;
    assert_eq!(fixture.acquire(&alone).await, refused);
    let name = lock_of(&first).clone();
    let answer = fixture.renew_in_mode(&first, Mode::Exclusive).await;
    let refused = Renewed::Mismatched(Mismatch::Upgrade { name });
    assert_eq!(answer, refused);
    assert_eq!(fixture.holder(lock_of(&first)).await.mode, READ);
}

pub(super) async fn a_claim_that_holds_cannot_be_made_another(fixture: &Fixture) {
    let [alone, taking] = [claim(), in_mode(&claim(), permits(2, 3))];
    fixture.granted(&alone).await;
    fixture.granted(&taking).await;
    for (claim, mode) in [
        (&alone, READ),
        (&alone, permits(1, 1)),
        (&taking, READ),
        (&taking, permits(1, 3)),
        (&taking, permits(2, 4)),
    ] {
        let answer = fixture.acquire(&in_mode(claim, mode)).await;
        assert_eq!(answer, claim_mismatch(lock_of(claim)), "{mode:?}");
    }
    replayed(fixture, &alone).await;
    replayed(fixture, &taking).await;
}

pub(super) async fn a_holder_may_step_down_and_let_others_in(fixture: &Fixture) {
    let holding = at_depth(&claim(), 3);
    let granted = fixture.granted(&holding).await.holder;
    let reader = reader(&holding);
    assert_held(&fixture.acquire(&reader).await);
    let Renewed::Extended(renewals) = fixture.renew_in_mode(&holding, READ).await else {
        panic!("it may step down");
    };
    let lease = &renewals[0].lease;
    assert_eq!(lease.holder.mode, READ);
    assert_eq!(lease.holder.fence, granted.fence);
    fixture.assert_same_time(lease.holder.acquired_at, granted.acquired_at);
    assert_eq!(lease.holder.hold_count, granted.hold_count);
    fixture.granted(&reader).await;
    assert_held(&fixture.acquire(&rival(&holding)).await);
    // From now on it is an ordinary reader.
    let again = replayed(fixture, &in_mode(&holding, READ)).await;
    assert_eq!(again.holder.fence, granted.fence);
    fixture.renewed(&holding, None).await;
    let answer = fixture.acquire(&holding).await;
    assert_eq!(answer, upgrade_mismatch(lock_of(&holding)));
    fixture.freed(&holding).await;
    fixture.freed(&reader).await;
    fixture.granted(&rival(&holding)).await;
}

pub(super) async fn a_holder_that_steps_down_counts_with_its_permits(fixture: &Fixture) {
    let holding = claim();
    fixture.granted(&holding).await;
    let taking = |permitted| in_mode(&rival(&holding), permitted);
    let answer = fixture.renew_in_mode(&holding, permits(2, 3)).await;
    assert!(matches!(answer, Renewed::Extended(_)), "{answer:?}");
    assert_held(&fixture.acquire(&taking(permits(2, 3))).await);
    fixture.granted(&taking(permits(1, 3))).await;
    let answer = fixture.acquire(&taking(READ)).await;
    assert_eq!(answer, limit_mismatch(lock_of(&holding), Some(3)));
}

pub(super) async fn a_renewal_in_the_same_mode_is_a_renewal(fixture: &Fixture) {
    let [alone, taking] = [claim(), in_mode(&claim(), permits(2, 3))];
    for claim in [&alone, &taking] {
        let granted = fixture.granted(claim).await;
        let answer = fixture.renew_in_mode(claim, claim.mode).await;
        match answer {
            Renewed::Extended(renewals) => {
                assert_eq!(renewals[0].lease.holder.mode, claim.mode);
                assert_eq!(renewals[0].lease.holder.fence, granted.holder.fence);
            }
            other => panic!("it holds so already, but: {other:?}"),
        }
    }
    for mode in [READ, permits(1, 3), permits(2, 4)] {
        let name = lock_of(&taking).clone();
        let answer = fixture.renew_in_mode(&taking, mode).await;
        let refused = Renewed::Mismatched(Mismatch::Claim { name });
        assert_eq!(answer, refused, "{mode:?}");
    }
}
