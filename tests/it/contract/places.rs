//! Laws of places in a queue: kept for a while when nobody stands on them, passed over meanwhile, found again by token.

use leasehold::domain::{
    Acquired, Blocker, LockState, NotHolder, Parked, Place, Position, Queue, Released,
};

use super::waiting::held_and_waited_for;
use crate::support::bench::{
    Bench, LONG, READ, SHORT, Waiter, assert_waiting, claim, contradicts_claim, ended, in_mode,
    leases_granted, lock_of, only, rival,
};

/// Where a waiter stands.
fn place_of(waiter: &Waiter) -> Place {
    waiter.stand.place.expect("it was told")
}

pub(super) async fn a_parked_claim_is_told_how_far_it_had_come(bench: &Bench) {
    let (holding, [_, second, _]) = held_and_waited_for(bench).await;
    let parked = bench.park(&second.claim, LONG).await;
    let position = Position {
        position: 2,
        queue_length: 3,
    };
    assert_eq!(parked.position, Some(position));
    let blockade = only(parked.blocked_by);
    assert_eq!(&blockade.name, lock_of(&holding));
    assert!(matches!(blockade.by, Blocker::Holders(holders) if holders.total == 1));
}

pub(super) async fn a_parked_claim_is_passed_over_and_first_again_when_it_is_back(bench: &Bench) {
    let (holding, [parked, mut second, mut third]) = held_and_waited_for(bench).await;
    bench.park(&parked.claim, LONG).await;
    bench.freed(&holding).await;
    bench.served(&mut second).await;
    let mut back = parked.again();
    leases_granted(bench.ask(&mut back).await);
    bench.waits(&mut third).await;
    bench.freed(&back.claim).await;
    bench.served(&mut third).await;
}

pub(super) async fn a_claim_that_is_back_stands_where_it_stood(bench: &Bench) {
    let (holding, [parked, mut second]) = held_and_waited_for(bench).await;
    bench.park(&parked.claim, LONG).await;
    let mut back = parked.again();
    let waiting = bench.waits(&mut back).await;
    assert_eq!(waiting.place.sequence, place_of(&parked).sequence);
    let first_of_two = Position {
        position: 1,
        queue_length: 2,
    };
    assert_eq!(waiting.position, Some(first_of_two));
    bench.freed(&holding).await;
    bench.waits(&mut second).await;
    bench.served(&mut back).await;
    bench.served(&mut second).await;
}

pub(super) async fn a_parked_claim_may_be_granted_without_waiting(bench: &Bench) {
    let (holding, [parked, mut second]) = held_and_waited_for(bench).await;
    bench.park(&parked.claim, LONG).await;
    bench.freed(&holding).await;
    bench.granted(&parked.claim).await;
    bench.waits(&mut second).await;
    bench.freed(&parked.claim).await;
    bench.served(&mut second).await;
}

pub(super) async fn nobody_waits_on_a_parked_place(bench: &Bench) {
    let (holding, [parked]) = held_and_waited_for(bench).await;
    bench.park(&parked.claim, LONG).await;
    assert_eq!(bench.queue(lock_of(&holding)).await, Queue::default());
    bench.freed(&holding).await;
    let newcomer = rival(&holding);
    bench.granted(&newcomer).await;
    bench.freed(&newcomer).await;
    assert_eq!(bench.state(lock_of(&holding)).await, LockState::Free);
}

pub(super) async fn a_place_is_forgotten_when_it_was_kept_long_enough(bench: &Bench) {
    let (holding, [parked, mut second]) = held_and_waited_for(bench).await;
    bench.park(&parked.claim, SHORT).await;
    bench.outlast(SHORT).await;
    // The token is as good as new.
    let mut back = parked.again();
    let waiting = bench.waits(&mut back).await;
    assert!(waiting.place.sequence > place_of(&second).sequence);
    bench.freed(&holding).await;
    bench.waits(&mut back).await;
    bench.served(&mut second).await;
    bench.served(&mut back).await;
}

/// Its process ended: nobody suspends the claim, and nobody asks for it again.
pub(super) async fn a_place_that_nobody_looks_after_is_forgotten_after_the_wait(bench: &Bench) {
    let holding = claim();
    bench.granted(&holding).await;
    let mut left = Waiter::new(rival(&holding)).with(|stand| {
        stand.wait = SHORT;
        stand.place_kept = SHORT;
    });
    bench.waits(&mut left).await;
    let mut second = bench.waiting(&rival(&holding)).await;
    bench.outlast(SHORT * 2).await;
    let mut back = left.again();
    let waiting = bench.waits(&mut back).await;
    assert!(waiting.place.sequence > place_of(&second).sequence);
    bench.freed(&holding).await;
    bench.served(&mut second).await;
    bench.served(&mut back).await;
}

pub(super) async fn a_forgotten_place_cannot_be_left(bench: &Bench) {
    let (_, [parked]) = held_and_waited_for(bench).await;
    bench.park(&parked.claim, SHORT).await;
    bench.outlast(SHORT).await;
    let unknown = Released::NotHolder(NotHolder::Unknown);
    assert_eq!(bench.release(&parked.claim).await, unknown);
}

