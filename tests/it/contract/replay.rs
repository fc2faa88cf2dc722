//! Contract tests of replay: repeating the acquire of a claim that holds changes nothing.

use leasehold::domain::{Acquired, Attempt, Claim, GrantKind, Granted, Lease};

use super::taking_over::{of_every_kind, without_stream};
use crate::support::fixture::{
    Fixture, LONG, SHORT, at_depth, claim, leases_granted, only, owner, rival, ttl,
};

/// Acquires, and fails unless it is a replay.
pub(super) async fn replayed(fixture: &Fixture, claim: &Claim) -> Lease {
    match fixture.acquire(claim).await {
        Acquired::Granted(Granted {
            kind: GrantKind::Replayed,
            leases,
            ..
        }) => only(leases),
        other => panic!("the claim holds at that depth, but: {other:?}"),
    }
}

pub(super) async fn a_replay_returns_the_same_lease(fixture: &Fixture) {
    let claim = Claim {
        owner: owner("pod-7"),
        ..claim()
    };
    let granted = fixture.granted(&claim).await;
    let again = Claim {
        owner: owner("somebody else"),
        ..claim.clone()
    };
    let replayed = replayed(fixture, &again).await;
    assert_eq!(replayed.ttl, granted.ttl);
    assert_eq!(replayed.holder.fence, granted.holder.fence);
    assert_eq!(replayed.holder.owner, claim.owner);
    fixture.assert_same_time(replayed.holder.acquired_at, granted.holder.acquired_at);
    fixture.assert_same_time(replayed.holder.expires_at, granted.holder.expires_at);
}

pub(super) async fn a_replay_does_not_extend_the_lease(fixture: &Fixture) {
    let claim = claim();
    fixture.granted(&claim).await;
    fixture.advance(SHORT).await;
    let longer = Claim {
        ttl: ttl(LONG * 10),
        ..claim.clone()
    };
    let lease = replayed(fixture, &longer).await;
    assert_eq!(lease.ttl, claim.ttl);
    fixture.assert_left(lease.holder.expires_in, LONG - SHORT);
}

pub(super) async fn a_replay_for_less_depth_changes_nothing(fixture: &Fixture) {
    let claim = at_depth(&claim(), 3);
    fixture.granted(&claim).await;
    for depth in [1, 2, 3] {
        let lease = replayed(fixture, &at_depth(&claim, depth)).await;
        assert_eq!(lease.holder.hold_count.get(), 3, "asked for {depth}");
    }
}

pub(super) async fn simultaneous_requests_for_one_claim_make_one_grant(fixture: &Fixture) {
    let claim = claim();
    let requests = (0..20).map(|_| fixture.acquire(&claim));
    let answers = futures_util::future::join_all(requests).await;
    let mut granted = 0;
    let mut fences = Vec::new();
    for answer in answers {
        match answer {
            Acquired::Granted(Granted {
                kind: GrantKind::New,
                leases,
                ..
            }) => {
                granted += 1;
                fences.push(only(leases).holder.fence);
            }
            Acquired::Granted(Granted {
                kind: GrantKind::Replayed,
                leases,
                ..
            }) => fences.push(only(leases).holder.fence),
            other => panic!("the claim holds, but: {other:?}"),
        }
    }
    assert_eq!(granted, 1);
    fences.dedup();
    assert_eq!(fences.len(), 1, "one lease has one fence: {fences:?}");
}

/// The first answer was lost with its connection, and the request repeated: the client has had no answer, so it must not
/// be told of a replay.
pub(super) async fn a_grant_repeated_by_its_own_attempt_is_a_grant(fixture: &Fixture) {
    for claim in of_every_kind(None) {
        for claim in [claim.clone(), without_stream(&claim), at_depth(&claim, 3)] {
            let claim = rival(&claim);
            let attempt = Attempt::random();
            let first = fixture.attempt(&claim, attempt).await;
            let repeated = fixture.attempt(&claim, attempt).await;
            let kinds = [&first, &repeated].map(|it| it.as_ref().ok()?.kind());
            assert_eq!(kinds, [Some(GrantKind::New); 2], "{first:?}, {repeated:?}");
            let fences = |answer: Result<Acquired, _>| {
                let leases = leases_granted(answer.expect("it is a grant"));
                let of_lease = |lease: &Lease| (lease.holder.fence, lease.holder.hold_count);
                leases.iter().map(of_lease).collect::<Vec<_>>()
            };
            assert_eq!(fences(first), fences(repeated));
            // The answer of another attempt has arrived in between.
            let replayed = fixture.acquire(&claim).await;
            assert_eq!(replayed.kind(), Some(GrantKind::Replayed), "{replayed:?}");
            let late = fixture.attempt(&claim, attempt).await;
            assert_eq!(
                late.as_ref().ok().and_then(Acquired::kind),
                Some(GrantKind::Replayed),
                "{late:?}"
            );
            fixture.release_all(&claim).await;
        }
    }
}
