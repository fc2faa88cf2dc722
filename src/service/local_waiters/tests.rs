//! The table of waiters without a store. Polls and wake-ups are tested with the whole service.

use super::*;
use crate::domain::{LockNames, Ttl};
use crate::telemetry::traces::TraceParent;

pub(super) const HOUR: Duration = Duration::from_secs(3_600);

pub(super) fn claim(name: &str) -> Arc<Claim> {
    let name = LockName::parse(name.as_bytes()).expect(name);
    Arc::new(Claim::plain(
        LockNames::from(name),
        Token::random(),
        Ttl::from_store(HOUR),
    ))
}

/// Its client has moved to another process. The next waiter must follow the reservation; otherwise each superseded
/// request would block a free lock until the next regular poll.
#[tokio::test(start_paused = true)]
async fn a_waiter_dequeued_early_passes_its_reservation_to_the_next() {
    let waiters = LocalWaiters::new(HOUR, 10);
    let queued = [1, 2].map(|sequence| {
        let waiter = waiters
            .enter(&claim("a"), None, None)
            .expect("there is room");
        waiters.enqueue(&waiter, QueuePlace::Arriving, sequence, Instant::now());
        waiter
    });
    let [first, next] = &queued;
    let sent = Instant::now();
    let answer = QueueAnswer {
        sent,
        before: None,
        recheck_in: None,
        restored: false,
    };
    waiters.record_answer(first, answer);
    tokio::time::advance(Duration::from_secs(1)).await;
    let now = Instant::now();
    drop(waiters.reserved(&first.claim.names[0]));
    assert_eq!(
        waiters.next_head_poll(first, now),
        Some(now),
        "the reservation"
    );
    assert!(
        waiters.next_head_poll(first, now) > Some(now),
        "it has polled"
    );
    assert_eq!(
        waiters.next_head_poll(next, now),
        None,
        "it is not the head"
    );
    waiters.dequeue_early(first, QueuePlace::At(1));
    assert_eq!(waiters.next_head_poll(next, now), Some(now));
}

/// A client repeats its release before it knows the first answer.
#[tokio::test]
async fn a_release_that_frees_nothing_does_not_hide_the_one_before() {
    let waiters = LocalWaiters::new(HOUR, 10);
    let waiter = waiters
        .enter(&claim("a"), None, None)
        .expect("there is room");
    waiters.enqueue(&waiter, QueuePlace::Arriving, 1, Instant::now());
    let names = &waiter.claim.names;
    let [first, repeated, again] = [1, 2, 3].map(|number| {
        let header = format!("00-{number:032x}-{number:016x}-01");
        TraceParent::parse(header.as_bytes()).expect(&header).span
    });
    for span in [first, repeated, again] {
        waiters.releasing(names, span);
    }
    for span in [repeated, again] {
        waiters.not_released(names, span);
    }
    let releases: Vec<_> = waiters.granted(&waiter).iter().map(|it| it.span).collect();
    assert_eq!(releases, [first]);
    assert!(waiters.granted(&waiter).is_empty());
}

/// A client whose connection has died repeats its request before the process notices.
#[tokio::test]
async fn requests_for_one_claim_share_the_places_of_their_principal_until_the_last_has_left() {
    let waiters = LocalWaiters::new(HOUR, 10);
    let [of_one, of_other] = [1, 1].map(Budget::new);
    let repeated = claim("a");
    let [first, second] = [(); 2].map(|()| {
        let entered = waiters.enter(&repeated, None, Some(&of_one));
        entered.expect("it is the same claim")
    });
    let is_refused = || waiters.enter(&claim("a"), None, Some(&of_one)).is_err();
    assert!(is_refused());
    let other = waiters.enter(&repeated, None, Some(&of_other));
    assert_eq!(of_other.used(), 1, "another principal has its own places");
    for waiter in [first, other.expect("there is room")] {
        drop(waiters.leave(&waiter, QueuePlace::Arriving));
    }
    assert!(is_refused(), "the claim still waits");
    drop(waiters.leave(&second, QueuePlace::Arriving));
    drop(second);
    assert!(!is_refused());
}