pub(super) async fn a_request_that_knows_its_place_stands_there_though_it_was_forgotten(
    bench: &Bench,
) {
    let (holding, [mut first, mut second]) = held_and_waited_for(bench).await;
    bench.park(&first.claim, SHORT).await;
    bench.outlast(SHORT).await;
    let place = place_of(&first);
    let told = bench.waits(&mut first).await;
    assert_eq!(told.place, place);
    // Where one was lost, more may have been.
    assert!(told.restored);
    assert!(!bench.waits(&mut first).await.restored);
    bench.freed(&holding).await;
    bench.waits(&mut second).await;
    bench.served(&mut first).await;
    bench.served(&mut second).await;
}

/// What a request says that makes its wait longer.
pub(super) async fn a_place_is_known_without_its_time(bench: &Bench) {
    let (holding, [mut first, mut second]) = held_and_waited_for(bench).await;
    bench.park(&first.claim, SHORT).await;
    bench.outlast(SHORT).await;
    let mut place = place_of(&first);
    place.until = None;
    first.stand.place = Some(place);
    let told = bench.waits(&mut first).await;
    assert_eq!(told.place.sequence, place.sequence);
    assert!(told.place.until.is_some() && told.restored);
    bench.freed(&holding).await;
    bench.waits(&mut second).await;
    bench.served(&mut first).await;
    bench.served(&mut second).await;
}

pub(super) async fn a_parked_claim_leaves_the_queue_by_release(bench: &Bench) {
    let (_, [parked]) = held_and_waited_for(bench).await;
    bench.park(&parked.claim, LONG).await;
    assert_eq!(bench.release(&parked.claim).await, Released::LeftQueue);
    assert_eq!(bench.release(&parked.claim).await, Released::Repeated);
    let released = ended(&parked.claim, NotHolder::Released);
    assert_eq!(bench.ask(&mut parked.again()).await, released);
}

pub(super) async fn a_parked_claim_cannot_be_changed(bench: &Bench) {
    let (holding, [parked]) = held_and_waited_for(bench).await;
    bench.park(&parked.claim, LONG).await;
    let mut changed = parked.again();
    changed.claim = in_mode(&parked.claim, READ);
    let contradicts = contradicts_claim(lock_of(&holding));
    assert_eq!(bench.ask(&mut changed).await, contradicts);
    assert_eq!(bench.acquire(&changed.claim).await, contradicts);
}

pub(super) async fn a_claim_that_does_not_wait_cannot_be_parked(bench: &Bench) {
    let (holding, [waiter]) = held_and_waited_for(bench).await;
    let stranger = rival(&holding);
    for claim in [&holding, &stranger] {
        assert_eq!(bench.park(claim, LONG).await.position, None);
    }
    bench.renewed(&holding, None).await;
    assert_eq!(bench.queue(lock_of(&holding)).await.length, 1);
    // Nor a second time.
    bench.park(&waiter.claim, LONG).await;
    let again = bench.park(&waiter.claim, LONG).await;
    assert_eq!(again.position, None);
    let nothing = Parked {
        position: None,
        blocked_by: Vec::new(),
    };
    assert_eq!(bench.park(&claim(), LONG).await, nothing);
}

/// The clock of the store may have been set forward: then the wait goes on, and the place with it.
pub(super) async fn a_request_whose_time_is_over_keeps_its_place(bench: &Bench) {
    let holding = claim();
    bench.granted(&holding).await;
    let mut late = Waiter::new(rival(&holding)).with(|stand| stand.wait = SHORT);
    bench.waits(&mut late).await;
    let mut next = bench.waiting(&rival(&holding)).await;
    bench.outlast(SHORT).await;
    assert_eq!(bench.ask(&mut late).await, Acquired::Overdue);
    assert_eq!(bench.queue(lock_of(&holding)).await.length, 2);
    bench.freed(&holding).await;
    bench.waits(&mut next).await;
    let place = late.stand.place.as_mut().expect("it was told");
    place.until = None;
    bench.served(&mut late).await;
    bench.served(&mut next).await;
}

pub(super) async fn a_request_whose_time_is_over_is_not_granted(bench: &Bench) {
    let holding = claim();
    bench.granted(&holding).await;
    let mut late = Waiter::new(rival(&holding)).with(|stand| stand.wait = SHORT);
    bench.waits(&mut late).await;
    bench.freed(&holding).await;
    bench.outlast(SHORT).await;
    assert_eq!(bench.ask(&mut late).await, Acquired::Overdue);
    assert_eq!(bench.state(lock_of(&holding)).await, LockState::Free);
    bench.park(&late.claim, LONG).await;
    bench.granted(&rival(&holding)).await;
}

pub(super) async fn each_request_for_a_claim_has_its_own_time(bench: &Bench) {
    let holding = claim();
    bench.granted(&holding).await;
    let mut brief = Waiter::new(rival(&holding)).with(|stand| stand.wait = SHORT);
    bench.waits(&mut brief).await;
    // Asking again does not make it longer.
    bench.advance(SHORT / 2).await;
    let until = place_of(&brief).until;
    assert_eq!(bench.waits(&mut brief).await.place.until, until);
    let mut patient = brief.again();
    bench.waits(&mut patient).await;
    assert!(place_of(&patient).until > until);
    bench.outlast(SHORT).await;
    assert_waiting(&bench.ask(&mut patient).await);
    bench.freed(&holding).await;
    bench.served(&mut patient).await;
}
