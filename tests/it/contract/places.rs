//! Contract tests of places: a place without a waiter is kept for a while, passed over meanwhile, and found by token.

use std::time::Duration;

use leasehold::domain::{
    Acquired, ConflictKind, LockState, NotHolder, Position, Queue, Released, SuspendOptions,
    Suspended, Ticket,
};

use super::waiting::held_and_waited_for;
use crate::support::fixture::{
    Fixture, LONG, READ, SHORT, Waiter, assert_waiting, claim, claim_mismatch, ended, in_mode,
    leases_granted, lock_of, only, rival,
};

/// The ticket of a waiter.
fn ticket_of(waiter: &Waiter) -> Ticket {
    waiter.queue_request.ticket.expect("it has a ticket")
}

pub(super) async fn a_suspended_claim_gets_its_position(fixture: &Fixture) {
    let (holding, [_, second, _]) = held_and_waited_for(fixture).await;
    let suspended = fixture.suspend(&second.claim, LONG).await;
    let position = Position {
        position: 2,
        queue_length: 3,
    };
    assert_eq!(suspended.position, Some(position));
    let conflict = only(suspended.blocked_by);
    assert_eq!(&conflict.name, lock_of(&holding));
    assert!(matches!(conflict.by, ConflictKind::Holders(holders) if holders.total == 1));
}

/// Otherwise a hundred holders would be read for each client that disconnects.
pub(super) async fn a_suspended_claim_gets_its_conflicts_only_on_request(fixture: &Fixture) {
    let (_, [_, second, _]) = held_and_waited_for(fixture).await;
    let options = SuspendOptions {
        keep: LONG,
        lists_conflicts: false,
    };
    let suspended = fixture.suspend_with(&second.claim, options).await;
    assert_eq!(suspended.position.map(|it| it.position), Some(2));
    assert_eq!(suspended.blocked_by, []);
    let mut back = second.again();
    fixture.still_waits(&mut back).await;
}

pub(super) async fn a_suspended_claim_is_passed_over_and_first_again_when_it_is_back(
    fixture: &Fixture,
) {
    let (holding, [suspended, mut second, mut third]) = held_and_waited_for(fixture).await;
    fixture.suspend(&suspended.claim, LONG).await;
    fixture.freed(&holding).await;
    fixture.granted_after_wait(&mut second).await;
    let mut back = suspended.again();
    leases_granted(fixture.poll(&mut back).await);
    fixture.still_waits(&mut third).await;
    fixture.freed(&back.claim).await;
    fixture.granted_after_wait(&mut third).await;
}

pub(super) async fn a_claim_that_is_back_resumes_its_place(fixture: &Fixture) {
    let (holding, [suspended, mut second]) = held_and_waited_for(fixture).await;
    fixture.suspend(&suspended.claim, LONG).await;
    let mut back = suspended.again();
    let waiting = fixture.still_waits(&mut back).await;
    assert_eq!(waiting.ticket.sequence, ticket_of(&suspended).sequence);
    let first_of_two = Position {
        position: 1,
        queue_length: 2,
    };
    assert_eq!(waiting.position, Some(first_of_two));
    fixture.freed(&holding).await;
    fixture.still_waits(&mut second).await;
    fixture.granted_after_wait(&mut back).await;
    fixture.granted_after_wait(&mut second).await;
}

pub(super) async fn a_suspended_claim_may_be_granted_without_waiting(fixture: &Fixture) {
    let (holding, [suspended, mut second]) = held_and_waited_for(fixture).await;
    fixture.suspend(&suspended.claim, LONG).await;
    fixture.freed(&holding).await;
    fixture.granted(&suspended.claim).await;
    fixture.still_waits(&mut second).await;
    fixture.freed(&suspended.claim).await;
    fixture.granted_after_wait(&mut second).await;
}

pub(super) async fn a_suspended_place_has_no_waiter(fixture: &Fixture) {
    let (holding, [suspended]) = held_and_waited_for(fixture).await;
    fixture.suspend(&suspended.claim, LONG).await;
    assert_eq!(fixture.queue(lock_of(&holding)).await, Queue::default());
    fixture.freed(&holding).await;
    let newcomer = rival(&holding);
    fixture.granted(&newcomer).await;
    fixture.freed(&newcomer).await;
    assert_eq!(fixture.state(lock_of(&holding)).await, LockState::Free);
}

