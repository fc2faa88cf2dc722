//! Contract tests of reservations: for which waiter an opened lock is reserved, how often, and what follows if that
//! waiter does not claim it.
//!
//! All waiters are in one process here. Several processes are in `two_processes`.

use leasehold::domain::{Attempt, Claim, GrantKind, Holder, LockName, LockState, Released};
use leasehold::store::{RESERVATION_EXTENSION, RESERVATION_TTL};

use super::waiting::{held_and_waited_for, unfair};
use crate::support::fixture::{
    Fixture, LONG, READ, SHORT, Waiter, assert_behind_waiters, claim, for_short, in_mode,
    leases_granted, lock_of, only, owned_by, permits, reader, rival,
};

/// Fails unless the lock was reserved this many times so far.
async fn assert_reservations(fixture: &Fixture, name: &LockName, times: usize) {
    assert_eq!(fixture.reservations_of(name).await, times);
}

pub(super) async fn a_released_lock_is_reserved_once(fixture: &Fixture) {
    fixture.listens().await;
    let (holding, [mut first, mut second, _]) = held_and_waited_for(fixture).await;
    let name = lock_of(&holding);
    assert_reservations(fixture, name, 0).await;
    fixture.freed(&holding).await;
    assert_reservations(fixture, name, 1).await;
    // Other requests meanwhile change nothing.
    fixture.still_waits(&mut second).await;
    fixture.state(name).await;
    assert_behind_waiters(fixture.acquire(&rival(&holding)).await);
    assert_reservations(fixture, name, 1).await;
    leases_granted(fixture.poll(&mut first).await);
    assert_reservations(fixture, name, 1).await;
    fixture.freed(&first.claim).await;
    assert_reservations(fixture, name, 2).await;
}

/// The first answer may have been lost, and the reservation with it.
pub(super) async fn a_repeated_release_repeats_the_reservation(fixture: &Fixture) {
    fixture.listens().await;
    let (holding, [mut next]) = held_and_waited_for(fixture).await;
    fixture.freed(&holding).await;
    assert_eq!(fixture.release(&holding).await, Released::Repeated);
    assert_reservations(fixture, lock_of(&holding), 2).await;
    fixture.granted_after_wait(&mut next).await;
}

pub(super) async fn a_lock_without_waiters_is_not_reserved(fixture: &Fixture) {
    fixture.listens().await;
    let (holding, [first, second]) = held_and_waited_for(fixture).await;
    let name = lock_of(&holding);
    fixture.suspend(&first.claim, LONG).await;
    fixture.suspend(&second.claim, LONG).await;
    fixture.freed(&holding).await;
    let free = claim();
    fixture.granted(&free).await;
    fixture.freed(&free).await;
    assert_reservations(fixture, name, 0).await;
    assert_reservations(fixture, lock_of(&free), 0).await;
}

pub(super) async fn an_evicted_lock_is_reserved_once(fixture: &Fixture) {
    fixture.listens().await;
    let (holding, [mut first, _]) = held_and_waited_for(fixture).await;
    fixture.evict(lock_of(&holding), "").await;
    assert_reservations(fixture, lock_of(&holding), 1).await;
    fixture.granted_after_wait(&mut first).await;
}

pub(super) async fn a_lock_whose_grant_was_withdrawn_is_reserved_once(fixture: &Fixture) {
    fixture.listens().await;
    let (holding, attempt) = (claim(), Attempt::random());
    leases_granted(
        fixture
            .attempt(&holding, attempt)
            .await
            .expect("it answers"),
    );
    let mut waiter = fixture.waiting(&rival(&holding)).await;
    fixture.withdraw(&holding, attempt).await;
    assert_reservations(fixture, lock_of(&holding), 1).await;
    fixture.granted_after_wait(&mut waiter).await;
}

pub(super) async fn a_lock_whose_lease_ran_out_is_reserved_once_for_the_first(fixture: &Fixture) {
    fixture.listens().await;
    let holding = for_short(&claim());
    fixture.granted(&holding).await;
    let mut first = fixture.waiting(&rival(&holding)).await;
    let mut second = fixture.waiting(&rival(&holding)).await;
    fixture.outlast(SHORT).await;
    // The next request finds the expiry, although it is not the head's.
    fixture.still_waits(&mut second).await;
    fixture.still_waits(&mut second).await;
    assert_reservations(fixture, lock_of(&holding), 1).await;
    fixture.granted_after_wait(&mut first).await;
    fixture.granted_after_wait(&mut second).await;
}

