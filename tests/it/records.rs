//! How Redis keeps a plain lease: in the compact form for as long as nothing in it changes but its end.
//!
//! What a lease means is law (`contract`); this is about what it costs.

use leasehold::domain::{Acquired, Attempt, Claim, Mode, Released, Renewed};

use crate::support::bench::{
    Bench, READ, RedisBench, Waiter, at_depth, claim, claim_on_all, fresh_name, in_mode,
    leases_granted, lock_of, names, only, owned_by, rival,
};
use crate::support::redis_server::RedisServer;

/// The length that a compact record has without an owner; a hash has none.
const COMPACT_LEN: i64 = 43;

fn key_of(claim: &Claim) -> String {
    let name = lock_of(claim);
    format!("lh:1:{{{}}}:l:{name}", name.bucket().index())
}

async fn is_compact(bench: &Bench, claim: &Claim) -> bool {
    let redis = bench.redis_behind();
    let key = key_of(claim);
    let of_strings = [
        "SCAN", "0", "MATCH", &key, "COUNT", "100000", "TYPE", "string",
    ];
    let found = redis.server.command_in(redis.database, &of_strings).await;
    let (_, found): (u64, Vec<String>) = redis::from_redis_value(found).expect("SCAN answers keys");
    if found.is_empty() {
        return false;
    }
    let len = redis
        .server
        .integer(redis.database, &["STRLEN", &key])
        .await;
    assert_eq!(len, COMPACT_LEN);
    true
}

#[tokio::test]
async fn a_plain_lease_stays_compact_whoever_looks_at_it_or_wants_it() {
    let bench = Bench::redis().await;
    let holding = claim();
    bench.granted(&holding).await;
    assert!(is_compact(&bench, &holding).await, "when granted");
    bench.renewed(&holding, None).await;
    assert!(is_compact(&bench, &holding).await, "when renewed");
    let again = bench.acquire(&holding).await;
    assert!(matches!(again, Acquired::Replayed(_)), "{again:?}");
    assert!(is_compact(&bench, &holding).await, "when repeated");

    bench.holder(lock_of(&holding)).await;
    let other = rival(&holding);
    let refused = bench.acquire(&other).await;
    assert!(matches!(refused, Acquired::Blocked(_)), "{refused:?}");
    let released = bench.release(&other).await;
    assert!(matches!(released, Released::NotHolder(_)), "{released:?}");
    let renewed = bench.renew(&other).await;
    assert!(matches!(renewed, Renewed::NotHolder(_)), "{renewed:?}");
    let several = claim_on_all(names(&[lock_of(&holding).clone(), fresh_name()]));
    let refused = bench.acquire(&several).await;
    assert!(matches!(refused, Acquired::Blocked(_)), "{refused:?}");
    assert!(is_compact(&bench, &holding).await, "when others came");

    bench.waiting(&rival(&holding)).await;
    assert!(!is_compact(&bench, &holding).await, "when somebody waits");
    bench.renewed(&holding, None).await;
    bench.freed(&holding).await;
}

/// The names of the fields of the only holder's record, or of the lock itself.
async fn fields(bench: &Bench, pattern: &str) -> Vec<String> {
    let redis = bench.redis_behind();
    let key = only(redis.server.keys(redis.database, pattern).await);
    let fields = redis
        .server
        .command_in(redis.database, &[b"HKEYS", &key[..]])
        .await;
    let mut fields: Vec<String> = redis::from_redis_value(fields).expect("names");
    fields.sort_unstable();
    fields
}

