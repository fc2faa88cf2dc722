//! The table of waiters without a store. Polls and wake-ups are tested with the whole service.

use super::*;
use crate::domain::{LockNames, Ttl};

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
