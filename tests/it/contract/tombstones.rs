//! Contract tests of tombstones: an ended claim is known for a minute, so that late requests with its token fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use leasehold::domain::{Claim, GrantKind, LockName, Mode, NotHolder};
use leasehold::store::TOMBSTONE_TTL;
use leasehold::store::memory::MemoryStore;

use super::expiry::after_expiry_in;
use crate::support::fixture::{
    Fixture, LONG, READ, SHORT, at_depth, claim, claim_on, ended, for_short, in_mode,
    leases_granted, lock_of, name, owned_by, permits, rival, ttl,
};

const MOMENT: Duration = Duration::from_millis(1);

/// A claim for every kind of ending and every form of lease, all ended just now, and the reason that each reports.
async fn ended_claims(fixture: &Fixture) -> Vec<(Claim, NotHolder)> {
    let reader = || in_mode(&claim(), READ);
    let [expired, expired_reader, lost] = [claim(), reader(), claim()].map(|it| for_short(&it));
    let early = Claim {
        min_hold: Some(SHORT * 2),
        ..claim()
    };
    let early_reader = in_mode(&early, READ);
    let early_reader = Claim {
        names: claim().names,
        ..early_reader
    };
    let deep = owned_by(&at_depth(&claim(), 2), "pod-1");
    let mut ended = Vec::new();
    let released = [claim(), deep, reader(), early, early_reader, claim()];
    let evicted = [claim(), reader()];
    for claim in [&expired, &expired_reader, &lost]
        .into_iter()
        .chain(&released)
        .chain(&evicted)
    {
        fixture.granted(claim).await;
    }
    let waited_for = &released[5];
    let mut waiter = fixture.waiting(&rival(waited_for)).await;
    let leaving = fixture.waiting(&rival(waited_for)).await;
    fixture.advance(SHORT).await;
    // The expiry is recorded by the next request.
    fixture.state(lock_of(&expired_reader)).await;
    fixture.granted(&rival(&lost)).await;
    ended.push((expired, NotHolder::Expired));
    ended.push((expired_reader, NotHolder::Expired));
    ended.push((lost, NotHolder::Lost));
    fixture.release(&leaving.claim).await;
    ended.push((leaving.claim, NotHolder::Released));
    for claim in released {
        fixture.freed(&claim).await;
        ended.push((claim, NotHolder::Released));
    }
    fixture.granted_after_wait(&mut waiter).await;
    ended.push((waiter.claim, NotHolder::Released));
    for claim in evicted {
        fixture.evict(lock_of(&claim), "stuck").await;
        let reason = "stuck".to_owned();
        ended.push((claim, NotHolder::Evicted { reason }));
    }
    ended
}

pub(super) async fn a_released_claim_does_not_hide_another_of_the_same_lock(fixture: &Fixture) {
    let first = claim();
    let claims = [first.clone(), rival(&first), rival(&first)];
    for claim in &claims {
        fixture.granted(claim).await;
        fixture.freed(claim).await;
    }
    for claim in &claims {
        let answer = fixture.acquire(claim).await;
        assert_eq!(answer, ended(claim, NotHolder::Released));
    }
}

pub(super) async fn every_kind_of_ending_is_remembered_for_a_minute_and_no_longer(
    fixture: &Fixture,
) {
    let claims = ended_claims(fixture).await;
    fixture.advance(TOMBSTONE_TTL - MOMENT).await;
    for (claim, reason) in &claims {
        let answer = fixture.acquire(claim).await;
        assert_eq!(answer, ended(claim, reason.clone()));
    }
    fixture.advance(MOMENT).await;
    for (claim, reason) in &claims {
        let answer = fixture.acquire(claim).await;
        // The lease of the lost one's successor has expired by now, too.
        assert_eq!(
            answer.kind(),
            Some(GrantKind::New),
            "{reason:?} is over, but: {answer:?}"
        );
        // Some of them are on the same lock.
        fixture.release(claim).await;
    }
}

