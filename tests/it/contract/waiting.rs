//! Contract tests of waiting: the first waiter is granted first, whatever the others do meanwhile.
//!
//! Reservations are in `reservations`, and places without a waiter in `places`.

use leasehold::domain::{
    Acquired, Claim, ConflictKind, GrantKind, Granted, LockState, Mode, NotHolder, Position, Queue,
    Refused, Released,
};

use super::expiry::after_expiry_in;
use super::order::names_of_one_bucket;
use crate::support::fixture::{
    Fixture, LONG, READ, SHORT, Waiter, assert_behind_waiters, assert_held, assert_waiting,
    blocker, claim, claim_mismatch, claim_on, ended, for_short, fresh_name, holders_in_the_way,
    in_mode, leases_granted, lock_of, not_holder, only, owned_by, permits, reader, rival, ttl,
};

/// A held lock, and `COUNT` claims that wait for it, in order.
pub(super) async fn held_and_waited_for<const COUNT: usize>(
    fixture: &Fixture,
) -> (Claim, [Waiter; COUNT]) {
    let holding = claim();
    fixture.granted(&holding).await;
    let mut waiters = [(); COUNT].map(|()| Waiter::new(rival(&holding)));
    for waiter in &mut waiters {
        fixture.still_waits(waiter).await;
    }
    (holding, waiters)
}

/// Fails unless these waiters are granted in this order, each as soon as the one before has released.
pub(super) async fn assert_granted_in_order(fixture: &Fixture, waiters: &mut [Waiter]) {
    for next in 0..waiters.len() {
        // The last polls first: the order of polls does not matter.
        for waiter in waiters[next + 1..].iter_mut().rev() {
            fixture.still_waits(waiter).await;
        }
        fixture.granted_after_wait(&mut waiters[next]).await;
    }
}

/// Another claim on the same lock, which may overtake the queue.
pub(super) fn unfair(claim: &Claim) -> Claim {
    Claim {
        fair: false,
        ..rival(claim)
    }
}

pub(super) async fn waiters_are_granted_in_the_order_of_their_arrival(fixture: &Fixture) {
    let (holding, mut waiters) = held_and_waited_for::<5>(fixture).await;
    fixture.freed(&holding).await;
    assert_granted_in_order(fixture, &mut waiters).await;
    assert_eq!(fixture.state(lock_of(&holding)).await, LockState::Free);
    assert_eq!(fixture.queue(lock_of(&holding)).await, Queue::default());
}

pub(super) async fn shared_and_exclusive_claims_wait_in_one_order(fixture: &Fixture) {
    let holding = claim();
    fixture.granted(&holding).await;
    let mut first_reader = fixture.waiting(&reader(&holding)).await;
    let mut writer = fixture.waiting(&rival(&holding)).await;
    let mut second_reader = fixture.waiting(&reader(&holding)).await;
    fixture.freed(&holding).await;
    fixture.still_waits(&mut second_reader).await;
    fixture.still_waits(&mut writer).await;
    leases_granted(fixture.poll(&mut first_reader).await);
    // It could share with the first reader, but the writer came before it.
    fixture.still_waits(&mut second_reader).await;
    fixture.still_waits(&mut writer).await;
    fixture.freed(&first_reader.claim).await;
    fixture.still_waits(&mut second_reader).await;
    fixture.granted_after_wait(&mut writer).await;
    fixture.granted_after_wait(&mut second_reader).await;
}

pub(super) async fn a_waiter_gets_its_position(fixture: &Fixture) {
    let (holding, mut waiters) = held_and_waited_for::<3>(fixture).await;
    let position = async |waiter: &mut Waiter| fixture.still_waits(waiter).await.position;
    let at = |position, queue_length| {
        Some(Position {
            position,
            queue_length,
        })
    };
    assert_eq!(position(&mut waiters[0]).await, at(1, 3));
    assert_eq!(position(&mut waiters[2]).await, at(3, 3));
    fixture.release(&waiters[1].claim).await;
    assert_eq!(position(&mut waiters[2]).await, at(2, 2));
    fixture.freed(&holding).await;
    leases_granted(fixture.poll(&mut waiters[0]).await);
    assert_eq!(position(&mut waiters[2]).await, at(1, 1));
    waiters[2].queue_request.wants_position = false;
    assert_eq!(position(&mut waiters[2]).await, None);
}

