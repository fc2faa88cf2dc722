//! The cost of an operation in Redis: one command, on a shared connection; and the cost of a hand-over.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold::config::RedisConfig;
use leasehold::domain::{Acquired, Claim, GrantKind, Mode, Released, RenewOptions};
use leasehold::store::LockStore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::support::fixture::{
    Fixture, READ, Waiter, claim, claim_on, claim_on_all, fresh_name, in_mode, limit_mismatch,
    lock_of, name, names, permits, rival,
};
use crate::support::redis_server::{RedisOptions, RedisServer};
use crate::support::{eventually, stores};

const ROUNDS: usize = 200;

/// The commands that the tests themselves send.
const OF_TESTS: [&str; 7] = [
    "info",
    "config|resetstat",
    "client|setinfo",
    "client|setname",
    "hello",
    "select",
    "ping",
];

/// How often Redis has executed each command since the last reset, including within scripts.
async fn carried_out(redis: &RedisServer) -> BTreeMap<String, usize> {
    let text = redis.info_section("commandstats").await;
    let lines = text.lines().filter_map(|line| {
        let (command, stats) = line.strip_prefix("cmdstat_")?.split_once(':')?;
        let calls = stats.strip_prefix("calls=")?.split(',').next()?;
        Some((command.to_owned(), calls.parse().unwrap()))
    });
    lines.collect()
}

/// The number of scripts sent to Redis since the last reset.
async fn scripts_sent(redis: &RedisServer) -> usize {
    let carried_out = carried_out(redis).await;
    carried_out.get("evalsha").copied().unwrap_or_default()
}

async fn reset(redis: &RedisServer) {
    redis.command(&["CONFIG", "RESETSTAT"]).await;
}

async fn store(redis: &RedisServer) -> Arc<dyn LockStore> {
    // Connections are verified again once no check has done so for twice this long. On a busy machine, a test takes longer than
    // with the interval of the other tests.
    let config = RedisConfig {
        check_interval: Duration::from_secs(60),
        ..stores::redis_config()
    };
    let address = redis.database(0);
    let store = stores::redis_store(&address, &config).await;
    store.unwrap()
}

fn deadline() -> Instant {
    Instant::now() + stores::OPERATION_TIMEOUT
}

/// The life of one lease: three operations.
async fn live(store: &dyn LockStore, claim: Claim) {
    let waiter = Waiter::new(claim);
    let (claim, attempt) = (&waiter.claim, waiter.attempt);
    let answer = store.acquire(claim, attempt, Some(&waiter.queue_request), deadline());
    assert!(matches!(&answer.await, Ok(granted) if granted.kind() == Some(GrantKind::New)));
    let change = RenewOptions::default();
    store
        .renew(&claim.names, claim.token, change, deadline())
        .await
        .unwrap();
    store
        .release(&claim.names, claim.token, None, deadline())
        .await
        .unwrap();
}

/// After the scripts are loaded, and without the periodic checks, which do not run here.
#[tokio::test]
async fn an_operation_is_one_command() {
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let store = store(&redis).await;
    let several = claim_on_all(names(&[fresh_name(), fresh_name(), fresh_name()]));
    for life in [
        claim(),
        in_mode(&claim(), READ),
        in_mode(&claim(), permits(2, 3)),
        several,
    ] {
        live(&*store, rival(&life)).await;
        reset(&redis).await;
        for _ in 0..ROUNDS {
            let life = in_mode(&rival(&life), life.mode);
            live(&*store, life).await;
        }
        let carried_out = carried_out(&redis).await;
        assert_eq!(carried_out["evalsha"], 3 * ROUNDS, "{:?}", life.names);
        for other in [
            "eval",
            "ping",
            "script|load",
            "select",
            "hello",
            "auth",
            "multi",
            "wait",
            "publish",
        ] {
            assert_eq!(carried_out.get(other), None, "{other}");
        }
    }
}

