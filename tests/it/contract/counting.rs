//! Contract tests of the count of a principal's leases, which knows nothing of their locks.

use std::time::Duration;

use leasehold::domain::{Attempt, Claim, CountOutcome, CountStep, LeaseQuota, LeasesOf, UndoneBy};

use crate::support::fixture::{
    Fixture, LONG, SHORT, claim, claim_on, claim_on_all, fresh_name, names,
};

/// The quota of a principal of which nothing is counted yet.
fn quota(leases_max: usize) -> LeaseQuota {
    LeaseQuota {
        of: LeasesOf::Principal(fresh_name().as_str().into()),
        leases_max,
    }
}

fn take(lasts: Duration) -> CountStep {
    CountStep::Take {
        by: Attempt::random(),
        lasts,
    }
}

fn keep(undone_by: UndoneBy, lasts: Duration) -> CountStep {
    CountStep::Keep { undone_by, lasts }
}

/// Two requests. Of an attempt, what is counted has only a small number, which two random ones share now and then.
fn two_attempts() -> [Attempt; 2] {
    let first = Attempt::random();
    [first, Attempt(first.0 ^ 1)]
}

/// Fails unless there is room for just this many more leases.
async fn assert_room(fixture: &Fixture, quota: &LeaseQuota, room: usize) {
    let mut probes = Vec::new();
    for number in 0..=room {
        let probe = claim();
        let counted = fixture.count(quota, take(LONG), &probe).await;
        let is_within = counted == CountOutcome::Within;
        assert_eq!(is_within, number < room, "with {number} more");
        probes.push(probe);
    }
    for probe in probes {
        fixture.count(quota, CountStep::End, &probe).await;
    }
}

pub(super) async fn leases_are_counted_up_to_the_quota(fixture: &Fixture) {
    let (quota, first, last) = (quota(3), claim(), claim());
    for claim in [&first, &claim(), &last] {
        assert_eq!(
            fixture.count(&quota, take(LONG), claim).await,
            CountOutcome::Within
        );
    }
    for step in [CountStep::Check, take(LONG)] {
        let CountOutcome::Full { retry_in } = fixture.count(&quota, step, &claim()).await else {
            panic!("there is no room for {step:?}");
        };
        assert!(!retry_in.is_zero() && retry_in <= LONG, "{retry_in:?}");
        // What is counted has its room.
        assert_eq!(
            fixture.count(&quota, step, &first).await,
            CountOutcome::Within
        );
    }
    fixture.count(&quota, CountStep::End, &last).await;
    assert_eq!(
        fixture.count(&quota, CountStep::Check, &last).await,
        CountOutcome::Within
    );
    assert_room(fixture, &quota, 1).await;
}

pub(super) async fn each_principal_has_a_count_of_its_own(fixture: &Fixture) {
    let [one, other] = [quota(1), quota(1)];
    let claim = claim();
    fixture.count(&one, take(LONG), &claim).await;
    assert_room(fixture, &other, 1).await;
    fixture.count(&other, CountStep::End, &claim).await;
    assert_room(fixture, &one, 0).await;
}

pub(super) async fn a_lease_that_ran_out_is_no_longer_counted(fixture: &Fixture) {
    let quota = quota(2);
    let (first, second) = (claim(), claim());
    fixture.count(&quota, take(SHORT), &first).await;
    fixture.count(&quota, take(SHORT), &second).await;
    // Each renewal counts from now.
    fixture
        .count(&quota, keep(UndoneBy::Nobody, LONG), &second)
        .await;
    fixture.outlast(SHORT).await;
    assert_room(fixture, &quota, 1).await;
}

/// Of two renewals in flight, the store may carry out the longer one last, and the count the shorter one.
pub(super) async fn no_step_counts_a_lease_for_a_shorter_time(fixture: &Fixture) {
    let quota = quota(1);
    let claim = claim();
    let step = async |step| fixture.count(&quota, step, &claim).await;
    let by = Attempt::random();
    step(CountStep::Take { by, lasts: LONG }).await;
    for shorter in [
        CountStep::Take { by, lasts: SHORT },
        keep(UndoneBy::AsBefore, SHORT),
        CountStep::Extend { lasts: SHORT },
        keep(UndoneBy::Nobody, SHORT),
    ] {
        step(shorter).await;
    }
    fixture.outlast(SHORT).await;
    assert_room(fixture, &quota, 0).await;
    step(CountStep::End).await;
    assert_room(fixture, &quota, 1).await;
    // What has run out does not count for longer.
    step(take(SHORT)).await;
    fixture.outlast(SHORT).await;
    step(take(SHORT)).await;
    fixture.outlast(SHORT).await;
    assert_room(fixture, &quota, 1).await;
}