pub(super) async fn an_inspection_shows_the_length_and_the_head_of_the_queue(fixture: &Fixture) {
    let holding = claim();
    let granted = fixture.granted(&holding).await;
    let first = owned_by(&in_mode(&rival(&holding), permits(2, 3)), "pod-7");
    fixture.waiting(&first).await;
    fixture.waiting(&owned_by(&rival(&holding), "pod-8")).await;
    let view = fixture.view(lock_of(&holding)).await;
    assert_eq!(view.queue.length, 2);
    let head = view.queue.head.expect("somebody waits");
    assert_eq!(head.owner, first.owner);
    assert_eq!(head.mode, first.mode);
    assert!(head.since >= granted.holder.acquired_at);
    // The holder is still visible.
    assert_eq!(
        fixture.holder(lock_of(&holding)).await.fence,
        granted.holder.fence
    );
    // A claim that does not wait gets the length of the queue, too.
    let Acquired::Refused(Refused::Blocked(conflicts)) = fixture.acquire(&rival(&holding)).await
    else {
        panic!("the lock is held");
    };
    assert_eq!(only(conflicts).queue_length, 2);
}

pub(super) async fn a_lock_is_listed_while_it_is_waited_for(fixture: &Fixture) {
    let (holding, [waiter]) = held_and_waited_for(fixture).await;
    fixture.freed(&holding).await;
    let listed = only(fixture.page("", None, 10).await.locks);
    assert_eq!(&listed.name, lock_of(&holding));
    assert_eq!(listed.state, LockState::Free);
    assert_eq!(listed.queue.length, 1);
    fixture.release(&waiter.claim).await;
    assert_eq!(fixture.page("", None, 10).await.locks, Vec::new());
}

pub(super) async fn a_newcomer_does_not_overtake_the_queue(fixture: &Fixture) {
    let (holding, [mut waiter]) = held_and_waited_for(fixture).await;
    fixture.freed(&holding).await;
    assert_eq!(fixture.state(lock_of(&holding)).await, LockState::Free);
    assert_behind_waiters(fixture.acquire(&rival(&holding)).await);
    let mut newcomer = fixture.waiting(&rival(&holding)).await;
    fixture.granted_after_wait(&mut waiter).await;
    fixture.granted_after_wait(&mut newcomer).await;
}

pub(super) async fn a_claim_that_is_not_fair_takes_a_free_lock(fixture: &Fixture) {
    let (holding, [mut waiter]) = held_and_waited_for(fixture).await;
    let unfair = unfair(&holding);
    assert_held(&fixture.acquire(&unfair).await);
    fixture.freed(&holding).await;
    fixture.granted(&unfair).await;
    // The overtaken waiter is still the next.
    fixture.still_waits(&mut waiter).await;
    fixture.freed(&unfair).await;
    assert_behind_waiters(fixture.acquire(&rival(&holding)).await);
    fixture.granted_after_wait(&mut waiter).await;
}

pub(super) async fn a_claim_that_is_not_fair_queues_like_any_other(fixture: &Fixture) {
    let (holding, [mut first]) = held_and_waited_for(fixture).await;
    let mut unfair = fixture.waiting(&unfair(&holding)).await;
    let mut last = fixture.waiting(&rival(&holding)).await;
    fixture.freed(&holding).await;
    fixture.granted_after_wait(&mut first).await;
    fixture.still_waits(&mut last).await;
    fixture.granted_after_wait(&mut unfair).await;
    fixture.granted_after_wait(&mut last).await;
}

