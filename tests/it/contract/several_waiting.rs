//! Contract tests of waiting for several locks at once: one place in each queue, all in one order, so no deadlocks.

use leasehold::domain::{
    Acquired, Claim, ConflictKind, GrantKind, Granted, LockName, LockNames, Mismatch, NotHolder,
    Position, Queue, Refused, Released,
};

use super::several::{blocked_by, claim_on_fresh};
use super::waiting::unfair;
use crate::support::fixture::{
    Fixture, LONG, READ, SHORT, Waiter, assert_behind_waiters, claim, claim_mismatch, claim_on,
    claim_on_all, for_short, fresh_name, in_mode, leases_granted, limit_mismatch, lock_of, lost,
    names, only, permits, rival,
};

/// A claim on two locks that waits because another claim holds the second.
async fn waits_for_the_second(fixture: &Fixture) -> (Claim, Waiter, [LockName; 2]) {
    let (claim, locks) = claim_on_fresh();
    let holding = claim_on(&locks[1]);
    fixture.granted(&holding).await;
    (holding, fixture.waiting(&claim).await, locks)
}

pub(super) async fn a_claim_waits_until_all_its_locks_are_free(fixture: &Fixture) {
    let (claim, locks) = claim_on_fresh::<3>();
    let holding = [claim_on(&locks[0]), claim_on(&locks[2])];
    for holding in &holding {
        fixture.granted(holding).await;
    }
    let mut waiter = fixture.waiting(&claim).await;
    for lock in &locks {
        assert_eq!(fixture.queue(lock).await.length, 1, "{lock}");
    }
    fixture.freed(&holding[0]).await;
    fixture.still_waits(&mut waiter).await;
    fixture.freed(&holding[1]).await;
    assert_eq!(leases_granted(fixture.poll(&mut waiter).await).len(), 3);
    for lock in &locks {
        assert_eq!(fixture.queue(lock).await, Queue::default(), "{lock}");
    }
}

pub(super) async fn a_waiting_claim_gets_a_reservation_when_all_its_locks_are_free(
    fixture: &Fixture,
) {
    fixture.listens().await;
    let (holding, mut waiter, locks) = waits_for_the_second(fixture).await;
    fixture.freed(&holding).await;
    assert_eq!(fixture.reservations_of(&locks[1]).await, 1);
    fixture.granted_after_wait(&mut waiter).await;
}

pub(super) async fn a_free_lock_is_kept_for_its_first_waiter_that_waits_for_another_lock_too(
    fixture: &Fixture,
) {
    let (holding, mut first, [free, _]) = waits_for_the_second(fixture).await;
    let newcomer = claim_on(&free);
    assert_behind_waiters(fixture.acquire(&newcomer).await);
    let mut second = fixture.waiting(&newcomer).await;
    fixture.freed(&holding).await;
    fixture.still_waits(&mut second).await;
    fixture.granted_after_wait(&mut first).await;
    fixture.granted_after_wait(&mut second).await;
}

pub(super) async fn a_claim_that_is_not_fair_takes_a_lock_that_is_kept(fixture: &Fixture) {
    let (holding, mut first, [free, _]) = waits_for_the_second(fixture).await;
    let unfair = unfair(&claim_on(&free));
    fixture.granted(&unfair).await;
    fixture.freed(&holding).await;
    fixture.still_waits(&mut first).await;
    fixture.freed(&unfair).await;
    fixture.granted_after_wait(&mut first).await;
}

pub(super) async fn the_earliest_claim_on_one_of_the_locks_is_first_there(fixture: &Fixture) {
    let (claim, [one, another]) = claim_on_fresh();
    let holding = claim_on(&another);
    fixture.granted(&holding).await;
    let mut earlier = fixture.waiting(&rival(&holding)).await;
    let mut both = fixture.waiting(&claim).await;
    let mut later = fixture.waiting(&claim_on(&one)).await;
    fixture.freed(&holding).await;
    fixture.still_waits(&mut both).await;
    fixture.still_waits(&mut later).await;
    fixture.granted_after_wait(&mut earlier).await;
    fixture.still_waits(&mut later).await;
    fixture.granted_after_wait(&mut both).await;
    fixture.granted_after_wait(&mut later).await;
}

pub(super) async fn a_list_of_one_lock_waits_as_the_claim_on_that_lock(fixture: &Fixture) {
    let (list, [lock]) = claim_on_fresh();
    let holding = claim_on(&lock);
    fixture.granted(&holding).await;
    fixture.waiting(&list).await;
    let alone = Claim {
        names: lock.into(),
        ..list
    };
    let mut alone = fixture.waiting(&alone).await;
    fixture.freed(&holding).await;
    fixture.granted_after_wait(&mut alone).await;
}

