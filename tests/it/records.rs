//! How Redis stores leases: as packed records, and without options in as few bytes as fit in one allocation.
//!
//! The contract tests check the meaning of a lease; this is about its cost.

use std::time::Duration;

use leasehold::domain::{
    Acquired, Attempt, Claim, GrantKind, Metadata, Mode, Refused, Released, Renewed,
};

use crate::support::fixture::{
    Fixture, FixtureRedis, READ, Waiter, at_depth, claim, claim_on_all, fresh_name, in_mode,
    leases_granted, lock_of, names, only, owned_by, rival,
};
use crate::support::redis_server::RedisServer;

/// The length of a record without options and owner, for which Redis needs one allocation.
const PLAIN_LEN: i64 = 44;

fn key_of(claim: &Claim) -> String {
    let name = lock_of(claim);
    format!("lh:1:{{{}}}:l:{name}", name.bucket().index())
}

/// Whether the record of an exclusive lease has neither options nor an owner.
async fn is_plain(fixture: &Fixture, claim: &Claim) -> bool {
    let redis = fixture.redis_behind();
    // It fails if the lock is a hash.
    let strlen = ["STRLEN", &key_of(claim)];
    redis.server.integer(redis.database, &strlen).await == PLAIN_LEN
}

#[tokio::test]
async fn a_record_without_options_stays_so_when_its_lease_is_inspected_or_wanted() {
    let fixture = Fixture::redis().await;
    let holding = claim();
    fixture.granted(&holding).await;
    assert!(is_plain(&fixture, &holding).await, "when granted");
    fixture.renewed(&holding, None).await;
    assert!(is_plain(&fixture, &holding).await, "when renewed");
    let again = fixture.acquire(&holding).await;
    assert_eq!(again.kind(), Some(GrantKind::Replayed), "{again:?}");
    assert!(is_plain(&fixture, &holding).await, "when repeated");

    fixture.holder(lock_of(&holding)).await;
    let other = rival(&holding);
    let refused = fixture.acquire(&other).await;
    assert!(
        matches!(refused, Acquired::Refused(Refused::Blocked(_))),
        "{refused:?}"
    );
    let released = fixture.release(&other).await;
    assert!(matches!(released, Released::NotHolder(_)), "{released:?}");
    let renewed = fixture.renew(&other).await;
    assert!(matches!(renewed, Renewed::NotHolder(_)), "{renewed:?}");
    let several = claim_on_all(names(&[lock_of(&holding).clone(), fresh_name()]));
    let refused = fixture.acquire(&several).await;
    assert!(
        matches!(refused, Acquired::Refused(Refused::Blocked(_))),
        "{refused:?}"
    );
    assert!(is_plain(&fixture, &holding).await, "when others came");

    fixture.waiting(&rival(&holding)).await;
    assert!(!is_plain(&fixture, &holding).await, "when somebody waits");
    fixture.renewed(&holding, None).await;
    fixture.freed(&holding).await;
}

/// The time of the grant is an option of the record, because a counter may be ahead of the clock.
#[tokio::test]
async fn a_fence_that_is_not_the_time_of_its_grant_is_stored_beside_it() {
    const AHEAD: u64 = 8_000_000_000_000_000;
    for is_ahead in [false, true] {
        for waits in [false, true] {
            let fixture = Fixture::redis().await;
            let redis = fixture.redis_behind();
            let first = claim();
            fixture.granted(&first).await;
            let mut next = Waiter::new(rival(&first));
            if waits {
                fixture.still_waits(&mut next).await;
                // Its end is known, so this poll takes the fast path of a waiter.
                fixture.still_waits(&mut next).await;
            }
            fixture.freed(&first).await;
            if is_ahead {
                let counter = format!("lh:1:{{{}}}:f", lock_of(&first).bucket().index());
                let set = ["SET", &counter, &AHEAD.to_string()];
                redis.server.command_in(redis.database, &set).await;
            }
            let granted = fixture.poll(&mut next).await;
            let granted = only(leases_granted(granted)).holder;
            let fence = granted.fence.get();
            assert_eq!(is_plain(&fixture, &next.claim).await, !is_ahead);
            assert_eq!(fence == AHEAD + 1, is_ahead, "{fence}");
            let is_time = fence / 1_000 == granted.acquired_at.unix_ms();
            assert_eq!(is_time, !is_ahead, "{fence}");
            // Nothing that is done to the lease later changes either.
            fixture.renewed(&next.claim, None).await;
            let deeper = at_depth(&next.claim, 2);
            fixture.acquire(&deeper).await;
            let holder = fixture.holder(lock_of(&first)).await;
            assert_eq!(holder.fence, granted.fence);
            assert_eq!(holder.acquired_at, granted.acquired_at);
        }
    }
}

