//! Laws of places in a queue: kept for a while when nobody stands on them, passed over meanwhile, found again by token.

use leasehold::domain::{
    Acquired, ConflictKind, LockState, NotHolder, Position, Queue, Released, Suspended, Ticket,
};

use super::waiting::held_and_waited_for;
use crate::support::fixture::{
    Fixture, LONG, READ, SHORT, Waiter, assert_waiting, claim, contradicts_claim, ended, in_mode,
    leases_granted, lock_of, only, rival,
};

/// Where a waiter stands.
fn place_of(waiter: &Waiter) -> Ticket {
    waiter.stand.place.expect("it was told")
}

pub(super) async fn a_parked_claim_is_told_how_far_it_had_come(fixture: &Fixture) {
    let (holding, [_, second, _]) = held_and_waited_for(fixture).await;
    let parked = fixture.park(&second.claim, LONG).await;
    let position = Position {
        position: 2,
        queue_length: 3,
    };
    assert_eq!(parked.position, Some(position));
    let blockade = only(parked.blocked_by);
    assert_eq!(&blockade.name, lock_of(&holding));
    assert!(matches!(blockade.by, ConflictKind::Holders(holders) if holders.total == 1));
}

pub(super) async fn a_parked_claim_is_passed_over_and_first_again_when_it_is_back(
    fixture: &Fixture,
) {
    let (holding, [parked, mut second, mut third]) = held_and_waited_for(fixture).await;
    fixture.park(&parked.claim, LONG).await;
    fixture.freed(&holding).await;
    fixture.served(&mut second).await;
    let mut back = parked.again();
    leases_granted(fixture.ask(&mut back).await);
    fixture.waits(&mut third).await;
    fixture.freed(&back.claim).await;
    fixture.served(&mut third).await;
}

pub(super) async fn a_claim_that_is_back_stands_where_it_stood(fixture: &Fixture) {
    let (holding, [parked, mut second]) = held_and_waited_for(fixture).await;
    fixture.park(&parked.claim, LONG).await;
    let mut back = parked.again();
    let waiting = fixture.waits(&mut back).await;
    assert_eq!(waiting.place.sequence, place_of(&parked).sequence);
    let first_of_two = Position {
        position: 1,
        queue_length: 2,
    };
    assert_eq!(waiting.position, Some(first_of_two));
    fixture.freed(&holding).await;
    fixture.waits(&mut second).await;
    fixture.served(&mut back).await;
    fixture.served(&mut second).await;
}

pub(super) async fn a_parked_claim_may_be_granted_without_waiting(fixture: &Fixture) {
    let (holding, [parked, mut second]) = held_and_waited_for(fixture).await;
    fixture.park(&parked.claim, LONG).await;
    fixture.freed(&holding).await;
    fixture.granted(&parked.claim).await;
    fixture.waits(&mut second).await;
    fixture.freed(&parked.claim).await;
    fixture.served(&mut second).await;
}

pub(super) async fn nobody_waits_on_a_parked_place(fixture: &Fixture) {
    let (holding, [parked]) = held_and_waited_for(fixture).await;
    fixture.park(&parked.claim, LONG).await;
    assert_eq!(fixture.queue(lock_of(&holding)).await, Queue::default());
    fixture.freed(&holding).await;
    let newcomer = rival(&holding);
    fixture.granted(&newcomer).await;
    fixture.freed(&newcomer).await;
    assert_eq!(fixture.state(lock_of(&holding)).await, LockState::Free);
}

pub(super) async fn a_place_is_forgotten_when_it_was_kept_long_enough(fixture: &Fixture) {
    let (holding, [parked, mut second]) = held_and_waited_for(fixture).await;
    fixture.park(&parked.claim, SHORT).await;
    fixture.outlast(SHORT).await;
    // The token is as good as new.
    let mut back = parked.again();
    let waiting = fixture.waits(&mut back).await;
    assert!(waiting.place.sequence > place_of(&second).sequence);
    fixture.freed(&holding).await;
    fixture.waits(&mut back).await;
    fixture.served(&mut second).await;
    fixture.served(&mut back).await;
}

/// Its process ended: nobody suspends the claim, and nobody asks for it again.
pub(super) async fn a_place_that_nobody_looks_after_is_forgotten_after_the_wait(fixture: &Fixture) {
    let holding = claim();
    fixture.granted(&holding).await;
    let mut left = Waiter::new(rival(&holding)).with(|stand| {
        stand.wait = SHORT;
        stand.place_kept = SHORT;
    });
    fixture.waits(&mut left).await;
    let mut second = fixture.waiting(&rival(&holding)).await;
    fixture.outlast(SHORT * 2).await;
    let mut back = left.again();
    let waiting = fixture.waits(&mut back).await;
    assert!(waiting.place.sequence > place_of(&second).sequence);
    fixture.freed(&holding).await;
    fixture.served(&mut second).await;
    fixture.served(&mut back).await;
}

pub(super) async fn a_forgotten_place_cannot_be_left(fixture: &Fixture) {
    let (_, [parked]) = held_and_waited_for(fixture).await;
    fixture.park(&parked.claim, SHORT).await;
    fixture.outlast(SHORT).await;
    let unknown = Released::NotHolder(NotHolder::Unknown);
    assert_eq!(fixture.release(&parked.claim).await, unknown);
}