pub(super) async fn only_what_is_counted_is_extended(fixture: &Fixture) {
    let quota = quota(2);
    let (counted, other) = (claim(), claim());
    let attempt = Attempt::random();
    let take = CountStep::Take {
        by: attempt,
        lasts: SHORT,
    };
    fixture.count(&quota, take, &counted).await;
    let extend = CountStep::Extend { lasts: LONG };
    for claim in [&counted, &other] {
        let extended = fixture.count(&quota, extend, claim).await;
        assert_eq!(extended, CountOutcome::Within);
    }
    fixture.outlast(SHORT).await;
    assert_room(fixture, &quota, 1).await;
    // The right to undo it is as before.
    let undo = CountStep::Undo(attempt);
    fixture.count(&quota, undo, &counted).await;
    assert_room(fixture, &quota, 2).await;
    // What has run out is not counted.
    fixture.count(&quota, take, &counted).await;
    fixture.outlast(SHORT).await;
    fixture.count(&quota, extend, &counted).await;
    assert_room(fixture, &quota, 2).await;
}

/// One of them may be a renewal that finds no lease, and the other a grant that comes before or after it.
pub(super) async fn what_two_requests_have_counted_none_of_them_undoes(fixture: &Fixture) {
    let quota = quota(1);
    let claim = claim();
    let [first, second] = two_attempts();
    let step = async |step| fixture.count(&quota, step, &claim).await;
    for by in [first, second, first] {
        step(CountStep::Take { by, lasts: LONG }).await;
    }
    for attempt in [first, second] {
        step(CountStep::Undo(attempt)).await;
    }
    assert_room(fixture, &quota, 0).await;
    step(CountStep::End).await;
    for _ in 0..2 {
        let repeated = CountStep::Take {
            by: first,
            lasts: LONG,
        };
        step(repeated).await;
    }
    step(CountStep::Undo(first)).await;
    assert_room(fixture, &quota, 1).await;
}

/// More of them than a store removes at a time.
pub(super) async fn however_many_leases_ran_out_there_is_room(fixture: &Fixture) {
    const LEASES: usize = 640;
    let quota = quota(LEASES);
    let all = || claim_on_all(names(&[(); 64].map(|()| fresh_name())));
    for _ in 0..LEASES / 64 {
        let counted = fixture.count(&quota, take(SHORT), &all()).await;
        assert_eq!(counted, CountOutcome::Within);
    }
    fixture.outlast(SHORT).await;
    for _ in 0..LEASES / 64 {
        let counted = fixture.count(&quota, take(LONG), &all()).await;
        assert_eq!(counted, CountOutcome::Within);
    }
    assert_room(fixture, &quota, 0).await;
}

pub(super) async fn what_a_claim_has_is_counted_without_room_too(fixture: &Fixture) {
    let quota = quota(1);
    for claim in [claim(), claim(), claim()] {
        let kept = fixture.count(&quota, keep(UndoneBy::Nobody, LONG), &claim);
        assert_eq!(kept.await, CountOutcome::Within);
    }
    let third = claim();
    let kept = fixture.count(&quota, keep(UndoneBy::AsBefore, LONG), &third);
    assert_eq!(kept.await, CountOutcome::Within);
    assert_room(fixture, &quota, 0).await;
    let larger = LeaseQuota {
        leases_max: 5,
        ..quota
    };
    assert_room(fixture, &larger, 1).await;
}

pub(super) async fn the_leases_of_several_locks_are_counted_all_or_none(fixture: &Fixture) {
    let quota = quota(4);
    let several = || claim_on_all(names(&[(); 3].map(|()| fresh_name())));
    let first = several();
    assert_eq!(
        fixture.count(&quota, take(LONG), &first).await,
        CountOutcome::Within
    );
    let refused = fixture.count(&quota, take(LONG), &several()).await;
    assert!(matches!(refused, CountOutcome::Full { .. }), "{refused:?}");
    assert_room(fixture, &quota, 1).await;
    let on_one = Claim {
        token: first.token,
        ..claim_on(&first.names[0])
    };
    fixture.count(&quota, CountStep::End, &on_one).await;
    assert_room(fixture, &quota, 2).await;
}

pub(super) async fn only_the_attempt_that_may_roll_back_a_lease_stops_its_count(fixture: &Fixture) {
    let quota = quota(1);
    let [granted, other] = two_attempts();
    let take = CountStep::Take {
        by: granted,
        lasts: LONG,
    };
    let claim = claim();
    let step = async |step| fixture.count(&quota, step, &claim).await;
    step(take).await;
    step(CountStep::Undo(other)).await;
    assert_room(fixture, &quota, 0).await;
    step(keep(UndoneBy::AsBefore, LONG)).await;
    step(CountStep::Undo(granted)).await;
    assert_room(fixture, &quota, 1).await;

    // A stream has taken the lease over, and ends it when it closes.
    step(take).await;
    step(keep(UndoneBy::Attempt(other), LONG)).await;
    step(CountStep::Undo(granted)).await;
    assert_room(fixture, &quota, 0).await;
    step(CountStep::Undo(other)).await;
    assert_room(fixture, &quota, 1).await;

    // The grant was replayed before the attempt that was granted it has counted it.
    step(keep(UndoneBy::Nobody, LONG)).await;
    step(take).await;
    step(CountStep::Undo(granted)).await;
    assert_room(fixture, &quota, 0).await;
    step(CountStep::End).await;
    assert_room(fixture, &quota, 1).await;
}
