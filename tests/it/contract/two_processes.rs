//! Laws of several processes on one Redis: one queue for all of them, offers to the right one, and no waiting for those
//! that are gone.

use std::time::Duration;

use leasehold::domain::{Acquired, Claim, EventKind, LockState, NotHolder, Released};
use leasehold::store::OFFER;

use crate::support::bench::{
    Bench, LONG, SHORT, Waiter, assert_behind_waiters, claim, ended, leases_granted, lock_of, only,
    reader, rival,
};
use crate::support::eventually;

/// How often a process looks after its queues in laws about those that stop to.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// After this much silence such a process counts as dead.
const SILENCE: Duration = Duration::from_millis(300);

/// Another process, and both hear what is told.
async fn listening(bench: &Bench) -> Bench {
    let another = bench.another_process().await;
    bench.listens().await;
    another.listens().await;
    another
}

/// A waiter of a process that looks often.
async fn often_looking(bench: &Bench, claim: &Claim) -> Waiter {
    let mut waiter = Waiter::new(claim.clone()).with(|stand| stand.look_every = LOOK_EVERY);
    bench.waits(&mut waiter).await;
    waiter
}

pub(super) async fn waiters_of_all_processes_stand_in_one_order(bench: &Bench) {
    let benches = [
        bench,
        &bench.another_process().await,
        &bench.another_process().await,
    ];
    let holding = claim();
    bench.granted(&holding).await;
    let mut waiters = Vec::new();
    for number in 0..12 {
        // Not simply in turns.
        let process = benches[number * number % 5 % 3];
        waiters.push((process, process.waiting(&rival(&holding)).await));
    }
    benches[1].freed(&holding).await;
    for next in 0..waiters.len() {
        for (process, waiter) in waiters[next + 1..].iter_mut().rev() {
            process.waits(waiter).await;
        }
        let (process, waiter) = &mut waiters[next];
        process.served(waiter).await;
    }
    assert_eq!(bench.state(lock_of(&holding)).await, LockState::Free);
}

pub(super) async fn an_offer_goes_to_the_process_of_the_first_alone(bench: &Bench) {
    let another = listening(bench).await;
    let holding = claim();
    bench.granted(&holding).await;
    let name = lock_of(&holding);
    let mut first = bench.waiting(&rival(&holding)).await;
    let mut second = another.waiting(&rival(&holding)).await;
    another.freed(&holding).await;
    assert_eq!(
        (bench.offers_of(name).await, another.offers_of(name).await),
        (1, 0)
    );
    leases_granted(bench.ask(&mut first).await);
    bench.freed(&first.claim).await;
    assert_eq!(
        (bench.offers_of(name).await, another.offers_of(name).await),
        (1, 1)
    );
    another.served(&mut second).await;
}

pub(super) async fn readers_of_several_processes_are_let_in_together(bench: &Bench) {
    let another = listening(bench).await;
    let holding = claim();
    bench.granted(&holding).await;
    let name = lock_of(&holding);
    let mut first = bench.waiting(&reader(&holding)).await;
    let mut second = another.waiting(&reader(&holding)).await;
    bench.freed(&holding).await;
    leases_granted(bench.ask(&mut first).await);
    assert_eq!(another.offers_of(name).await, 1);
    leases_granted(another.ask(&mut second).await);
    assert_eq!(bench.holders(name).await.len(), 2);
}

pub(super) async fn an_offer_that_a_process_does_not_take_goes_to_the_next(bench: &Bench) {
    let another = listening(bench).await;
    let holding = claim();
    bench.granted(&holding).await;
    let name = lock_of(&holding);
    let mut silent = bench.waiting(&rival(&holding)).await;
    let mut next = another.waiting(&rival(&holding)).await;
    bench.freed(&holding).await;
    another.outlast_offer(&mut next).await;
    leases_granted(another.ask(&mut next).await);
    // It was slow, not dead: its waiter has kept the place before those who came later.
    let mut last = another.waiting(&rival(&holding)).await;
    bench.waits(&mut silent).await;
    another.freed(&next.claim).await;
    assert_eq!(bench.offers_of(name).await, 2);
    another.waits(&mut last).await;
    bench.served(&mut silent).await;
    another.served(&mut last).await;
}

pub(super) async fn a_silent_process_is_passed_over_with_all_its_waiters(bench: &Bench) {
    let another = listening(bench).await;
    let holding = claim();
    bench.granted(&holding).await;
    let name = lock_of(&holding);
    for _ in 0..50 {
        often_looking(bench, &rival(&holding)).await;
    }
    let mut next = another.waiting(&rival(&holding)).await;
    bench.outlast(SILENCE).await;
    another.freed(&holding).await;
    another.outlast_offer(&mut next).await;
    another.served(&mut next).await;
    assert_eq!(another.queue(name).await.length, 0);
    assert_eq!(
        (bench.offers_of(name).await, another.offers_of(name).await),
        (1, 0)
    );
}