pub(super) async fn a_waiter_that_is_not_fair_may_be_granted_out_of_turn(fixture: &Fixture) {
    let (holding, [mut first]) = held_and_waited_for(fixture).await;
    let mut unfair = fixture.waiting(&unfair(&holding)).await;
    fixture.freed(&holding).await;
    leases_granted(fixture.poll(&mut unfair).await);
    assert_eq!(fixture.queue(lock_of(&holding)).await.length, 1);
    fixture.freed(&unfair.claim).await;
    fixture.granted_after_wait(&mut first).await;
}

pub(super) async fn polling_again_keeps_the_place(fixture: &Fixture) {
    let (holding, [mut first, mut second]) = held_and_waited_for(fixture).await;
    let ticket = first.queue_request.ticket.expect("it has a ticket");
    for _ in 0..3 {
        assert_eq!(fixture.still_waits(&mut first).await.ticket, ticket);
    }
    // Another request for the same claim finds it by its token.
    let mut again = first.again();
    let found = fixture.still_waits(&mut again).await.ticket;
    assert_eq!(found.sequence, ticket.sequence);
    assert_eq!(fixture.queue(lock_of(&holding)).await.length, 2);
    fixture.freed(&holding).await;
    fixture.still_waits(&mut second).await;
    fixture.granted_after_wait(&mut again).await;
    fixture.granted_after_wait(&mut second).await;
}

pub(super) async fn simultaneous_requests_for_one_waiting_claim_share_one_place(fixture: &Fixture) {
    let holding = claim();
    fixture.granted(&holding).await;
    let mut requests = [(); 20].map(|()| Waiter::new(rival(&holding)));
    let claim = requests[0].claim.clone();
    for request in &mut requests {
        request.claim = claim.clone();
    }
    let answers = requests
        .iter_mut()
        .map(|request| fixture.still_waits(request));
    let waiting = futures_util::future::join_all(answers).await;
    let mut sequences: Vec<_> = waiting
        .iter()
        .map(|waiting| waiting.ticket.sequence)
        .collect();
    sequences.dedup();
    assert_eq!(sequences.len(), 1, "{waiting:?}");
    assert_eq!(fixture.queue(lock_of(&holding)).await.length, 1);
}

pub(super) async fn fence_and_ttl_begin_with_the_grant(fixture: &Fixture) {
    let [lock, beside] = names_of_one_bucket(2).try_into().expect("two names");
    let holding = claim_on(&lock);
    fixture.granted(&holding).await;
    let mut waiter = fixture.waiting(&rival(&holding)).await;
    fixture.advance(SHORT).await;
    fixture.freed(&holding).await;
    fixture.advance(SHORT).await;
    let between = fixture.granted(&claim_on(&beside)).await.holder;
    let lease = only(leases_granted(fixture.poll(&mut waiter).await));
    assert_eq!(lease.ttl, waiter.claim.ttl);
    fixture.assert_left(lease.holder.expires_in, LONG);
    assert!(lease.holder.fence > between.fence);
    assert!(lease.holder.acquired_at >= between.acquired_at);
}

pub(super) async fn a_waiter_that_was_granted_is_replayed(fixture: &Fixture) {
    let (holding, [mut waiter]) = held_and_waited_for(fixture).await;
    fixture.freed(&holding).await;
    let lease = only(leases_granted(fixture.poll(&mut waiter).await));
    match fixture.poll(&mut waiter.again()).await {
        Acquired::Granted(Granted {
            kind: GrantKind::Replayed,
            leases,
            ..
        }) => assert_eq!(only(leases).holder.fence, lease.holder.fence),
        other => panic!("the claim holds, but: {other:?}"),
    }
    assert_eq!(fixture.queue(lock_of(&holding)).await, Queue::default());
}

