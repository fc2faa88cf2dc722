//! Laws of offers: who is told that a lock opened, and how often; and what becomes of an offer that nobody takes.
//!
//! All waiters are of one process here. What happens between processes is in `two_processes`.

use leasehold::domain::{Acquired, Attempt, Claim, Holder, LockName, LockState, Released};
use leasehold::store::{LAST_CALL, OFFER};

use super::waiting::{held_and_waited_for, unfair};
use crate::support::bench::{
    Bench, LONG, READ, SHORT, Waiter, assert_behind_waiters, claim, for_short, in_mode,
    leases_granted, lock_of, only, owned_by, permits, reader, rival,
};

/// Fails unless the lock was offered so often so far.
async fn assert_offers(bench: &Bench, name: &LockName, times: usize) {
    assert_eq!(bench.offers_of(name).await, times);
}

pub(super) async fn a_released_lock_is_offered_once(bench: &Bench) {
    bench.listens().await;
    let (holding, [mut first, mut second, _]) = held_and_waited_for(bench).await;
    let name = lock_of(&holding);
    assert_offers(bench, name, 0).await;
    bench.freed(&holding).await;
    assert_offers(bench, name, 1).await;
    // Who asks meanwhile changes nothing.
    bench.waits(&mut second).await;
    bench.state(name).await;
    assert_behind_waiters(bench.acquire(&rival(&holding)).await);
    assert_offers(bench, name, 1).await;
    leases_granted(bench.ask(&mut first).await);
    assert_offers(bench, name, 1).await;
    bench.freed(&first.claim).await;
    assert_offers(bench, name, 2).await;
}

/// The first answer may have been lost, and with it the offer.
pub(super) async fn who_repeats_a_release_hears_of_its_own_waiter_again(bench: &Bench) {
    bench.listens().await;
    let (holding, [mut next]) = held_and_waited_for(bench).await;
    bench.freed(&holding).await;
    assert_eq!(bench.release(&holding).await, Released::Repeated);
    assert_offers(bench, lock_of(&holding), 2).await;
    bench.served(&mut next).await;
}

pub(super) async fn nobody_is_told_of_a_lock_that_nobody_waits_for(bench: &Bench) {
    bench.listens().await;
    let (holding, [first, second]) = held_and_waited_for(bench).await;
    let name = lock_of(&holding);
    bench.park(&first.claim, LONG).await;
    bench.park(&second.claim, LONG).await;
    bench.freed(&holding).await;
    let free = claim();
    bench.granted(&free).await;
    bench.freed(&free).await;
    assert_offers(bench, name, 0).await;
    assert_offers(bench, lock_of(&free), 0).await;
}

pub(super) async fn an_evicted_lock_is_offered_once(bench: &Bench) {
    bench.listens().await;
    let (holding, [mut first, _]) = held_and_waited_for(bench).await;
    bench.evict(lock_of(&holding), "").await;
    assert_offers(bench, lock_of(&holding), 1).await;
    bench.served(&mut first).await;
}

pub(super) async fn a_lock_whose_grant_was_withdrawn_is_offered_once(bench: &Bench) {
    bench.listens().await;
    let (holding, attempt) = (claim(), Attempt::random());
    leases_granted(bench.attempt(&holding, attempt).await.expect("it answers"));
    let mut waiter = bench.waiting(&rival(&holding)).await;
    bench.withdraw(&holding, attempt).await;
    assert_offers(bench, lock_of(&holding), 1).await;
    bench.served(&mut waiter).await;
}

pub(super) async fn a_lock_whose_lease_ran_out_is_offered_once_to_the_first(bench: &Bench) {
    bench.listens().await;
    let holding = for_short(&claim());
    bench.granted(&holding).await;
    let mut first = bench.waiting(&rival(&holding)).await;
    let mut second = bench.waiting(&rival(&holding)).await;
    bench.outlast(SHORT).await;
    // Whoever asks first finds out, and it is not their turn.
    bench.waits(&mut second).await;
    bench.waits(&mut second).await;
    assert_offers(bench, lock_of(&holding), 1).await;
    bench.served(&mut first).await;
    bench.served(&mut second).await;
}

pub(super) async fn a_closed_lock_is_offered_once_it_opens(bench: &Bench) {
    bench.listens().await;
    let holding = Claim {
        min_hold: Some(SHORT),
        ..claim()
    };
    bench.granted(&holding).await;
    let mut first = bench.waiting(&rival(&holding)).await;
    let mut second = bench.waiting(&rival(&holding)).await;
    bench.freed(&holding).await;
    bench.waits(&mut second).await;
    assert_offers(bench, lock_of(&holding), 0).await;
    bench.outlast(SHORT).await;
    bench.waits(&mut second).await;
    assert_offers(bench, lock_of(&holding), 1).await;
    bench.served(&mut first).await;
}

