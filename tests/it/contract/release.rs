//! Laws of release: a holder lets go, once, and nobody else can do it for it.

use leasehold::domain::{Claim, LockName, LockState, NotHolder, Released};

use crate::support::bench::{
    Bench, READ, SHORT, claim, claim_on_all, ended, fresh_name, in_mode, lock_of, names,
    not_holder, reader, rival,
};

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

/// Those who hold leases for streams hear of what is released, and nothing is told where there is no stream.
pub(super) async fn a_release_of_what_a_stream_may_hold_is_told_and_no_other(bench: &Bench) {
    let streaming = |claim: &Claim| Claim {
        takes_over: true,
        ..claim.clone()
    };
    let (several, reading) = (
        claim_on_all(names(&[fresh_name(), fresh_name()])),
        in_mode(&claim(), READ),
    );
    for plain in [claim(), reading.clone(), several] {
        let (streamed, taken_over, renewed) = (rival(&plain), rival(&plain), rival(&plain));
        bench.all_granted(&plain).await;
        bench.release_all(&plain).await;
        bench.all_granted(&streaming(&streamed)).await;
        bench.release_all(&streamed).await;
        bench.all_granted(&taken_over).await;
        bench.acquire(&streaming(&taken_over)).await;
        bench.release_all(&taken_over).await;
        bench.all_granted(&streaming(&renewed)).await;
        // The lease does not depend on the stream any more, which holds it all the same.
        bench.renew(&renewed).await;
        bench.release_all(&renewed).await;
        for (claim, times) in [(plain, 0), (streamed, 1), (taken_over, 1), (renewed, 1)] {
            for name in claim.names.iter() {
                assert_told(bench, &claim, name, times).await;
            }
        }
    }
    let (streamed, plain) = (streaming(&reader(&reading)), reader(&reading));
    bench.granted(&streamed).await;
    bench.granted(&plain).await;
    bench.freed(&plain).await;
    assert_told(bench, &plain, lock_of(&plain), 0).await;
    bench.step_back(&streamed, 1).await;
    assert_told(bench, &streamed, lock_of(&streamed), 0).await;
    bench.freed(&streamed).await;
    assert_told(bench, &streamed, lock_of(&streamed), 1).await;
}

/// It is told so often at the least, and not at all if that is 0: what is done here may be heard of here once more.
async fn assert_told(bench: &Bench, claim: &Claim, name: &LockName, times: usize) {
    let told = bench
        .heard()
        .await
        .releases_of(name, claim.token.digest(name));
    let is_as_expected = if times == 0 { told == 0 } else { told >= times };
    assert!(is_as_expected, "{told} times for {claim:?}");
}
