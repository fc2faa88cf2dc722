//! Contract tests of acquiring: which claims are granted, and what the others are answered.

use std::time::Duration;

use leasehold::domain::{Claim, GrantKind, LockState, Mode};

use crate::support::fixture::{
    Fixture, LONG, assert_held, claim, claim_on, fresh_name, holders_in_the_way, is_held, lock_of,
    metadata, name, only, owner, rival,
};

pub(super) async fn a_free_lock_is_granted_as_it_was_claimed(fixture: &Fixture) {
    let claim = Claim {
        owner: owner("pod-7"),
        metadata: metadata(r#"{"job":"backup"}"#),
        ..claim()
    };
    let lease = fixture.granted(&claim).await;
    assert_eq!(lease.ttl, claim.ttl);
    let holder = lease.holder;
    assert_eq!(holder.owner, claim.owner);
    assert_eq!(holder.metadata, claim.metadata);
    assert_eq!(holder.mode, Mode::Exclusive);
    assert_eq!(holder.hold_count, claim.hold_count);
    fixture.assert_left(holder.expires_in, LONG);
    let lasts_ms = holder.expires_at.unix_ms() - holder.acquired_at.unix_ms();
    // Both times are rounded to milliseconds.
    let difference = Duration::from_millis(lasts_ms).abs_diff(LONG);
    assert!(difference <= Duration::from_millis(1), "{lasts_ms} ms");
}

pub(super) async fn a_held_lock_is_refused_and_the_holder_is_named(fixture: &Fixture) {
    let holding = Claim {
        owner: owner("pod-7"),
        ..claim()
    };
    let lease = fixture.granted(&holding).await;
    let holders = holders_in_the_way(fixture.acquire(&rival(&holding)).await);
    assert_eq!(holders.total, 1);
    let holder = only(holders.listed);
    assert_eq!(holder.owner, holding.owner);
    assert_eq!(holder.mode, Mode::Exclusive);
    assert_eq!(holder.fence, lease.holder.fence);
    fixture.assert_left(holder.expires_in, LONG);
}

pub(super) async fn a_refused_claim_may_be_granted_later(fixture: &Fixture) {
    let holding = claim();
    let refused = rival(&holding);
    fixture.granted(&holding).await;
    let answer = fixture.acquire(&refused).await;
    assert_held(&answer);
    fixture.freed(&holding).await;
    fixture.granted(&refused).await;
}

pub(super) async fn locks_with_different_names_are_independent(fixture: &Fixture) {
    let base = fresh_name();
    for suffix in ["", "/a", "/a/b", "x", ":l"] {
        fixture
            .granted(&claim_on(&name(&format!("{base}{suffix}"))))
            .await;
    }
}

pub(super) async fn names_of_every_shape_are_locks_of_their_own(fixture: &Fixture) {
    let longest = "n".repeat(255);
    for text in ["a", "A", "A-z.0_9~:@+,=-/x", "0", &longest] {
        let holding = claim_on(&name(text));
        fixture.granted(&holding).await;
        let answer = fixture.acquire(&rival(&holding)).await;
        assert!(is_held(&answer), "{text}: {answer:?}");
        fixture.freed(&holding).await;
        assert_eq!(
            fixture.state(lock_of(&holding)).await,
            LockState::Free,
            "{text}"
        );
    }
}

pub(super) async fn the_same_token_on_another_lock_is_another_claim(fixture: &Fixture) {
    let first = claim();
    let second = Claim {
        names: fresh_name().into(),
        ..first.clone()
    };
    fixture.granted(&first).await;
    fixture.granted(&second).await;
    fixture.freed(&first).await;
    fixture.renewed(&second, None).await;
    // The end of the first claim does not end the second.
    fixture.freed(&second).await;
}

pub(super) async fn of_many_simultaneous_claims_one_is_granted(fixture: &Fixture) {
    let name = fresh_name();
    let claims: Vec<_> = (0..50).map(|_| claim_on(&name)).collect();
    let answers =
        futures_util::future::join_all(claims.iter().map(|claim| fixture.acquire(claim))).await;
    let granted = answers
        .iter()
        .filter(|answer| answer.kind() == Some(GrantKind::New))
        .count();
    let held = answers.iter().filter(|answer| is_held(answer)).count();
    assert_eq!((granted, held), (1, 49));
}

pub(super) async fn an_owner_text_is_returned_unchanged(fixture: &Fixture) {
    for (text, json) in [
        ("", "{}"),
        (
            "D\u{fc}sseldorf \u{1f512} \"quoted\" \\ 'x'",
            r#"{ "a" : [1, 2.50], "b":"\u0000" }"#,
        ),
        (
            &"o".repeat(256),
            &format!(r#"{{"k":"{}"}}"#, "v".repeat(4_000)),
        ),
        ("1e5", r#"{"n":9007199254740993}"#),
    ] {
        let claim = Claim {
            owner: owner(text),
            metadata: metadata(json),
            ..claim()
        };
        fixture.granted(&claim).await;
        let holder = fixture.holder(lock_of(&claim)).await;
        assert_eq!(holder.owner, claim.owner);
        assert_eq!(holder.metadata, claim.metadata);
    }
}
