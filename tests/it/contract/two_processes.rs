//! Contract tests of several processes on one Redis: they share each queue, reservations go to the right process, and
//! processes that are gone are passed over.

use std::time::Duration;

use leasehold::domain::{
    Acquired, Claim, EventKind, GrantKind, Granted, LockState, NotHolder, Released,
};
use leasehold::store::RESERVATION_TTL;

use crate::support::eventually;
use crate::support::fixture::{
    Fixture, LONG, SHORT, Waiter, assert_behind_waiters, claim, leases_granted, lock_of, only,
    reader, rival,
};

/// The poll interval in tests of processes that stop polling.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// After this time without a poll such a process is considered dead.
const LIVENESS_TIMEOUT: Duration = Duration::from_millis(300);

/// Another process; both are subscribed.
pub(super) async fn subscribed(fixture: &Fixture) -> Fixture {
    let another = fixture.another_process().await;
    fixture.listens().await;
    another.listens().await;
    another
}

/// A waiter of a process that polls often.
async fn often_polling(fixture: &Fixture, claim: &Claim) -> Waiter {
    let mut waiter = Waiter::new(claim.clone()).with(|stand| stand.poll_interval = POLL_INTERVAL);
    fixture.still_waits(&mut waiter).await;
    waiter
}

pub(super) async fn waiters_of_all_processes_share_one_order(fixture: &Fixture) {
    let processes = [
        fixture,
        &fixture.another_process().await,
        &fixture.another_process().await,
    ];
    let holding = claim();
    fixture.granted(&holding).await;
    let mut waiters = Vec::new();
    for number in 0..12 {
        // Not simply round-robin.
        let process = processes[number * number % 5 % 3];
        waiters.push((process, process.waiting(&rival(&holding)).await));
    }
    processes[1].freed(&holding).await;
    for next in 0..waiters.len() {
        for (process, waiter) in waiters[next + 1..].iter_mut().rev() {
            process.still_waits(waiter).await;
        }
        let (process, waiter) = &mut waiters[next];
        process.granted_after_wait(waiter).await;
    }
    assert_eq!(fixture.state(lock_of(&holding)).await, LockState::Free);
}

pub(super) async fn a_reservation_goes_to_the_process_of_the_first_alone(fixture: &Fixture) {
    let another = subscribed(fixture).await;
    let holding = claim();
    fixture.granted(&holding).await;
    let name = lock_of(&holding);
    let mut first = fixture.waiting(&rival(&holding)).await;
    let mut second = another.waiting(&rival(&holding)).await;
    another.freed(&holding).await;
    assert_eq!(
        (
            fixture.reservations_of(name).await,
            another.reservations_of(name).await
        ),
        (1, 0)
    );
    leases_granted(fixture.poll(&mut first).await);
    fixture.freed(&first.claim).await;
    assert_eq!(
        (
            fixture.reservations_of(name).await,
            another.reservations_of(name).await
        ),
        (1, 1)
    );
    another.granted_after_wait(&mut second).await;
}

pub(super) async fn readers_of_several_processes_are_let_in_together(fixture: &Fixture) {
    let another = subscribed(fixture).await;
    let holding = claim();
    fixture.granted(&holding).await;
    let name = lock_of(&holding);
    let mut first = fixture.waiting(&reader(&holding)).await;
    let mut second = another.waiting(&reader(&holding)).await;
    fixture.freed(&holding).await;
    leases_granted(fixture.poll(&mut first).await);
    assert_eq!(another.reservations_of(name).await, 1);
    leases_granted(another.poll(&mut second).await);
    assert_eq!(fixture.holders(name).await.len(), 2);
}

pub(super) async fn a_reservation_that_a_process_does_not_take_goes_to_the_next(fixture: &Fixture) {
    let another = subscribed(fixture).await;
    let holding = claim();
    fixture.granted(&holding).await;
    let name = lock_of(&holding);
    let mut silent = fixture.waiting(&rival(&holding)).await;
    let mut next = another.waiting(&rival(&holding)).await;
    fixture.freed(&holding).await;
    another.outlast_reservation(&mut next).await;
    leases_granted(another.poll(&mut next).await);
    // The process was slow, not dead: its waiter has kept its place before later ones.
    let mut last = another.waiting(&rival(&holding)).await;
    fixture.still_waits(&mut silent).await;
    another.freed(&next.claim).await;
    assert_eq!(fixture.reservations_of(name).await, 2);
    another.still_waits(&mut last).await;
    fixture.granted_after_wait(&mut silent).await;
    another.granted_after_wait(&mut last).await;
}

pub(super) async fn a_silent_process_is_passed_over_with_all_its_waiters(fixture: &Fixture) {
    let another = subscribed(fixture).await;
    let holding = claim();
    fixture.granted(&holding).await;
    let name = lock_of(&holding);
    for _ in 0..50 {
        often_polling(fixture, &rival(&holding)).await;
    }
    let mut next = another.waiting(&rival(&holding)).await;
    fixture.outlast(LIVENESS_TIMEOUT).await;
    another.freed(&holding).await;
    another.outlast_reservation(&mut next).await;
    another.granted_after_wait(&mut next).await;
    assert_eq!(another.queue(name).await.length, 0);
    assert_eq!(
        (
            fixture.reservations_of(name).await,
            another.reservations_of(name).await
        ),
        (1, 0)
    );
}