pub(super) async fn a_closed_lock_is_reserved_once_it_opens(fixture: &Fixture) {
    fixture.listens().await;
    let holding = Claim {
        min_hold: Some(SHORT),
        ..claim()
    };
    fixture.granted(&holding).await;
    let mut first = fixture.waiting(&rival(&holding)).await;
    let mut second = fixture.waiting(&rival(&holding)).await;
    fixture.freed(&holding).await;
    fixture.still_waits(&mut second).await;
    assert_reservations(fixture, lock_of(&holding), 0).await;
    fixture.outlast(SHORT).await;
    fixture.still_waits(&mut second).await;
    assert_reservations(fixture, lock_of(&holding), 1).await;
    fixture.granted_after_wait(&mut first).await;
}

pub(super) async fn when_the_first_leaves_the_lock_is_reserved_for_the_next_at_once(
    fixture: &Fixture,
) {
    fixture.listens().await;
    let (holding, [first, second, mut third]) = held_and_waited_for(fixture).await;
    let name = lock_of(&holding);
    fixture.freed(&holding).await;
    assert_reservations(fixture, name, 1).await;
    fixture.suspend(&first.claim, LONG).await;
    assert_reservations(fixture, name, 2).await;
    // A waiter that leaves may be notified by the same message, hence at least 3.
    fixture.release(&second.claim).await;
    assert!(fixture.reservations_of(name).await >= 3);
    fixture.granted_after_wait(&mut third).await;
}

pub(super) async fn when_one_behind_leaves_the_lock_is_not_reserved_again(fixture: &Fixture) {
    fixture.listens().await;
    let (holding, [mut first, second, _]) = held_and_waited_for(fixture).await;
    fixture.freed(&holding).await;
    fixture.suspend(&second.claim, LONG).await;
    assert_reservations(fixture, lock_of(&holding), 1).await;
    fixture.granted_after_wait(&mut first).await;
}

pub(super) async fn as_many_waiters_get_a_reservation_as_fit_one_after_the_other(
    fixture: &Fixture,
) {
    fixture.listens().await;
    let holding = claim();
    fixture.granted(&holding).await;
    let mut readers = [(); 3].map(|()| Waiter::new(reader(&holding)));
    for reader in &mut readers {
        fixture.still_waits(reader).await;
    }
    fixture.waiting(&rival(&holding)).await;
    fixture.freed(&holding).await;
    let name = lock_of(&holding);
    for (times, reader) in (1..).zip(&mut readers) {
        assert_reservations(fixture, name, times).await;
        leases_granted(fixture.poll(reader).await);
    }
    // The writer gets none until all readers have released.
    for reader in &readers {
        assert_reservations(fixture, name, 3).await;
        fixture.freed(&reader.claim).await;
    }
    assert_reservations(fixture, name, 4).await;
}

pub(super) async fn permits_are_reserved_once_there_are_enough(fixture: &Fixture) {
    fixture.listens().await;
    let first = in_mode(&claim(), permits(1, 2));
    let second = in_mode(&rival(&first), permits(1, 2));
    fixture.granted(&first).await;
    fixture.granted(&second).await;
    let mut both = fixture
        .waiting(&in_mode(&rival(&first), permits(2, 2)))
        .await;
    fixture.freed(&first).await;
    assert_reservations(fixture, lock_of(&first), 0).await;
    fixture.freed(&second).await;
    assert_reservations(fixture, lock_of(&first), 1).await;
    fixture.granted_after_wait(&mut both).await;
}

pub(super) async fn a_lease_that_steps_down_leads_to_a_reservation_for_a_reader(fixture: &Fixture) {
    fixture.listens().await;
    let holding = claim();
    fixture.granted(&holding).await;
    let mut first = fixture.waiting(&reader(&holding)).await;
    fixture.waiting(&rival(&holding)).await;
    fixture.renew_in_mode(&holding, READ).await;
    assert_reservations(fixture, lock_of(&holding), 1).await;
    leases_granted(fixture.poll(&mut first).await);
    // The writer behind it gets no reservation.
    assert_reservations(fixture, lock_of(&holding), 1).await;
}