/// No request came after it in the meantime; the next grant still reports the expiry.
pub(super) async fn a_lease_that_ran_out_is_known_to_its_successor_for_a_minute(fixture: &Fixture) {
    let [in_time, late] = [claim(), claim()].map(|claim| for_short(&claim));
    fixture.granted(&in_time).await;
    fixture.granted(&late).await;
    fixture.advance(SHORT + TOMBSTONE_TTL - MOMENT).await;
    let after = after_expiry_in(fixture.acquire(&rival(&in_time)).await);
    assert_eq!(after, Some(SHORT));
    let answer = fixture.acquire(&in_time).await;
    assert_eq!(answer, ended(&in_time, NotHolder::Lost));
    fixture.advance(MOMENT).await;
    assert_eq!(after_expiry_in(fixture.acquire(&rival(&late)).await), None);
}

/// An ended claim takes no room after its tombstone has expired.
pub(super) async fn a_table_has_room_again_after_its_tombstones_expire(fixture: &Fixture) {
    let store = MemoryStore::new(10);
    let acquire = async |number: u32| {
        use leasehold::store::LockStore;
        let claim = for_short(&claim_on(&name(&format!("room/{number}"))));
        let deadline = crate::support::fixture::deadline();
        let attempt = leasehold::domain::Attempt::random();
        store
            .acquire(&claim, attempt, None, deadline)
            .await
            .map(drop)
    };
    for number in 0..10 {
        acquire(number).await.expect("there is room");
    }
    acquire(10).await.expect_err("there is no room");
    fixture.advance(SHORT + TOMBSTONE_TTL).await;
    for number in 10..20 {
        acquire(number).await.expect("there is room again");
    }
}

