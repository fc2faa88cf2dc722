//! Contract tests of the leases of streams: only the last attempt that took over a lease releases it.

use std::time::Duration;

use leasehold::domain::{
    Acquired, Attempt, Claim, GrantKind, LockState, NotHolder, Refused, RenewOptions, Renewed,
    Token,
};

use super::expiry::assert_ended;
use crate::support::fixture::{
    Fixture, LONG, SHORT, Waiter, at_depth, claim, claim_on_all, deadline, for_short, fresh_name,
    in_mode, leases_granted, lock_of, lost, names, permits, rival,
};

/// How many withdrawn attempts of a claim are refused if they arrive late.
const REFUSED_LATE: usize = 32;

/// The claim of a stream.
pub(super) fn streaming(claim: &Claim) -> Claim {
    Claim {
        takes_over: true,
        ..claim.clone()
    }
}

/// Claims of streams, of every kind.
pub(super) fn of_every_kind(min_hold: Option<Duration>) -> Vec<Claim> {
    let several = || claim_on_all(names(&[fresh_name(), fresh_name()]));
    let claims = [
        claim(),
        in_mode(&claim(), permits(2, 3)),
        several(),
        in_mode(&several(), permits(2, 3)),
    ];
    let with_min_hold = claims.map(|claim| Claim { min_hold, ..claim });
    with_min_hold.iter().map(streaming).collect()
}

/// The claim of a plain request.
pub(super) fn without_stream(claim: &Claim) -> Claim {
    Claim {
        takes_over: false,
        ..claim.clone()
    }
}

/// Grants the claim to a stream.
pub(super) async fn granted(fixture: &Fixture, claim: &Claim) -> Attempt {
    let attempt = Attempt::random();
    leases_granted(fixture.attempt(claim, attempt).await.expect("an answer"));
    attempt
}

/// Lets a stream take over the lease of the claim.
pub(super) async fn taken_over(fixture: &Fixture, claim: &Claim) -> Attempt {
    let attempt = Attempt::random();
    let answer = fixture.attempt(claim, attempt).await;
    assert!(
        matches!(&answer, Ok(held) if matches!(held.kind(), Some(GrantKind::Replayed | GrantKind::Reentered))),
        "{answer:?}"
    );
    attempt
}

/// Renews as a stream does.
async fn renewed(fixture: &Fixture, claim: &Claim) -> Renewed {
    let change = RenewOptions::AS_BEFORE;
    let store = fixture.store();
    let renewed = store.renew(&claim.names, claim.token, change, deadline());
    renewed.await.expect("the store answers")
}

pub(super) async fn assert_holds(fixture: &Fixture, claim: &Claim) {
    let answer = renewed(fixture, claim).await;
    assert!(matches!(answer, Renewed::Extended(_)), "{answer:?}");
}

pub(super) async fn assert_free(fixture: &Fixture, claim: &Claim) {
    for name in claim.names.iter() {
        assert_eq!(fixture.state(name).await, LockState::Free);
    }
}

/// Fails unless the locks have no holder and are closed.
pub(super) async fn assert_cooling(fixture: &Fixture, claim: &Claim) {
    for name in claim.names.iter() {
        let state = fixture.state(name).await;
        assert!(matches!(state, LockState::Cooling { .. }), "{state:?}");
    }
    let answer = fixture.acquire(&rival(claim)).await;
    assert!(
        matches!(answer, Acquired::Refused(Refused::Blocked(_))),
        "{answer:?}"
    );
}

/// One stream after the other holds the claim, on one process or two.
async fn assert_only_the_last_stream_releases(first: &Fixture, second: &Fixture) {
    for min_hold in [None, Some(LONG)] {
        for claim in of_every_kind(min_hold) {
            let [granted_to, successor] = [
                granted(first, &claim).await,
                taken_over(second, &claim).await,
            ];
            first.close(&claim, granted_to).await;
            first.withdraw(&claim, granted_to).await;
            assert_holds(first, &claim).await;
            let last = taken_over(first, &claim).await;
            second.close(&claim, successor).await;
            assert_holds(second, &claim).await;
            first.close(&claim, last).await;
            match min_hold {
                None => assert_free(first, &claim).await,
                Some(_) => assert_cooling(first, &claim).await,
            }
            // The answer to the first rollback may have been lost.
            first.close(&claim, last).await;
        }
    }
}

pub(super) async fn a_lease_is_released_by_the_last_stream_that_took_it_over(fixture: &Fixture) {
    assert_only_the_last_stream_releases(fixture, fixture).await;
}