pub(super) async fn a_reservation_that_was_overtaken_is_repeated(fixture: &Fixture) {
    fixture.listens().await;
    let (holding, [mut first]) = held_and_waited_for(fixture).await;
    fixture.freed(&holding).await;
    let unfair = unfair(&holding);
    fixture.granted(&unfair).await;
    fixture.still_waits(&mut first).await;
    fixture.freed(&unfair).await;
    assert_reservations(fixture, lock_of(&holding), 2).await;
    fixture.granted_after_wait(&mut first).await;
}

/// A permit reserved for one waiter was taken by another with an earlier place, and is released at once.
pub(super) async fn a_permit_that_was_taken_and_came_back_is_reserved_again(fixture: &Fixture) {
    fixture.listens().await;
    let holding = claim();
    fixture.granted(&holding).await;
    let mut waiters = [(); 3].map(|()| Waiter::new(in_mode(&rival(&holding), permits(1, 2))));
    for waiter in &mut waiters {
        fixture.still_waits(waiter).await;
    }
    let [mut first, suspended, mut last] = waiters;
    fixture.suspend(&suspended.claim, LONG).await;
    fixture.freed(&holding).await;
    leases_granted(fixture.poll(&mut first).await);
    assert_reservations(fixture, lock_of(&holding), 2).await;
    leases_granted(fixture.poll(&mut suspended.again()).await);
    fixture.still_waits(&mut last).await;
    fixture.freed(&suspended.claim).await;
    assert_reservations(fixture, lock_of(&holding), 3).await;
    fixture.granted_after_wait(&mut last).await;
}

pub(super) async fn a_reservation_keeps_others_out_for_a_moment_and_no_longer(fixture: &Fixture) {
    let (holding, [mut silent]) = held_and_waited_for(fixture).await;
    fixture.freed(&holding).await;
    assert_behind_waiters(fixture.acquire(&rival(&holding)).await);
    fixture.outlast(RESERVATION_TTL).await;
    assert_behind_waiters(fixture.acquire(&rival(&holding)).await);
    fixture.outlast(RESERVATION_EXTENSION).await;
    let next = rival(&holding);
    fixture.granted(&next).await;
    // The waiter that did not claim it has lost its turn, but not its place.
    fixture.still_waits(&mut silent).await;
    let mut newcomer = fixture.waiting(&rival(&holding)).await;
    fixture.freed(&next).await;
    fixture.still_waits(&mut newcomer).await;
    fixture.granted_after_wait(&mut silent).await;
    fixture.granted_after_wait(&mut newcomer).await;
    assert_eq!(fixture.state(lock_of(&holding)).await, LockState::Free);
}

/// With and without further waiters, for which Redis has different records.
pub(super) async fn a_lease_that_was_handed_over_is_seen_as_it_was_granted(fixture: &Fixture) {
    let (holding, [mut first, mut second]) = held_and_waited_for(fixture).await;
    let (name, mut before) = (lock_of(&holding), holding.clone());
    for waiter in [&mut first, &mut second] {
        fixture.freed(&before).await;
        let granted = only(leases_granted(fixture.poll(waiter).await)).holder;
        let seen = fixture.holder(name).await;
        let expires_in = seen.expires_in;
        assert!(expires_in <= granted.expires_in, "{expires_in:?}");
        fixture.assert_left(expires_in, LONG);
        fixture.assert_same_time(seen.acquired_at, granted.acquired_at);
        fixture.assert_same_time(seen.expires_at, granted.expires_at);
        assert_eq!(
            Holder {
                expires_in,
                acquired_at: seen.acquired_at,
                expires_at: seen.expires_at,
                ..granted
            },
            seen
        );
        before = waiter.claim.clone();
    }
}

/// The ways in which a lock with waiters can open.
#[derive(Clone, Copy, Debug)]
enum Way {
    Released,
    ReleasedByReader,
    Evicted,
    Withdrawn,
    Expired,
    FirstSuspended,
    FirstLeft,
}