pub(super) async fn the_position_of_a_claim_is_that_in_its_longest_queue(fixture: &Fixture) {
    let (claim, [one, another]) = claim_on_fresh();
    fixture.granted(&claim_on(&one)).await;
    fixture.granted(&claim_on(&another)).await;
    for name in [&one, &another, &another] {
        fixture.waiting(&claim_on(name)).await;
    }
    let mut both = Waiter::new(claim);
    let third = Position {
        position: 3,
        queue_length: 3,
    };
    assert_eq!(fixture.still_waits(&mut both).await.position, Some(third));
    let suspended = fixture.suspend(&both.claim, LONG).await;
    assert_eq!(suspended.position, Some(third));
    assert_eq!(suspended.blocked_by.len(), 2);
}

/// A free lock that was reserved for the claim does not block it, and the claim counts in the queues that it leaves.
pub(super) async fn a_suspended_claim_gets_what_blocked_it_while_it_waited(fixture: &Fixture) {
    let (claim, [held, free]) = claim_on_fresh();
    fixture.granted(&claim_on(&held)).await;
    let both = fixture.waiting(&claim).await;
    fixture.waiting(&claim_on(&free)).await;
    let suspended = fixture.suspend(&both.claim, LONG).await;
    let first_of_one = Position {
        position: 1,
        queue_length: 1,
    };
    assert_eq!(suspended.position, Some(first_of_one));
    let conflict = only(suspended.blocked_by);
    assert_eq!((conflict.name, conflict.queue_length), (held, 1));
    let again = fixture.suspend(&both.claim, LONG).await;
    assert_eq!(again.position, None);
    assert_eq!(only(again.blocked_by).queue_length, 0);
}

pub(super) async fn claims_on_the_same_locks_take_turns_whatever_their_order(fixture: &Fixture) {
    let (claim, [one, another]) = claim_on_fresh();
    let holding = [claim_on(&one), claim_on(&another)];
    for holding in &holding {
        fixture.granted(holding).await;
    }
    let in_order = names([&one, &another]);
    let reversed = names([&another, &one]);
    let claims = [in_order.clone(), reversed.clone(), in_order, reversed].map(claim_on_all);
    let mut waiters = claims.map(Waiter::new);
    for waiter in &mut waiters {
        fixture.still_waits(waiter).await;
    }
    for holding in &holding {
        fixture.freed(holding).await;
    }
    super::waiting::assert_granted_in_order(fixture, &mut waiters).await;
    fixture.all_granted(&claim).await;
}

/// A ring of claims, each of which overlaps with the next: a deadlock if locks were taken one by one.
pub(super) async fn a_ring_of_claims_does_not_deadlock(fixture: &Fixture) {
    let (all, locks) = claim_on_fresh::<5>();
    fixture.all_granted(&all).await;
    let mut waiters: Vec<Waiter> = Vec::new();
    for turn in 0..15 {
        let pair = [&locks[turn % 5], &locks[(turn + 1) % 5]];
        waiters.push(fixture.waiting(&claim_on_all(names(pair))).await);
    }
    fixture.release_all(&all).await;
    for round in 0.. {
        let (mut granted, mut waiting) = (Vec::new(), Vec::new());
        for mut waiter in waiters {
            match fixture.poll(&mut waiter).await {
                Acquired::Granted(Granted {
                    kind: GrantKind::New,
                    ..
                }) => granted.push(waiter),
                Acquired::Waiting(_) => waiting.push(waiter),
                other => panic!("{other:?}"),
            }
        }
        assert!(
            !granted.is_empty(),
            "no claim was granted after {round} rounds"
        );
        for waiter in &granted {
            fixture.release_all(&waiter.claim).await;
        }
        waiters = waiting;
        if waiters.is_empty() {
            break;
        }
    }
    fixture.all_granted(&rival(&all)).await;
}

pub(super) async fn a_claim_leaves_all_its_queues_by_release(fixture: &Fixture) {
    let (_, mut leaving, [free, held]) = waits_for_the_second(fixture).await;
    let mut next = fixture.waiting(&claim_on(&free)).await;
    let released = fixture.release_all(&leaving.claim).await;
    assert_eq!(released, [Released::LeftQueue, Released::LeftQueue]);
    let ended = Acquired::Refused(Refused::Ended(lost(&free, NotHolder::Released)));
    assert_eq!(fixture.poll(&mut leaving).await, ended);
    assert_eq!(fixture.queue(&held).await, Queue::default());
    fixture.granted_after_wait(&mut next).await;
}