pub(super) async fn when_the_first_steps_out_the_next_is_offered_the_lock_at_once(bench: &Bench) {
    bench.listens().await;
    let (holding, [first, second, mut third]) = held_and_waited_for(bench).await;
    let name = lock_of(&holding);
    bench.freed(&holding).await;
    assert_offers(bench, name, 1).await;
    bench.park(&first.claim, LONG).await;
    assert_offers(bench, name, 2).await;
    // Who leaves may be told so by the same message, hence at least.
    bench.release(&second.claim).await;
    assert!(bench.offers_of(name).await >= 3);
    bench.served(&mut third).await;
}

pub(super) async fn when_one_behind_steps_out_nobody_is_told(bench: &Bench) {
    bench.listens().await;
    let (holding, [mut first, second, _]) = held_and_waited_for(bench).await;
    bench.freed(&holding).await;
    bench.park(&second.claim, LONG).await;
    assert_offers(bench, lock_of(&holding), 1).await;
    bench.served(&mut first).await;
}

pub(super) async fn as_many_are_told_as_fit_one_after_the_other(bench: &Bench) {
    bench.listens().await;
    let holding = claim();
    bench.granted(&holding).await;
    let mut readers = [(); 3].map(|()| Waiter::new(reader(&holding)));
    for reader in &mut readers {
        bench.waits(reader).await;
    }
    bench.waiting(&rival(&holding)).await;
    bench.freed(&holding).await;
    let name = lock_of(&holding);
    for (told, reader) in (1..).zip(&mut readers) {
        assert_offers(bench, name, told).await;
        leases_granted(bench.ask(reader).await);
    }
    // The writer is not, until all of them are gone.
    for reader in &readers {
        assert_offers(bench, name, 3).await;
        bench.freed(&reader.claim).await;
    }
    assert_offers(bench, name, 4).await;
}

pub(super) async fn permits_are_offered_once_there_are_enough(bench: &Bench) {
    bench.listens().await;
    let first = in_mode(&claim(), permits(1, 2));
    let second = in_mode(&rival(&first), permits(1, 2));
    bench.granted(&first).await;
    bench.granted(&second).await;
    let mut both = bench.waiting(&in_mode(&rival(&first), permits(2, 2))).await;
    bench.freed(&first).await;
    assert_offers(bench, lock_of(&first), 0).await;
    bench.freed(&second).await;
    assert_offers(bench, lock_of(&first), 1).await;
    bench.served(&mut both).await;
}

pub(super) async fn a_lease_that_steps_down_offers_the_lock_to_a_reader(bench: &Bench) {
    bench.listens().await;
    let holding = claim();
    bench.granted(&holding).await;
    let mut first = bench.waiting(&reader(&holding)).await;
    bench.waiting(&rival(&holding)).await;
    bench.renew_in_mode(&holding, READ).await;
    assert_offers(bench, lock_of(&holding), 1).await;
    leases_granted(bench.ask(&mut first).await);
    // The writer behind it is not told.
    assert_offers(bench, lock_of(&holding), 1).await;
}

pub(super) async fn an_offer_that_was_overtaken_is_made_again(bench: &Bench) {
    bench.listens().await;
    let (holding, [mut first]) = held_and_waited_for(bench).await;
    bench.freed(&holding).await;
    let unfair = unfair(&holding);
    bench.granted(&unfair).await;
    bench.waits(&mut first).await;
    bench.freed(&unfair).await;
    assert_offers(bench, lock_of(&holding), 2).await;
    bench.served(&mut first).await;
}

/// The permit that one was offered was taken by another who had stood before it, and comes back at once.
pub(super) async fn a_permit_that_was_taken_and_came_back_is_offered_again(bench: &Bench) {
    bench.listens().await;
    let holding = claim();
    bench.granted(&holding).await;
    let mut waiters = [(); 3].map(|()| Waiter::new(in_mode(&rival(&holding), permits(1, 2))));
    for waiter in &mut waiters {
        bench.waits(waiter).await;
    }
    let [mut first, parked, mut last] = waiters;
    bench.park(&parked.claim, LONG).await;
    bench.freed(&holding).await;
    leases_granted(bench.ask(&mut first).await);
    assert_offers(bench, lock_of(&holding), 2).await;
    leases_granted(bench.ask(&mut parked.again()).await);
    bench.waits(&mut last).await;
    bench.freed(&parked.claim).await;
    assert_offers(bench, lock_of(&holding), 3).await;
    bench.served(&mut last).await;
}

pub(super) async fn an_offer_keeps_others_out_for_a_moment_and_no_longer(bench: &Bench) {
    let (holding, [mut silent]) = held_and_waited_for(bench).await;
    bench.freed(&holding).await;
    assert_behind_waiters(bench.acquire(&rival(&holding)).await);
    bench.outlast(OFFER).await;
    assert_behind_waiters(bench.acquire(&rival(&holding)).await);
    bench.outlast(LAST_CALL).await;
    let next = rival(&holding);
    bench.granted(&next).await;
    // Whoever did not take it has lost the turn, not the place.
    bench.waits(&mut silent).await;
    let mut newcomer = bench.waiting(&rival(&holding)).await;
    bench.freed(&next).await;
    bench.waits(&mut newcomer).await;
    bench.served(&mut silent).await;
    bench.served(&mut newcomer).await;
    assert_eq!(bench.state(lock_of(&holding)).await, LockState::Free);
}

