//! Laws of sharing: readers hold together, a writer holds alone, and each of several holders has a lease of its own.
//!
//! What is counted is in `permits`.

use std::cell::Cell;
use std::time::Duration;

use futures_util::future::join_all;
use leasehold::domain::{
    Acquired, AnswerRoom, Attempt, Contradiction, Fence, Holder, Holders, Lease, LockState, Mode,
    NotHolder, Released, Renewed,
};

use super::expiry::{after_expiry_in, assert_told};
use super::replay::replayed;
use crate::support::bench::{
    Bench, LONG, READ, SHORT, assert_behind_waiters, assert_held, at_depth, claim, claim_on,
    contradicts_claim, contradicts_limit, contradicts_upgrade, for_short, fresh_name,
    holders_in_the_way, in_mode, leases_granted, lock_of, owned_by, permits, reader, rival, ttl,
};

/// Two claims that hold a lock together.
async fn two_readers(bench: &Bench) -> [leasehold::domain::Claim; 2] {
    let first = in_mode(&claim(), READ);
    let second = reader(&first);
    bench.granted(&first).await;
    bench.granted(&second).await;
    [first, second]
}

fn fences(holders: &[Holder]) -> Vec<Fence> {
    let mut fences: Vec<_> = holders.iter().map(|holder| holder.fence).collect();
    fences.sort();
    fences
}

pub(super) async fn readers_hold_together_each_with_a_lease_of_its_own(bench: &Bench) {
    let lock = claim_on(&fresh_name());
    let mut leases: Vec<Lease> = Vec::new();
    for (owner, lasts) in [("pod-1", LONG * 3), ("pod-2", LONG), ("pod-3", LONG * 2)] {
        let mut reader = owned_by(&reader(&lock), owner);
        reader.ttl = ttl(lasts);
        let lease = bench.granted(&reader).await;
        assert_eq!(lease.holder.mode, READ);
        assert_eq!(lease.ttl, reader.ttl);
        bench.assert_left(lease.holder.expires_in, lasts);
        leases.push(lease);
    }
    assert!(leases.is_sorted_by(|a, b| a.holder.fence < b.holder.fence));
    // Those whose leases end first come first.
    let owners = bench.holders(lock_of(&lock)).await.into_iter();
    let owners: Vec<_> = owners.map(|holder| holder.owner).collect();
    let expected = [1, 2, 0].map(|index: usize| leases[index].holder.owner.clone());
    assert_eq!(owners, expected);
}

pub(super) async fn a_writer_holds_alone(bench: &Bench) {
    let [first, second] = two_readers(bench).await;
    let writer = rival(&first);
    let holders = holders_in_the_way(bench.acquire(&writer).await);
    assert_eq!(holders.total, 2);
    bench.freed(&first).await;
    assert_held(&bench.acquire(&writer).await);
    bench.freed(&second).await;
    bench.granted(&writer).await;
    for mode in [READ, permits(1, 5)] {
        let answer = bench.acquire(&in_mode(&rival(&first), mode)).await;
        let holders = holders_in_the_way(answer);
        assert_eq!(holders.total, 1);
        assert_eq!(holders.told[0].mode, Mode::Exclusive);
    }
}

pub(super) async fn no_reader_comes_before_a_writer_that_waits(bench: &Bench) {
    let [first, second] = two_readers(bench).await;
    let mut writer = bench.waiting(&rival(&first)).await;
    for _ in 0..5 {
        // Not those who hold are in the way.
        assert_behind_waiters(bench.acquire(&reader(&first)).await);
    }
    let mut late_reader = bench.waiting(&reader(&first)).await;
    bench.freed(&first).await;
    bench.waits(&mut late_reader).await;
    bench.waits(&mut writer).await;
    bench.freed(&second).await;
    bench.waits(&mut late_reader).await;
    bench.served(&mut writer).await;
    bench.served(&mut late_reader).await;
}

pub(super) async fn a_reader_that_holds_is_no_newcomer(bench: &Bench) {
    let [first, _] = two_readers(bench).await;
    bench.waiting(&rival(&first)).await;
    replayed(bench, &first).await;
    let answer = bench.acquire(&at_depth(&first, 2)).await;
    assert!(matches!(answer, Acquired::Reentered(_)), "{answer:?}");
    bench.renewed(&first, None).await;
}