/// The names of the fields of a lock, or of the options of a record.
const FIELDS: &str = "local key, names = KEYS[1], {}
    if redis.call('TYPE', key).ok == 'hash' then return redis.call('HKEYS', key) end
    local record = redis.call('GET', key)
    if string.sub(record, 9, 9) == '1' then return names end
    local _, options = cmsgpack.unpack(string.sub(record, 32, -14))
    for name in pairs(options) do names[#names + 1] = name end
    return names";

/// What the only key that matches the pattern has, of a lock or of one of several holders.
async fn fields(fixture: &Fixture, pattern: &str) -> Vec<String> {
    let redis = fixture.redis_behind();
    let key = only(redis.server.keys(redis.database, pattern).await);
    let command = [b"EVAL", FIELDS.as_bytes(), b"1", &key[..]];
    let fields = redis.server.command_in(redis.database, &command).await;
    let mut fields: Vec<String> = redis::from_redis_value(fields).expect("names");
    fields.sort_unstable();
    fields
}

/// Whatever is asked of it, before it is granted or after. Only a free lock is a hash.
#[tokio::test]
async fn an_exclusive_lease_is_a_record_with_what_it_was_given() {
    let fixture = Fixture::redis().await;
    let second = Some(Duration::from_secs(1));
    let metadata = Metadata::from_json_object(r#"{"build":7}"#).expect("an object");
    let holding = Claim {
        metadata: Some(metadata),
        max_hold: Some(Duration::from_secs(600)),
        lock_delay: second,
        takes_over: true,
        ..owned_by(&at_depth(&claim(), 2), "pod-1")
    };
    fixture.granted(&holding).await;
    let granted = [
        "ceiling_ms",
        "hold_count",
        "is_of_stream",
        "lock_delay_ms",
        "metadata",
        "turns",
    ];
    assert_eq!(fields(&fixture, "lh:1:*:l:*").await, granted);
    fixture.waiting(&rival(&holding)).await;
    fixture.renew(&holding).await;
    fixture.acquire(&at_depth(&holding, 3)).await;
    let mut with_queue = granted.to_vec();
    with_queue.extend(["last", "reentered"]);
    with_queue.sort_unstable();
    assert_eq!(fields(&fixture, "lh:1:*:l:*").await, with_queue);
    let holder = fixture.holder(lock_of(&holding)).await;
    assert_eq!(holder.metadata, holding.metadata);
    assert_eq!(holder.owner, holding.owner);
    assert_eq!(holder.hold_count.get(), 3);
    fixture.freed(&holding).await;
    assert_eq!(fields(&fixture, "lh:1:*:l:*").await, ["g", "p", "v", "w"]);

    let closing = Claim {
        min_hold: second,
        ..claim()
    };
    fixture.granted(&closing).await;
    fixture.renewed(&closing, None).await;
    let key = key_of(&closing);
    assert_eq!(fields(&fixture, &key).await, ["min_hold_ms"]);
}

/// No trace of the exclusive lease, or of a queue, is left.
#[tokio::test]
async fn a_lease_that_stepped_down_is_kept_as_one_that_always_was_shared() {
    let fixture = Fixture::redis().await;
    let alone = owned_by(&at_depth(&claim(), 2), "pod-1");
    fixture.granted(&in_mode(&alone, READ)).await;
    // After a renewal, no attempt may roll it back.
    fixture.renew(&in_mode(&alone, READ)).await;
    let expected = [
        fields(&fixture, "lh:1:*:h:*").await,
        fields(&fixture, "lh:1:*:l:*").await,
    ];
    fixture.freed(&in_mode(&alone, READ)).await;

    for is_waited_for in [false, true] {
        let stepping = Claim {
            names: claim().names,
            ..alone.clone()
        };
        fixture.granted(&stepping).await;
        let mut waiter = Waiter::new(in_mode(&rival(&stepping), READ));
        if is_waited_for {
            fixture.still_waits(&mut waiter).await;
        }
        fixture.renew_in_mode(&stepping, READ).await;
        assert_eq!(fields(&fixture, "lh:1:*:h:*").await, expected[0]);
        if is_waited_for {
            fixture.granted_after_wait(&mut waiter).await;
        }
        assert_eq!(fields(&fixture, "lh:1:*:l:*").await, expected[1]);
        fixture.freed(&stepping).await;
    }
}

/// Nothing of the queue is left when no claim waits, however the last waiter is granted.
#[tokio::test]
async fn a_lease_of_the_last_waiter_is_stored_like_one_without_a_queue() {
    let fixture = Fixture::redis().await;
    for mode in [Mode::Exclusive, READ] {
        let of_lock = async |claim: &Claim| {
            let lock = fields(&fixture, "lh:1:*:l:*").await;
            fixture.freed(claim).await;
            lock
        };
        let plain = at_depth(&in_mode(&claim(), mode), 2);
        fixture.granted(&plain).await;
        let expected = of_lock(&plain).await;
        for ends in [true, false] {
            let holding = claim();
            fixture.granted(&holding).await;
            let mut waiter = fixture
                .waiting(&at_depth(&in_mode(&rival(&holding), mode), 2))
                .await;
            if ends {
                fixture.freed(&holding).await;
            } else {
                fixture.evict(lock_of(&holding), "").await;
            }
            leases_granted(fixture.poll(&mut waiter).await);
            assert_eq!(of_lock(&waiter.claim).await, expected);
        }
    }
}

/// The kinds of the stored keys of locks and claims, without queues.
async fn kinds(fixture: &Fixture) -> String {
    let redis = fixture.redis_behind();
    let keys = redis.server.keys(redis.database, "lh:1:*:[lshet]:*").await;
    let kind = |key: &Vec<u8>| {
        let text = String::from_utf8_lossy(key).into_owned();
        text.split(':').nth(3).map(str::to_owned)
    };
    let mut kinds: Vec<_> = keys.iter().filter_map(kind).collect();
    kinds.sort_unstable();
    kinds.concat()
}

/// By kind: `l` lock, `s` holders, `h` record of one of them, `e` tombstone, `t` ticket.
#[tokio::test]
async fn no_obsolete_keys_are_kept() {
    let fixture = Fixture::redis().await;
    let holding = at_depth(&claim(), 2);
    fixture.granted(&holding).await;
    let [mut waiter, leaving] = [(); 2].map(|()| Waiter::new(rival(&holding)));
    fixture.still_waits(&mut waiter).await;
    let lock = fields(&fixture, "lh:1:*:l:*").await;
    let mut leaving = leaving;
    fixture.still_waits(&mut leaving).await;
    assert_eq!(kinds(&fixture).await, "ltt");
    fixture.release(&leaving.claim).await;
    assert_eq!(kinds(&fixture).await, "elt", "left the queue");
    assert_eq!(fields(&fixture, "lh:1:*:l:*").await, lock);
    fixture.freed(&holding).await;
    leases_granted(fixture.poll(&mut waiter).await);
    assert_eq!(kinds(&fixture).await, "eel", "the waiter holds");
    fixture.freed(&waiter.claim).await;
    assert_eq!(kinds(&fixture).await, "eee", "nobody holds");

    let fixture = Fixture::redis().await;
    let (reader, attempt) = (in_mode(&claim(), READ), Attempt::random());
    let mut waiter = Waiter::new(in_mode(&rival(&reader), READ));
    let writer = fixture.acquire(&rival(&reader)).await;
    let writer_holds = writer.kind() == Some(GrantKind::New);
    assert!(writer_holds, "{writer:?}");
    fixture.still_waits(&mut waiter).await;
    fixture.evict(lock_of(&reader), "").await;
    leases_granted(fixture.poll(&mut waiter).await);
    assert_eq!(kinds(&fixture).await, "ehls", "the reader holds");
    let answer = fixture.attempt(&reader, attempt).await;
    leases_granted(answer.expect("the store answers"));
    assert_eq!(kinds(&fixture).await, "ehhls");
    fixture.withdraw(&reader, attempt).await;
    assert_eq!(kinds(&fixture).await, "eehls", "withdrawn");
    fixture.freed(&waiter.claim).await;
    assert_eq!(kinds(&fixture).await, "eee", "nobody holds");
}

/// When the last waiter leaves, the record of the holder is the same as before.
#[tokio::test]
async fn a_holder_without_waiters_is_stored_as_before_the_queue() {
    let fixture = Fixture::redis().await;
    let holding = at_depth(&claim(), 2);
    fixture.granted(&holding).await;
    let before = fields(&fixture, "lh:1:*:l:*").await;
    let waiter = fixture.waiting(&rival(&holding)).await;
    fixture.release(&waiter.claim).await;
    assert_eq!(fields(&fixture, "lh:1:*:l:*").await, before);
}

#[tokio::test]
async fn a_free_lock_that_is_waited_for_beside_another_expires() {
    let fixture = Fixture::redis().await;
    let holding = claim();
    fixture.granted(&holding).await;
    let locks = names(&[lock_of(&holding).clone(), fresh_name()]);
    fixture.waiting(&claim_on_all(locks)).await;
    assert_all_but_counters_expire(fixture.redis_behind()).await;
}

async fn assert_all_but_counters_expire(redis: FixtureRedis) {
    for key in redis.server.keys(redis.database, "lh:1:*").await {
        let kept_ms = redis.server.kept_ms(redis.database, &key).await;
        let stays = key.ends_with(b":f") || key == b"lh:1:{0}:node";
        assert_eq!(kept_ms < 0, stays, "{}", key.escape_ascii());
    }
}

#[tokio::test]
async fn a_queue_leaves_nothing_but_what_expires_and_in_the_end_a_lease_without_options() {
    let fixture = Fixture::redis().await;
    let redis = fixture.redis_behind();
    let holding = claim();
    fixture.granted(&holding).await;
    let mut waiters = [(); 3].map(|()| Waiter::new(rival(&holding)));
    for waiter in &mut waiters {
        fixture.still_waits(waiter).await;
    }
    fixture.freed(&holding).await;
    assert_all_but_counters_expire(redis).await;
    for (number, waiter) in waiters.iter_mut().enumerate() {
        leases_granted(fixture.poll(waiter).await);
        assert_all_but_counters_expire(redis).await;
        let tickets = redis.server.keys(redis.database, "lh:1:*:t:*").await;
        assert_eq!(tickets.len(), 2 - number, "of those who wait");
        let is_last = number == 2;
        assert_eq!(is_plain(&fixture, &holding).await, is_last);
        if !is_last {
            fixture.freed(&waiter.claim).await;
        }
    }
    for kind in ["q", "w"] {
        let pattern = format!("lh:1:*:{kind}:*");
        let left = redis.server.keys(redis.database, &pattern).await;
        assert!(left.is_empty(), "{left:?}");
    }
}

/// The memory of a key with a UUID and an expiry, which is the minimum for a lock in Redis.
async fn bare_lock_bytes(server: &RedisServer, database: u16, name: &str) -> i64 {
    let uuid = "6f1c3b0e-8f0a-4f57-9c55-0d5d3f1f4a1b";
    let set = ["SET", name, uuid, "PX", "60000"];
    server.command_in(database, &set).await;
    server.integer(database, &["MEMORY", "USAGE", name]).await
}

#[tokio::test]
async fn a_held_lock_takes_hardly_more_memory_than_a_bare_key_and_an_ended_claim_less() {
    let fixture = Fixture::redis().await;
    let redis = fixture.redis_behind();
    let holding = claim();
    fixture.granted(&holding).await;
    let name = lock_of(&holding).to_string();
    let bare = bare_lock_bytes(redis.server, redis.database, &name).await;
    let key = key_of(&holding);
    let usage = ["MEMORY", "USAGE", &key];
    let held = redis.server.integer(redis.database, &usage).await;
    assert!(
        held * 10 <= bare * 13,
        "{held} bytes, and a bare key {bare}"
    );

    fixture.freed(&holding).await;
    let marks = redis.server.keys(redis.database, "lh:1:{*}:e:*").await;
    assert_eq!(marks.len(), 1);
    let usage = [&b"MEMORY"[..], b"USAGE", &marks[0]];
    let ended = redis.server.integer(redis.database, &usage).await;
    assert!(ended <= bare, "{ended} bytes, and a bare key {bare}");
}
