//! Which waiter asks next. What it asks, and how it is woken, is tested with the whole service.

use super::*;
use crate::domain::{HoldCount, LockNames, Mode, Owner, Ttl};

const HOUR: Duration = Duration::from_secs(3_600);

fn claim(name: &str) -> Arc<Claim> {
    let name = LockName::parse(name.as_bytes()).expect(name);
    Arc::new(Claim {
        names: LockNames::from(name),
        token: Token::random(),
        mode: Mode::Exclusive,
        fair: true,
        ttl: Ttl::from_store(HOUR),
        hold_count: HoldCount::ONE,
        owner: Owner::default(),
        metadata: None,
        min_hold: None,
        max_hold: None,
        lock_delay: None,
        takes_over: false,
    })
}

/// Its client had asked elsewhere since. The offer that it asked for is the next one's to follow: else each request that was
/// left behind would keep a free lock from those behind it for as long as nobody looks.
#[tokio::test(start_paused = true)]
async fn whoever_steps_out_early_leaves_its_turn_to_the_next() {
    let waiters = LocalWaiters::new(HOUR, 10);
    let stands = [1, 2].map(|sequence| {
        let waiter = waiters.enter(&claim("a"), None).expect("there is room");
        waiters.stand(&waiter, QueuePlace::Arriving, sequence, Instant::now());
        waiter
    });
    let [first, next] = &stands;
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
    assert_eq!(waiters.next_poll(first, now), Some(now), "the offer");
    assert!(waiters.next_poll(first, now) > Some(now), "it has asked");
    assert_eq!(waiters.next_poll(next, now), None, "it is not the first");
    waiters.step_out_early(first, QueuePlace::At(1));
    assert_eq!(waiters.next_poll(next, now), Some(now));
}