/// Nothing of having held alone, or of a queue, goes along.
#[tokio::test]
async fn a_lease_that_stepped_down_is_kept_as_one_that_always_was_shared() {
    let bench = Bench::redis().await;
    let alone = owned_by(&at_depth(&claim(), 2), "pod-1");
    bench.granted(&in_mode(&alone, READ)).await;
    // Told twice, it is nobody's to withdraw.
    bench.acquire(&in_mode(&alone, READ)).await;
    let expected = [
        fields(&bench, "lh:1:*:h:*").await,
        fields(&bench, "lh:1:*:l:*").await,
    ];
    bench.freed(&in_mode(&alone, READ)).await;

    for is_waited_for in [false, true] {
        let stepping = Claim {
            names: claim().names,
            ..alone.clone()
        };
        bench.granted(&stepping).await;
        let mut waiter = Waiter::new(in_mode(&rival(&stepping), READ));
        if is_waited_for {
            bench.waits(&mut waiter).await;
        }
        bench.renew_in_mode(&stepping, READ).await;
        assert_eq!(fields(&bench, "lh:1:*:h:*").await, expected[0]);
        if is_waited_for {
            bench.served(&mut waiter).await;
        }
        assert_eq!(fields(&bench, "lh:1:*:l:*").await, expected[1]);
        bench.freed(&stepping).await;
    }
}

/// Nothing of the queue is left once nobody waits, however the last waiter is granted.
#[tokio::test]
async fn a_lease_of_the_last_waiter_is_kept_as_one_that_nobody_waited_for() {
    let bench = Bench::redis().await;
    for mode in [Mode::Exclusive, READ] {
        let of_lock = async |claim: &Claim| {
            let lock = fields(&bench, "lh:1:*:l:*").await;
            bench.freed(claim).await;
            lock
        };
        let plain = at_depth(&in_mode(&claim(), mode), 2);
        bench.granted(&plain).await;
        let expected = of_lock(&plain).await;
        for ends in [true, false] {
            let holding = claim();
            bench.granted(&holding).await;
            let mut waiter = bench
                .waiting(&at_depth(&in_mode(&rival(&holding), mode), 2))
                .await;
            if ends {
                bench.freed(&holding).await;
            } else {
                bench.evict(lock_of(&holding), "").await;
            }
            leases_granted(bench.ask(&mut waiter).await);
            assert_eq!(of_lock(&waiter.claim).await, expected);
        }
    }
}

