//! Redis is killed and restarted, with its data or without.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::config::RedisConfig;
use leasehold::domain::{Claim, GrantKind, Granted, LockName, NotHolder, Refused, Renewed};
use leasehold::service::AcquireOutcome;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{Replica, durable_redis, forgetful_redis, lasting};
use crate::support::fixture::{claim, claim_on, fresh_name, lock_of, not_holder, only, rival, ttl};
use crate::support::proxy::Proxy;
use crate::support::redis_server::RedisServer;
use crate::support::stores::{self, CONNECTIONS_IN_ALL};
use crate::support::{eventually, eventually_within};

const CLIENTS: usize = 50;
const KILLS: usize = 4;
/// Grants between two faults, so that each fault hits a busy service.
const GRANTS_BETWEEN: usize = 200;
/// How soon a lock is granted again once Redis answers: a second, plus a margin for a busy machine.
const HEALED_WITHIN: Duration = Duration::from_secs(3);

/// The protected resources: the current holders, and the last fence of each lock.
#[derive(Default)]
struct Witness {
    inside: Mutex<HashMap<LockName, Instant>>,
    fences: Mutex<HashMap<LockName, u64>>,
    grants: AtomicUsize,
    stop: AtomicBool,
}

impl Witness {
    fn enter(&self, name: &LockName, fence: u64, until: Instant) {
        let before = self
            .fences
            .lock()
            .expect("whole")
            .insert(name.clone(), fence);
        assert!(before < Some(fence), "{name}: {fence} after {before:?}");
        let other = self
            .inside
            .lock()
            .expect("whole")
            .insert(name.clone(), until);
        let overlaps = other.is_some_and(|until| until > Instant::now());
        assert!(!overlaps, "{name}: two holders at once");
        self.grants.fetch_add(1, SeqCst);
    }

    fn leave(&self, name: &LockName) {
        self.inside.lock().expect("whole").remove(name);
    }

    /// Waits for `more` grants.
    async fn grants(&self, more: usize, timeout: Duration) {
        let goal = self.grants.load(SeqCst) + more;
        eventually_within(timeout, "clients are granted locks", async || {
            (self.grants.load(SeqCst) >= goal).then_some(())
        })
        .await;
    }
}

