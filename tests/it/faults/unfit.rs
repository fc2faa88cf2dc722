//! A Redis that is full, or configured in a way that would lose leases; and the keys that are left at the end.

use std::sync::Arc;
use std::time::Duration;

use leasehold::domain::{Attempt, Claim, GrantKind, HoldCount, LockState, Mode, Released, Renewed};
use leasehold::store::{Fault, LockStore, StoreError, StoreResult};
use tokio::task::JoinSet;

use super::{Replica, lasting, lasting_claims};
use crate::support::fixture::{
    Fixture, LONG, READ, SHORT, Waiter, at_depth, claim, claim_on_all, deadline, for_short,
    fresh_name, in_mode, leases_granted, lock_of, names, only, owner, permits, rival,
};
use crate::support::redis_server::{RedisOptions, RedisServer};
use crate::support::{EFFECT_TIMEOUT, eventually, stores};

#[tokio::test]
async fn a_full_redis_grants_nothing_and_still_renews_and_releases() {
    let server = RedisServer::start(RedisOptions::default()).await;
    let replica = Replica::open(&server.database(0)).await;
    let held = lasting_claims("full", 50);
    for claim in &held {
        let claim = Claim {
            min_hold: Some(LONG),
            ..at_depth(claim, 2)
        };
        replica.granted(&claim).await;
    }
    server.command(&["CONFIG", "SET", "maxmemory", "1kb"]).await;

    eventually("operators can see it", async || {
        let findings = replica.service.store_health().findings;
        let memory = findings.iter().find(|found| found.topic == "memory")?;
        (!memory.is_fine).then_some(())
    })
    .await;
    for refused in lasting_claims("refused", 20) {
        match replica.acquire(&refused).await {
            Err(StoreError::Unavailable { fault, .. }) => assert_eq!(fault, Fault::Full),
            other => panic!("there is no room, but: {other:?}"),
        }
        let view = replica.service.inspect(lock_of(&refused)).await;
        assert_eq!(view.expect("reading needs no room").state, LockState::Free);
    }
    for claim in &held {
        let answer = replica.renew(claim).await;
        assert!(matches!(answer, Ok(Renewed::Extended(_))), "{answer:?}");
        let (names, depth) = (claim.names.clone(), Some(HoldCount::ONE));
        let answer = replica
            .service
            .release(names, claim.token, depth, |_| {})
            .await;
        let answer = only(answer.expect("stepping back needs no room"));
        assert!(matches!(answer, Released::SteppedBack(_)), "{answer:?}");
        let answer = replica.release(claim).await;
        assert!(matches!(answer, Ok(Released::Freed { .. })), "{answer:?}");
        assert_eq!(replica.release(claim).await.ok(), Some(Released::Repeated));
    }

    server.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
    replica.granted(&lasting(claim())).await;
}

#[tokio::test]
async fn waiters_of_a_full_redis_are_granted_the_lock_in_turn() {
    let server = RedisServer::start(RedisOptions::default()).await;
    let replica = Arc::new(Replica::open(&server.database(0)).await);
    let held = lasting(claim());
    replica.granted(&held).await;
    let mut waiting = JoinSet::new();
    for length in 1..=3 {
        let (waiter, replica_of_it) = (lasting(rival(&held)), Arc::clone(&replica));
        waiting.spawn(async move {
            let answer = replica_of_it.acquire_within(&waiter, EFFECT_TIMEOUT).await;
            (waiter, answer)
        });
        eventually("it is queued", async || {
            let view = replica.service.inspect(lock_of(&held)).await.ok()?;
            (view.queue.length == length).then_some(())
        })
        .await;
    }
    server.command(&["CONFIG", "SET", "maxmemory", "1kb"]).await;
    let answer = replica.release(&held).await;
    assert!(matches!(answer, Ok(Released::Freed { .. })), "{answer:?}");
    while let Some(ended) = waiting.join_next().await {
        let (waiter, answer) = ended.expect("whole");
        assert!(
            matches!(&answer, Ok(granted) if granted.kind() == Some(GrantKind::New)),
            "{answer:?}"
        );
        let answer = replica.release(&waiter).await;
        assert!(matches!(answer, Ok(Released::Freed { .. })), "{answer:?}");
    }
    let errors = server.info_section("errorstats").await;
    assert!(
        !errors.contains("errorstat_OOM:"),
        "none was refused: {errors}"
    );
}

