//! A former primary that still runs, cut off from its replica and from the Sentinels, while the replica is promoted:
//! what a process that is still connected to it reports.

use std::sync::Arc;
use std::time::Duration;

use leasehold::config::{RedisConfig, Secret, SentinelAddress};
use leasehold::domain::Renewed;
use leasehold::service::AcquireOutcome;
use leasehold::store::{Fault, LockStore, StoreError};

use super::{Replica, behind_proxies, lasting};
use crate::support::fixture::claim;
use crate::support::redis_server::RedisOptions;
use crate::support::sentinels::{PROCESSES, WatchedPair};
use crate::support::{eventually, stores};

/// How many claims are tried after the promotion.
const CLAIMS: usize = 200;
/// How many renewals are tried.
const RENEWALS: usize = 2;
/// The interval of checks that do not take place during a test.
const NEVER: Duration = Duration::from_secs(600);

async fn pair() -> WatchedPair {
    let pair = WatchedPair::start(RedisOptions::forgetful()).await;
    for server in [&pair.primary, &pair.replica] {
        server.admit_processes().await;
    }
    pair
}

/// Cuts the primary off from its replica and from the Sentinels, but not from the processes, and waits until the replica
/// is promoted.
async fn partition(pair: &WatchedPair) {
    pair.primary.part_from_peers().await;
    pair.is_promoted().await;
    eventually("it is a primary", async || {
        let role = pair.replica.info("replication", "role").await;
        (role == "master").then_some(())
    })
    .await;
}

async fn process(address: &SentinelAddress, config: RedisConfig) -> Replica {
    let [name, password] = PROCESSES;
    let config = RedisConfig {
        username: Some(name.to_owned()),
        password: Some(Secret::new(password)),
        ..config
    };
    let store: Arc<dyn LockStore> = stores::sentinel_store(address, &config)
        .await
        .expect("the primary is found");
    Replica::on(store)
}

/// What a process reports that gets no message about the promotion and no answer from the Sentinels.
struct ReportedOutcomes {
    grants: usize,
    renewals: usize,
    /// Claims and renewals that too few replicas confirmed.
    unconfirmed: usize,
}

async fn reported_by_the_former_primary(config: RedisConfig) -> ReportedOutcomes {
    let pair = pair().await;
    let mut address = pair.sentinels.database(0);
    let proxies = behind_proxies(&mut address).await;
    let config = RedisConfig {
        check_interval: NEVER,
        ..config
    };
    let process = process(&address, config).await;
    let held = lasting(claim());
    process.granted(&held).await;
    for proxy in &proxies {
        proxy.refuse(true);
        proxy.cut();
    }
    partition(&pair).await;
    let is_unconfirmed = |error: Option<StoreError>| {
        usize::from(error.is_some_and(|error| error.fault() == Fault::Unreplicated))
    };
    let [mut grants, mut renewals, mut unconfirmed] = [0; 3];
    for number in 0..CLAIMS {
        let granted = process.acquire(&lasting(claim())).await;
        grants += usize::from(matches!(granted, Ok(AcquireOutcome::Granted(_))));
        unconfirmed += is_unconfirmed(granted.err());
        // Each renewal waits for the replica, while claims are soon refused at once.
        if number < RENEWALS {
            let renewed = process.renew(&held).await;
            renewals += usize::from(matches!(renewed, Ok(Renewed::Extended(_))));
            unconfirmed += is_unconfirmed(renewed.err());
        }
    }
    ReportedOutcomes {
        grants,
        renewals,
        unconfirmed,
    }
}

#[tokio::test]
async fn a_former_primary_without_its_replica_reports_nothing() {
    let reported = reported_by_the_former_primary(stores::confirmed_by(1)).await;
    assert_eq!([reported.grants, reported.renewals], [0, 0]);
    // All of them reached it, and nothing but the replica was missing.
    assert_eq!(reported.unconfirmed, CLAIMS + RENEWALS);
}

/// What `redis.wait_replicas` is for. If this is no longer so, the test above shows nothing.
#[tokio::test]
async fn a_former_primary_that_needs_no_replica_reports_grants() {
    let reported = reported_by_the_former_primary(stores::redis_config()).await;
    assert_eq!([reported.grants, reported.renewals], [CLAIMS, RENEWALS]);
}

/// Its own next check comes too late for this test.
#[tokio::test]
async fn a_promotion_is_noticed_by_the_message_of_a_sentinel() {
    let pair = pair().await;
    let config = RedisConfig {
        check_interval: NEVER,
        ..stores::redis_config()
    };
    let process = process(&pair.sentinels.database(0), config).await;
    eventually("it listens to all Sentinels", async || {
        let listening = pair.sentinels.listeners().await?;
        (listening == 3).then_some(())
    })
    .await;
    process.granted(&lasting(claim())).await;
    partition(&pair).await;
    eventually("new grants wait", async || {
        process.service.store_health().recovering_for
    })
    .await;
}
