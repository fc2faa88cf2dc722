//! Contract tests of attempts that received the lease of a stream, and whose clients received nothing: undone, each leaves
//! the lease as it was before.

use leasehold::domain::{Claim, GrantKind};

use super::taking_over::{
    assert_cooling, assert_free, assert_holds, granted, of_every_kind, taken_over, without_stream,
};
use crate::support::fixture::{Fixture, LONG};

async fn assert_an_undone_takeover_gives_the_lease_back(first: &Fixture, second: &Fixture) {
    for claim in of_every_kind(None) {
        let granted_to = granted(first, &claim).await;
        let successor = taken_over(second, &claim).await;
        // Its answer was lost. The repeat gets a replay of the takeover, not a grant.
        let again = second.attempt(&claim, successor).await;
        assert!(
            matches!(&again, Ok(granted) if granted.kind() == Some(GrantKind::Replayed)),
            "{again:?}"
        );
        second.withdraw(&claim, successor).await;
        assert_holds(first, &claim).await;
        // The answer to the first rollback may have been lost.
        second.withdraw(&claim, successor).await;
        assert_holds(first, &claim).await;
        first.close(&claim, granted_to).await;
        assert_free(first, &claim).await;
    }
}

pub(super) async fn a_takeover_that_is_undone_gives_the_lease_back(fixture: &Fixture) {
    assert_an_undone_takeover_gives_the_lease_back(fixture, fixture).await;
}

pub(super) async fn a_takeover_that_is_undone_gives_the_lease_back_to_another_process(
    fixture: &Fixture,
) {
    assert_an_undone_takeover_gives_the_lease_back(fixture, &fixture.another_process().await).await;
}

/// The former stream closed while it had no right to release the lease.
pub(super) async fn a_takeover_that_is_undone_ends_the_lease_of_a_closed_stream(fixture: &Fixture) {
    for claim in of_every_kind(Some(LONG)) {
        let first = granted(fixture, &claim).await;
        let second = taken_over(fixture, &claim).await;
        fixture.close(&claim, first).await;
        let third = taken_over(fixture, &claim).await;
        fixture.withdraw(&claim, second).await;
        assert_holds(fixture, &claim).await;
        fixture.withdraw(&claim, third).await;
        assert_cooling(fixture, &claim).await;
    }
}

pub(super) async fn a_grant_and_a_takeover_that_are_both_undone_leave_no_lease(fixture: &Fixture) {
    for claim in of_every_kind(None) {
        for undoes_grant_first in [true, false] {
            let first = granted(fixture, &claim).await;
            let second = taken_over(fixture, &claim).await;
            let mut undone = [first, second];
            if !undoes_grant_first {
                undone.reverse();
            }
            fixture.withdraw(&claim, undone[0]).await;
            assert_holds(fixture, &claim).await;
            fixture.withdraw(&claim, undone[1]).await;
            assert_free(fixture, &claim).await;
        }
    }
}

pub(super) async fn a_takeover_that_is_undone_leaves_a_lease_independent(fixture: &Fixture) {
    for claim in of_every_kind(None) {
        let plain = without_stream(&claim);
        let first = granted(fixture, &claim).await;
        fixture.renew(&claim).await;
        let second = taken_over(fixture, &claim).await;
        fixture.withdraw(&claim, second).await;
        fixture.close(&claim, first).await;
        assert_holds(fixture, &claim).await;
        fixture.acquire(&plain).await;
        let third = taken_over(fixture, &claim).await;
        fixture.withdraw(&claim, third).await;
        assert_holds(fixture, &claim).await;
        fixture.release_all(&claim).await;
        assert_free(fixture, &claim).await;
    }
}

pub(super) async fn a_plain_request_that_is_undone_leaves_the_lease_to_its_stream(
    fixture: &Fixture,
) {
    for claim in of_every_kind(None) {
        let plain = without_stream(&claim);
        let stream = granted(fixture, &claim).await;
        let undelivered = taken_over(fixture, &plain).await;
        fixture.withdraw(&plain, undelivered).await;
        assert_holds(fixture, &claim).await;
        fixture.close(&claim, stream).await;
        assert_free(fixture, &claim).await;
    }
}

/// It was answered that the lease lasts, whatever is undone before it.
pub(super) async fn a_renewal_keeps_the_lease_though_the_takeovers_before_it_are_undone(
    fixture: &Fixture,
) {
    for claim in of_every_kind(None) {
        let first = granted(fixture, &claim).await;
        let second = taken_over(fixture, &claim).await;
        let third = taken_over(fixture, &claim).await;
        fixture.close(&claim, first).await;
        fixture.renew(&claim).await;
        fixture.withdraw(&claim, third).await;
        fixture.withdraw(&claim, second).await;
        assert_holds(fixture, &claim).await;
        fixture.release_all(&claim).await;
        assert_free(fixture, &claim).await;
    }
}

pub(super) async fn plain_requests_that_are_all_undone_leave_no_lease(fixture: &Fixture) {
    for claim in of_every_kind(None) {
        let plain = without_stream(&claim);
        for undoes_grant_first in [true, false] {
            let mut attempts = vec![granted(fixture, &plain).await];
            for _ in 0..2 {
                attempts.push(taken_over(fixture, &plain).await);
            }
            if !undoes_grant_first {
                attempts.reverse();
            }
            for attempt in attempts {
                assert_holds(fixture, &plain).await;
                fixture.withdraw(&plain, attempt).await;
            }
            assert_free(fixture, &plain).await;
        }
    }
}

pub(super) async fn a_grant_that_is_undone_closes_nothing(fixture: &Fixture) {
    for claim in of_every_kind(Some(LONG)) {
        let attempt = granted(fixture, &claim).await;
        fixture.withdraw(&claim, attempt).await;
        assert_free(fixture, &claim).await;
    }
}

/// Nobody has used it, although two attempts were granted it.
pub(super) async fn a_grant_and_a_replay_that_are_both_undone_close_nothing(fixture: &Fixture) {
    for claim in of_every_kind(Some(LONG)) {
        for takes_over in [true, false] {
            let claim = Claim {
                takes_over,
                ..claim.clone()
            };
            for undoes_grant_first in [true, false] {
                let mut undone = [
                    granted(fixture, &claim).await,
                    taken_over(fixture, &claim).await,
                ];
                if !undoes_grant_first {
                    undone.reverse();
                }
                for attempt in undone {
                    fixture.withdraw(&claim, attempt).await;
                }
                assert_free(fixture, &claim).await;
            }
        }
    }
}

/// A stream that is closed before a replay is undone has used the lease.
pub(super) async fn a_replay_that_is_undone_after_a_stream_was_closed_closes_the_lock(
    fixture: &Fixture,
) {
    for claim in of_every_kind(Some(LONG)) {
        let undelivered = granted(fixture, &claim).await;
        let stream = taken_over(fixture, &claim).await;
        let last = taken_over(fixture, &claim).await;
        fixture.withdraw(&claim, undelivered).await;
        fixture.close(&claim, stream).await;
        fixture.withdraw(&claim, last).await;
        assert_cooling(fixture, &claim).await;
    }
}