#[tokio::test]
async fn a_full_redis_evicts_and_takes_back() {
    let server = RedisServer::start(RedisOptions::default()).await;
    let replica = Replica::open(&server.database(0)).await;
    let [evicted, withdrawn] = [lasting(claim()), lasting(claim())];
    replica.granted(&evicted).await;
    let answer = replica
        .service
        .acquire(withdrawn.clone().into(), Duration::ZERO)
        .await;
    let answer = answer.expect("there is room");
    server.command(&["CONFIG", "SET", "maxmemory", "1kb"]).await;
    let holders = replica
        .service
        .evict(lock_of(&evicted).clone(), "full".to_owned(), |_| {})
        .await;
    assert_eq!(holders.expect("it needs no room").holders.total, 1);
    // Dropping the outcome means that it was not delivered.
    drop(answer);
    replica.becomes_free(&withdrawn).await;
}

/// A quorum relies on it: a node that is full and refuses a claim has no lease of it.
#[tokio::test]
async fn a_full_redis_repeats_the_grant_of_a_lease_that_it_has() {
    let server = RedisServer::start(RedisOptions::default()).await;
    let open = async || {
        let store = stores::redis_store(&server.database(0), &stores::redis_config()).await;
        store.expect("the store opens")
    };
    let [granting, other] = [open().await, open().await];
    let claims = [
        at_depth(&claim(), 2),
        in_mode(&claim(), READ),
        in_mode(&claim(), permits(1, 2)),
        claim_on_all(names(&[fresh_name(), fresh_name()])),
        Claim {
            min_hold: Some(LONG),
            ..claim()
        },
    ];
    let claims = claims.map(lasting);
    let acquire = async |store: &Arc<dyn LockStore>, claim: &Claim| {
        let answer = store.acquire(claim, Attempt::random(), None, deadline());
        answer.await.map(|answer| answer.kind())
    };
    for claim in &claims {
        let granted = acquire(&granting, claim).await;
        assert_eq!(granted.ok(), Some(Some(GrantKind::New)));
    }
    server.command(&["CONFIG", "SET", "maxmemory", "1kb"]).await;
    for claim in &claims {
        for store in [&granting, &other, &other] {
            let repeated = acquire(store, claim).await;
            assert_eq!(repeated.ok(), Some(Some(GrantKind::Replayed)), "{claim:?}");
        }
        let deeper = acquire(&other, &at_depth(claim, 3)).await;
        assert_eq!(deeper.ok(), Some(Some(GrantKind::Reentered)), "{claim:?}");
    }
    let refused = acquire(&other, &lasting(claim())).await;
    assert!(refused.is_err_and(|error| error.fault() == Fault::Full));
}

/// With one, Redis takes no writes: it has no replicas.
async fn needs_replicas(server: &RedisServer, count: &str) {
    let words = ["CONFIG", "SET", "min-replicas-to-write", count];
    server.command(&words).await;
}

/// How a new claim is granted; none if it is refused.
async fn grant(store: &Arc<dyn LockStore>) -> StoreResult<Option<GrantKind>> {
    let (claim, attempt) = (lasting(claim()), Attempt::random());
    let answer = store.acquire(&claim, attempt, None, deadline()).await;
    answer.map(|answer| answer.kind())
}

/// A check of the data that could not be stored shows no loss when the next one misses it.
#[tokio::test]
async fn a_redis_that_took_no_writes_for_a_moment_has_lost_nothing() {
    let server = RedisServer::start(RedisOptions::default()).await;
    let store = stores::redis_store(&server.database(0), &stores::redis_config()).await;
    let store = store.expect("the store opens");
    let read = async |words: &[&str]| format!("{:?}", server.command(words).await);
    let epoch = async || read(&["HGET", "lh:1:{0}:node", "epoch"]).await;
    assert_eq!(grant(&store).await.ok(), Some(Some(GrantKind::New)));
    let began = epoch().await;
    let longest_ttl = read(&["GETDEL", "lh:1:{0}:ttl"]).await;

    needs_replicas(&server, "1").await;
    for _ in 0..2 {
        store.refresh_health().await;
        let health = store.health();
        let trouble = health.trouble.unwrap_or_default();
        assert!(!health.up && trouble.contains("no writes"), "{trouble}");
    }
    needs_replicas(&server, "0").await;
    store.refresh_health().await;
    assert!(store.health().up);
    assert_eq!(epoch().await, began, "the data are the same");
    let stored = read(&["GET", "lh:1:{0}:ttl"]).await;
    assert_eq!(stored, longest_ttl, "it is reported until it is stored");
    assert_eq!(grant(&store).await.ok(), Some(Some(GrantKind::New)));
}