/// The store itself may have been paused or unreachable, for longer than the poll interval of its clients.
pub(super) async fn a_process_that_was_silent_keeps_its_turn(fixture: &Fixture) {
    let another = subscribed(fixture).await;
    let holding = claim();
    fixture.granted(&holding).await;
    let mut first = often_polling(fixture, &rival(&holding)).await;
    let mut second = another.waiting(&rival(&holding)).await;
    fixture.outlast(LIVENESS_TIMEOUT).await;
    another.freed(&holding).await;
    // The first request after the pause must not find the reservations of other processes expired.
    fixture.outlast(RESERVATION_TTL).await;
    assert_behind_waiters(another.acquire(&rival(&holding)).await);
    another.still_waits(&mut second).await;
    fixture.granted_after_wait(&mut first).await;
    another.granted_after_wait(&mut second).await;
}

/// A client that reconnects elsewhere leaves an old request behind, whose connection may seem alive for long.
pub(super) async fn a_waiter_that_moved_leaves_the_others_of_its_process_in_turn(
    fixture: &Fixture,
) {
    let another = subscribed(fixture).await;
    let holding = claim();
    fixture.granted(&holding).await;
    let mut moving = fixture.waiting(&rival(&holding)).await;
    let mut second = fixture.waiting(&rival(&holding)).await;
    let mut third = another.waiting(&rival(&holding)).await;
    let mut moved = moving.again();
    another.still_waits(&mut moved).await;
    assert_eq!(fixture.poll(&mut moving).await, Acquired::Superseded);
    assert_eq!(fixture.queue(lock_of(&holding)).await.length, 3);
    fixture.freed(&holding).await;
    another.still_waits(&mut third).await;
    fixture.still_waits(&mut second).await;
    another.granted_after_wait(&mut moved).await;
    another.still_waits(&mut third).await;
    fixture.granted_after_wait(&mut second).await;
    another.granted_after_wait(&mut third).await;
}

/// A late message can leave a place without a request in the queue. It must not cost the others a turn.
pub(super) async fn the_head_of_a_process_removes_abandoned_places_before_it(fixture: &Fixture) {
    let holding = claim();
    fixture.granted(&holding).await;
    let left = fixture.waiting(&rival(&holding)).await;
    let mut head = fixture.waiting(&rival(&holding)).await;
    let mut next = fixture.waiting(&rival(&holding)).await;
    head.queue_request.is_head = true;
    fixture.still_waits(&mut head).await;
    assert_eq!(fixture.queue(lock_of(&holding)).await.length, 2);
    // The request that sets how long its place is kept may still be in flight.
    fixture.suspend(&left.claim, SHORT).await;
    fixture.outlast(SHORT).await;
    let unknown = Released::NotHolder(NotHolder::Unknown);
    assert_eq!(fixture.release(&left.claim).await, unknown);
    fixture.freed(&holding).await;
    fixture.still_waits(&mut next).await;
    fixture.granted_after_wait(&mut head).await;
    fixture.granted_after_wait(&mut next).await;
}

pub(super) async fn a_process_that_ended_is_passed_over_with_all_its_waiters(fixture: &Fixture) {
    let ended = fixture.another_process().await;
    let holding = claim();
    ended.granted(&holding).await;
    for _ in 0..50 {
        ended.waiting(&rival(&holding)).await;
    }
    let mut next = fixture.waiting(&rival(&holding)).await;
    ended.freed(&holding).await;
    drop(ended);
    // It does not claim its reservation, and its other waiters get none.
    fixture.outlast_reservation(&mut next).await;
    fixture.granted_after_wait(&mut next).await;
    assert_eq!(fixture.queue(lock_of(&holding)).await.length, 0);
}

pub(super) async fn one_waiter_that_polls_keeps_its_process_alive(fixture: &Fixture) {
    let another = fixture.another_process().await;
    let holding = claim();
    fixture.granted(&holding).await;
    let [mut first, mut second] = [(); 2].map(|()| {
        let waiter = Waiter::new(rival(&holding));
        waiter.with(|stand| stand.poll_interval = SHORT)
    });
    fixture.still_waits(&mut first).await;
    fixture.still_waits(&mut second).await;
    let mut third = another.waiting(&rival(&holding)).await;
    for _ in 0..4 {
        fixture.advance(SHORT).await;
        fixture.still_waits(&mut second).await;
    }
    fixture.freed(&holding).await;
    another.still_waits(&mut third).await;
    fixture.still_waits(&mut second).await;
    fixture.granted_after_wait(&mut first).await;
    fixture.granted_after_wait(&mut second).await;
    another.granted_after_wait(&mut third).await;
}

