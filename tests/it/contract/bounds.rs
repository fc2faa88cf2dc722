//! Contract tests of bounds: an answer has a limited number of holders and a limited amount of their text.

use leasehold::domain::{AnswerRoom, Claim, ConflictKind, Holder, Holders, LockState, PageRoom};

use super::several::{blocked_by, claim_on_fresh};
use crate::support::fixture::{
    Fixture, LONG, READ, Waiter, claim, claim_on, holders_in_the_way, in_mode, lock_of, metadata,
    name, reader, rival,
};

/// Metadata of 4,000 bytes, close to the maximum.
const METADATA_BYTES: usize = 4_000;

fn wordy(claim: Claim) -> Claim {
    let text = "x".repeat(METADATA_BYTES - r#"{"m":""}"#.len());
    Claim {
        metadata: metadata(&format!(r#"{{"m":"{text}"}}"#)),
        ..claim
    }
}

fn bytes(holders: &[Holder]) -> usize {
    holders.iter().map(Holder::text_bytes).sum()
}

fn held_by(blocker: ConflictKind) -> Holders {
    match blocker {
        ConflictKind::Holders(holders) => holders,
        other => panic!("others hold the lock, but: {other:?}"),
    }
}

pub(super) async fn an_answer_about_many_locks_lists_few_holders_of_each(fixture: &Fixture) {
    const READERS: u64 = 5;
    let (alone, locks) = claim_on_fresh::<64>();
    for _ in 0..READERS {
        fixture.all_granted(&reader(&alone)).await;
    }
    let refused = blocked_by(fixture.acquire(&alone).await);
    let mut waiter = Waiter::new(rival(&alone));
    fixture.poll(&mut waiter).await;
    let suspended = fixture.suspend(&waiter.claim, LONG).await;
    let suspended = suspended.blocked_by.into_iter();
    let suspended: Vec<_> = suspended
        .map(|conflict| (conflict.name, conflict.by))
        .collect();
    for answer in [refused, suspended] {
        assert_eq!(answer.len(), locks.len());
        for (name, by) in answer {
            let holders = held_by(by);
            assert_eq!(holders.total, READERS, "{name}");
            assert_eq!(holders.listed.len(), AnswerRoom::HOLDERS_MAX / locks.len());
        }
    }
}

pub(super) async fn an_answer_has_limited_room_for_metadata(fixture: &Fixture) {
    const READERS: u64 = 40;
    let first = in_mode(&wordy(claim()), READ);
    fixture.granted(&first).await;
    for _ in 1..READERS {
        fixture.granted(&wordy(reader(&first))).await;
    }
    let LockState::Held(seen) = fixture.state(lock_of(&first)).await else {
        panic!("many hold it");
    };
    let alone = claim_on(lock_of(&first));
    let refused = holders_in_the_way(fixture.acquire(&alone).await);
    let evicted = fixture.evict_many(lock_of(&first), "").await;
    for holders in [seen, refused, evicted] {
        assert_eq!(holders.total, READERS);
        let fit = AnswerRoom::BYTES_MAX / METADATA_BYTES;
        assert_eq!(holders.listed.len(), fit, "as many as there is room for");
        assert_eq!(bytes(&holders.listed), fit * METADATA_BYTES);
    }
}

pub(super) async fn an_answer_about_many_locks_has_no_more_room_for_metadata(fixture: &Fixture) {
    let (alone, locks) = claim_on_fresh::<40>();
    fixture.all_granted(&wordy(rival(&alone))).await;
    let refused = blocked_by(fixture.acquire(&alone).await);
    assert_eq!(refused.len(), locks.len());
    let fit = AnswerRoom::BYTES_MAX / METADATA_BYTES;
    for (number, (name, by)) in refused.into_iter().enumerate() {
        let holders = held_by(by);
        assert_eq!(holders.total, 1, "{name} is held all the same");
        assert_eq!(holders.listed.len(), usize::from(number < fit), "{name}");
    }
}

pub(super) async fn a_page_ends_where_it_has_no_more_room(fixture: &Fixture) {
    const LOCKS: usize = 100;
    let names: Vec<_> = (0..LOCKS)
        .map(|number| format!("page/{number:03}"))
        .collect();
    for text in &names {
        fixture.granted(&wordy(claim_on(&name(text)))).await;
    }
    let first = fixture.page("page/", None, LOCKS).await;
    let fit = PageRoom::BYTES_MAX / METADATA_BYTES;
    assert_eq!(first.locks.len(), fit);
    assert_eq!(
        first.next_after.as_ref(),
        first.locks.last().map(|last| &last.name)
    );
    assert_eq!(
        fixture.names("page/", LOCKS).await,
        names,
        "the rest follows"
    );
}
