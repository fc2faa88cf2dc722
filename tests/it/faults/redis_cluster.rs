//! A Redis Cluster: slots that move, primaries that fail or lose their data, and others that go on meanwhile.

mod access;
mod confirmed;
mod late;
mod moves;
mod partitions;
mod primaries;
mod several;

use std::sync::Arc;
use std::time::Duration;

use leasehold::config::{ClusterAddress, RedisConfig, Secret};
use leasehold::domain::{Claim, LockName, Refused, Released, Renewed};
use leasehold::service::AcquireOutcome;
use leasehold::store::{Fault, LockStore, StoreError};
use tokio::time::Instant;

use super::{FOR_EVER, Replica, forgetful_redis, lasting, lasting_for};
use crate::support::cluster::RedisCluster;
use crate::support::fixture::{claim, claim_on_all, lock_of, names, rival};
use crate::support::redis_server::RedisOptions;
use crate::support::{eventually, stores};

/// How long leases last whose end a test waits for.
const TTL: Duration = Duration::from_secs(6);

fn config() -> RedisConfig {
    RedisConfig {
        // Each check is one of all partitions.
        check_interval: Duration::from_secs(1),
        ..stores::redis_config()
    }
}

async fn cluster() -> RedisCluster {
    RedisCluster::start(3, RedisOptions::forgetful()).await
}

async fn open(address: &ClusterAddress) -> Result<Arc<dyn LockStore>, StoreError> {
    stores::cluster_store(address, &config()).await
}

async fn replica(cluster: &RedisCluster) -> Replica {
    let store = open(&cluster.address()).await.expect("the store opens");
    // Counts the subscribers, see `is_renewed`.
    store.refresh_health().await;
    Replica::on(store)
}

/// A claim that holds a lock on this primary, and the slot of the lock.
async fn held_on(primary: usize, cluster: &RedisCluster, replica: &Replica) -> (Claim, u16) {
    held_for(FOR_EVER, primary, cluster, replica).await
}

/// The same with this TTL.
async fn held_for(
    ttl: Duration,
    primary: usize,
    cluster: &RedisCluster,
    replica: &Replica,
) -> (Claim, u16) {
    loop {
        let held = lasting_for(ttl, claim());
        // On a busy machine, the first connection to a primary may take longer than a request waits.
        eventually("a lock is granted", async || {
            replica.acquire(&held).await.ok()?.kind()
        })
        .await;
        let slot = cluster.slot_of_lock(lock_of(&held).as_str()).await;
        if cluster.owner(slot).await == primary {
            return (held, slot);
        }
    }
}

/// Locks that are free, one on each of these primaries.
async fn locks_on<const COUNT: usize>(
    primaries: [usize; COUNT],
    cluster: &RedisCluster,
    replica: &Replica,
) -> [LockName; COUNT] {
    let mut locks = primaries.map(|_| None);
    for (lock, primary) in locks.iter_mut().zip(primaries) {
        let (held, _) = held_on(primary, cluster, replica).await;
        replica.release(&held).await.expect("it answers");
        *lock = Some(lock_of(&held).clone());
    }
    locks.map(|lock| lock.expect("there is one on each"))
}

async fn is_blocked(replica: &Replica, claim: &Claim) {
    let answer = replica.acquire(claim).await;
    let is_blocked = matches!(answer, Ok(AcquireOutcome::Refused(Refused::Blocked(_))));
    assert!(is_blocked, "{answer:?}");
}

/// Until the process has counted the subscribers of events it publishes some, for which a script reads more keys, and
/// they may be at either node.
pub(super) async fn is_renewed(replica: &Replica, claim: &Claim) {
    eventually("it is renewed", async || match replica.renew(claim).await {
        Ok(Renewed::Extended(_)) => Some(()),
        Ok(other) => panic!("it holds, but: {other:?}"),
        Err(_) => None,
    })
    .await;
}

async fn is_recovering(replica: &Replica, claim: &Claim) {
    eventually("new grants wait", async || {
        match replica.acquire(claim).await {
            Ok(AcquireOutcome::Refused(Refused::Recovering { .. })) => Some(()),
            Ok(AcquireOutcome::Granted(_)) => panic!("it is held by another claim"),
            _ => None,
        }
    })
    .await;
}