/// The silence may have been the store's: it was paused, or away, for longer than its clients take to ask again.
pub(super) async fn a_process_that_was_silent_keeps_its_turn(bench: &Bench) {
    let another = listening(bench).await;
    let holding = claim();
    bench.granted(&holding).await;
    let mut first = often_looking(bench, &rival(&holding)).await;
    let mut second = another.waiting(&rival(&holding)).await;
    bench.outlast(SILENCE).await;
    another.freed(&holding).await;
    // The first request that is executed after the pause must not find that the others came too late.
    bench.outlast(OFFER).await;
    assert_behind_waiters(another.acquire(&rival(&holding)).await);
    another.waits(&mut second).await;
    bench.served(&mut first).await;
    another.served(&mut second).await;
}

/// A client that reconnects elsewhere leaves its old request behind, whose connection may look alive for long.
pub(super) async fn a_waiter_that_moved_leaves_the_others_of_its_process_in_turn(bench: &Bench) {
    let another = listening(bench).await;
    let holding = claim();
    bench.granted(&holding).await;
    let mut moving = bench.waiting(&rival(&holding)).await;
    let mut second = bench.waiting(&rival(&holding)).await;
    let mut third = another.waiting(&rival(&holding)).await;
    let mut moved = moving.again();
    another.waits(&mut moved).await;
    assert_eq!(bench.ask(&mut moving).await, Acquired::Superseded);
    assert_eq!(bench.queue(lock_of(&holding)).await.length, 3);
    bench.freed(&holding).await;
    another.waits(&mut third).await;
    bench.waits(&mut second).await;
    another.served(&mut moved).await;
    another.waits(&mut third).await;
    bench.served(&mut second).await;
    another.served(&mut third).await;
}

/// What a message that arrived late has left in the queue is nobody's, and must not cost the others a turn.
pub(super) async fn the_head_of_a_process_clears_away_what_stands_before_it(bench: &Bench) {
    let holding = claim();
    bench.granted(&holding).await;
    let left = bench.waiting(&rival(&holding)).await;
    let mut head = bench.waiting(&rival(&holding)).await;
    let mut next = bench.waiting(&rival(&holding)).await;
    head.stand.is_head = true;
    bench.waits(&mut head).await;
    assert_eq!(bench.queue(lock_of(&holding)).await.length, 2);
    // Its request may be on the way to the store that says for how long its place is kept.
    bench.park(&left.claim, SHORT).await;
    bench.outlast(SHORT).await;
    let unknown = Released::NotHolder(NotHolder::Unknown);
    assert_eq!(bench.release(&left.claim).await, unknown);
    bench.freed(&holding).await;
    bench.waits(&mut next).await;
    bench.served(&mut head).await;
    bench.served(&mut next).await;
}

pub(super) async fn a_process_that_ended_is_passed_over_with_all_its_waiters(bench: &Bench) {
    let ended = bench.another_process().await;
    let holding = claim();
    ended.granted(&holding).await;
    for _ in 0..50 {
        ended.waiting(&rival(&holding)).await;
    }
    let mut next = bench.waiting(&rival(&holding)).await;
    ended.freed(&holding).await;
    drop(ended);
    // What it was offered it does not take, and its other waiters are not even asked.
    bench.outlast_offer(&mut next).await;
    bench.served(&mut next).await;
    assert_eq!(bench.queue(lock_of(&holding)).await.length, 0);
}

pub(super) async fn one_waiter_that_looks_speaks_for_its_process(bench: &Bench) {
    let another = bench.another_process().await;
    let holding = claim();
    bench.granted(&holding).await;
    let [mut first, mut second] = [(); 2].map(|()| {
        let waiter = Waiter::new(rival(&holding));
        waiter.with(|stand| stand.look_every = SHORT)
    });
    bench.waits(&mut first).await;
    bench.waits(&mut second).await;
    let mut third = another.waiting(&rival(&holding)).await;
    for _ in 0..4 {
        bench.advance(SHORT).await;
        bench.waits(&mut second).await;
    }
    bench.freed(&holding).await;
    another.waits(&mut third).await;
    bench.waits(&mut second).await;
    bench.served(&mut first).await;
    bench.served(&mut second).await;
    another.served(&mut third).await;
}

pub(super) async fn a_kept_place_is_found_on_another_process(bench: &Bench) {
    let another = bench.another_process().await;
    let holding = claim();
    bench.granted(&holding).await;
    let leaving = bench.waiting(&rival(&holding)).await;
    let mut second = bench.waiting(&rival(&holding)).await;
    bench.park(&leaving.claim, LONG).await;
    let mut back = leaving.again();
    let place = another.waits(&mut back).await.place;
    let before = leaving.stand.place.expect("it was told");
    assert_eq!(place.sequence, before.sequence);
    bench.freed(&holding).await;
    bench.waits(&mut second).await;
    another.served(&mut back).await;
    bench.served(&mut second).await;
}

