//! Laws of release: a holder lets go, once, and nobody else can do it for it.

use leasehold::domain::{LockState, NotHolder, Released};

use crate::support::bench::{Bench, SHORT, claim, ended, lock_of, not_holder, rival};

pub(super) async fn a_released_lock_can_be_acquired_at_once(bench: &Bench) {
    let claim = claim();
    bench.granted(&claim).await;
    bench.freed(&claim).await;
    assert_eq!(bench.state(lock_of(&claim)).await, LockState::Free);
    bench.granted(&rival(&claim)).await;
}

pub(super) async fn a_release_tells_how_long_the_lock_was_held(bench: &Bench) {
    let claim = claim();
    bench.granted(&claim).await;
    bench.advance(SHORT).await;
    bench.renewed(&claim, None).await;
    bench.advance(SHORT).await;
    bench.assert_passed(bench.freed(&claim).await, SHORT * 2);
}

pub(super) async fn a_foreign_token_releases_nothing(bench: &Bench) {
    let claim = claim();
    bench.granted(&claim).await;
    let stranger = rival(&claim);
    let unknown = Released::NotHolder(NotHolder::Unknown);
    assert_eq!(bench.release(&stranger).await, unknown);
    assert_eq!(bench.step_back(&stranger, 1).await, unknown);
    bench.renewed(&claim, None).await;
    // Nor does it end the stranger's own claim.
    bench.freed(&claim).await;
    bench.granted(&stranger).await;
}

pub(super) async fn a_lock_that_nobody_held_cannot_be_released(bench: &Bench) {
    let claim = claim();
    let answer = bench.release(&claim).await;
    assert_eq!(answer, Released::NotHolder(NotHolder::Unknown));
    bench.granted(&claim).await;
}

pub(super) async fn a_repeated_release_is_recognised(bench: &Bench) {
    let claim = claim();
    bench.granted(&claim).await;
    bench.freed(&claim).await;
    assert_eq!(bench.release(&claim).await, Released::Repeated);
    assert_eq!(bench.step_back(&claim, 1).await, Released::Repeated);
}

pub(super) async fn a_repeated_release_leaves_the_next_holder_alone(bench: &Bench) {
    let first = claim();
    let second = rival(&first);
    bench.granted(&first).await;
    bench.freed(&first).await;
    bench.granted(&second).await;
    assert_eq!(bench.release(&first).await, Released::Repeated);
    bench.renewed(&second, None).await;
}

pub(super) async fn a_released_claim_cannot_be_acquired_again(bench: &Bench) {
    let first = claim();
    bench.granted(&first).await;
    bench.freed(&first).await;
    let ended = ended(&first, NotHolder::Released);
    assert_eq!(bench.acquire(&first).await, ended);
    assert_eq!(bench.state(lock_of(&first)).await, LockState::Free);
    // It is told so rather than to wait, also when the lock is held by another.
    bench.granted(&rival(&first)).await;
    assert_eq!(bench.acquire(&first).await, ended);
}

pub(super) async fn a_released_claim_cannot_be_renewed(bench: &Bench) {
    let claim = claim();
    bench.granted(&claim).await;
    bench.freed(&claim).await;
    let answer = bench.renew(&claim).await;
    assert_eq!(answer, not_holder(&claim, NotHolder::Released));
    assert_eq!(bench.state(lock_of(&claim)).await, LockState::Free);
}
