//! Contract tests of claims that wait at one process, and wait, hold or end at another.

use leasehold::domain::{Acquired, Claim, NotHolder, Released};
use leasehold::store::{RESERVATION_EXTENSION, RESERVATION_TTL};

use super::two_processes::subscribed;
use crate::support::fixture::{Fixture, LONG, SHORT, Waiter, claim, ended, lock_of, rival};

/// A request that is not the head would learn it only at its turn, and could not take the place back before.
pub(super) async fn a_process_is_notified_that_its_claim_waits_elsewhere(fixture: &Fixture) {
    let another = subscribed(fixture).await;
    let holding = claim();
    fixture.granted(&holding).await;
    let mut first = fixture.waiting(&rival(&holding)).await;
    let mut older = fixture.waiting(&rival(&holding)).await;
    let mut last = another.waiting(&rival(&holding)).await;
    let mut newer = older.again();
    another.still_waits(&mut newer).await;
    assert_eq!(dequeued_of(fixture, &older.claim).await, 1);
    assert_eq!(fixture.poll(&mut older).await, Acquired::Superseded);
    another.suspend(&newer.claim, LONG).await;
    fixture.still_waits(&mut older).await;
    assert_eq!(
        dequeued_of(&another, &older.claim).await,
        0,
        "it has left by itself"
    );
    assert_eq!(fixture.queue(lock_of(&holding)).await.length, 3);
    fixture.freed(&holding).await;
    fixture.granted_after_wait(&mut first).await;
    fixture.granted_after_wait(&mut older).await;
    another.granted_after_wait(&mut last).await;
}

pub(super) async fn a_process_is_notified_that_its_claim_holds_elsewhere(fixture: &Fixture) {
    let another = subscribed(fixture).await;
    let holding = claim();
    fixture.granted(&holding).await;
    let waiter = fixture.waiting(&rival(&holding)).await;
    fixture.freed(&holding).await;
    another.granted(&waiter.claim).await;
    assert_eq!(dequeued_of(fixture, &waiter.claim).await, 1);
}

async fn dequeued_of(process: &Fixture, claim: &Claim) -> usize {
    let digest = claim.token.digest(lock_of(claim));
    process.received().await.dequeued_of(lock_of(claim), digest)
}

pub(super) async fn a_claim_leaves_the_queue_by_release_on_any_process(fixture: &Fixture) {
    let another = subscribed(fixture).await;
    let holding = claim();
    fixture.granted(&holding).await;
    let mut leaving = fixture.waiting(&rival(&holding)).await;
    let mut next = another.waiting(&rival(&holding)).await;
    assert_eq!(another.release(&leaving.claim).await, Released::LeftQueue);
    // Its process is notified, so that the request ends before its next regular poll.
    assert_eq!(dequeued_of(fixture, &leaving.claim).await, 1);
    let released = ended(&leaving.claim, NotHolder::Released);
    assert_eq!(fixture.poll(&mut leaving).await, released);
    assert_eq!(another.queue(lock_of(&holding)).await.length, 1);
    fixture.freed(&holding).await;
    another.granted_after_wait(&mut next).await;
}

/// The first try of an abandoned request may reach the store after the request that replaced it, whether or not the
/// request has waited before.
pub(super) async fn a_first_try_that_is_late_does_not_take_the_place(fixture: &Fixture) {
    let another = subscribed(fixture).await;
    let holding = claim();
    fixture.granted(&holding).await;
    let moving = fixture.waiting(&rival(&holding)).await;
    let mut moved = moving.again();
    another.still_waits(&mut moved).await;
    // Each process knows the time of Redis but for the duration of an answer.
    let late = || moving.again().with(|stand| stand.age = SHORT);
    let mut unseen = late();
    assert_eq!(fixture.poll(&mut unseen).await, Acquired::Superseded);
    let mut seen = late();
    seen.attempt = moving.attempt;
    assert_eq!(fixture.poll(&mut seen).await, Acquired::Superseded);
    another.still_waits(&mut moved).await;
    fixture.freed(&holding).await;
    another.granted_after_wait(&mut moved).await;
}

/// The process of the newer request may be gone: then it is passed over, and its claim waits by the older request.
pub(super) async fn a_claim_whose_newer_process_ended_is_granted_by_the_older_request(
    fixture: &Fixture,
) {
    let ended = fixture.another_process().await;
    let holding = claim();
    fixture.granted(&holding).await;
    let mut older = fixture.waiting(&rival(&holding)).await;
    let mut unseen = older.again().with(|stand| stand.age = SHORT);
    ended.still_waits(&mut older.again()).await;
    for older in [&mut older, &mut unseen] {
        assert_eq!(fixture.poll(older).await, Acquired::Superseded);
    }
    drop(ended);
    fixture.freed(&holding).await;
    fixture.outlast(RESERVATION_TTL).await;
    assert_eq!(fixture.poll(&mut older).await, Acquired::Superseded);
    fixture.outlast(RESERVATION_EXTENSION).await;
    fixture.granted_after_wait(&mut older).await;
}

/// The time of the latest request of a process counts, whichever of them polls.
pub(super) async fn a_poll_of_an_earlier_request_makes_its_claim_no_older(fixture: &Fixture) {
    let another = subscribed(fixture).await;
    let holding = claim();
    fixture.granted(&holding).await;
    let mut first = Waiter::new(rival(&holding)).with(|stand| stand.age = LONG);
    another.still_waits(&mut first).await;
    let mut latest = first.again();
    another.still_waits(&mut latest).await;
    another.still_waits(&mut first).await;
    let mut late = first.again().with(|stand| stand.age = SHORT);
    assert_eq!(fixture.poll(&mut late).await, Acquired::Superseded);
    fixture.freed(&holding).await;
    another.granted_after_wait(&mut latest).await;
}