/// Waiters could not keep their places, and must have polled before any claim is granted, on whichever connection.
#[tokio::test]
async fn a_redis_that_took_no_writes_for_long_grants_nothing_at_first() {
    let server = RedisServer::start(RedisOptions::default()).await;
    let store = stores::redis_store(&server.database(0), &stores::redis_config()).await;
    let store = store.expect("the store opens");
    needs_replicas(&server, "1").await;
    eventually("claims wait for a check that is stored", async || {
        store.refresh_health().await;
        let refused = grant(&store).await.expect_err("it takes no writes");
        assert_eq!(refused.fault(), Fault::ReadOnly);
        refused
            .detail()
            .contains("could not be stored")
            .then_some(())
    })
    .await;
    needs_replicas(&server, "0").await;
    assert_ne!(grant(&store).await.ok(), Some(Some(GrantKind::New)));
    eventually("the waiters had time to poll", async || {
        store.refresh_health().await;
        grant(&store).await.ok().flatten()
    })
    .await;
}

#[tokio::test]
async fn a_redis_that_may_evict_leases_is_refused_unless_accepted_by_name() {
    let server = RedisServer::start(RedisOptions {
        eviction_policy: "allkeys-lru",
        ..RedisOptions::default()
    })
    .await;
    let mut config = stores::redis_config();
    for accepted in [None, Some("volatile-ttl")] {
        config.accept_eviction_policy = accepted.map(str::to_owned);
        match stores::redis_store(&server.database(0), &config).await {
            Err(StoreError::Unavailable { fault, detail }) => {
                assert_eq!(fault, Fault::Refused);
                assert!(detail.contains("allkeys-lru"), "{detail}");
            }
            other => panic!("it would lose leases, but: {other:?}"),
        }
    }
    config.accept_eviction_policy = Some("allkeys-lru".to_owned());
    let store = stores::redis_store(&server.database(0), &config)
        .await
        .expect("it was accepted by name");
    let answer = store
        .acquire(&claim(), Attempt::random(), None, deadline())
        .await;
    assert!(
        matches!(&answer, Ok(granted) if granted.kind() == Some(GrantKind::New)),
        "{answer:?}"
    );
}

#[tokio::test]
async fn an_eviction_policy_that_changes_later_stops_new_grants_alone() {
    let server = RedisServer::start(RedisOptions::default()).await;
    let replica = Replica::open(&server.database(0)).await;
    let held = lasting(claim());
    replica.granted(&held).await;
    let set = |policy| ["CONFIG", "SET", "maxmemory-policy", policy];
    server.command(&set("allkeys-lru")).await;
    eventually("the change is noticed", async || {
        let answer = replica.acquire(&lasting(claim())).await;
        matches!(&answer, Err(error) if error.fault() == Fault::Refused).then_some(())
    })
    .await;
    replica.assert_holds(&held).await;
    server.command(&set("noeviction")).await;
    eventually("the change is noticed", async || {
        replica.acquire(&lasting(claim())).await.ok()
    })
    .await;
}

