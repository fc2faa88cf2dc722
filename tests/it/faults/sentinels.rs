//! A Redis that Sentinels watch: a failover is followed without a restart, and nobody is granted what another holds.

use std::sync::Arc;
use std::time::Duration;

use leasehold::config::RedisConfig;
use leasehold::domain::{Claim, Refused, Released, Renewed};
use leasehold::service::AcquireOutcome;
use leasehold::store::{Fault, LockStore};
use tokio::time::{Instant, sleep};

use super::{Replica, behind_proxies, forgetful_redis, lasting, lasting_for};
use crate::support::fixture::{claim, rival};
use crate::support::proxy::Proxy;
use crate::support::redis_server::RedisOptions;
use crate::support::sentinels::{Sentinels, WatchedPair};
use crate::support::{eventually, stores};

/// Longer than a failover takes, and short enough for the test to wait for it.
const TTL: Duration = Duration::from_secs(8);

async fn pair() -> WatchedPair {
    WatchedPair::start(RedisOptions::forgetful()).await
}

async fn store(sentinels: &Sentinels) -> Arc<dyn LockStore> {
    let address = sentinels.database(0);
    let store = stores::sentinel_store(&address, &stores::redis_config()).await;
    store.expect("the primary is found")
}

async fn replica(sentinels: &Sentinels) -> Replica {
    Replica::on(store(sentinels).await)
}

/// Asserts that the lease of the claim outlives the failover, that new grants wait for leases that may be lost, and that
/// fencing tokens grow.
async fn is_kept(replica: &Replica, pair: &WatchedPair, held: &Claim, fence: u64) {
    pair.is_promoted().await;
    // Until it notices, it may still use the former primary.
    eventually("new grants wait", async || {
        replica.service.store_health().recovering_for
    })
    .await;
    eventually("it is renewed at the new primary", async || {
        let renewed = replica.renew(held).await;
        matches!(renewed, Ok(Renewed::Extended(_))).then_some(())
    })
    .await;
    let released = eventually("it is released", async || replica.release(held).await.ok()).await;
    assert!(matches!(released, Released::Freed { .. }), "{released:?}");
    let next = replica
        .granted_not_before(&lasting(rival(held)), Instant::now())
        .await;
    assert!(next.holder.fence.get() > fence);
}

#[tokio::test]
async fn a_planned_failover_is_followed_for_commands_and_messages() {
    let pair = pair().await;
    let [holder, other] = [
        replica(&pair.sentinels).await,
        replica(&pair.sentinels).await,
    ];
    super::all_listen(&pair.primary, 2).await;
    let held = lasting_for(TTL, claim());
    let fence = holder.granted(&held).await;
    pair.is_in_step().await;
    pair.sentinels.fail_over().await;
    is_kept(&holder, &pair, &held, fence).await;

    super::all_listen(&pair.replica, 2).await;
    super::assert_hands_over(&holder, &other).await;
}

#[tokio::test]
async fn a_primary_that_is_killed_is_replaced() {
    let mut pair = pair().await;
    let replica = replica(&pair.sentinels).await;
    let held = lasting_for(TTL, claim());
    let fence = replica.granted(&held).await;
    pair.is_in_step().await;
    pair.primary.kill();
    is_kept(&replica, &pair, &held, fence).await;
}