pub(super) async fn a_waiter_that_was_granted_elsewhere_is_no_longer_queued(fixture: &Fixture) {
    let (holding, [waiter, mut next]) = held_and_waited_for(fixture).await;
    fixture.freed(&holding).await;
    // Its client has ended the long poll and tries without waiting.
    fixture.granted(&waiter.claim).await;
    assert_eq!(fixture.queue(lock_of(&holding)).await.length, 1);
    fixture.freed(&waiter.claim).await;
    fixture.granted_after_wait(&mut next).await;
}

pub(super) async fn a_waiter_learns_when_to_poll_again(fixture: &Fixture) {
    let holding = for_short(&claim());
    fixture.granted(&holding).await;
    let mut first = Waiter::new(rival(&holding));
    let recheck_in = fixture.still_waits(&mut first).await.recheck_in;
    let recheck_in = recheck_in.expect("the lease runs out");
    assert!(recheck_in <= SHORT, "{recheck_in:?}");
    fixture.outlast(SHORT).await;
    assert_eq!(fixture.state(lock_of(&holding)).await, LockState::Free);
    assert_behind_waiters(fixture.acquire(&rival(&holding)).await);
    let answer = fixture.poll(&mut first).await;
    fixture.assert_passed(after_expiry_in(answer).expect("it ran out"), SHORT);
    let answer = fixture.renew(&holding).await;
    assert_eq!(answer, not_holder(&holding, NotHolder::Lost));
}

pub(super) async fn a_waiter_waits_for_a_closed_lock(fixture: &Fixture) {
    let holding = Claim {
        min_hold: Some(SHORT),
        ..claim()
    };
    fixture.granted(&holding).await;
    let mut waiter = fixture.waiting(&rival(&holding)).await;
    fixture.freed(&holding).await;
    let recheck_in = fixture.still_waits(&mut waiter).await.recheck_in;
    let recheck_in = recheck_in.expect("the lock opens by itself");
    assert!(recheck_in <= SHORT, "{recheck_in:?}");
    let blocker = blocker(fixture.acquire(&rival(&holding)).await);
    assert!(
        matches!(blocker, ConflictKind::Cooling { .. }),
        "{blocker:?}"
    );
    fixture.outlast(SHORT).await;
    fixture.granted_after_wait(&mut waiter).await;
}

pub(super) async fn a_waiter_does_not_hold(fixture: &Fixture) {
    let (holding, [waiter]) = held_and_waited_for(fixture).await;
    let answer = fixture.renew(&waiter.claim).await;
    assert_eq!(answer, not_holder(&waiter.claim, NotHolder::Unknown));
    let holders = holders_in_the_way(fixture.acquire(&waiter.claim).await);
    assert_eq!(holders.total, 1);
    fixture.evict(lock_of(&holding), "").await;
    assert_eq!(fixture.queue(lock_of(&holding)).await.length, 1);
}

pub(super) async fn a_waiter_leaves_the_queue_by_release(fixture: &Fixture) {
    let (holding, [mut leaving, mut staying]) = held_and_waited_for(fixture).await;
    assert_eq!(fixture.release(&leaving.claim).await, Released::LeftQueue);
    assert_eq!(fixture.queue(lock_of(&holding)).await.length, 1);
    assert_eq!(fixture.release(&leaving.claim).await, Released::Repeated);
    // Every kind of request gets this answer.
    let released = ended(&leaving.claim, NotHolder::Released);
    assert_eq!(fixture.poll(&mut leaving).await, released);
    assert_eq!(fixture.poll(&mut leaving.again()).await, released);
    assert_eq!(fixture.acquire(&leaving.claim).await, released);
    fixture.freed(&holding).await;
    fixture.granted_after_wait(&mut staying).await;
}

pub(super) async fn an_ended_claim_is_not_queued(fixture: &Fixture) {
    let first = claim();
    fixture.granted(&first).await;
    fixture.freed(&first).await;
    fixture.granted(&rival(&first)).await;
    let answer = fixture.poll(&mut Waiter::new(first.clone())).await;
    assert_eq!(answer, ended(&first, NotHolder::Released));
    assert_eq!(fixture.queue(lock_of(&first)).await, Queue::default());
}