/// A check runs on a thread that also accepts connections, so it must pause.
pub(super) async fn many_simultaneous_ends_are_cleaned_up_while_other_tasks_run(_: &Fixture) {
    let fixture = Fixture::on(Arc::new(MemoryStore::new(10_000)), None);
    for _ in 0..2_000 {
        fixture.granted(&for_short(&claim())).await;
    }
    fixture.advance(SHORT + TOMBSTONE_TTL).await;
    let turns = Arc::new(AtomicUsize::new(0));
    let others = Arc::clone(&turns);
    let others = tokio::spawn(async move {
        loop {
            others.fetch_add(1, SeqCst);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    fixture.store().refresh_health().await;
    let turns = turns.load(SeqCst);
    others.abort();
    assert!(turns > 5, "others got {turns} turns");
}

/// However many claims end within a minute, their tombstones take no more room than the locks may.
pub(super) async fn there_are_no_more_tombstones_than_there_may_be_locks(_: &Fixture) {
    let store = Arc::new(MemoryStore::new(2));
    let fixture = Fixture::on(store, None);
    let claims = [claim(), claim(), claim()];
    for claim in &claims {
        fixture.granted(claim).await;
        fixture.freed(claim).await;
    }
    let [first, others @ ..] = &claims;
    for claim in others {
        let refused = ended(claim, NotHolder::Released);
        assert_eq!(fixture.acquire(claim).await, refused);
    }
    fixture.granted(first).await;
}

/// Checks the remaining TTLs of the tombstones in Redis instead of waiting for a minute. An expired lease has no
/// tombstone until the next request finds it: its record is enough.
pub(super) async fn every_kind_of_ending_is_kept_for_a_minute(fixture: &Fixture) {
    let redis = fixture.redis_behind();
    for (claim, reason) in ended_claims(fixture).await {
        let name = lock_of(&claim);
        let bucket = name.bucket().index();
        let mut key = format!("lh:1:{{{bucket}}}:e:").into_bytes();
        key.extend_from_slice(&claim.token.digest(name).0);
        if reason == NotHolder::Expired && claim.mode == Mode::Exclusive {
            key = format!("lh:1:{{{bucket}}}:l:{name}").into_bytes();
        }
        let kept_ms = redis.server.kept_ms(redis.database, &key).await;
        let kept = Duration::from_millis(u64::try_from(kept_ms).unwrap_or(0));
        println!("{reason:?} {:?}", claim.mode);
        fixture.assert_left(kept, TOMBSTONE_TTL);
    }
}

/// The keys of a lease, with their remaining TTLs.
async fn records(fixture: &Fixture, name: &LockName) -> Vec<(String, Duration)> {
    let redis = fixture.redis_behind();
    let pattern = format!("lh:1:{{{}}}:[lsh]:*", name.bucket().index());
    let mut records = Vec::new();
    for key in redis.server.keys(redis.database, &pattern).await {
        let kept_ms = redis.server.kept_ms(redis.database, &key).await;
        let kept = Duration::from_millis(u64::try_from(kept_ms).expect("it expires"));
        records.push((key.escape_ascii().to_string(), kept));
    }
    records
}

async fn assert_kept(fixture: &Fixture, claim: &Claim, keys: usize, expected: Duration) {
    let records = records(fixture, lock_of(claim)).await;
    assert_eq!(records.len(), keys, "{records:?}");
    for (key, kept) in records {
        println!("{key}");
        fixture.assert_left(kept, expected);
    }
}

/// Its claim must learn that it expired, also when other holders share the lock.
pub(super) async fn a_lease_is_kept_a_minute_longer_than_it_lasts(fixture: &Fixture) {
    let deep = at_depth(&claim(), 2);
    for (claim, keys) in [
        (claim(), 1),
        (deep, 1),
        (in_mode(&claim(), READ), 3),
        (in_mode(&claim(), permits(3, 5)), 3),
    ] {
        fixture.granted(&claim).await;
        assert_kept(fixture, &claim, keys, LONG + TOMBSTONE_TTL).await;
        fixture.renewed(&claim, Some(LONG * 3)).await;
        assert_kept(fixture, &claim, keys, LONG * 3 + TOMBSTONE_TTL).await;
        let waiter = fixture.waiting(&rival(&claim)).await;
        assert_kept(fixture, &claim, keys, LONG * 3 + TOMBSTONE_TTL).await;
        fixture.release(&waiter.claim).await;
        fixture.renewed(&claim, Some(LONG * 5)).await;
        assert_kept(fixture, &claim, keys, LONG * 5 + TOMBSTONE_TTL).await;
        fixture.renew_to(&claim, Some(LONG * 7), Some(READ)).await;
        if keys == 1 {
            assert_kept(fixture, &claim, 3, LONG * 7 + TOMBSTONE_TTL).await;
        }
    }
    let next = claim();
    fixture.granted(&next).await;
    let mut waiter = fixture
        .waiting(&Claim {
            ttl: ttl(LONG * 2),
            ..rival(&next)
        })
        .await;
    let behind = fixture.waiting(&rival(&next)).await;
    fixture.freed(&next).await;
    leases_granted(fixture.poll(&mut waiter).await);
    assert_kept(fixture, &next, 1, LONG * 2 + TOMBSTONE_TTL).await;
    fixture.release(&behind.claim).await;
}

/// While a lock has no holder, its queue and its cool-down must not expire.
pub(super) async fn the_record_of_a_lock_that_opened_is_kept_for_its_waiters(fixture: &Fixture) {
    for mode in [Mode::Exclusive, READ] {
        for is_evicted in [false, true] {
            let holding = in_mode(&claim(), mode);
            fixture.granted(&holding).await;
            fixture.waiting(&rival(&holding)).await;
            if is_evicted {
                fixture.evict(lock_of(&holding), "").await;
            } else {
                fixture.freed(&holding).await;
            }
            let kept = records(fixture, lock_of(&holding)).await;
            let least = kept.iter().map(|(_, kept)| *kept).min();
            let least = least.expect("it is kept");
            assert!(least + LONG / 6 >= TOMBSTONE_TTL, "{kept:?}");
        }
    }
}

pub(super) async fn the_record_of_a_closed_lock_is_kept_until_it_opens(fixture: &Fixture) {
    for mode in [Mode::Exclusive, READ] {
        let early = Claim {
            min_hold: Some(LONG * 4),
            ..in_mode(&claim(), mode)
        };
        fixture.granted(&early).await;
        fixture.freed(&early).await;
        let keys = if mode == READ { 2 } else { 1 };
        assert_kept(fixture, &early, keys, LONG * 4).await;
    }
}
