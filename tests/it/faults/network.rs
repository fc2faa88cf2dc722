//! The network between Leasehold and Redis fails while both run normally.

use std::sync::Arc;
use std::time::Duration;

use leasehold::domain::{GrantKind, LockState, Mode, Released};
use leasehold::service::AcquireOutcome;
use leasehold::store::StoreError;
use tokio::time::Instant;

use super::{Replica, durable_redis, lasting, lasting_claims};
use crate::support::fixture::{
    READ, at_depth, claim, deadline, for_short, in_mode, lock_of, rival,
};
use crate::support::proxy::Proxy;
use crate::support::recording_listener::RecordingListener;
use crate::support::redis_server::RedisServer;
use crate::support::stores::{self, CONNECTIONS_IN_ALL};
use crate::support::{EFFECT_TIMEOUT, eventually};

/// A replica behind a network that can fail, and one beside it that sees the true state.
pub(super) struct Network {
    pub(super) proxy: Proxy,
    pub(super) behind: Replica,
    pub(super) beside: Replica,
    _server: RedisServer,
}

impl Network {
    pub(super) async fn start() -> Self {
        let server = durable_redis().await;
        let proxy = Proxy::start(server.address()).await;
        let behind = Replica::open(&proxy.database(0)).await;
        let beside = Replica::open(&server.database(0)).await;
        // Opens connections before anything fails.
        let warm = lasting(claim());
        behind.granted(&warm).await;
        behind.release(&warm).await.expect("the network is well");
        Self {
            proxy,
            behind,
            beside,
            _server: server,
        }
    }
}

/// Opening a connection may take less time than an operation, and be tried several times.
#[tokio::test]
async fn an_interruption_that_is_shorter_than_the_timeout_costs_only_time() {
    let network = Network::start().await;
    for claim in lasting_claims("ridden-out", 3) {
        network.proxy.refuse(true);
        network.proxy.cut();
        let over = async {
            tokio::time::sleep(Duration::from_millis(900)).await;
            network.proxy.refuse(false);
        };
        let (granted, ()) = tokio::join!(network.behind.acquire(&claim), over);
        let granted = granted.expect("there was time");
        assert_eq!(granted.kind(), Some(GrantKind::New), "{granted:?}");
    }
}

/// Each thread of the service has its own runtime, and each runtime its own connections.
#[tokio::test]
async fn a_thread_that_cannot_connect_uses_the_connections_of_others() {
    let network = Network::start().await;
    network.proxy.refuse(true);
    let claim = lasting(claim());
    let service = network.behind.service.clone();
    let on_another_thread = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let answer = runtime.block_on(service.acquire(Arc::new(claim), Duration::ZERO));
        answer.map(|answer| answer.outcome)
    });
    let answer = on_another_thread.await.expect("no panic");
    assert!(
        matches!(&answer, Ok(granted) if granted.kind() == Some(GrantKind::New)),
        "{answer:?}"
    );
}

fn assert_unknown(answer: Result<AcquireOutcome, StoreError>) {
    match answer {
        Err(StoreError::Unknown { .. }) => {}
        other => panic!("the answer was lost, but: {other:?}"),
    }
}

#[tokio::test]
async fn a_grant_whose_reply_was_lost_is_rolled_back() {
    let network = Network::start().await;
    let claim = lasting(claim());
    network.proxy.swallow_replies();
    let request = network.behind.acquire(&claim);
    let seen_held = eventually("the command arrives", async || {
        let view = network.beside.service.inspect(lock_of(&claim)).await.ok()?;
        matches!(view.state, LockState::Held(_)).then_some(())
    });
    let (answer, ()) = tokio::join!(request, seen_held);
    assert_unknown(answer);
    // The first attempts to roll it back must fail too.
    let tries = network.proxy.accepted() + 2;
    eventually("it is tried again", async || {
        (network.proxy.accepted() >= tries).then_some(())
    })
    .await;
    network.proxy.pass_replies();
    network.beside.becomes_free(&claim).await;
    // The token can be used as before.
    eventually("the network is well", async || {
        let answer = network.behind.acquire(&claim).await.ok()?;
        (answer.kind() == Some(GrantKind::New)).then_some(())
    })
    .await;
}