pub(super) async fn a_place_expires_after_the_time_for_which_it_is_kept(fixture: &Fixture) {
    let (holding, [suspended, mut second]) = held_and_waited_for(fixture).await;
    fixture.suspend(&suspended.claim, SHORT).await;
    fixture.outlast(SHORT).await;
    // The token can be used like a new one.
    let mut back = suspended.again();
    let waiting = fixture.still_waits(&mut back).await;
    assert!(waiting.ticket.sequence > ticket_of(&second).sequence);
    fixture.freed(&holding).await;
    fixture.still_waits(&mut back).await;
    fixture.granted_after_wait(&mut second).await;
    fixture.granted_after_wait(&mut back).await;
}

/// A claim that cannot have a place in each queue of its locks has none, and its next request may be refused by a full one.
pub(super) async fn a_place_that_is_not_kept_is_gone_at_once(fixture: &Fixture) {
    let (_, [mut first, mut second]) = held_and_waited_for(fixture).await;
    for _ in 0..5 {
        fixture.suspend(&first.claim, Duration::ZERO).await;
        let mut back = first.again();
        let waiting = fixture.still_waits(&mut back).await;
        assert!(waiting.ticket.sequence > ticket_of(&second).sequence);
        (first, second) = (second, back);
    }
}

/// Its process has ended, without suspending the claim.
pub(super) async fn a_place_without_polls_expires_after_the_wait(fixture: &Fixture) {
    let holding = claim();
    fixture.granted(&holding).await;
    let mut left = Waiter::new(rival(&holding)).with(|stand| {
        stand.wait = SHORT;
        stand.place_kept = SHORT;
    });
    fixture.still_waits(&mut left).await;
    let mut second = fixture.waiting(&rival(&holding)).await;
    fixture.outlast(SHORT * 2).await;
    let mut back = left.again();
    let waiting = fixture.still_waits(&mut back).await;
    assert!(waiting.ticket.sequence > ticket_of(&second).sequence);
    fixture.freed(&holding).await;
    fixture.granted_after_wait(&mut second).await;
    fixture.granted_after_wait(&mut back).await;
}

pub(super) async fn an_expired_place_cannot_be_left(fixture: &Fixture) {
    let (_, [suspended]) = held_and_waited_for(fixture).await;
    fixture.suspend(&suspended.claim, SHORT).await;
    fixture.outlast(SHORT).await;
    let unknown = Released::NotHolder(NotHolder::Unknown);
    assert_eq!(fixture.release(&suspended.claim).await, unknown);
}

pub(super) async fn a_request_with_a_ticket_resumes_its_place_although_it_expired(
    fixture: &Fixture,
) {
    let (holding, [mut first, mut second]) = held_and_waited_for(fixture).await;
    fixture.suspend(&first.claim, SHORT).await;
    fixture.outlast(SHORT).await;
    let ticket = ticket_of(&first);
    let waiting = fixture.still_waits(&mut first).await;
    assert_eq!(waiting.ticket, ticket);
    // The answer reports the loss, because other places may be lost too.
    assert!(waiting.restored);
    assert!(!fixture.still_waits(&mut first).await.restored);
    fixture.freed(&holding).await;
    fixture.still_waits(&mut second).await;
    fixture.granted_after_wait(&mut first).await;
    fixture.granted_after_wait(&mut second).await;
}

/// A request that refreshes its ticket sends such a one.
pub(super) async fn a_ticket_without_a_deadline_identifies_its_place(fixture: &Fixture) {
    let (holding, [mut first, mut second]) = held_and_waited_for(fixture).await;
    fixture.suspend(&first.claim, SHORT).await;
    fixture.outlast(SHORT).await;
    let mut place = ticket_of(&first);
    place.until = None;
    first.queue_request.ticket = Some(place);
    let waiting = fixture.still_waits(&mut first).await;
    assert_eq!(waiting.ticket.sequence, place.sequence);
    assert!(waiting.ticket.until.is_some() && waiting.restored);
    fixture.freed(&holding).await;
    fixture.still_waits(&mut second).await;
    fixture.granted_after_wait(&mut first).await;
    fixture.granted_after_wait(&mut second).await;
}