pub(super) async fn each_of_several_holders_acts_for_itself(bench: &Bench) {
    let [first, second] = two_readers(bench).await;
    let name = lock_of(&first);
    bench.acquire(&at_depth(&first, 3)).await;
    bench.renewed(&second, Some(LONG * 10)).await;
    let holders = bench.holders(name).await;
    let depths: Vec<_> = holders
        .iter()
        .map(|holder| holder.hold_count.get())
        .collect();
    assert_eq!(depths, [3, 1]);
    bench.assert_left(holders[0].expires_in, LONG);
    bench.assert_left(holders[1].expires_in, LONG * 10);
    match bench.step_back(&first, 2).await {
        Released::SteppedBack(lease) => assert_eq!(lease.holder.hold_count.get(), 2),
        other => panic!("it holds on, but: {other:?}"),
    }
    assert_eq!(replayed(bench, &second).await.holder.hold_count.get(), 1);
    bench.freed(&first).await;
    assert_eq!(bench.release(&first).await, Released::Repeated);
    assert_eq!(fences(&bench.holders(name).await), [holders[1].fence]);
    bench.freed(&second).await;
    assert_eq!(bench.state(name).await, LockState::Free);
}

pub(super) async fn a_reader_that_ran_out_has_expired_whoever_came_after(bench: &Bench) {
    let [first, second] = two_readers(bench).await;
    let brief = for_short(&reader(&first));
    bench.granted(&brief).await;
    bench.outlast(SHORT).await;
    assert_eq!(bench.holders(lock_of(&first)).await.len(), 2);
    assert_told(bench, &brief, NotHolder::Expired).await;
    bench.granted(&reader(&first)).await;
    assert_told(bench, &brief, NotHolder::Expired).await;
    bench.renewed(&second, None).await;
}

pub(super) async fn a_writer_after_readers_that_ran_out_finds_them_expired(bench: &Bench) {
    let first = for_short(&in_mode(&claim(), READ));
    let second = for_short(&reader(&first));
    bench.granted(&first).await;
    bench.granted(&second).await;
    bench.outlast(SHORT).await;
    assert_eq!(bench.state(lock_of(&first)).await, LockState::Free);
    let writer = rival(&first);
    bench.granted(&writer).await;
    for claim in [&first, &second] {
        assert_told(bench, claim, NotHolder::Expired).await;
    }
    bench.renewed(&writer, None).await;
}

/// A store may clear them away a number at a time.
pub(super) async fn a_lock_that_very_many_readers_let_run_out_is_free(bench: &Bench) {
    let lock = claim_on(&fresh_name());
    let readers: Vec<_> = (0..300).map(|_| for_short(&reader(&lock))).collect();
    for reader in &readers {
        bench.granted(reader).await;
    }
    bench.outlast(SHORT).await;
    bench.granted(&lock).await;
    for reader in [&readers[0], &readers[299]] {
        assert_told(bench, reader, NotHolder::Expired).await;
    }
}

pub(super) async fn a_reader_after_a_writer_that_ran_out_finds_it_lost(bench: &Bench) {
    let writer = for_short(&claim());
    bench.granted(&writer).await;
    bench.outlast(SHORT).await;
    let answer = bench.acquire(&reader(&writer)).await;
    bench.assert_passed(after_expiry_in(answer).expect("it ran out"), SHORT);
    assert_told(bench, &writer, NotHolder::Lost).await;
}

pub(super) async fn a_withdrawn_reader_leaves_the_others_alone(bench: &Bench) {
    let [first, second] = two_readers(bench).await;
    let (withdrawn, attempt) = (reader(&first), Attempt::random());
    let answer = bench.attempt(&withdrawn, attempt).await;
    leases_granted(answer.expect("the store answers"));
    bench.withdraw(&withdrawn, attempt).await;
    assert_eq!(bench.holders(lock_of(&first)).await.len(), 2);
    bench.renewed(&second, None).await;
    // The token is as good as new.
    bench.granted(&withdrawn).await;
    // And what a second attempt was told of stays.
    bench.withdraw(&withdrawn, attempt).await;
    assert_eq!(bench.holders(lock_of(&first)).await.len(), 3);
}