/// A stream that waited finds its claim held by a later request of its client. If it took over the lease, the close of
/// its own dead connection would release the lease of the live one.
pub(super) async fn a_request_that_waited_leaves_alone_what_a_later_one_holds(fixture: &Fixture) {
    for held in [claim(), in_mode(&claim(), permits(3, 3))] {
        fixture.granted(&held).await;
        let mut waiting = Waiter::new(streaming(&rival(&held)));
        fixture.still_waits(&mut waiting).await;
        fixture.release(&held).await;
        let later = granted(fixture, &waiting.claim).await;
        waiting.queue_request.takes_over = false;
        assert_eq!(fixture.poll(&mut waiting).await, Acquired::Superseded);
        fixture.close(&waiting.claim, waiting.attempt).await;
        assert_holds(fixture, &waiting.claim).await;
        // The later of two requests of one process may take over the lease of the earlier one.
        waiting.queue_request.takes_over = true;
        waiting.attempt = Attempt::random();
        let answer = fixture.poll(&mut waiting).await;
        assert_eq!(answer.kind(), Some(GrantKind::Replayed), "{answer:?}");
        // After that, its polls are replayed as usual.
        waiting.queue_request.takes_over = false;
        let answer = fixture.poll(&mut waiting).await;
        assert_eq!(answer.kind(), Some(GrantKind::Replayed), "{answer:?}");
        fixture.close(&waiting.claim, later).await;
        assert_holds(fixture, &waiting.claim).await;
        fixture.close(&waiting.claim, waiting.attempt).await;
        assert_free(fixture, &waiting.claim).await;
    }
}

/// The same for a plain request: its answer would make the lease independent of the client's present stream.
pub(super) async fn a_plain_request_that_waited_leaves_alone_what_a_stream_holds(
    fixture: &Fixture,
) {
    for held in [claim(), in_mode(&claim(), permits(3, 3))] {
        fixture.granted(&held).await;
        let mut waiting = fixture.waiting(&rival(&held)).await;
        fixture.release(&held).await;
        let stream = streaming(&waiting.claim);
        let later = granted(fixture, &stream).await;
        waiting.queue_request.takes_over = false;
        assert_eq!(fixture.poll(&mut waiting).await, Acquired::Superseded);
        fixture.close(&stream, later).await;
        assert_free(fixture, &stream).await;
    }
}

pub(super) async fn a_lease_is_taken_over_at_another_process(fixture: &Fixture) {
    assert_only_the_last_stream_releases(fixture, &fixture.another_process().await).await;
}

pub(super) async fn a_lease_that_is_taken_over_by_a_deeper_claim_is_released_by_it(
    fixture: &Fixture,
) {
    for claim in of_every_kind(None) {
        let first = granted(fixture, &claim).await;
        let deeper = at_depth(&claim, 3);
        let second = taken_over(fixture, &deeper).await;
        fixture.close(&claim, first).await;
        assert_holds(fixture, &claim).await;
        fixture.close(&deeper, second).await;
        assert_free(fixture, &claim).await;
    }
}

pub(super) async fn a_lease_of_a_plain_request_is_taken_over_by_a_stream(fixture: &Fixture) {
    for kind in of_every_kind(None) {
        let plain = without_stream(&kind);
        let first = granted(fixture, &plain).await;
        let stream = taken_over(fixture, &kind).await;
        fixture.withdraw(&plain, first).await;
        assert_holds(fixture, &kind).await;
        fixture.close(&kind, stream).await;
        assert_free(fixture, &kind).await;
    }
}

pub(super) async fn a_request_of_another_kind_makes_a_lease_independent_of_streams(
    fixture: &Fixture,
) {
    for claim in of_every_kind(None) {
        let plain = without_stream(&claim);
        let first = granted(fixture, &claim).await;
        fixture.acquire(&plain).await;
        fixture.close(&claim, first).await;
        assert_holds(fixture, &claim).await;
        let second = taken_over(fixture, &claim).await;
        fixture.renew(&claim).await;
        fixture.close(&claim, second).await;
        assert_holds(fixture, &claim).await;
        fixture.release_all(&claim).await;
        assert_free(fixture, &claim).await;
    }
}

pub(super) async fn a_lease_that_a_stream_released_keeps_its_lock_closed_for_its_min_hold_and_no_longer(
    fixture: &Fixture,
) {
    let claims = of_every_kind(Some(SHORT));
    for claim in &claims {
        let attempt = granted(fixture, claim).await;
        fixture.close(claim, attempt).await;
    }
    fixture.outlast(SHORT).await;
    for claim in &claims {
        assert_free(fixture, claim).await;
        // The claim has not ended, because its client may come back.
        granted(fixture, claim).await;
    }
}

pub(super) async fn a_lease_that_ran_out_is_not_released_again(fixture: &Fixture) {
    let brief = Claim {
        lock_delay: Some(LONG),
        ..streaming(&for_short(&claim()))
    };
    let granted_to = granted(fixture, &brief).await;
    fixture.outlast(SHORT).await;
    fixture.close(&brief, granted_to).await;
    assert_cooling(fixture, &brief).await;
    assert_ended(fixture, &brief, NotHolder::Expired).await;
    let brief = streaming(&Claim {
        names: claim().names,
        ..brief
    });
    granted(fixture, &brief).await;
    let successor = taken_over(fixture, &brief).await;
    fixture.outlast(SHORT).await;
    fixture.withdraw(&brief, successor).await;
    assert_cooling(fixture, &brief).await;
}