/// Claims of every kind, with every kind of end.
async fn live_through_everything(fixture: &Fixture) {
    let decorated = Claim {
        owner: owner("pod-7"),
        min_hold: Some(LONG),
        max_hold: Some(LONG * 2),
        lock_delay: Some(LONG / 2),
        ..at_depth(&claim(), 2)
    };
    let again = |token_of: &Claim| Claim {
        names: claim().names,
        ..token_of.clone()
    };
    let [held, released, evicted] = [again(&decorated), again(&decorated), again(&decorated)];
    let [expired, lost] = [(); 2].map(|()| for_short(&claim()));
    for claim in [&held, &released, &evicted, &expired, &lost] {
        fixture.granted(claim).await;
    }
    fixture.acquire(&at_depth(&held, 3)).await;
    fixture.renewed(&held, None).await;
    fixture.step_back(&held, 1).await;
    fixture.acquire(&rival(&held)).await;
    fixture.freed(&released).await;
    fixture.evict(lock_of(&evicted), "stuck").await;
    let [withdrawn, never_sent] = [claim(), claim()];
    let attempt = Attempt::random();
    drop(fixture.attempt(&withdrawn, attempt).await);
    fixture.withdraw(&withdrawn, attempt).await;
    fixture.withdraw(&never_sent, attempt).await;
    live_through_streams(fixture).await;
    live_through_queues(fixture).await;
    fixture.outlast(SHORT).await;
    fixture.granted(&rival(&lost)).await;
    fixture.renew(&expired).await;
    fixture.store().refresh_health().await;
}

/// Leases that streams take over and release, with and without a cool-down.
async fn live_through_streams(fixture: &Fixture) {
    for mode in [Mode::Exclusive, permits(1, 3)] {
        for min_hold in [None, Some(LONG)] {
            let claim = Claim {
                min_hold,
                takes_over: true,
                ..in_mode(&claim(), mode)
            };
            fixture.acquire(&claim).await;
            let attempt = Attempt::random();
            drop(fixture.attempt(&claim, attempt).await);
            fixture.close(&claim, attempt).await;
        }
    }
}

/// Claims that share, wait, leave, are suspended and finally granted, on one lock and on several.
async fn live_through_queues(fixture: &Fixture) {
    let several = claim_on_all(names(&[fresh_name(), fresh_name()]));
    for holding in [claim(), several] {
        fixture.acquire(&holding).await;
        let [writer, leaving, suspended, staying] = [(); 4].map(|()| rival(&holding));
        let taking = in_mode(&rival(&holding), permits(2, 3));
        for waiting in [&writer, &taking, &leaving, &suspended, &staying] {
            fixture.waiting(waiting).await;
        }
        fixture.release_all(&leaving).await;
        fixture.suspend(&suspended, LONG).await;
        fixture.release_all(&holding).await;
        fixture.granted_after_wait(&mut Waiter::new(writer)).await;
        leases_granted(fixture.poll(&mut Waiter::new(taking.clone())).await);
        let early = Claim {
            min_hold: Some(LONG),
            fair: false,
            ..for_short(&in_mode(&rival(&holding), permits(1, 3)))
        };
        fixture.all_granted(&early).await;
        fixture.release_all(&early).await;
        fixture.renew(&taking).await;
    }
    let reader = Claim {
        lock_delay: Some(LONG / 2),
        ..for_short(&in_mode(&claim(), READ))
    };
    fixture.granted(&reader).await;
    fixture.granted(&in_mode(&rival(&reader), READ)).await;
}

#[tokio::test]
async fn every_key_but_those_of_a_fixed_set_expires() {
    let fixture = Fixture::redis().await;
    live_through_everything(&fixture).await;
    let redis = fixture.redis_behind();
    let keys = redis.server.keys(redis.database, "*").await;
    let (mut fixed, mut expiring) = (0, 0);
    for key in &keys {
        let text = String::from_utf8_lossy(key).into_owned();
        let kept_ms = redis.server.kept_ms(redis.database, key).await;
        let tagged = text
            .strip_prefix("lh:1:{")
            .and_then(|rest| rest.split_once("}:"));
        let (bucket, kind) = tagged.unwrap_or_else(|| panic!("{text} is not in the layout"));
        assert!(
            bucket.parse().is_ok_and(|bucket: u16| bucket < 1_024),
            "{text}"
        );
        if kind == "f" || text == "lh:1:{0}:node" {
            fixed += 1;
        } else {
            assert!(kept_ms > 0, "{text} is kept for ever");
            expiring += 1;
        }
    }
    // A counter for each bucket, and the identity of the data.
    assert_eq!(fixed, 1_024 + 1);
    // At least the tombstones of the ended claims.
    assert!(expiring >= 5, "too few to mean anything: {keys:?}");
}
