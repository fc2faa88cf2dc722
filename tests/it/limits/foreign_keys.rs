//! Listings and counts in a database that has many keys of other programs.

use std::time::Duration;

use leasehold::domain::Listing;
use leasehold::store::{Deadlines, Fault, ListQuery, StoreResult};
use tokio::time::Instant;

use crate::support::fixture::{Fixture, claim_on, name};
use crate::support::redis_server::RedisServer;
use crate::support::{EFFECT_TIMEOUT, eventually};

/// How many keys one step may visit at most, and together with what else Redis does in it still takes well below a
/// millisecond.
const STEP_MAX: usize = 128;
/// How many foreign keys a step visits at least as a rule, also on a machine that is slow.
const STEP_USUAL: usize = 20;

async fn scans(redis: &RedisServer) -> usize {
    let stats = redis.info_if_any("commandstats", "cmdstat_scan").await;
    let calls = stats.as_deref().and_then(|it| it.strip_prefix("calls="));
    calls.map_or(0, |it| it.split(',').next().unwrap().parse().unwrap())
}

async fn list(fixture: &Fixture, end: Duration) -> StoreResult<Listing> {
    let query = ListQuery {
        prefix: "held/".to_owned(),
        within: None,
        after: None,
        snapshot: None,
        page_size: 100,
    };
    let deadlines = Deadlines {
        step: EFFECT_TIMEOUT,
        end: Instant::now() + end,
    };
    fixture.store().list(&query, deadlines).await
}

#[tokio::test]
async fn a_listing_beside_foreign_keys_is_made_of_small_steps_and_has_the_locks() {
    const KEYS: usize = 200_000;
    let fixture = Fixture::redis_alone().await;
    let redis = fixture.redis_behind().server;
    redis.fill_with_foreign_keys(KEYS).await;
    for number in 0..20 {
        let lock = name(&format!("held/{number}"));
        fixture.granted(&claim_on(&lock)).await;
    }
    let steps = || fixture.store().health().scan_steps;
    let (before, steps_before) = (scans(redis).await, steps());
    let listing = list(&fixture, 4 * EFFECT_TIMEOUT).await;
    assert_eq!(listing.unwrap().locks.len(), 20);
    let made = scans(redis).await - before;
    assert!(made >= KEYS / STEP_MAX, "only {made} steps");
    // Keys of others are read by nobody, so that a step has many of them.
    assert!(made <= KEYS / STEP_USUAL, "{made} steps");
    let counted = steps().listings - steps_before.listings;
    assert!(counted >= (KEYS / STEP_MAX) as u64, "{counted} are counted");
}

/// It would take its share of Redis until its time is over, without any use, and again when the client repeats it.
#[tokio::test]
async fn a_listing_that_foreign_keys_keep_from_ending_in_time_is_given_up_early() {
    let fixture = Fixture::redis_alone().await;
    let redis = fixture.redis_behind().server;
    redis.fill_with_foreign_keys(1_000_000).await;
    let before = scans(redis).await;
    let listing = list(&fixture, Duration::from_secs(2)).await;
    let error = listing.unwrap_err();
    let made = scans(redis).await - before;
    assert!(made <= 200, "{made} steps");
    assert_eq!(error.fault(), Fault::Crowded, "{error}");
    assert!(
        error.to_string().contains("a database of its own"),
        "{error}"
    );
}

#[tokio::test]
async fn in_a_database_of_its_own_foreign_keys_cost_a_listing_and_a_count_nothing() {
    // For the fencing counters, of which there are a thousand. Foreign keys would take three times as many at least.
    const STEPS_FEW: usize = 500;
    let fixture = Fixture::redis_alone().await;
    let redis = fixture.redis_behind().server;
    redis.fill_with_foreign_keys(200_000).await;
    let alone = Fixture::on_server(redis, 1).await;
    alone.granted(&claim_on(&name("held/1"))).await;
    let before = scans(redis).await;
    let listing = list(&alone, EFFECT_TIMEOUT).await;
    assert_eq!(listing.unwrap().locks.len(), 1);
    let made = scans(redis).await - before;
    assert!(made < STEPS_FEW, "{made} steps");
    let store = alone.store();
    eventually("the lock is counted", async || {
        store.sweep().await;
        (store.health().held_locks == Some(1)).then_some(())
    })
    .await;
    let made = scans(redis).await - before;
    assert!(made < STEPS_FEW, "{made} steps with those of the count");
}