#[tokio::test]
async fn a_lease_is_kept_and_renewed_while_its_slot_moves() {
    let cluster = cluster().await;
    let replica = replica(&cluster).await;
    let (held, slot) = held_on(0, &cluster, &replica).await;
    cluster.begin_move(slot, 0, 1).await;
    is_renewed(&replica, &held).await;
    cluster.move_keys(slot, 0, 1).await;
    // The slot is not there yet, but the lease is.
    is_renewed(&replica, &held).await;
    cluster.end_move(slot, 0, 1).await;
    replica.assert_holds(&held).await;
    is_blocked(&replica, &rival(&held)).await;
    replica.release(&held).await.expect("it answers");
    // Nothing was lost, so nothing waits.
    replica.granted(&rival(&held)).await;
}

#[tokio::test]
async fn a_process_that_has_seen_no_move_finds_the_lease_where_it_is() {
    let cluster = cluster().await;
    let [first, second] = [replica(&cluster).await, replica(&cluster).await];
    let (held, slot) = held_on(0, &cluster, &first).await;
    cluster.move_slot(slot, 0, 2).await;
    is_blocked(&second, &rival(&held)).await;
    first.assert_holds(&held).await;
}

#[tokio::test]
async fn slots_that_move_under_load_lose_no_lease_and_grant_no_lock_twice() {
    let cluster = cluster().await;
    let replica = replica(&cluster).await;
    let (held, slot) = held_on(1, &cluster, &replica).await;
    let mut fences = Vec::new();
    let working = async {
        for _ in 0..60 {
            let work = lasting(rival(&claim()));
            if let Ok(AcquireOutcome::Granted(granted)) = replica.acquire(&work).await {
                fences.push(granted.leases[0].holder.fence);
                // Its slot may be the one that moves, for longer than an operation may take.
                let released = replica.release(&work).await;
                assert!(
                    matches!(released, Ok(Released::Freed { .. }) | Err(_)),
                    "{released:?}"
                );
            }
            let taken = replica.acquire(&rival(&held)).await;
            assert!(
                !matches!(taken, Ok(AcquireOutcome::Granted(_))),
                "{taken:?}"
            );
        }
    };
    let moving = async {
        for [from, to] in [[1, 0], [0, 2], [2, 1]] {
            cluster.move_slot(slot, from, to).await;
            is_renewed(&replica, &held).await;
        }
    };
    tokio::join!(working, moving);
    assert!(!fences.is_empty(), "locks elsewhere are granted meanwhile");
    println!("{} locks elsewhere were granted meanwhile", fences.len());
    replica.assert_holds(&held).await;
}

#[tokio::test]
async fn a_primary_that_lost_its_data_makes_its_own_locks_wait_and_no_others() {
    let cluster = cluster().await;
    let replica = replica(&cluster).await;
    let (lost, _) = held_for(TTL, 0, &cluster, &replica).await;
    let (kept, _) = held_for(TTL, 1, &cluster, &replica).await;
    let held_until = Instant::now() + TTL;
    replica.assert_holds(&lost).await;
    cluster.nodes[0].command(&["FLUSHALL"]).await;
    is_recovering(&replica, &rival(&lost)).await;
    replica.release(&kept).await.expect("it answers");
    replica.granted(&rival(&kept)).await;
    replica.granted_not_before(&rival(&lost), held_until).await;
}

#[tokio::test]
async fn locks_of_a_primary_whose_replica_took_over_wait_for_leases_that_may_be_lost() {
    let mut cluster = cluster().await;
    cluster.replica(0, RedisOptions::forgetful()).await;
    let replica = replica(&cluster).await;
    let (held, _) = held_for(TTL, 0, &cluster, &replica).await;
    let (other, _) = held_for(TTL, 1, &cluster, &replica).await;
    replica.assert_holds(&held).await;
    let held_until = Instant::now() + TTL;
    let fence = replica.renew(&held).await.expect("it answers");
    cluster.nodes[0].kill();
    let promoted = &cluster.nodes[3];
    promoted.command(&["CLUSTER", "FAILOVER", "TAKEOVER"]).await;
    is_recovering(&replica, &rival(&held)).await;
    replica.release(&other).await.expect("it answers");
    replica.granted(&rival(&other)).await;
    let lease = replica.granted_not_before(&rival(&held), held_until).await;
    let Renewed::Extended(before) = fence else {
        panic!("it held: {fence:?}");
    };
    assert!(lease.holder.fence > before[0].lease.holder.fence);
}

