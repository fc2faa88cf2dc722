//! Contract tests of polls that are repeated, after their claim was granted and its lease passed on.

use leasehold::domain::{Acquired, Attempt, Claim, Mode, Token};

use super::taking_over::{
    assert_free, assert_holds, of_every_kind, streaming, taken_over, without_stream,
};
use crate::support::fixture::{
    Fixture, Waiter, claim_on_all, fresh_name, leases_granted, names, rival,
};

/// The answer to a poll may be lost, and the poll is repeated. If the lease is no longer this stream's to release, the
/// repeat must not report it as granted: it would end with another stream, or outlive this one.
pub(super) async fn a_repeated_poll_is_granted_only_what_its_stream_releases(fixture: &Fixture) {
    for kind in of_every_kind(None) {
        let (mut taken_from, later) = polled_and_taken_over(fixture, &kind).await;
        assert_eq!(fixture.poll(&mut taken_from).await, Acquired::Superseded);
        fixture.close(&taken_from.claim, taken_from.attempt).await;
        assert_holds(fixture, &taken_from.claim).await;
        fixture.close(&taken_from.claim, later).await;
        assert_free(fixture, &taken_from.claim).await;

        let (mut given_back, undone) = polled_and_taken_over(fixture, &kind).await;
        fixture.withdraw(&given_back.claim, undone).await;
        let answer = fixture.poll(&mut given_back).await;
        assert!(answer.kind().is_some(), "{answer:?}");
        fixture.close(&given_back.claim, given_back.attempt).await;
        assert_free(fixture, &given_back.claim).await;

        let (mut renewed_elsewhere, _) = polled_and_taken_over(fixture, &kind).await;
        fixture.renew(&renewed_elsewhere.claim).await;
        let answer = fixture.poll(&mut renewed_elsewhere).await;
        assert_eq!(answer, Acquired::Superseded);
        let independent = &renewed_elsewhere.claim;
        fixture.close(independent, renewed_elsewhere.attempt).await;
        assert_holds(fixture, independent).await;
        fixture.release_all(independent).await;
    }
}

/// A plain request waits on, too, because a stream of its client would end the lease.
pub(super) async fn a_repeated_poll_of_a_plain_request_leaves_alone_what_a_stream_took_over(
    fixture: &Fixture,
) {
    for kind in of_every_kind(None) {
        let plain = without_stream(&kind);
        let mut waiting = granted_by_poll(fixture, plain).await;
        let stream = streaming(&waiting.claim);
        let later = taken_over(fixture, &stream).await;
        assert_eq!(fixture.poll(&mut waiting).await, Acquired::Superseded);
        fixture.close(&stream, later).await;
        assert_free(fixture, &stream).await;
    }
}

/// The lease of a claim may be taken over on one of its locks alone.
pub(super) async fn a_repeated_poll_is_granted_all_its_locks_or_none(fixture: &Fixture) {
    let several = streaming(&claim_on_all(names(&[fresh_name(), fresh_name()])));
    for index in 0..several.names.len() {
        let claim = Claim {
            token: Token::random(),
            ..several.clone()
        };
        let mut waiting = granted_by_poll(fixture, claim).await;
        let one_of_them = Claim {
            names: names(&[waiting.claim.names[index].clone()]),
            ..waiting.claim.clone()
        };
        let later = taken_over(fixture, &one_of_them).await;
        assert_eq!(fixture.poll(&mut waiting).await, Acquired::Superseded);
        fixture.close(&waiting.claim, waiting.attempt).await;
        assert_holds(fixture, &one_of_them).await;
        fixture.close(&one_of_them, later).await;
        assert_free(fixture, &waiting.claim).await;
    }
}

/// A request that waited in the queues, and that a poll granted.
async fn granted_by_poll(fixture: &Fixture, claim: Claim) -> Waiter {
    let holding = without_stream(&rival(&claim));
    let blocking = Claim {
        mode: Mode::Exclusive,
        ..holding
    };
    leases_granted(fixture.acquire(&blocking).await);
    let mut waiting = Waiter::new(claim);
    fixture.still_waits(&mut waiting).await;
    fixture.release_all(&blocking).await;
    waiting.queue_request.takes_over = false;
    leases_granted(fixture.poll(&mut waiting).await);
    waiting
}

/// The same, and the attempt of another stream of the client that has taken over the lease since.
async fn polled_and_taken_over(fixture: &Fixture, kind: &Claim) -> (Waiter, Attempt) {
    let claim = Claim {
        token: Token::random(),
        ..kind.clone()
    };
    let waiting = granted_by_poll(fixture, claim).await;
    let later = taken_over(fixture, &waiting.claim).await;
    (waiting, later)
}