/// The renewal was in flight when the connection of its stream closed.
pub(super) async fn a_late_renewal_of_a_closed_stream_makes_no_lease(fixture: &Fixture) {
    for claim in of_every_kind(None) {
        let attempt = granted(fixture, &claim).await;
        assert_holds(fixture, &claim).await;
        fixture.close(&claim, attempt).await;
        let lost_all = claim.names.iter();
        let lost_all = lost_all.map(|name| lost(name, NotHolder::Unknown));
        assert_eq!(
            renewed(fixture, &claim).await,
            Renewed::NotHolder(lost_all.collect())
        );
        assert_free(fixture, &claim).await;
    }
}

/// A stream that comes back with its old token takes permits in addition to those that its former lease keeps taken.
pub(super) async fn permits_that_stay_taken_are_not_those_of_the_next_lease(fixture: &Fixture) {
    let taking = Claim {
        min_hold: Some(SHORT * 4),
        ..streaming(&in_mode(&claim(), permits(1, 3)))
    };
    let other = in_mode(&rival(&taking), permits(1, 3));
    let attempt = granted(fixture, &taking).await;
    fixture.close(&taking, attempt).await;
    let back = Claim {
        min_hold: None,
        ..taking.clone()
    };
    granted(fixture, &back).await;
    fixture.granted(&other).await;
    let too_many = in_mode(&rival(&taking), permits(1, 3));
    let answer = fixture.acquire(&too_many).await;
    assert!(
        matches!(answer, Acquired::Refused(Refused::Blocked(_))),
        "{answer:?}"
    );
    fixture.outlast(SHORT * 4).await;
    fixture.granted(&too_many).await;
    let answer = fixture
        .acquire(&in_mode(&rival(&taking), permits(1, 3)))
        .await;
    assert!(
        matches!(answer, Acquired::Refused(Refused::Blocked(_))),
        "{answer:?}"
    );
    for holding in [&back, &other, &too_many] {
        fixture.freed(holding).await;
    }
    assert_free(fixture, &taking).await;
}

/// A request that was sent twice, on two connections, may arrive again after its answer and after later requests.
pub(super) async fn a_late_repeat_of_a_stream_that_was_taken_over_from_changes_nothing(
    fixture: &Fixture,
) {
    for claim in of_every_kind(None) {
        let first = granted(fixture, &claim).await;
        fixture.renew(&claim).await;
        drop(fixture.attempt(&claim, first).await);
        fixture.close(&claim, first).await;
        assert_holds(fixture, &claim).await;
        fixture.release_all(&claim).await;
        let claim = &Claim {
            token: Token::random(),
            ..claim
        };
        let first = granted(fixture, claim).await;
        let second = taken_over(fixture, claim).await;
        drop(fixture.attempt(claim, first).await);
        fixture.close(claim, first).await;
        assert_holds(fixture, claim).await;
        fixture.renew(claim).await;
        drop(fixture.attempt(claim, second).await);
        fixture.close(claim, second).await;
        assert_holds(fixture, claim).await;
        let third = taken_over(fixture, claim).await;
        drop(fixture.attempt(claim, second).await);
        fixture.close(claim, third).await;
        assert_free(fixture, claim).await;
    }
}

pub(super) async fn a_claim_that_disconnects_many_times_leaves_only_its_last_attempts_behind(
    fixture: &Fixture,
) {
    let (claim, redis) = (streaming(&claim()), fixture.redis_behind());
    let withdrawn: Vec<_> = (0..100).map(|_| Attempt::random()).collect();
    for attempt in &withdrawn {
        fixture.withdraw(&claim, *attempt).await;
    }
    let marks = redis.server.keys(redis.database, "lh:1:*:e:*").await;
    let [mark] = &marks[..] else {
        panic!("one claim, one mark: {marks:?}");
    };
    let command = [b"STRLEN".as_slice(), mark.as_slice()];
    let length = redis.server.integer(redis.database, &command).await;
    assert!(length <= 300, "{length} bytes");
    let kept_ms = redis.server.kept_ms(redis.database, mark).await;
    assert!((30_000..=60_000).contains(&kept_ms), "{kept_ms} ms");
    for late in &withdrawn[withdrawn.len() - REFUSED_LATE..] {
        let answer = fixture.attempt(&claim, *late).await;
        assert!(answer.is_err(), "{answer:?}");
    }
    assert_free(fixture, &claim).await;
    granted(fixture, &claim).await;
}

/// The record of a lease does not grow with the number of takeovers.
pub(super) async fn a_lease_that_is_taken_over_again_and_again_does_not_grow(fixture: &Fixture) {
    let (claim, redis) = (streaming(&claim()), fixture.redis_behind());
    let first = granted(fixture, &claim).await;
    let mut last = first;
    for _ in 0..100 {
        last = taken_over(fixture, &claim).await;
    }
    let record = format!(
        "lh:1:{{{}}}:l:{}",
        lock_of(&claim).bucket().index(),
        lock_of(&claim)
    );
    let command = ["STRLEN", record.as_str()];
    let length = redis.server.integer(redis.database, &command).await;
    // 32 takeovers of 8 bytes are remembered.
    assert!((100..=400).contains(&length), "{length} bytes");
    fixture.close(&claim, first).await;
    assert_holds(fixture, &claim).await;
    fixture.close(&claim, last).await;
    assert_free(fixture, &claim).await;
}