#[tokio::test]
async fn while_a_primary_is_silent_the_others_go_on_and_it_is_named() {
    let cluster = cluster().await;
    let replica = replica(&cluster).await;
    cluster.needs_no_full_coverage().await;
    let (silent, _) = held_on(2, &cluster, &replica).await;
    let (other, _) = held_on(0, &cluster, &replica).await;
    cluster.nodes[2].pause();
    let place = cluster.nodes[2].address();
    eventually("the silent node is named", async || {
        let health = replica.service.store_health();
        let mut findings = health.findings.iter();
        findings
            .any(|it| it.topic == "node" && !it.is_fine && it.detail.contains(&place))
            .then_some(())
    })
    .await;
    assert!(replica.service.store_health().up);
    replica.release(&other).await.expect("it answers");
    replica.granted(&rival(&other)).await;
    eventually("its locks are refused at once", async || {
        let began = Instant::now();
        let answer = replica.acquire(&rival(&silent)).await;
        assert!(answer.is_err(), "{answer:?}");
        (began.elapsed() < stores::OPERATION_TIMEOUT / 4).then_some(())
    })
    .await;
    cluster.nodes[2].resume();
    is_renewed(&replica, &silent).await;
}

#[tokio::test]
async fn a_primary_that_joins_gets_slots_without_making_grants_wait() {
    let mut cluster = cluster().await;
    let replica = replica(&cluster).await;
    let (held, slot) = held_on(0, &cluster, &replica).await;
    cluster.join(RedisOptions::forgetful()).await;
    cluster.move_slot(slot, 0, 3).await;
    replica.assert_holds(&held).await;
    replica.release(&held).await.expect("it answers");
    replica.granted(&rival(&held)).await;
}

#[tokio::test]
async fn claims_on_locks_of_several_primaries_are_granted_one_after_the_other() {
    let cluster = cluster().await;
    let [one, other] = [replica(&cluster).await, replica(&cluster).await];
    let all = names(&locks_on([0, 1, 2], &cluster, &one).await);
    let claims: Vec<_> = (0..6).map(|_| lasting(claim_on_all(all.clone()))).collect();
    let working = claims.iter().enumerate().map(async |(number, claim)| {
        let replica = [&one, &other][number % 2];
        let answer = replica.acquire_within(claim, Duration::from_secs(20)).await;
        let Ok(AcquireOutcome::Granted(granted)) = answer else {
            panic!("each gets its turn, but: {answer:?}");
        };
        assert_eq!(granted.leases.len(), 3);
        let names = claim.names.clone();
        let released = replica
            .service
            .release(names, claim.token, None, |_| {})
            .await;
        let released = released.expect("it answers");
        assert!(
            released
                .iter()
                .all(|it| matches!(it, Released::Freed { .. })),
            "{released:?}"
        );
        let fences = granted.leases.iter().map(|lease| lease.holder.fence);
        fences.collect::<Vec<_>>()
    });
    let mut fences = futures_util::future::join_all(working).await;
    fences.sort();
    for pair in fences.windows(2) {
        // In one order on all locks, because no two were granted at the same time.
        assert!(
            pair[0].iter().zip(&pair[1]).all(|(one, other)| one < other),
            "{pair:?}"
        );
    }
}

#[tokio::test]
async fn a_server_that_is_no_cluster_is_refused_and_so_is_a_wrong_password() {
    let alone = forgetful_redis().await;
    let address = ClusterAddress {
        nodes: vec![("127.0.0.1".to_owned(), alone.port())],
        is_encrypted: false,
    };
    let error = open(&address).await.expect_err("it is no cluster");
    assert_eq!(error.fault(), Fault::Cluster);
    assert!(error.detail().contains("redis://"), "{error}");
    let cluster = cluster().await;
    for node in &cluster.nodes {
        node.command(&["CONFIG", "SET", "requirepass", "right"])
            .await;
    }
    let config = RedisConfig {
        password: Some(Secret::new("wrong".to_owned())),
        ..config()
    };
    let opening = stores::cluster_store(&cluster.address(), &config).await;
    let error = opening.expect_err("the password is wrong");
    assert_eq!(error.fault(), Fault::Auth);
}
