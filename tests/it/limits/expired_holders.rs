//! A lock with very many holders or cool-downs that have ended together: the claims that meet them remove them in short
//! steps, and what only reads the lock does not search all of them.

use std::time::Duration;

use leasehold::domain::{Claim, LockState, Mode, Share, Ttl};
use tokio::time::sleep;

use crate::support::fixture::{Fixture, LONG, claim_on, name};

const TTL: Duration = Duration::from_secs(2);
const HOLDERS: usize = 250;
/// What one script may end.
const AT_ONCE: usize = 100;

#[tokio::test]
async fn a_claim_ends_very_many_expired_holders_in_several_steps_and_is_granted() {
    let fixture = Fixture::redis_alone().await;
    let lock = name("crowded");
    for _ in 0..HOLDERS {
        let holder = Claim {
            mode: Mode::Shared(Share::READ),
            ttl: Ttl::from_store(TTL),
            ..claim_on(&lock)
        };
        fixture.granted(&holder).await;
    }
    let redis = fixture.redis_behind();
    // Nobody looks at the lock meanwhile, which would end some.
    sleep(TTL * 2).await;
    redis.server.command(&["CONFIG", "RESETSTAT"]).await;
    fixture.granted(&claim_on(&lock)).await;
    let scripts = redis.server.info("commandstats", "cmdstat_evalsha").await;
    let calls = scripts
        .strip_prefix("calls=")
        .and_then(|it| it.split(',').next());
    let calls: usize = calls.expect("it was called").parse().unwrap();
    assert!(calls >= HOLDERS.div_ceil(AT_ONCE), "{scripts}");
}

/// How many entries one script searches.
const SEARCHED: usize = 500;
/// Lets the cool-downs of a lock end, for which the test would have to wait. A claim begins with a random byte, a cool-down
/// with eight zeros.
const END_COOLDOWNS: &str = "local ended = 0
    for _, member in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
        if string.sub(member, 1, 8) == string.rep('\\0', 8) then
            ended = ended + redis.call('ZADD', KEYS[1], 'CH', 1, member)
        end
    end
    return ended";

/// A listing removes none of them, and does not know how many of the cool-downs that it counts are over.
#[tokio::test]
async fn a_holder_among_very_many_cool_downs_that_are_over_is_listed() {
    let fixture = Fixture::redis_alone().await;
    let lock = name("crowded");
    let reader = || Claim {
        mode: Mode::Shared(Share::READ),
        ..claim_on(&lock)
    };
    fixture.granted(&reader()).await;
    for _ in 0..=SEARCHED {
        let held_at_least = Claim {
            min_hold: Some(LONG),
            ..reader()
        };
        fixture.granted(&held_at_least).await;
        fixture.freed(&held_at_least).await;
    }
    let redis = fixture.redis_behind();
    let holders = redis.server.keys(redis.database, "*s:crowded").await;
    let [holders] = &holders[..] else {
        panic!("one set of holders: {holders:?}");
    };
    let end = [&b"EVAL"[..], END_COOLDOWNS.as_bytes(), b"1", holders];
    let ended = redis.server.integer(redis.database, &end).await;
    assert_eq!(ended, SEARCHED as i64 + 1);
    let page = fixture.page("", None, 10).await;
    let [listed] = &page.locks[..] else {
        panic!("one lock is held: {page:?}");
    };
    let LockState::Held(listed) = &listed.state else {
        panic!("it is held: {listed:?}");
    };
    assert_eq!((listed.total, listed.listed.len()), (1, 1));
}