pub(super) async fn an_eviction_takes_the_lock_from_all_holders(bench: &Bench) {
    let [first, second] = two_readers(bench).await;
    let seen = bench.holders(lock_of(&first)).await;
    let evicted = bench.evict(lock_of(&first), "stuck").await;
    assert_eq!(fences(&evicted), fences(&seen));
    let reason = "stuck".to_owned();
    for claim in [&first, &second] {
        let told = NotHolder::Evicted {
            reason: reason.clone(),
        };
        assert_told(bench, claim, told).await;
    }
    bench.granted(&rival(&first)).await;
}

/// A store may take them a number at a time; those whose permits stay taken come to stand elsewhere in its order.
pub(super) async fn an_eviction_takes_the_lock_from_very_many_holders(bench: &Bench) {
    const MANY: usize = 1_100;
    let lock = claim_on(&fresh_name());
    let delays = [None, Some(SHORT), Some(LONG * 2)];
    for delay in delays.into_iter().cycle().take(MANY) {
        let mut reader = reader(&lock);
        reader.lock_delay = delay;
        bench.granted(&reader).await;
    }
    let Holders { told, total } = bench.evict_many(lock_of(&lock), "").await;
    assert_eq!(total, MANY as u64, "nobody is counted twice");
    assert_eq!(told.len(), AnswerRoom::HOLDERS_MAX);
    assert!(told.is_sorted_by_key(|holder| holder.expires_at));
    let mut fences = fences(&told);
    fences.dedup();
    assert_eq!(fences.len(), told.len(), "nobody is told of twice");
    let left = bench.state(lock_of(&lock)).await;
    assert!(matches!(left, LockState::Cooling { .. }), "{left:?}");
}

/// Between the steps of a large eviction, others clear away what the steps before have left.
pub(super) async fn an_eviction_misses_nobody_while_others_ask(bench: &Bench) {
    const MANY: usize = 4_000;
    const DELAYED: usize = 500;
    let lock = claim_on(&fresh_name());
    for number in 0..MANY {
        let mut reader = reader(&lock);
        reader.lock_delay = (number < DELAYED).then_some(Duration::from_millis(20));
        bench.granted(&reader).await;
    }
    let is_over = Cell::new(false);
    let asking = (0..16).map(async |_| {
        while !is_over.get() {
            bench.acquire(&lock).await;
            tokio::task::yield_now().await;
        }
    });
    let evicting = async {
        let evicted = bench.evict_many(lock_of(&lock), "").await;
        is_over.set(true);
        evicted
    };
    let (evicted, _) = tokio::join!(evicting, join_all(asking));
    assert_eq!(evicted.total, MANY as u64, "nobody who came later");
    bench.outlast(SHORT).await;
    // Whoever was missed would keep the claim out.
    bench.acquire(&lock).await;
    assert_eq!(bench.holder(lock_of(&lock)).await.mode, lock.mode);
}

pub(super) async fn of_many_holders_those_are_told_who_end_first(bench: &Bench) {
    const MANY: u64 = 120;
    let lock = claim_on(&fresh_name());
    for number in (0..MANY).rev() {
        let mut reader = owned_by(&reader(&lock), &number.to_string());
        reader.ttl = ttl(LONG * u32::try_from(number + 1).expect("few"));
        bench.granted(&reader).await;
    }
    let LockState::Held(seen) = bench.state(lock_of(&lock)).await else {
        panic!("many hold it");
    };
    let refused = holders_in_the_way(bench.acquire(&rival(&lock)).await);
    for holders in [seen, refused] {
        assert_eq!(holders.total, MANY);
        let told = holders.told.iter().map(|holder| holder.owner.as_str());
        let first: Vec<_> = (0..AnswerRoom::HOLDERS_MAX)
            .map(|number| number.to_string())
            .collect();
        assert_eq!(told.collect::<Vec<_>>(), first);
    }
    let evicted = bench.evict_many(lock_of(&lock), "").await;
    assert_eq!(evicted.total, MANY);
    assert_eq!(bench.state(lock_of(&lock)).await, LockState::Free);
}