/// Its answer lists no holder. Each such claim once read a hundred of them.
#[tokio::test]
async fn a_claim_with_another_limit_reads_few_holders() {
    const HOLDERS: usize = 50;
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let store = store(&redis).await;
    let shared = in_mode(&claim(), READ);
    let acquire = async |claim: Claim| {
        let attempt = Waiter::new(claim.clone()).attempt;
        store.acquire(&claim, attempt, None, deadline()).await
    };
    for _ in 0..HOLDERS {
        let holding = in_mode(&rival(&shared), READ);
        assert!(acquire(holding).await.unwrap().kind().is_some());
    }
    let other = in_mode(&rival(&shared), permits(1, 7));
    let refused = limit_mismatch(lock_of(&other), None);
    assert_eq!(acquire(other.clone()).await.unwrap(), refused);
    reset(&redis).await;
    assert_eq!(acquire(other).await.unwrap(), refused);
    let carried_out = carried_out(&redis).await;
    let reads = carried_out["hmget"];
    assert!(reads < HOLDERS / 5, "{reads} reads");
}

/// The same command publishes a message only for a lease that a stream may hold.
#[tokio::test]
async fn a_release_sends_a_message_only_if_a_stream_may_hold_the_lease() {
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let store = store(&redis).await;
    for mode in [Mode::Exclusive, READ] {
        let claim = in_mode(&claim(), mode);
        for (takes_over, messages) in [(false, None), (true, Some(&10))] {
            live(&*store, rival(&claim)).await;
            reset(&redis).await;
            for _ in 0..10 {
                let streaming = rival(&claim);
                live(
                    &*store,
                    Claim {
                        takes_over,
                        ..streaming
                    },
                )
                .await;
            }
            let carried_out = carried_out(&redis).await;
            assert_eq!(carried_out["evalsha"], 30);
            assert_eq!(carried_out.get("publish"), messages, "{mode:?}");
        }
    }
}

/// The pool may open a few connections, and never one for each request.
#[tokio::test(flavor = "multi_thread")]
async fn many_requests_share_few_sockets() {
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let store = store(&redis).await;
    futures_util::future::join_all((0..ROUNDS).map(|_| live(&*store, claim()))).await;
    let open = redis.connections().await;
    assert!(
        open <= stores::redis_config().connections,
        "{open} sockets for {ROUNDS} requests at a time"
    );
}

/// What is reported waits for the replica, and what is refused does not.
#[tokio::test(flavor = "multi_thread")]
async fn many_requests_share_each_wait_for_a_replica() {
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let _replica = redis.replica(RedisOptions::forgetful()).await;
    let config = stores::confirmed_by(1);
    let store = stores::redis_store(&redis.database(0), &config).await;
    let store = store.expect("the store opens");
    let held = claim();
    let acquire = async |claim: &Claim| {
        let waiter = Waiter::new(claim.clone());
        let acquiring = store.acquire(&waiter.claim, waiter.attempt, None, deadline());
        acquiring.await.expect("it is confirmed")
    };
    acquire(&held).await;
    reset(&redis).await;
    let grants: Vec<_> = (0..ROUNDS).map(|_| claim()).collect();
    let granted = futures_util::future::join_all(grants.iter().map(&acquire)).await;
    let granted = granted
        .iter()
        .filter(|it| it.kind() == Some(GrantKind::New));
    assert_eq!(granted.count(), ROUNDS);
    let done = carried_out(&redis).await;
    assert_eq!(done["evalsha"], ROUNDS);
    assert_eq!(done["wait"], done["publish"]);
    assert!(done["wait"] * 4 <= ROUNDS, "{} waits", done["wait"]);

    reset(&redis).await;
    for _ in 0..10 {
        let refused = acquire(&rival(&held)).await;
        assert!(matches!(refused, Acquired::Refused(_)), "{refused:?}");
    }
    let done = carried_out(&redis).await;
    assert_eq!((done["evalsha"], done.get("wait")), (10, None));
}

/// The cost of ten hand-overs in Redis while `waiters` wait on one process, and the same or another one releases;
/// without the polls.
async fn ten_hand_overs(
    redis: &RedisServer,
    waiters: usize,
    [waiting_on, releasing]: [&dyn LockStore; 2],
) -> BTreeMap<String, usize> {
    let mut holding = claim();
    let lock = lock_of(&holding).clone();
    let acquire = async |waiter: &Waiter| {
        waiting_on
            .acquire(
                &waiter.claim,
                waiter.attempt,
                Some(&waiter.queue_request),
                deadline(),
            )
            .await
            .unwrap()
    };
    acquire(&Waiter::new(holding.clone())).await;
    let mut queue = Vec::new();
    for _ in 0..waiters {
        let mut waiter = Waiter::new(rival(&holding));
        let Acquired::Waiting(waiting) = acquire(&waiter).await else {
            panic!("the lock is held");
        };
        waiter.queue_request.ticket = Some(waiting.ticket);
        waiter.queue_request.wants_position = false;
        queue.push(waiter);
    }
    reset(redis).await;
    for next in queue.into_iter().take(10) {
        let released = releasing
            .release(&holding.names, holding.token, None, deadline())
            .await
            .unwrap();
        assert!(matches!(released[..], [Released::Freed { .. }]));
        let granted = acquire(&next).await;
        assert_eq!(granted.kind(), Some(GrantKind::New), "{granted:?}");
        holding = next.claim;
    }
    let mut carried_out = carried_out(redis).await;
    carried_out.retain(|command, _| !OF_TESTS.contains(&command.as_str()));
    assert_eq!(lock_of(&holding), &lock);
    carried_out
}