/// Acquires and releases locks until it is stopped. Errors are allowed, wrong grants are not.
async fn client(
    replica: Arc<Replica>,
    names: Arc<Vec<LockName>>,
    number: usize,
    seen: Arc<Witness>,
) {
    for turn in number.. {
        if seen.stop.load(SeqCst) {
            return;
        }
        let claim = lasting(claim_on(&names[turn % names.len()]));
        let asked = Instant::now();
        match replica.acquire(&claim).await {
            Ok(AcquireOutcome::Granted(Granted {
                kind: GrantKind::New,
                leases,
                ..
            })) => {
                let lease = only(leases);
                let until = asked + lease.holder.expires_in;
                seen.enter(lock_of(&claim), lease.holder.fence.get(), until);
                tokio::task::yield_now().await;
                seen.leave(lock_of(&claim));
                // The client must repeat a release of unknown outcome.
                while replica.release(&claim).await.is_err() {}
            }
            Ok(AcquireOutcome::Refused(Refused::Blocked(_))) => {
                tokio::time::sleep(Duration::from_millis(2)).await
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            Ok(other) => panic!("nothing ends and nothing is lost here, but: {other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_durable_redis_may_be_killed_under_load_and_no_grant_is_wrong() {
    let mut server = durable_redis().await;
    let replica = Arc::new(Replica::open(&server.database(0)).await);
    let names: Arc<Vec<_>> = Arc::new((0..8).map(|_| fresh_name()).collect());
    let seen = Arc::new(Witness::default());
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let (replica, names) = (Arc::clone(&replica), Arc::clone(&names));
        clients.spawn(client(replica, names, number, Arc::clone(&seen)));
    }
    for _ in 0..KILLS {
        seen.grants(GRANTS_BETWEEN, crate::support::EFFECT_TIMEOUT)
            .await;
        server.kill();
        server.restart().await;
        seen.grants(1, HEALED_WITHIN).await;
        eventually("there are no more connections than before", async || {
            (server.connections().await <= CONNECTIONS_IN_ALL).then_some(())
        })
        .await;
    }
    seen.stop.store(true, SeqCst);
    while let Some(ended) = clients.join_next().await {
        ended.expect("no client saw a wrong grant");
    }
    for name in names.iter() {
        replica.becomes_free(&claim_on(name)).await;
    }
}

/// While Redis loads its append-only file, it reports that it has none.
#[tokio::test]
async fn a_durable_redis_that_is_loading_its_data_has_lost_none() {
    let mut server = durable_redis().await;
    let proxy = Proxy::start(server.address()).await;
    let config = RedisConfig {
        connect_timeout: Duration::from_secs(4),
        ..stores::redis_config()
    };
    let store = stores::redis_store(&proxy.database(0), &config).await;
    let replica = Replica::on(store.expect("it answers"));
    replica.granted(&lasting(claim())).await;
    // Enough to load for seconds.
    let fill = "for i = 1, 300000 do redis.call('SET', 'filler', i) end";
    server.command(&["EVAL", fill, "0"]).await;
    server.kill();
    // A process that connects reads the configuration first, and asks for the state of the data half a second later.
    proxy.delay_replies(Duration::from_millis(500));
    server.restart_loading().await;
    eventually("the process has read the configuration", async || {
        let commands = server.info_section("commandstats").await;
        commands.contains("cmdstat_config").then_some(())
    })
    .await;
    server.load_the_rest().await;
    proxy.delay_replies(Duration::ZERO);
    // If anything counted as lost, grants would wait for the lease that lasts.
    replica.granted_not_before(&claim(), Instant::now()).await;
}

#[tokio::test]
async fn a_redis_that_forgot_grants_nothing_until_the_last_reported_lease_is_over() {
    let mut server = forgetful_redis().await;
    let replica = Replica::open(&server.database(0)).await;
    let held = Claim {
        ttl: ttl(Duration::from_secs(4)),
        ..claim()
    };
    let lease = replica.lease(&held).await;
    // Counted from after the reply, which is at least as late as the holder's own end.
    let held_until = Instant::now() + lease.holder.expires_in;
    server.kill();
    server.restart().await;

    let (next, elsewhere) = (rival(&held), claim());
    let mut told_to_wait = 0;
    let fence = eventually("grants go on", async || {
        // Any lock may have lost its holder.
        let answers = [
            replica.acquire(&elsewhere).await,
            replica.acquire(&next).await,
        ];
        let answered = Instant::now();
        for answer in &answers {
            match answer {
                Ok(
                    AcquireOutcome::Granted(Granted {
                        kind: GrantKind::New,
                        ..
                    })
                    | AcquireOutcome::Granted(Granted {
                        kind: GrantKind::Replayed,
                        ..
                    }),
                ) => {
                    assert!(answered >= held_until, "granted while the lease is alive");
                }
                Ok(AcquireOutcome::Refused(Refused::Recovering { .. })) => told_to_wait += 1,
                Err(_) => {}
                other => panic!("grants are held back, but: {other:?}"),
            }
        }
        match answers {
            [
                _,
                Ok(AcquireOutcome::Granted(Granted {
                    kind: GrantKind::New,
                    leases,
                    ..
                })),
            ] => Some(only(leases).holder.fence),
            _ => None,
        }
    })
    .await;
    assert!(told_to_wait > 0, "the loss was never noticed");
    assert!(
        fence > lease.holder.fence,
        "{fence} after {}",
        lease.holder.fence
    );
}

/// Kills Redis and renews the lease once it is back.
async fn renewed_after_a_crash(
    server: &mut RedisServer,
    replica: &Replica,
    claim: &Claim,
) -> Renewed {
    server.kill();
    server.restart().await;
    eventually("Redis is reached again", async || {
        replica.renew(claim).await.ok()
    })
    .await
}

#[tokio::test]
async fn a_lease_that_redis_forgot_cannot_be_renewed_or_released() {
    let mut server = forgetful_redis().await;
    let replica = Replica::open(&server.database(0)).await;
    let forgotten = lasting(claim());
    replica.granted(&forgotten).await;
    let answer = renewed_after_a_crash(&mut server, &replica, &forgotten).await;
    assert_eq!(answer, not_holder(&forgotten, NotHolder::Unknown));
    replica.becomes_free(&forgotten).await;
}

#[tokio::test]
async fn a_lease_in_a_durable_redis_survives_its_crash() {
    let mut server = durable_redis().await;
    let replica = Replica::open(&server.database(0)).await;
    let held = lasting(claim());
    replica.granted(&held).await;
    let answer = renewed_after_a_crash(&mut server, &replica, &held).await;
    assert!(matches!(answer, Renewed::Extended(_)), "{answer:?}");
    // And there is no grace, because no leases were lost.
    replica.granted(&lasting(claim())).await;
}

/// When the replicas detect the loss, they learn of each other's leases through the store.
#[tokio::test]
async fn a_replica_waits_for_the_leases_that_another_replica_reported() {
    let mut server = forgetful_redis().await;
    let first = Replica::open(&server.database(0)).await;
    let second = Replica::open(&server.database(0)).await;
    let held = Claim {
        ttl: ttl(Duration::from_secs(5)),
        ..claim()
    };
    let (_, held_until) = first.lease_until(&held).await;
    server.kill();
    server.restart().await;
    let next = rival(&held);
    eventually("grants go on", async || match second.acquire(&next).await {
        Ok(AcquireOutcome::Granted(Granted {
            kind: GrantKind::New,
            ..
        })) => Some(()),
        Ok(AcquireOutcome::Refused(Refused::Recovering { .. })) | Err(_) => None,
        other => panic!("grants are held back, but: {other:?}"),
    })
    .await;
    assert!(
        Instant::now() >= held_until,
        "granted while the lease is alive"
    );
}

/// The first replica that finds the empty store writes its marks again. Later replicas must not conclude from these
/// marks that the store kept its data, however durable it claims to be.
#[tokio::test]
async fn a_durable_redis_whose_disk_was_lost_deceives_no_replica() {
    let mut server = durable_redis().await;
    let idle = Replica::open(&server.database(0)).await;
    let holding = Replica::open(&server.database(0)).await;
    let held = Claim {
        ttl: ttl(Duration::from_secs(8)),
        ..claim()
    };
    let (_, held_until) = holding.lease_until(&held).await;
    server.kill();
    server.forget();
    server.restart().await;
    let next = rival(&held);
    let elsewhere = claim();
    eventually("grants go on", async || {
        let first = idle.acquire(&next).await;
        let second = holding.acquire(&elsewhere).await;
        for answer in [&first, &second] {
            let kind = answer.as_ref().ok().and_then(AcquireOutcome::kind);
            if matches!(kind, Some(GrantKind::New | GrantKind::Replayed)) {
                assert!(
                    Instant::now() >= held_until,
                    "granted while the lease is alive"
                );
            }
        }
        matches!(&first, Ok(granted) if granted.kind() == Some(GrantKind::New)).then_some(())
    })
    .await;
}

/// All of its marks are present, but from before the last grant: an operator restored an older file, or Redis did not
/// load its file to the end.
#[tokio::test]
async fn a_durable_redis_that_came_back_with_older_data_deceives_no_replica() {
    let mut server = durable_redis().await;
    let holding = Replica::open(&server.database(0)).await;
    let held = Claim {
        ttl: ttl(Duration::from_secs(8)),
        ..claim()
    };
    let (_, held_until) = holding.lease_until(&held).await;
    let node = b"lh:1:{0}:node";
    let idle = Replica::open(&server.database(0)).await;
    let revision = eventually("everybody has looked", async || {
        let revision = server.integer(0, &[&b"HGET"[..], node, b"revision"]).await;
        (revision > 5).then_some(revision)
    })
    .await;
    // From here on the two learn about the store only by their requests.
    for replica in [&holding, &idle] {
        replica.checks.abort();
    }
    for lock in server.keys(0, "lh:1:{*}:l:*").await {
        server.integer(0, &[&b"DEL"[..], &lock]).await;
    }
    let earlier = (revision - 2).to_string();
    let set = [&b"HSET"[..], node, b"revision", earlier.as_bytes()];
    server.integer(0, &set).await;
    server.kill();
    server.restart().await;
    let next = rival(&held);
    eventually("grants go on", async || {
        matches!(&idle.acquire(&next).await, Ok(granted) if granted.kind() == Some(GrantKind::New))
            .then_some(())
    })
    .await;
    assert!(
        Instant::now() >= held_until,
        "granted while the lease is alive"
    );
}