pub(super) async fn a_claim_that_left_one_queue_leaves_all_at_its_next_poll(fixture: &Fixture) {
    fixture.listens().await;
    let (_, mut leaving, [free, held]) = waits_for_the_second(fixture).await;
    let part = Claim {
        names: free.clone().into(),
        ..leaving.claim.clone()
    };
    assert_eq!(fixture.release(&part).await, Released::LeftQueue);
    let digest = leaving.claim.token.digest(&free);
    assert_eq!(fixture.received().await.dequeued_of(&free, digest), 1);
    let ended = Acquired::Refused(Refused::Ended(lost(&free, NotHolder::Released)));
    assert_eq!(fixture.poll(&mut leaving).await, ended);
    for name in [&free, &held] {
        assert_eq!(fixture.queue(name).await, Queue::default());
    }
}

/// A request that the store refuses for good ends its own wait, not that of another claim with its token.
pub(super) async fn a_refused_claim_on_several_locks_leaves_the_place_of_another_claim_alone(
    fixture: &Fixture,
) {
    let holding = claim();
    fixture.granted(&holding).await;
    let mut waiting = fixture.waiting(&rival(&holding)).await;
    let ended = fresh_name();
    let part = |names: LockNames| Claim {
        names,
        ..waiting.claim.clone()
    };
    let has_ended = part(ended.clone().into());
    fixture.granted(&has_ended).await;
    fixture.freed(&has_ended).await;
    let both = names([&ended, lock_of(&holding)]);
    let mut refused = Waiter::new(part(both));
    let answer = Acquired::Refused(Refused::Ended(lost(&ended, NotHolder::Released)));
    assert_eq!(fixture.poll(&mut refused).await, answer);
    assert_eq!(fixture.queue(lock_of(&holding)).await.length, 1);
    fixture.freed(&holding).await;
    fixture.granted_after_wait(&mut waiting).await;
}

pub(super) async fn a_kept_claim_that_is_released_on_one_lock_is_kept_on_the_others(
    fixture: &Fixture,
) {
    let (_, suspended, [free, held]) = waits_for_the_second(fixture).await;
    fixture.suspend(&suspended.claim, LONG).await;
    let on = |name: &LockName| Claim {
        names: name.clone().into(),
        ..suspended.claim.clone()
    };
    assert_eq!(fixture.release(&on(&free)).await, Released::LeftQueue);
    assert_eq!(fixture.release(&on(&free)).await, Released::Repeated);
    let ended = Acquired::Refused(Refused::Ended(lost(&free, NotHolder::Released)));
    assert_eq!(fixture.poll(&mut suspended.again()).await, ended);
    let part = fixture.acquire(&on(&held)).await;
    assert!(
        matches!(part, Acquired::Refused(Refused::Mismatched(_))),
        "{part:?}"
    );
    assert_eq!(fixture.release(&on(&held)).await, Released::LeftQueue);
}

pub(super) async fn places_in_all_queues_are_kept(fixture: &Fixture) {
    let (holding, suspended, [free, held]) = waits_for_the_second(fixture).await;
    fixture.suspend(&suspended.claim, LONG).await;
    // The free lock is not kept meanwhile.
    let newcomer = claim_on(&free);
    fixture.granted(&newcomer).await;
    let mut second = fixture.waiting(&claim_on(&held)).await;
    let mut back = suspended.again();
    let ticket = fixture.still_waits(&mut back).await.ticket;
    let before = suspended.queue_request.ticket.expect("it has a ticket");
    assert_eq!(ticket.sequence, before.sequence);
    fixture.freed(&newcomer).await;
    fixture.freed(&holding).await;
    fixture.still_waits(&mut second).await;
    fixture.granted_after_wait(&mut back).await;
    fixture.granted_after_wait(&mut second).await;
}

pub(super) async fn a_claim_waits_for_a_lease_to_run_out(fixture: &Fixture) {
    let (claim, locks) = claim_on_fresh::<2>();
    fixture.granted(&claim_on(&locks[0])).await;
    let lapsing = for_short(&claim_on(&locks[1]));
    fixture.granted(&lapsing).await;
    let mut waiter = Waiter::new(claim);
    let recheck_in = fixture.still_waits(&mut waiter).await.recheck_in;
    assert!(
        recheck_in.is_some_and(|recheck_in| recheck_in <= SHORT),
        "{recheck_in:?}"
    );
    fixture.outlast(SHORT).await;
    fixture.still_waits(&mut waiter).await;
    match &blocked_by(fixture.acquire(&rival(&waiter.claim)).await)[..] {
        [
            (first, ConflictKind::Holders(_)),
            (second, ConflictKind::Waiters),
        ] => {
            assert_eq!([first, second], [&locks[0], &locks[1]]);
        }
        other => panic!("one is held and one is waited for, but: {other:?}"),
    }
}