#[tokio::test]
async fn a_hand_over_is_two_commands_and_between_processes_a_message_however_many_wait() {
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let (one, another) = (store(&redis).await, store(&redis).await);
    for (processes, messages) in [([&*one, &*one], None), ([&*one, &*another], Some(&10))] {
        // Loads the scripts into Redis.
        ten_hand_overs(&redis, 20, processes).await;
        let few = ten_hand_overs(&redis, 20, processes).await;
        let many = ten_hand_overs(&redis, 1_000, processes).await;
        assert_eq!((few["evalsha"], few.get("publish")), (20, messages));
        assert_eq!(few, many, "not even the scripts do more");
    }
}

/// The number of commands that a process sends while its waiters are granted one after the other, including its polls.
async fn sent_for_hand_overs(waiters: usize) -> usize {
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let service = stores::service(store(&redis).await);
    let holding = Arc::new(claim());
    let answer = service.acquire(Arc::clone(&holding), Duration::ZERO).await;
    answer.unwrap().unclaimed.delivered();
    let mut waiting = JoinSet::new();
    for _ in 0..waiters {
        let (service, claim) = (service.clone(), Arc::new(rival(&holding)));
        waiting.spawn(async move {
            let wait = stores::waiting_config().wait_max;
            let answer = service.acquire(Arc::clone(&claim), wait).await.unwrap();
            answer.unclaimed.delivered();
            let is_granted = answer.outcome.kind() == Some(GrantKind::New);
            assert!(is_granted, "{:?}", answer.outcome);
            let names = claim.names.clone();
            service
                .release(names, claim.token, None, |_| {})
                .await
                .unwrap();
        });
    }
    eventually("all of them wait", async || {
        let view = service.inspect(lock_of(&holding)).await.unwrap();
        (view.queue.length == waiters as u64).then_some(())
    })
    .await;
    reset(&redis).await;
    let names = holding.names.clone();
    service
        .release(names, holding.token, None, |_| {})
        .await
        .unwrap();
    while let Some(ended) = waiting.join_next().await {
        ended.unwrap();
    }
    scripts_sent(&redis).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_between_requests_is_four_commands_at_the_most_however_many_wait() {
    for waiters in [10, 1_000] {
        let sent = sent_for_hand_overs(waiters).await;
        // The first release is that of the first holder, which did not wait.
        let most = 4 * waiters + 1;
        assert!(sent <= most, "{sent} commands for {waiters} hand-overs");
    }
}

/// Each page would cost as much as the whole listing otherwise.
#[tokio::test]
async fn the_keys_are_scanned_once_for_all_pages_of_a_listing() {
    const LOCKS: usize = 600;
    let fixture = Fixture::redis_alone().await;
    for number in 0..LOCKS {
        let lock = name(&format!("listed/{number}"));
        fixture.granted(&claim_on(&lock)).await;
    }
    let redis = &fixture.redis_behind().server;
    let scans = async || {
        let carried_out = carried_out(redis).await;
        carried_out.get("scan").copied().unwrap_or_default()
    };
    let before = scans().await;
    let one_page = fixture.page("listed/", None, LOCKS).await;
    let of_one_page = scans().await - before;
    assert_eq!(one_page.locks.len(), LOCKS);
    let names = fixture.names("listed/", 50).await;
    assert_eq!(names.len(), LOCKS);
    let of_all_pages = scans().await - before - of_one_page;
    assert!(of_one_page > 1);
    // Not twelve times as many. How many keys a scan visits depends on how long it takes.
    let most = 4 * of_one_page;
    assert!(
        of_all_pages <= most,
        "{of_all_pages} scans, not {of_one_page}"
    );
}