pub(super) async fn a_request_that_knows_its_place_stands_there_though_it_was_forgotten(
    fixture: &Fixture,
) {
    let (holding, [mut first, mut second]) = held_and_waited_for(fixture).await;
    fixture.park(&first.claim, SHORT).await;
    fixture.outlast(SHORT).await;
    let place = place_of(&first);
    let told = fixture.waits(&mut first).await;
    assert_eq!(told.place, place);
    // Where one was lost, more may have been.
    assert!(told.restored);
    assert!(!fixture.waits(&mut first).await.restored);
    fixture.freed(&holding).await;
    fixture.waits(&mut second).await;
    fixture.served(&mut first).await;
    fixture.served(&mut second).await;
}

/// What a request says that makes its wait longer.
pub(super) async fn a_place_is_known_without_its_time(fixture: &Fixture) {
    let (holding, [mut first, mut second]) = held_and_waited_for(fixture).await;
    fixture.park(&first.claim, SHORT).await;
    fixture.outlast(SHORT).await;
    let mut place = place_of(&first);
    place.until = None;
    first.stand.place = Some(place);
    let told = fixture.waits(&mut first).await;
    assert_eq!(told.place.sequence, place.sequence);
    assert!(told.place.until.is_some() && told.restored);
    fixture.freed(&holding).await;
    fixture.waits(&mut second).await;
    fixture.served(&mut first).await;
    fixture.served(&mut second).await;
}

pub(super) async fn a_parked_claim_leaves_the_queue_by_release(fixture: &Fixture) {
    let (_, [parked]) = held_and_waited_for(fixture).await;
    fixture.park(&parked.claim, LONG).await;
    assert_eq!(fixture.release(&parked.claim).await, Released::LeftQueue);
    assert_eq!(fixture.release(&parked.claim).await, Released::Repeated);
    let released = ended(&parked.claim, NotHolder::Released);
    assert_eq!(fixture.ask(&mut parked.again()).await, released);
}

pub(super) async fn a_parked_claim_cannot_be_changed(fixture: &Fixture) {
    let (holding, [parked]) = held_and_waited_for(fixture).await;
    fixture.park(&parked.claim, LONG).await;
    let mut changed = parked.again();
    changed.claim = in_mode(&parked.claim, READ);
    let contradicts = contradicts_claim(lock_of(&holding));
    assert_eq!(fixture.ask(&mut changed).await, contradicts);
    assert_eq!(fixture.acquire(&changed.claim).await, contradicts);
}

pub(super) async fn a_claim_that_does_not_wait_cannot_be_parked(fixture: &Fixture) {
    let (holding, [waiter]) = held_and_waited_for(fixture).await;
    let stranger = rival(&holding);
    for claim in [&holding, &stranger] {
        assert_eq!(fixture.park(claim, LONG).await.position, None);
    }
    fixture.renewed(&holding, None).await;
    assert_eq!(fixture.queue(lock_of(&holding)).await.length, 1);
    // Nor a second time.
    fixture.park(&waiter.claim, LONG).await;
    let again = fixture.park(&waiter.claim, LONG).await;
    assert_eq!(again.position, None);
    let nothing = Suspended {
        position: None,
        blocked_by: Vec::new(),
    };
    assert_eq!(fixture.park(&claim(), LONG).await, nothing);
}

/// The clock of the store may have been set forward: then the wait goes on, and the place with it.
pub(super) async fn a_request_whose_time_is_over_keeps_its_place(fixture: &Fixture) {
    let holding = claim();
    fixture.granted(&holding).await;
    let mut late = Waiter::new(rival(&holding)).with(|stand| stand.wait = SHORT);
    fixture.waits(&mut late).await;
    let mut next = fixture.waiting(&rival(&holding)).await;
    fixture.outlast(SHORT).await;
    assert_eq!(fixture.ask(&mut late).await, Acquired::WaitExpired);
    assert_eq!(fixture.queue(lock_of(&holding)).await.length, 2);
    fixture.freed(&holding).await;
    fixture.waits(&mut next).await;
    let place = late.stand.place.as_mut().expect("it was told");
    place.until = None;
    fixture.served(&mut late).await;
    fixture.served(&mut next).await;
}

pub(super) async fn a_request_whose_time_is_over_is_not_granted(fixture: &Fixture) {
    let holding = claim();
    fixture.granted(&holding).await;
    let mut late = Waiter::new(rival(&holding)).with(|stand| stand.wait = SHORT);
    fixture.waits(&mut late).await;
    fixture.freed(&holding).await;
    fixture.outlast(SHORT).await;
    assert_eq!(fixture.ask(&mut late).await, Acquired::WaitExpired);
    assert_eq!(fixture.state(lock_of(&holding)).await, LockState::Free);
    fixture.park(&late.claim, LONG).await;
    fixture.granted(&rival(&holding)).await;
}

pub(super) async fn each_request_for_a_claim_has_its_own_time(fixture: &Fixture) {
    let holding = claim();
    fixture.granted(&holding).await;
    let mut brief = Waiter::new(rival(&holding)).with(|stand| stand.wait = SHORT);
    fixture.waits(&mut brief).await;
    // Asking again does not make it longer.
    fixture.advance(SHORT / 2).await;
    let until = place_of(&brief).until;
    assert_eq!(fixture.waits(&mut brief).await.place.until, until);
    let mut patient = brief.again();
    fixture.waits(&mut patient).await;
    assert!(place_of(&patient).until > until);
    fixture.outlast(SHORT).await;
    assert_waiting(&fixture.ask(&mut patient).await);
    fixture.freed(&holding).await;
    fixture.served(&mut patient).await;
}