/// On a cluster, each of the locks may be on another primary.
pub(super) async fn a_full_queue_of_any_lock_refuses_a_claim_which_then_waits_for_none(
    fixture: &Fixture,
) {
    let (claim, locks) = claim_on_fresh::<3>();
    fixture.all_granted(&rival(&claim)).await;
    let one_each = |waiter: Waiter| waiter.with(|request| request.waiters_max = 1);
    for full in &locks {
        let waiting = fixture.waiting(&claim_on(full)).await.claim;
        let mut refused = one_each(Waiter::new(claim.clone()));
        let expected = Acquired::Refused(Refused::TooManyWaiters {
            name: full.clone(),
            queue_length: 1,
        });
        assert_eq!(fixture.poll(&mut refused).await, expected);
        for lock in &locks {
            let length = fixture.queue(lock).await.length;
            assert_eq!(length, u64::from(lock == full), "{lock}");
        }
        fixture.release(&waiting).await;
    }
    // Neither does a queue refuse a claim that has its place there.
    let mut waiter = one_each(fixture.waiting(&claim).await);
    fixture.still_waits(&mut waiter).await;
    fixture.still_waits(&mut waiter.again()).await;
}

/// It cannot be granted while they hold, and others may.
pub(super) async fn a_retry_with_another_limit_leaves_all_queues(fixture: &Fixture) {
    let (claim, locks) = claim_on_fresh::<2>();
    let holding = claim_on(&locks[1]);
    fixture.granted(&holding).await;
    let reader = in_mode(&rival(&holding), READ);
    let mut reading = fixture.waiting(&reader).await;
    let waiter = fixture.waiting(&in_mode(&claim, permits(1, 2))).await;
    fixture.freed(&holding).await;
    leases_granted(fixture.poll(&mut reading).await);
    let answer = fixture.poll(&mut waiter.again()).await;
    assert_eq!(answer, limit_mismatch(&locks[1], None));
    for lock in &locks {
        assert_eq!(fixture.queue(lock).await, Queue::default(), "{lock}");
    }
}

/// Otherwise it would enter a queue with an old place, before earlier waiters.
pub(super) async fn a_claim_that_waits_cannot_wait_for_more(fixture: &Fixture) {
    let (holding, waiter, [free, held]) = waits_for_the_second(fixture).await;
    let third = fresh_name();
    fixture.granted(&claim_on(&third)).await;
    let mut earlier = fixture.waiting(&claim_on(&third)).await;
    let mut more = waiter.again();
    more.claim.names = names([&free, &held, &third]);
    let answer = fixture.poll(&mut more).await;
    let Acquired::Refused(Refused::Mismatched(Mismatch::Claim { .. })) = answer else {
        panic!("the claim was made on other locks, but: {answer:?}");
    };
    assert_eq!(fixture.queue(&third).await.length, 1);
    fixture.still_waits(&mut earlier).await;
    fixture.freed(&holding).await;
    fixture.granted_after_wait(&mut waiter.again()).await;
}

/// A token may wait for several claims, on locks of their own. Taking one lock of each is none of them.
pub(super) async fn locks_of_two_claims_of_a_token_are_no_claim(fixture: &Fixture) {
    let (_, first, [a, b]) = waits_for_the_second(fixture).await;
    let (c, d) = (fresh_name(), fresh_name());
    let holding = claim_on(&d);
    fixture.granted(&holding).await;
    let on = |locks: [&LockName; 2]| Claim {
        names: names(locks),
        ..first.claim.clone()
    };
    let mut second = fixture.waiting(&on([&c, &d])).await;
    let both = on([&b, &d]);
    assert_eq!(fixture.acquire(&both).await, claim_mismatch(&both.names[0]));
    let waited = fixture.poll(&mut Waiter::new(both.clone())).await;
    assert_eq!(waited, claim_mismatch(&both.names[0]));
    // The lock that it waits for is named, not the one that it does not.
    let with_new = on([&b, &fresh_name()]);
    assert_eq!(fixture.acquire(&with_new).await, claim_mismatch(&b));
    fixture.still_waits(&mut first.again()).await;
    assert_eq!(fixture.queue(&a).await.length, 1);
    fixture.freed(&holding).await;
    fixture.granted_after_wait(&mut second).await;
}