pub(super) async fn a_kept_place_is_found_on_another_process(fixture: &Fixture) {
    let another = fixture.another_process().await;
    let holding = claim();
    fixture.granted(&holding).await;
    let leaving = fixture.waiting(&rival(&holding)).await;
    let mut second = fixture.waiting(&rival(&holding)).await;
    fixture.suspend(&leaving.claim, LONG).await;
    let mut back = leaving.again();
    let ticket = another.still_waits(&mut back).await.ticket;
    let before = leaving.queue_request.ticket.expect("it has a ticket");
    assert_eq!(ticket.sequence, before.sequence);
    fixture.freed(&holding).await;
    fixture.still_waits(&mut second).await;
    another.granted_after_wait(&mut back).await;
    fixture.granted_after_wait(&mut second).await;
}

pub(super) async fn a_place_on_a_process_that_ended_is_found_on_another(fixture: &Fixture) {
    let ended = fixture.another_process().await;
    let holding = claim();
    fixture.granted(&holding).await;
    let lost = often_polling(&ended, &rival(&holding)).await;
    let mut second = fixture.waiting(&rival(&holding)).await;
    drop(ended);
    let mut back = lost.again();
    let ticket = fixture.still_waits(&mut back).await.ticket;
    assert_eq!(
        ticket.sequence,
        lost.queue_request.ticket.expect("it has a ticket").sequence
    );
    fixture.freed(&holding).await;
    fixture.still_waits(&mut second).await;
    fixture.granted_after_wait(&mut back).await;
    fixture.granted_after_wait(&mut second).await;
}

pub(super) async fn a_claim_that_waits_on_two_processes_is_granted_once(fixture: &Fixture) {
    let another = fixture.another_process().await;
    let holding = claim();
    fixture.granted(&holding).await;
    let mut here = fixture.waiting(&rival(&holding)).await;
    let mut there = here.again();
    let ticket = another.still_waits(&mut there).await.ticket;
    assert_eq!(
        ticket.sequence,
        here.queue_request.ticket.expect("it has a ticket").sequence
    );
    let mut next = fixture.waiting(&rival(&holding)).await;
    fixture.freed(&holding).await;
    let lease = only(leases_granted(another.poll(&mut there).await));
    match fixture.poll(&mut here).await {
        Acquired::Granted(Granted {
            kind: GrantKind::Replayed,
            leases,
            ..
        }) => assert_eq!(only(leases).holder.fence, lease.holder.fence),
        other => panic!("the claim holds, but: {other:?}"),
    }
    // The place of the other request is removed.
    another.freed(&here.claim).await;
    assert_eq!(another.queue(lock_of(&holding)).await.length, 1);
    fixture.granted_after_wait(&mut next).await;
}

pub(super) async fn a_newcomer_on_another_process_does_not_overtake(fixture: &Fixture) {
    let another = fixture.another_process().await;
    let holding = claim();
    fixture.granted(&holding).await;
    let mut waiter = fixture.waiting(&rival(&holding)).await;
    another.freed(&holding).await;
    assert_behind_waiters(another.acquire(&rival(&holding)).await);
    fixture.granted_after_wait(&mut waiter).await;
    let newcomer = rival(&holding);
    another.granted(&newcomer).await;
}

pub(super) async fn events_of_one_process_reach_all(fixture: &Fixture) {
    let another = subscribed(fixture).await;
    another.store().set_event_delivery(true).await;
    let lapsing = crate::support::fixture::for_short(&claim());
    fixture.granted(&lapsing).await;
    let mut waiter = fixture.waiting(&rival(&lapsing)).await;
    fixture.outlast(SHORT).await;
    fixture.granted_after_wait(&mut waiter).await;
    let received = async || another.received().await.events_of(lock_of(&lapsing));
    // Events arrive on another connection than the answers to commands.
    let events = eventually("all events arrive", async || {
        let events = received().await;
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
    // All watchers get the same event.
    fixture.store().set_event_delivery(true).await;
    let claim = claim();
    fixture.granted(&claim).await;
    let here = fixture.received().await.events_of(lock_of(&claim));
    let there = another.received().await.events_of(lock_of(&claim));
    assert_eq!((here.len(), &here), (1, &there));
}

/// A stream of any process may hold the lock.
pub(super) async fn an_eviction_is_notified_on_all(fixture: &Fixture) {
    let another = subscribed(fixture).await;
    let holding = claim();
    another.granted(&holding).await;
    let name = lock_of(&holding);
    fixture.evict(name, "").await;
    for process in [fixture, &another] {
        eventually("the eviction is notified", async || {
            (process.listener().evictions_of(name) > 0).then_some(())
        })
        .await;
    }
}

/// A stream of any process may hold the released lease.
pub(super) async fn the_release_of_a_stream_is_notified_on_all(fixture: &Fixture) {
    let another = subscribed(fixture).await;
    let holding = Claim {
        takes_over: true,
        ..claim()
    };
    another.granted(&holding).await;
    let name = lock_of(&holding);
    fixture.freed(&holding).await;
    for process in [fixture, &another] {
        let received = process.received().await;
        assert!(received.releases_of(name, holding.token.digest(name)) > 0);
    }
}