pub(super) async fn who_holds_together_cannot_come_to_hold_alone(bench: &Bench) {
    let [first, second] = two_readers(bench).await;
    let refused = contradicts_upgrade(lock_of(&first));
    let alone = in_mode(&first, Mode::Exclusive);
    assert_eq!(bench.acquire(&alone).await, refused);
    // Not even when nobody else is there any more.
    bench.freed(&second).await;
    assert_eq!(bench.acquire(&alone).await, refused);
    let name = lock_of(&first).clone();
    let answer = bench.renew_in_mode(&first, Mode::Exclusive).await;
    let refused = Renewed::Contradicts(Contradiction::Upgrade { name });
    assert_eq!(answer, refused);
    assert_eq!(bench.holder(lock_of(&first)).await.mode, READ);
}

pub(super) async fn a_claim_that_holds_cannot_be_made_another(bench: &Bench) {
    let [alone, taking] = [claim(), in_mode(&claim(), permits(2, 3))];
    bench.granted(&alone).await;
    bench.granted(&taking).await;
    for (claim, mode) in [
        (&alone, READ),
        (&alone, permits(1, 1)),
        (&taking, READ),
        (&taking, permits(1, 3)),
        (&taking, permits(2, 4)),
    ] {
        let answer = bench.acquire(&in_mode(claim, mode)).await;
        assert_eq!(answer, contradicts_claim(lock_of(claim)), "{mode:?}");
    }
    replayed(bench, &alone).await;
    replayed(bench, &taking).await;
}

pub(super) async fn a_holder_may_step_down_and_let_others_in(bench: &Bench) {
    let holding = at_depth(&claim(), 3);
    let granted = bench.granted(&holding).await.holder;
    let reader = reader(&holding);
    assert_held(&bench.acquire(&reader).await);
    let Renewed::Extended(renewals) = bench.renew_in_mode(&holding, READ).await else {
        panic!("it may step down");
    };
    let lease = &renewals[0].lease;
    assert_eq!(lease.holder.mode, READ);
    assert_eq!(lease.holder.fence, granted.fence);
    assert_eq!(lease.holder.acquired_at, granted.acquired_at);
    assert_eq!(lease.holder.hold_count, granted.hold_count);
    bench.granted(&reader).await;
    assert_held(&bench.acquire(&rival(&holding)).await);
    // From now on it is a reader like any other.
    let again = replayed(bench, &in_mode(&holding, READ)).await;
    assert_eq!(again.holder.fence, granted.fence);
    bench.renewed(&holding, None).await;
    let answer = bench.acquire(&holding).await;
    assert_eq!(answer, contradicts_upgrade(lock_of(&holding)));
    bench.freed(&holding).await;
    bench.freed(&reader).await;
    bench.granted(&rival(&holding)).await;
}

pub(super) async fn who_steps_down_counts_with_its_permits(bench: &Bench) {
    let holding = claim();
    bench.granted(&holding).await;
    let taking = |permitted| in_mode(&rival(&holding), permitted);
    let answer = bench.renew_in_mode(&holding, permits(2, 3)).await;
    assert!(matches!(answer, Renewed::Extended(_)), "{answer:?}");
    assert_held(&bench.acquire(&taking(permits(2, 3))).await);
    bench.granted(&taking(permits(1, 3))).await;
    let answer = bench.acquire(&taking(READ)).await;
    assert_eq!(answer, contradicts_limit(lock_of(&holding), Some(3)));
}

pub(super) async fn a_renewal_in_the_same_mode_is_a_renewal(bench: &Bench) {
    let [alone, taking] = [claim(), in_mode(&claim(), permits(2, 3))];
    for claim in [&alone, &taking] {
        let granted = bench.granted(claim).await;
        let answer = bench.renew_in_mode(claim, claim.mode).await;
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
        let answer = bench.renew_in_mode(&taking, mode).await;
        let refused = Renewed::Contradicts(Contradiction::Claim { name });
        assert_eq!(answer, refused, "{mode:?}");
    }
}
