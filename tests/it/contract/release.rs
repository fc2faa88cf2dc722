//! Contract tests of release: a holder releases once, and no other claim can do so.

use leasehold::domain::{Claim, LockName, LockState, NotHolder, Released};

use crate::support::fixture::{
    Fixture, LONG, READ, SHORT, at_depth, claim, claim_on_all, ended, fresh_name, in_mode, lock_of,
    names, not_holder, permits, reader, rival,
};

pub(super) async fn a_released_lock_can_be_acquired_at_once(fixture: &Fixture) {
    let claim = claim();
    fixture.granted(&claim).await;
    fixture.freed(&claim).await;
    assert_eq!(fixture.state(lock_of(&claim)).await, LockState::Free);
    fixture.granted(&rival(&claim)).await;
}

pub(super) async fn a_release_reports_how_long_the_lock_was_held(fixture: &Fixture) {
    let claim = claim();
    fixture.granted(&claim).await;
    fixture.advance(SHORT).await;
    fixture.renewed(&claim, None).await;
    fixture.advance(SHORT).await;
    fixture.assert_passed(fixture.freed(&claim).await, SHORT * 2);
}

pub(super) async fn a_release_reports_the_fencing_token_of_each_lease(fixture: &Fixture) {
    let streamed = Claim {
        takes_over: true,
        ..claim()
    };
    let with_options = Claim {
        max_hold: Some(LONG),
        ..claim()
    };
    let several = claim_on_all(names(&[fresh_name(), fresh_name()]));
    let renewed = claim();
    for claim in [
        claim(),
        at_depth(&claim(), 2),
        in_mode(&claim(), READ),
        in_mode(&claim(), permits(1, 3)),
        with_options,
        streamed,
        several,
        renewed.clone(),
    ] {
        let leases = fixture.all_granted(&claim).await;
        if claim.token == renewed.token {
            fixture.renewed(&claim, None).await;
        }
        let granted: Vec<_> = leases.iter().map(|it| Some(it.holder.fence)).collect();
        let released = fixture.release_all(&claim).await.into_iter();
        let released: Vec<_> = released
            .map(|released| match released {
                Released::Freed { fence, .. } => fence,
                other => panic!("{claim:?} must be freed, but: {other:?}"),
            })
            .collect();
        assert_eq!(released, granted, "{claim:?}");
    }
}

pub(super) async fn a_foreign_token_releases_nothing(fixture: &Fixture) {
    let claim = claim();
    fixture.granted(&claim).await;
    let stranger = rival(&claim);
    let unknown = Released::NotHolder(NotHolder::Unknown);
    assert_eq!(fixture.release(&stranger).await, unknown);
    assert_eq!(fixture.step_back(&stranger, 1).await, unknown);
    fixture.renewed(&claim, None).await;
    // And it does not end the stranger's own claim.
    fixture.freed(&claim).await;
    fixture.granted(&stranger).await;
}

pub(super) async fn a_lock_without_a_holder_cannot_be_released(fixture: &Fixture) {
    let claim = claim();
    let answer = fixture.release(&claim).await;
    assert_eq!(answer, Released::NotHolder(NotHolder::Unknown));
    fixture.granted(&claim).await;
}

pub(super) async fn a_repeated_release_is_recognised(fixture: &Fixture) {
    let claim = claim();
    fixture.granted(&claim).await;
    fixture.freed(&claim).await;
    assert_eq!(fixture.release(&claim).await, Released::Repeated);
    assert_eq!(fixture.step_back(&claim, 1).await, Released::Repeated);
}

pub(super) async fn a_repeated_release_leaves_the_next_holder_alone(fixture: &Fixture) {
    let first = claim();
    let second = rival(&first);
    fixture.granted(&first).await;
    fixture.freed(&first).await;
    fixture.granted(&second).await;
    assert_eq!(fixture.release(&first).await, Released::Repeated);
    fixture.renewed(&second, None).await;
}

pub(super) async fn a_released_claim_cannot_be_acquired_again(fixture: &Fixture) {
    let first = claim();
    fixture.granted(&first).await;
    fixture.freed(&first).await;
    let ended = ended(&first, NotHolder::Released);
    assert_eq!(fixture.acquire(&first).await, ended);
    assert_eq!(fixture.state(lock_of(&first)).await, LockState::Free);
    // It gets this answer also when another claim holds the lock.
    fixture.granted(&rival(&first)).await;
    assert_eq!(fixture.acquire(&first).await, ended);
}

pub(super) async fn a_released_claim_cannot_be_renewed(fixture: &Fixture) {
    let claim = claim();
    fixture.granted(&claim).await;
    fixture.freed(&claim).await;
    let answer = fixture.renew(&claim).await;
    assert_eq!(answer, not_holder(&claim, NotHolder::Released));
    assert_eq!(fixture.state(lock_of(&claim)).await, LockState::Free);
}

/// The processes of streams are notified of releases that may concern a stream, and of no others.
pub(super) async fn only_the_release_of_what_a_stream_may_hold_is_notified(fixture: &Fixture) {
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
        fixture.all_granted(&plain).await;
        fixture.release_all(&plain).await;
        fixture.all_granted(&streaming(&streamed)).await;
        fixture.release_all(&streamed).await;
        fixture.all_granted(&taken_over).await;
        fixture.acquire(&streaming(&taken_over)).await;
        fixture.release_all(&taken_over).await;
        fixture.all_granted(&streaming(&renewed)).await;
        // The lease is now independent of the stream, which still holds it.
        fixture.renew(&renewed).await;
        fixture.release_all(&renewed).await;
        for (claim, times) in [(plain, 0), (streamed, 1), (taken_over, 1), (renewed, 1)] {
            for name in claim.names.iter() {
                assert_notified(fixture, &claim, name, times).await;
            }
        }
    }
    let (streamed, plain) = (streaming(&reader(&reading)), reader(&reading));
    fixture.granted(&streamed).await;
    fixture.granted(&plain).await;
    fixture.freed(&plain).await;
    assert_notified(fixture, &plain, lock_of(&plain), 0).await;
    fixture.step_back(&streamed, 1).await;
    assert_notified(fixture, &streamed, lock_of(&streamed), 0).await;
    fixture.freed(&streamed).await;
    assert_notified(fixture, &streamed, lock_of(&streamed), 1).await;
}

/// Fails unless there were at least `times` notifications, or none if that is 0. Local releases may be notified twice.
async fn assert_notified(fixture: &Fixture, claim: &Claim, name: &LockName, times: usize) {
    let notified = fixture
        .received()
        .await
        .releases_of(name, claim.token.digest(name));
    let is_as_expected = if times == 0 {
        notified == 0
    } else {
        notified >= times
    };
    assert!(is_as_expected, "{notified} times for {claim:?}");
}