pub(super) async fn a_place_on_a_process_that_ended_is_found_on_another(bench: &Bench) {
    let ended = bench.another_process().await;
    let holding = claim();
    bench.granted(&holding).await;
    let lost = often_looking(&ended, &rival(&holding)).await;
    let mut second = bench.waiting(&rival(&holding)).await;
    drop(ended);
    let mut back = lost.again();
    let place = bench.waits(&mut back).await.place;
    assert_eq!(
        place.sequence,
        lost.stand.place.expect("it was told").sequence
    );
    bench.freed(&holding).await;
    bench.waits(&mut second).await;
    bench.served(&mut back).await;
    bench.served(&mut second).await;
}

pub(super) async fn a_claim_that_waits_on_two_processes_is_granted_once(bench: &Bench) {
    let another = bench.another_process().await;
    let holding = claim();
    bench.granted(&holding).await;
    let mut here = bench.waiting(&rival(&holding)).await;
    let mut there = here.again();
    let place = another.waits(&mut there).await.place;
    assert_eq!(
        place.sequence,
        here.stand.place.expect("it was told").sequence
    );
    let mut next = bench.waiting(&rival(&holding)).await;
    bench.freed(&holding).await;
    let lease = only(leases_granted(another.ask(&mut there).await));
    match bench.ask(&mut here).await {
        Acquired::Replayed(leases) => assert_eq!(only(leases).holder.fence, lease.holder.fence),
        other => panic!("the claim holds, but: {other:?}"),
    }
    // Nothing is left of the place that was not used.
    another.freed(&here.claim).await;
    assert_eq!(another.queue(lock_of(&holding)).await.length, 1);
    bench.served(&mut next).await;
}

pub(super) async fn a_claim_leaves_the_queue_by_release_on_any_process(bench: &Bench) {
    let another = listening(bench).await;
    let holding = claim();
    bench.granted(&holding).await;
    let mut leaving = bench.waiting(&rival(&holding)).await;
    let mut next = another.waiting(&rival(&holding)).await;
    assert_eq!(another.release(&leaving.claim).await, Released::LeftQueue);
    // The process that looks after it is told, so that it need not wait until it looks by itself.
    assert_eq!(bench.offers_of(lock_of(&holding)).await, 1);
    let released = ended(&leaving.claim, NotHolder::Released);
    assert_eq!(bench.ask(&mut leaving).await, released);
    assert_eq!(another.queue(lock_of(&holding)).await.length, 1);
    bench.freed(&holding).await;
    another.served(&mut next).await;
}

pub(super) async fn a_newcomer_on_another_process_does_not_overtake(bench: &Bench) {
    let another = bench.another_process().await;
    let holding = claim();
    bench.granted(&holding).await;
    let mut waiter = bench.waiting(&rival(&holding)).await;
    another.freed(&holding).await;
    assert_behind_waiters(another.acquire(&rival(&holding)).await);
    bench.served(&mut waiter).await;
    let newcomer = rival(&holding);
    another.granted(&newcomer).await;
}

pub(super) async fn events_of_one_process_are_heard_on_all(bench: &Bench) {
    let another = listening(bench).await;
    another.store().want_events(true).await;
    let lapsing = crate::support::bench::for_short(&claim());
    bench.granted(&lapsing).await;
    let mut waiter = bench.waiting(&rival(&lapsing)).await;
    bench.outlast(SHORT).await;
    bench.served(&mut waiter).await;
    let told = async || another.heard().await.events_of(lock_of(&lapsing));
    // It is another connection that tells of these than the one that was asked last.
    let events = eventually("all of it is told", async || {
        let events = told().await;
        (events.len() >= 5).then_some(events)
    })
    .await;
    let kinds: Vec<_> = events.iter().map(|event| event.kind).collect();
    let expected = [
        EventKind::Acquired,
        EventKind::Queued,
        EventKind::Expired,
        EventKind::Acquired,
        EventKind::Released,
    ];
    assert_eq!(kinds, expected);
    // All who watch are told the same.
    bench.store().want_events(true).await;
    let claim = claim();
    bench.granted(&claim).await;
    let here = bench.heard().await.events_of(lock_of(&claim));
    let there = another.heard().await.events_of(lock_of(&claim));
    assert_eq!((here.len(), &here), (1, &there));
}

/// Streams of every process have to hear of it.
pub(super) async fn an_eviction_is_heard_of_on_all(bench: &Bench) {
    let another = listening(bench).await;
    let holding = claim();
    another.granted(&holding).await;
    let name = lock_of(&holding);
    bench.evict(name, "").await;
    for process in [bench, &another] {
        eventually("the eviction is heard of", async || {
            (process.ear().evictions_of(name) > 0).then_some(())
        })
        .await;
    }
}

/// A stream of any process may hold what is released.
pub(super) async fn the_release_of_a_stream_is_heard_of_on_all(bench: &Bench) {
    let another = listening(bench).await;
    let holding = Claim {
        takes_over: true,
        ..claim()
    };
    another.granted(&holding).await;
    let name = lock_of(&holding);
    bench.freed(&holding).await;
    for process in [bench, &another] {
        let told = process.heard().await;
        assert!(told.releases_of(name, holding.token.digest(name)) > 0);
    }
}