/// Whether others wait on or not, which is written down in different ways.
pub(super) async fn a_lease_that_was_handed_over_is_seen_as_it_was_granted(bench: &Bench) {
    let (holding, [mut first, mut second]) = held_and_waited_for(bench).await;
    let (name, mut before) = (lock_of(&holding), holding.clone());
    for waiter in [&mut first, &mut second] {
        bench.freed(&before).await;
        let granted = only(leases_granted(bench.ask(waiter).await)).holder;
        let seen = bench.holder(name).await;
        let expires_in = seen.expires_in;
        assert!(expires_in <= granted.expires_in, "{expires_in:?}");
        bench.assert_left(expires_in, LONG);
        assert_eq!(
            Holder {
                expires_in,
                ..granted
            },
            seen
        );
        before = waiter.claim.clone();
    }
}

/// Ways in which a lock comes to be free that somebody waits for.
#[derive(Clone, Copy, Debug)]
enum Way {
    Released,
    ReleasedByReader,
    Evicted,
    Withdrawn,
    RanOut,
    FirstParked,
    FirstLeft,
}

/// Opens a lock that several wait for, none of whom asks again.
async fn opened(bench: &Bench, way: Way) -> Claim {
    let holding = match way {
        Way::ReleasedByReader => in_mode(&claim(), READ),
        Way::RanOut => for_short(&claim()),
        Way::Released | Way::Evicted | Way::Withdrawn | Way::FirstParked | Way::FirstLeft => {
            claim()
        }
    };
    let attempt = Attempt::random();
    leases_granted(bench.attempt(&holding, attempt).await.expect("it answers"));
    let first = bench.waiting(&rival(&holding)).await;
    bench.waiting(&rival(&holding)).await;
    match way {
        Way::Released | Way::ReleasedByReader => drop(bench.freed(&holding).await),
        Way::Evicted => drop(bench.evict(lock_of(&holding), "").await),
        Way::Withdrawn => bench.withdraw(&holding, attempt).await,
        Way::RanOut => bench.outlast(SHORT).await,
        Way::FirstParked => {
            bench.freed(&holding).await;
            bench.park(&first.claim, LONG).await;
        }
        Way::FirstLeft => {
            bench.freed(&holding).await;
            bench.release(&first.claim).await;
        }
    }
    holding
}

pub(super) async fn however_a_lock_opens_it_is_kept_for_a_moment_and_no_longer(bench: &Bench) {
    use Way::{Evicted, FirstLeft, FirstParked, RanOut, Released, ReleasedByReader, Withdrawn};
    let mut locks = Vec::new();
    for way in [
        RanOut,
        Released,
        ReleasedByReader,
        Evicted,
        Withdrawn,
        FirstParked,
        FirstLeft,
    ] {
        let lock = opened(bench, way).await;
        assert_behind_waiters(bench.acquire(&rival(&lock)).await);
        locks.push((way, lock));
    }
    bench.outlast(OFFER).await;
    for (_, lock) in &locks {
        assert_behind_waiters(bench.acquire(&rival(lock)).await);
    }
    bench.outlast(LAST_CALL).await;
    for (way, lock) in locks {
        let answer = bench.acquire(&rival(&lock)).await;
        assert!(
            matches!(answer, Acquired::Granted(_)),
            "{way:?}: {answer:?}"
        );
    }
}

pub(super) async fn a_waiter_holds_as_who_it_said_it_is(bench: &Bench) {
    let holding = claim();
    bench.granted(&holding).await;
    // The first is granted while another waits, the second when nobody does any more.
    let mut waiters = ["web-1", "é 2"].map(|text| Waiter::new(owned_by(&rival(&holding), text)));
    for waiter in &mut waiters {
        bench.waits(waiter).await;
    }
    bench.freed(&holding).await;
    for waiter in &mut waiters {
        let lease = only(leases_granted(bench.ask(waiter).await));
        assert_eq!(lease.holder.owner, waiter.claim.owner);
        let seen = bench.holder(lock_of(&holding)).await;
        assert_eq!(seen.owner, waiter.claim.owner);
        assert_eq!(seen.fence, lease.holder.fence);
        bench.freed(&waiter.claim).await;
    }
}

/// Hand-over after hand-over, nobody of the process has to wait; all the same it shows that it is alive.
pub(super) async fn a_process_that_is_granted_again_and_again_is_not_taken_for_dead(bench: &Bench) {
    bench.listens().await;
    let holding = claim();
    bench.granted(&holding).await;
    let mut waiters: [_; 6] = std::array::from_fn(|_| {
        Waiter::new(rival(&holding)).with(|stand| stand.look_every = SHORT)
    });
    for waiter in &mut waiters {
        bench.waits(waiter).await;
    }
    bench.freed(&holding).await;
    for (before, waiter) in waiters.iter_mut().enumerate() {
        assert_offers(bench, lock_of(&holding), before + 1).await;
        leases_granted(bench.ask(waiter).await);
        // All together twice as long as a process may be silent.
        bench.advance(SHORT).await;
        bench.freed(&waiter.claim).await;
    }
}