pub(super) async fn a_suspended_claim_leaves_the_queue_by_release(fixture: &Fixture) {
    let (_, [suspended]) = held_and_waited_for(fixture).await;
    fixture.suspend(&suspended.claim, LONG).await;
    assert_eq!(fixture.release(&suspended.claim).await, Released::LeftQueue);
    assert_eq!(fixture.release(&suspended.claim).await, Released::Repeated);
    let released = ended(&suspended.claim, NotHolder::Released);
    assert_eq!(fixture.poll(&mut suspended.again()).await, released);
}

pub(super) async fn a_suspended_claim_cannot_be_changed(fixture: &Fixture) {
    let (holding, [suspended]) = held_and_waited_for(fixture).await;
    fixture.suspend(&suspended.claim, LONG).await;
    let mut changed = suspended.again();
    changed.claim = in_mode(&suspended.claim, READ);
    let mismatch = claim_mismatch(lock_of(&holding));
    assert_eq!(fixture.poll(&mut changed).await, mismatch);
    assert_eq!(fixture.acquire(&changed.claim).await, mismatch);
}

pub(super) async fn a_claim_that_does_not_wait_cannot_be_suspended(fixture: &Fixture) {
    let (holding, [waiter]) = held_and_waited_for(fixture).await;
    let stranger = rival(&holding);
    for claim in [&holding, &stranger] {
        assert_eq!(fixture.suspend(claim, LONG).await.position, None);
    }
    fixture.renewed(&holding, None).await;
    assert_eq!(fixture.queue(lock_of(&holding)).await.length, 1);
    // And it cannot be suspended twice.
    fixture.suspend(&waiter.claim, LONG).await;
    let again = fixture.suspend(&waiter.claim, LONG).await;
    assert_eq!(again.position, None);
    let nothing = Suspended {
        position: None,
        blocked_by: Vec::new(),
    };
    assert_eq!(fixture.suspend(&claim(), LONG).await, nothing);
}

/// The clock of the store may have been set forward: then the wait continues, and the place is kept.
pub(super) async fn a_request_whose_time_is_over_keeps_its_place(fixture: &Fixture) {
    let holding = claim();
    fixture.granted(&holding).await;
    let mut late = Waiter::new(rival(&holding)).with(|stand| stand.wait = SHORT);
    fixture.still_waits(&mut late).await;
    let mut next = fixture.waiting(&rival(&holding)).await;
    fixture.outlast(SHORT).await;
    assert_eq!(fixture.poll(&mut late).await, Acquired::WaitExpired);
    assert_eq!(fixture.queue(lock_of(&holding)).await.length, 2);
    fixture.freed(&holding).await;
    fixture.still_waits(&mut next).await;
    let ticket = late.queue_request.ticket.as_mut().expect("it has a ticket");
    ticket.until = None;
    fixture.granted_after_wait(&mut late).await;
    fixture.granted_after_wait(&mut next).await;
}

pub(super) async fn a_request_whose_time_is_over_is_not_granted(fixture: &Fixture) {
    let holding = claim();
    fixture.granted(&holding).await;
    let mut late = Waiter::new(rival(&holding)).with(|stand| stand.wait = SHORT);
    fixture.still_waits(&mut late).await;
    fixture.freed(&holding).await;
    fixture.outlast(SHORT).await;
    assert_eq!(fixture.poll(&mut late).await, Acquired::WaitExpired);
    assert_eq!(fixture.state(lock_of(&holding)).await, LockState::Free);
    fixture.suspend(&late.claim, LONG).await;
    fixture.granted(&rival(&holding)).await;
}

pub(super) async fn each_request_for_a_claim_has_its_own_time(fixture: &Fixture) {
    let holding = claim();
    fixture.granted(&holding).await;
    let mut brief = Waiter::new(rival(&holding)).with(|stand| stand.wait = SHORT);
    fixture.still_waits(&mut brief).await;
    // Polling again does not extend it.
    fixture.advance(SHORT / 2).await;
    let until = ticket_of(&brief).until;
    assert_eq!(fixture.still_waits(&mut brief).await.ticket.until, until);
    let mut long = brief.again();
    fixture.still_waits(&mut long).await;
    assert!(ticket_of(&long).until > until);
    fixture.outlast(SHORT).await;
    assert_waiting(&fixture.poll(&mut long).await);
    fixture.freed(&holding).await;
    fixture.granted_after_wait(&mut long).await;
}