pub(super) async fn a_waiting_claim_cannot_be_changed(fixture: &Fixture) {
    let (holding, [mut writer]) = held_and_waited_for(fixture).await;
    let mut taker = fixture
        .waiting(&in_mode(&rival(&holding), permits(2, 3)))
        .await;
    let mismatch = claim_mismatch(lock_of(&holding));
    for (waiter, modes) in [
        (&writer, [READ, permits(1, 1), permits(2, 3)]),
        (&taker, [Mode::Exclusive, permits(1, 3), permits(2, 4)]),
    ] {
        for mode in modes {
            let mut changed = waiter.again();
            changed.claim = in_mode(&waiter.claim, mode);
            assert_eq!(fixture.poll(&mut changed).await, mismatch, "{mode:?}");
            let answer = fixture.acquire(&changed.claim).await;
            assert_eq!(answer, mismatch, "{mode:?}");
        }
    }
    // The other parameters are those of the last request.
    writer.claim.ttl = ttl(LONG * 2);
    assert_eq!(fixture.queue(lock_of(&holding)).await.length, 2);
    fixture.freed(&holding).await;
    let lease = only(leases_granted(fixture.poll(&mut writer).await));
    assert_eq!(lease.ttl, ttl(LONG * 2));
    fixture.freed(&writer.claim).await;
    fixture.granted_after_wait(&mut taker).await;
}

pub(super) async fn a_full_queue_refuses_newcomers(fixture: &Fixture) {
    let few = |waiter: Waiter| waiter.with(|stand| stand.waiters_max = 2);
    let (holding, waiters) = held_and_waited_for::<2>(fixture).await;
    let mut refused = few(Waiter::new(rival(&holding)));
    let full = Acquired::Refused(Refused::TooManyWaiters {
        name: lock_of(&holding).clone(),
        queue_length: 2,
    });
    assert_eq!(fixture.poll(&mut refused).await, full);
    assert_eq!(fixture.queue(lock_of(&holding)).await.length, 2);
    // Waiters that are in the queue already can poll, and their claims can be posted again.
    for waiter in waiters {
        assert_waiting(&fixture.poll(&mut few(waiter.again())).await);
        fixture.release(&waiter.claim).await;
    }
    assert_waiting(&fixture.poll(&mut refused).await);
    // Another lock has its own queue.
    let elsewhere = claim_on(&fresh_name());
    fixture.granted(&elsewhere).await;
    assert_waiting(&fixture.poll(&mut few(Waiter::new(rival(&elsewhere)))).await);
}

pub(super) async fn a_free_lock_is_granted_to_a_request_that_would_wait(fixture: &Fixture) {
    let claim = claim();
    leases_granted(fixture.poll(&mut Waiter::new(claim.clone())).await);
    assert_eq!(fixture.queue(lock_of(&claim)).await, Queue::default());
    fixture.freed(&claim).await;
    fixture.granted(&rival(&claim)).await;
}

/// Requests use several connections, so a withdrawal may overtake the request that it withdraws.
pub(super) async fn a_withdrawn_attempt_that_arrives_late_is_not_queued(fixture: &Fixture) {
    let holding = claim();
    fixture.granted(&holding).await;
    let late = Waiter::new(rival(&holding));
    fixture.withdraw(&late.claim, late.attempt).await;
    let by = crate::support::fixture::deadline();
    let store = fixture.store();
    let answer = store.acquire(&late.claim, late.attempt, Some(&late.queue_request), by);
    assert!(!matches!(answer.await, Ok(Acquired::Waiting(_))));
    assert_eq!(fixture.queue(lock_of(&holding)).await, Queue::default());
    fixture.waiting(&late.claim).await;
}