/// The kinds of keys that there are of locks and claims; queues are left aside.
async fn kinds(bench: &Bench) -> String {
    let redis = bench.redis_behind();
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
async fn nothing_is_kept_that_is_of_no_more_use() {
    let bench = Bench::redis().await;
    let holding = at_depth(&claim(), 2);
    bench.granted(&holding).await;
    let [mut waiter, leaving] = [(); 2].map(|()| Waiter::new(rival(&holding)));
    bench.waits(&mut waiter).await;
    let lock = fields(&bench, "lh:1:*:l:*").await;
    let mut leaving = leaving;
    bench.waits(&mut leaving).await;
    assert_eq!(kinds(&bench).await, "ltt");
    bench.release(&leaving.claim).await;
    assert_eq!(kinds(&bench).await, "elt", "left the queue");
    assert_eq!(fields(&bench, "lh:1:*:l:*").await, lock);
    bench.freed(&holding).await;
    leases_granted(bench.ask(&mut waiter).await);
    assert_eq!(kinds(&bench).await, "eel", "the waiter holds");
    bench.freed(&waiter.claim).await;
    assert_eq!(kinds(&bench).await, "eee", "nobody holds");

    let bench = Bench::redis().await;
    let (reader, attempt) = (in_mode(&claim(), READ), Attempt::random());
    let mut waiter = Waiter::new(in_mode(&rival(&reader), READ));
    let writer = bench.acquire(&rival(&reader)).await;
    let writer_holds = matches!(writer, Acquired::Granted(_));
    assert!(writer_holds, "{writer:?}");
    bench.waits(&mut waiter).await;
    bench.evict(lock_of(&reader), "").await;
    leases_granted(bench.ask(&mut waiter).await);
    assert_eq!(kinds(&bench).await, "ehls", "the reader holds");
    let answer = bench.attempt(&reader, attempt).await;
    leases_granted(answer.expect("the store answers"));
    assert_eq!(kinds(&bench).await, "ehhls");
    bench.withdraw(&reader, attempt).await;
    assert_eq!(kinds(&bench).await, "eehls", "withdrawn");
    bench.freed(&waiter.claim).await;
    assert_eq!(kinds(&bench).await, "eee", "nobody holds");
}

/// When the last waiter leaves, the record of the holder is again as it was.
#[tokio::test]
async fn a_holder_that_nobody_waits_for_any_more_is_kept_as_before() {
    let bench = Bench::redis().await;
    let holding = at_depth(&claim(), 2);
    bench.granted(&holding).await;
    let before = fields(&bench, "lh:1:*:l:*").await;
    let waiter = bench.waiting(&rival(&holding)).await;
    bench.release(&waiter.claim).await;
    assert_eq!(fields(&bench, "lh:1:*:l:*").await, before);
}

#[tokio::test]
async fn a_free_lock_that_is_waited_for_beside_another_expires() {
    let bench = Bench::redis().await;
    let holding = claim();
    bench.granted(&holding).await;
    let locks = names(&[lock_of(&holding).clone(), fresh_name()]);
    bench.waiting(&claim_on_all(locks)).await;
    assert_all_but_counters_expire(bench.redis_behind()).await;
}

async fn assert_all_but_counters_expire(redis: RedisBench) {
    for key in redis.server.keys(redis.database, "lh:1:*").await {
        let kept_ms = redis.server.kept_ms(redis.database, &key).await;
        let stays = key.ends_with(b":f") || key == b"lh:1:{0}:node";
        assert_eq!(kept_ms < 0, stays, "{}", key.escape_ascii());
    }
}

#[tokio::test]
async fn a_queue_leaves_nothing_but_what_expires_and_in_the_end_a_compact_lease() {
    let bench = Bench::redis().await;
    let redis = bench.redis_behind();
    let holding = claim();
    bench.granted(&holding).await;
    let mut waiters = [(); 3].map(|()| Waiter::new(rival(&holding)));
    for waiter in &mut waiters {
        bench.waits(waiter).await;
    }
    bench.freed(&holding).await;
    assert_all_but_counters_expire(redis).await;
    for (number, waiter) in waiters.iter_mut().enumerate() {
        leases_granted(bench.ask(waiter).await);
        assert_all_but_counters_expire(redis).await;
        let tickets = redis.server.keys(redis.database, "lh:1:*:t:*").await;
        assert_eq!(tickets.len(), 2 - number, "of those who wait");
        let is_last = number == 2;
        assert_eq!(is_compact(&bench, &holding).await, is_last);
        if !is_last {
            bench.freed(&waiter.claim).await;
        }
    }
    for kind in ["q", "w"] {
        let pattern = format!("lh:1:*:{kind}:*");
        let left = redis.server.keys(redis.database, &pattern).await;
        assert!(left.is_empty(), "{left:?}");
    }
}

/// The memory of a key that expires and holds a UUID, which is what a lock on Redis is at the least.
async fn bare_lock_bytes(server: &RedisServer, database: u16, name: &str) -> i64 {
    let uuid = "6f1c3b0e-8f0a-4f57-9c55-0d5d3f1f4a1b";
    let set = ["SET", name, uuid, "PX", "60000"];
    server.command_in(database, &set).await;
    server.integer(database, &["MEMORY", "USAGE", name]).await
}

#[tokio::test]
async fn a_held_lock_takes_hardly_more_memory_than_a_bare_key_and_an_ended_claim_less() {
    let bench = Bench::redis().await;
    let redis = bench.redis_behind();
    let holding = claim();
    bench.granted(&holding).await;
    let name = lock_of(&holding).to_string();
    let bare = bare_lock_bytes(redis.server, redis.database, &name).await;
    let key = key_of(&holding);
    let usage = ["MEMORY", "USAGE", &key];
    let held = redis.server.integer(redis.database, &usage).await;
    assert!(
        held * 10 <= bare * 13,
        "{held} bytes, and a bare key {bare}"
    );

    bench.freed(&holding).await;
    let marks = redis.server.keys(redis.database, "lh:1:{*}:e:*").await;
    assert_eq!(marks.len(), 1);
    let usage = [&b"MEMORY"[..], b"USAGE", &marks[0]];
    let ended = redis.server.integer(redis.database, &usage).await;
    assert!(ended <= bare, "{ended} bytes, and a bare key {bare}");
}