#[tokio::test]
async fn what_a_failover_loses_is_not_granted_again_while_it_may_be_held() {
    let mut pair = pair().await;
    let [holder, other] = [
        replica(&pair.sentinels).await,
        replica(&pair.sentinels).await,
    ];
    // So that everybody knows of leases this long.
    other.granted(&lasting_for(TTL, claim())).await;
    pair.separate().await;
    let held = lasting_for(TTL, claim());
    let (lease, held_until) = holder.lease_until(&held).await;
    drop(holder);
    pair.primary.kill();
    pair.is_promoted().await;
    // A process that has never seen the former primary must know it too.
    let fresh = replica(&pair.sentinels).await;
    let rival_claim = lasting_for(TTL, rival(&held));
    let next = fresh.granted_not_before(&rival_claim, held_until).await;
    assert!(next.holder.fence > lease.holder.fence);
    let refused = other.acquire(&rival(&held)).await;
    assert!(
        matches!(refused, Ok(AcquireOutcome::Refused(Refused::Blocked(_)))),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_former_primary_that_comes_back_grants_nothing() {
    let pair = pair().await;
    let replica = replica(&pair.sentinels).await;
    let held = lasting_for(TTL, claim());
    let fence = replica.granted(&held).await;
    pair.is_in_step().await;
    pair.primary.pause();
    is_kept(&replica, &pair, &held, fence).await;
    let next = lasting(claim());
    replica.granted(&next).await;
    pair.primary.resume();
    for _ in 0..100 {
        replica.assert_holds(&next).await;
        replica.granted(&lasting(claim())).await;
    }
    eventually("the Sentinels have demoted it", async || {
        // They end its connections, perhaps this one.
        let answer = pair.primary.try_command(0, &["INFO", "replication"]).await;
        let section: String = redis::from_redis_value(answer.ok()?).ok()?;
        section.contains("role:slave").then_some(())
    })
    .await;
    replica.assert_holds(&next).await;
}

#[tokio::test]
async fn most_of_the_sentinels_have_to_answer() {
    let mut pair = pair().await;
    let started = replica(&pair.sentinels).await;
    pair.sentinels.kill(0);
    let replica = replica(&pair.sentinels).await;
    let held = lasting(claim());
    replica.granted(&held).await;
    pair.sentinels.kill(1);
    // A process that hears only a minority cannot know whether its primary was replaced.
    let trouble = eventually("it is given up", async || {
        started.service.store_health().trouble
    })
    .await;
    assert!(trouble.contains("too few of its Sentinels"), "{trouble}");
}

/// A promotion that it does not hear of may have taken place at any time since. The five seconds are those of the
/// documentation; a busy machine can only make the claim later.
#[tokio::test]
async fn a_process_that_loses_the_sentinels_without_a_message_grants_nothing_five_seconds_later() {
    let pair = pair().await;
    let mut address = pair.sentinels.database(0);
    let proxies = behind_proxies(&mut address).await;
    let config = RedisConfig {
        // That of a process unless it is configured.
        check_interval: Duration::from_secs(2),
        ..stores::redis_config()
    };
    let store = stores::sentinel_store(&address, &config).await;
    let replica = Replica::on(store.expect("the primary is found"));
    replica.granted(&lasting(claim())).await;
    let lost = Instant::now();
    for proxy in &proxies {
        proxy.stall(true);
    }
    // Until then it may be granted or not.
    while lost.elapsed() < Duration::from_secs(5) {
        drop(replica.acquire(&lasting(claim())).await);
        sleep(Duration::from_millis(10)).await;
    }
    let late = replica.acquire(&lasting(claim())).await;
    assert!(late.is_err(), "{late:?}");
    for proxy in &proxies {
        proxy.stall(false);
    }
    eventually("it grants again", async || {
        let granted = replica.acquire(&lasting(claim())).await;
        matches!(granted, Ok(AcquireOutcome::Granted(_))).then_some(())
    })
    .await;
}

#[tokio::test]
async fn what_is_no_sentinel_or_knows_no_such_primary_is_refused_at_the_start() {
    let server = forgetful_redis().await;
    let sentinels = Sentinels::watch(server.port(), 1, None).await;
    let mut address = sentinels.database(0);
    address.primary = "other".to_owned();
    let refusal = async |address| {
        let store = stores::sentinel_store(&address, &stores::redis_config()).await;
        match store {
            Err(error) => (error.fault(), error.detail().to_owned()),
            Ok(store) => panic!("it must be refused: {:?}", store.health()),
        }
    };
    let (fault, why) = refusal(address.clone()).await;
    assert_eq!(fault, Fault::Database, "{why}");
    assert!(why.contains("no primary of the name"), "{why}");
    address.sentinels = vec![("127.0.0.1".to_owned(), server.port())];
    let (fault, why) = refusal(address).await;
    assert_eq!(fault, Fault::Protocol, "{why}");
    assert!(why.contains("is no Sentinel"), "{why}");
}

/// Finding the primary does not wait for it, so a health check has to.
#[tokio::test]
async fn a_sentinel_that_is_far_away_is_not_silent() {
    let pair = pair().await;
    let mut address = pair.sentinels.database(0);
    let far = &mut address.sentinels[2];
    let proxy = Proxy::start(format!("127.0.0.1:{}", far.1)).await;
    far.1 = proxy.address().port();
    proxy.delay_replies(Duration::from_millis(120));
    let store = stores::sentinel_store(&address, &stores::redis_config()).await;
    let store = store.expect("the primary is found");
    // As many checks as it takes to report a Sentinel, and one more.
    for _ in 0..3 {
        store.refresh_health().await;
    }
    let replica = Replica::on(store);
    eventually("it answers as the others do", async || {
        let findings = replica.service.store_health().findings;
        let sentinels = findings.iter().find(|it| it.topic == "sentinels")?;
        let names_all = sentinels.detail.ends_with("as the primary: 3");
        (sentinels.is_fine && names_all).then_some(())
    })
    .await;
}