/// Opens a lock with several waiters, none of which polls again.
async fn opened(fixture: &Fixture, way: Way) -> Claim {
    let holding = match way {
        Way::ReleasedByReader => in_mode(&claim(), READ),
        Way::Expired => for_short(&claim()),
        Way::Released | Way::Evicted | Way::Withdrawn | Way::FirstSuspended | Way::FirstLeft => {
            claim()
        }
    };
    let attempt = Attempt::random();
    leases_granted(
        fixture
            .attempt(&holding, attempt)
            .await
            .expect("it answers"),
    );
    let first = fixture.waiting(&rival(&holding)).await;
    fixture.waiting(&rival(&holding)).await;
    match way {
        Way::Released | Way::ReleasedByReader => drop(fixture.freed(&holding).await),
        Way::Evicted => drop(fixture.evict(lock_of(&holding), "").await),
        Way::Withdrawn => fixture.withdraw(&holding, attempt).await,
        Way::Expired => fixture.outlast(SHORT).await,
        Way::FirstSuspended => {
            fixture.freed(&holding).await;
            fixture.suspend(&first.claim, LONG).await;
        }
        Way::FirstLeft => {
            fixture.freed(&holding).await;
            fixture.release(&first.claim).await;
        }
    }
    holding
}

pub(super) async fn however_a_lock_opens_it_is_reserved_for_a_moment_and_no_longer(
    fixture: &Fixture,
) {
    use Way::{Evicted, Expired, FirstLeft, FirstSuspended, Released, ReleasedByReader, Withdrawn};
    let mut locks = Vec::new();
    for way in [
        Expired,
        Released,
        ReleasedByReader,
        Evicted,
        Withdrawn,
        FirstSuspended,
        FirstLeft,
    ] {
        let lock = opened(fixture, way).await;
        assert_behind_waiters(fixture.acquire(&rival(&lock)).await);
        locks.push((way, lock));
    }
    fixture.outlast(RESERVATION_TTL).await;
    for (_, lock) in &locks {
        assert_behind_waiters(fixture.acquire(&rival(lock)).await);
    }
    fixture.outlast(RESERVATION_EXTENSION).await;
    for (way, lock) in locks {
        let answer = fixture.acquire(&rival(&lock)).await;
        assert_eq!(answer.kind(), Some(GrantKind::New), "{way:?}: {answer:?}");
    }
}

pub(super) async fn a_waiter_is_granted_with_its_owner(fixture: &Fixture) {
    let holding = claim();
    fixture.granted(&holding).await;
    // The first is granted while another waits, the second when no other does.
    let mut waiters = ["web-1", "é 2"].map(|text| Waiter::new(owned_by(&rival(&holding), text)));
    for waiter in &mut waiters {
        fixture.still_waits(waiter).await;
    }
    fixture.freed(&holding).await;
    for waiter in &mut waiters {
        let lease = only(leases_granted(fixture.poll(waiter).await));
        assert_eq!(lease.holder.owner, waiter.claim.owner);
        let seen = fixture.holder(lock_of(&holding)).await;
        assert_eq!(seen.owner, waiter.claim.owner);
        assert_eq!(seen.fence, lease.holder.fence);
        fixture.freed(&waiter.claim).await;
    }
}

/// Each poll is granted at once, so none finds that it must wait. All the same the polls are the process's heartbeat.
pub(super) async fn a_process_with_grant_after_grant_is_not_considered_dead(fixture: &Fixture) {
    fixture.listens().await;
    let holding = claim();
    fixture.granted(&holding).await;
    let mut waiters: [_; 6] = std::array::from_fn(|_| {
        Waiter::new(rival(&holding)).with(|stand| stand.poll_interval = SHORT)
    });
    for waiter in &mut waiters {
        fixture.still_waits(waiter).await;
    }
    fixture.freed(&holding).await;
    for (before, waiter) in waiters.iter_mut().enumerate() {
        assert_reservations(fixture, lock_of(&holding), before + 1).await;
        leases_granted(fixture.poll(waiter).await);
        // In total, twice the liveness timeout.
        fixture.advance(SHORT).await;
        fixture.freed(&waiter.claim).await;
    }
}