/// The second try finds that the claim has ended, with a lease that was never delivered.
#[tokio::test]
async fn a_grant_that_ran_out_before_its_request_was_repeated_does_not_end_the_claim() {
    let network = Network::start().await;
    let claim = for_short(&claim());
    network.proxy.swallow_replies();
    let runs_out = async {
        for is_held in [true, false] {
            eventually("it is granted, and runs out", async || {
                let view = network.beside.service.inspect(lock_of(&claim)).await.ok()?;
                (matches!(view.state, LockState::Held(_)) == is_held).then_some(())
            })
            .await;
        }
        network.proxy.pass_replies();
    };
    let (answer, ()) = tokio::join!(network.behind.acquire(&claim), runs_out);
    assert_unknown(answer);
    let claim = lasting(claim);
    eventually("the token is as good as before", async || {
        let answer = network.behind.acquire(&claim).await.ok()?;
        (answer.kind() == Some(GrantKind::New)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_retry_with_the_same_token_holds_despite_a_concurrent_rollback() {
    let network = Network::start().await;
    for claim in lasting_claims("retried", 10) {
        eventually("an answer is lost", async || {
            network.proxy.swallow_replies();
            let answer = network.behind.acquire(&claim).await;
            network.proxy.pass_replies();
            // Without a connection, the request is not sent.
            let was_sent = !matches!(answer, Err(StoreError::Unavailable { .. }));
            was_sent.then(|| assert_unknown(answer))
        })
        .await;
        // At once, so that the retry races with the rollback of the first attempt.
        eventually("the retry is answered", async || {
            match network.behind.acquire(&claim).await {
                Ok(held) if held.kind().is_some_and(|kind| kind != GrantKind::Reentered) => {
                    Some(())
                }
                Ok(other) => panic!("the claim holds, but: {other:?}"),
                Err(_) => None,
            }
        })
        .await;
    }
    // Only when no rollback is pending is it certain that none was done by mistake.
    network.behind.service.shut_down(EFFECT_TIMEOUT).await;
    for claim in lasting_claims("retried", 10) {
        let view = network.beside.service.inspect(lock_of(&claim)).await;
        let state = view.expect("Redis is well").state;
        assert!(matches!(state, LockState::Held(_)), "{state:?}");
    }
}

#[tokio::test]
async fn a_release_whose_reply_was_lost_makes_the_waiters_of_its_process_poll() {
    let server = durable_redis().await;
    let proxy = Proxy::start(server.address()).await;
    let store = stores::redis_store(&proxy.database(0), &stores::redis_config()).await;
    let (store, ear) = (
        store.expect("the store opens"),
        Arc::new(RecordingListener::default()),
    );
    store.set_listener(Arc::clone(&ear) as _);
    let claim = claim();
    let release = async |by| store.release(&claim.names, claim.token, None, by).await;
    release(deadline()).await.expect("the network is well");
    assert_eq!(
        ear.reservations_of(lock_of(&claim)),
        0,
        "it said that all is as before"
    );
    proxy.swallow_replies();
    let soon = Instant::now() + Duration::from_millis(100);
    release(soon).await.expect_err("its answer is lost");
    assert_eq!(ear.reservations_of(lock_of(&claim)), 1);
}

/// The second try finds what the first has done.
#[tokio::test]
async fn a_re_entry_whose_reply_was_lost_is_answered_as_one_and_a_replay_as_a_replay() {
    let network = Network::start().await;
    network.behind.checks.abort();
    for mode in [Mode::Exclusive, READ] {
        let held = lasting(in_mode(&claim(), mode));
        let deeper = at_depth(&held, 2);
        network.behind.granted(&held).await;
        for expected in [GrantKind::Reentered, GrantKind::Replayed] {
            network.proxy.swallow_replies();
            let swallowed = network.proxy.swallowed();
            let is_lost = async {
                eventually("the reply is lost", async || {
                    (network.proxy.swallowed() > swallowed).then_some(())
                })
                .await;
                network.proxy.pass_replies();
                network.proxy.cut();
            };
            let (answer, ()) = tokio::join!(network.behind.acquire(&deeper), is_lost);
            let answer = answer.expect("the second try is answered");
            assert_eq!(answer.kind(), Some(expected), "{answer:?}");
        }
    }
}

#[tokio::test]
async fn a_release_whose_answer_was_lost_is_finished_and_recognised() {
    let network = Network::start().await;
    let claim = lasting(claim());
    network.behind.granted(&claim).await;
    network.proxy.swallow_replies();
    let answer = network.behind.release(&claim).await;
    assert!(
        matches!(answer, Err(StoreError::Unknown { .. })),
        "{answer:?}"
    );
    network.beside.becomes_free(&claim).await;
    network.beside.granted(&lasting(rival(&claim))).await;
    network.proxy.pass_replies();
    let again = eventually("the network is well", async || {
        network.behind.release(&claim).await.ok()
    })
    .await;
    assert_eq!(again, Released::Repeated);
}

#[tokio::test]
async fn the_first_operation_after_idle_connections_were_cut_succeeds() {
    let network = Network::start().await;
    for _ in 0..20 {
        let before = network.proxy.accepted();
        network.proxy.cut();
        // The replica reconnects its pub/sub connection at once.
        eventually("the connections end", async || {
            (network.proxy.accepted() - network.proxy.open() >= before).then_some(())
        })
        .await;
        let claim = lasting(claim());
        network.behind.granted(&claim).await;
        network.behind.assert_holds(&claim).await;
    }
}

#[tokio::test]
async fn an_unreachable_redis_is_unavailable_until_it_is_reached_again() {
    let network = Network::start().await;
    let claim = lasting(claim());
    network.proxy.refuse(true);
    network.proxy.cut();
    eventually("the cut is noticed", async || {
        match network.behind.acquire(&claim).await {
            Err(StoreError::Unavailable { .. }) => Some(()),
            Err(StoreError::Unknown { .. }) => None,
            Ok(other) => panic!("nobody can be reached, but: {other:?}"),
        }
    })
    .await;
    network.proxy.refuse(false);
    eventually("the network is well", async || {
        network.behind.acquire(&claim).await.ok()
    })
    .await;
}

/// An eviction of very many holders takes several steps. It must not evict claims that are granted between two steps.
#[tokio::test]
async fn a_slow_eviction_leaves_claims_that_were_granted_after_its_start() {
    const MANY: u64 = 1_200;
    let network = Network::start().await;
    let slow = Replica::open_within(EFFECT_TIMEOUT, &network.proxy.database(0)).await;
    slow.granted(&lasting(claim())).await;
    let lock = lasting(claim());
    for _ in 0..MANY {
        let reader = in_mode(&lasting(rival(&lock)), READ);
        network.beside.granted(&reader).await;
    }
    let holders = async || {
        let view = network.beside.service.inspect(lock_of(&lock)).await;
        match view.expect("it is not slow").state {
            LockState::Held(holders) => holders.total,
            _ => 0,
        }
    };
    network.proxy.delay_replies(Duration::from_millis(500));
    let evicting = slow
        .service
        .evict(lock_of(&lock).clone(), String::new(), |_| {});
    let overtaking = async {
        let left = eventually("the first step is done", async || {
            let left = holders().await;
            (left < MANY).then_some(left)
        })
        .await;
        assert!(left > 0, "it was not all done in one step");
        let name = lock_of(&lock).clone();
        let rest = network
            .beside
            .service
            .evict(name, String::new(), |_| {})
            .await;
        assert_eq!(rest.expect("it is not slow").holders.total, left);
        network.beside.granted(&lock).await;
        left
    };
    let (evicted, left) = tokio::join!(evicting, overtaking);
    let evicted = evicted.expect("slow and well").holders.total;
    assert_eq!(evicted, MANY - left);
    network.beside.assert_holds(&lock).await;
}

/// It reports how many holders it evicted before the cut, and that it is not complete.
#[tokio::test]
async fn an_eviction_that_is_cut_off_reports_its_progress() {
    const MANY: u64 = 1_200;
    let network = Network::start().await;
    let lock = lasting(claim());
    for _ in 0..MANY {
        let reader = in_mode(&lasting(rival(&lock)), READ);
        network.beside.granted(&reader).await;
    }
    network.proxy.delay_replies(Duration::from_millis(50));
    let name = lock_of(&lock).clone();
    let evicting = network.behind.service.evict(name, String::new(), |_| {});
    let cutting = async {
        eventually("the first steps are done", async || {
            let view = network.beside.service.inspect(lock_of(&lock)).await;
            let state = view.expect("it is not slow").state;
            matches!(state, LockState::Held(holders) if holders.total < MANY - 200).then_some(())
        })
        .await;
        network.proxy.refuse(true);
        network.proxy.cut();
    };
    let (evicted, ()) = tokio::join!(evicting, cutting);
    let evicted = evicted.expect("some are evicted");
    assert!(!evicted.is_complete);
    assert!(
        (1..MANY).contains(&evicted.holders.total),
        "{}",
        evicted.holders.total
    );
}

#[tokio::test]
async fn a_slow_network_delays_and_changes_nothing() {
    let network = Network::start().await;
    // Each check of Redis opens a connection of its own.
    network.behind.checks.abort();
    network.proxy.delay_replies(Duration::from_millis(20));
    let claims = lasting_claims("slow", 20);
    let grants = claims.iter().map(|claim| network.behind.granted(claim));
    futures_util::future::join_all(grants).await;
    for claim in &claims {
        network.beside.assert_holds(claim).await;
    }
    // A slow reply does not lead to a new connection.
    let opened = network.proxy.accepted();
    assert!(opened <= CONNECTIONS_IN_ALL, "{opened} connections");
}
