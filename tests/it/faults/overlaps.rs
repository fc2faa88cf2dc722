//! Where exclusion in time does not hold, as the page of guarantees says: leases that overlap are counted here, and the
//! fencing tokens order their holders all the same.

use leasehold::config::RedisConfig;
use leasehold::domain::{Claim, NotHolder, Refused, Renewed};
use leasehold::service::AcquireOutcome;

use super::{Replica, durable_redis, forgetful_redis, lasting_claims};
use crate::support::fixture::{not_holder, rival};
use crate::support::redis_server::{RedisOptions, RedisServer};
use crate::support::{eventually, stores};

/// How many locks each test holds.
const LOCKS: usize = 20;

async fn process(server: &RedisServer, config: &RedisConfig) -> Replica {
    let store = stores::redis_store(&server.database(0), config).await;
    Replica::on(store.expect("the store opens"))
}

/// Claims that hold, and the largest of their fencing tokens.
async fn holding(replica: &Replica) -> (Vec<Claim>, u64) {
    let (held, mut last) = (lasting_claims("held", LOCKS), 0);
    for claim in &held {
        last = last.max(replica.granted(claim).await);
    }
    (held, last)
}

/// Grants every one of these locks to another claim, with larger fencing tokens. Their leases last longer than the test, so
/// each of these grants overlaps one.
async fn granted_again(replica: &Replica, held: &[Claim], last: u64) -> Vec<Claim> {
    let next: Vec<_> = held.iter().map(rival).collect();
    for claim in &next {
        let fence = eventually("it is granted again", async || {
            match replica.acquire(claim).await {
                Ok(AcquireOutcome::Granted(granted)) => Some(granted.leases[0].holder.fence),
                _ => None,
            }
        })
        .await;
        assert!(last < fence.get(), "{fence} after {last}");
    }
    println!("{LOCKS} of {LOCKS} leases overlap, in the order of their fencing tokens");
    next
}

#[tokio::test]
async fn a_redis_that_is_lost_with_all_processes_grants_again_unless_a_grace_on_an_empty_start_is_set()
 {
    let mut server = forgetful_redis().await;
    let replica = process(&server, &stores::redis_config()).await;
    let (held, last) = holding(&replica).await;
    let lost = async |server: &mut RedisServer, replica: Replica| {
        server.kill();
        drop(replica);
        server.restart().await;
    };
    lost(&mut server, replica).await;
    let replica = process(&server, &stores::redis_config()).await;
    granted_again(&replica, &held, last).await;
    lost(&mut server, replica).await;
    let config = RedisConfig {
        grace_on_empty_start: true,
        ..stores::redis_config()
    };
    let replica = process(&server, &config).await;
    for claim in held.iter().map(rival) {
        let answer = replica.acquire(&claim).await;
        let waits = matches!(
            answer,
            Ok(AcquireOutcome::Refused(Refused::Recovering { .. }))
        );
        assert!(waits, "{answer:?}");
    }
}

/// The memory that other programs need is that of all leases here.
#[tokio::test]
async fn a_redis_whose_policy_is_to_evict_keys_grants_again_what_it_has_evicted() {
    const POLICY: &str = "volatile-lru";
    let server = RedisServer::start(RedisOptions {
        eviction_policy: POLICY,
        ..RedisOptions::forgetful()
    })
    .await;
    let config = RedisConfig {
        accept_eviction_policy: Some(POLICY.to_owned()),
        ..stores::redis_config()
    };
    let replica = process(&server, &config).await;
    let (held, last) = holding(&replica).await;
    let set_limit = async |bytes: &str| {
        let words = ["CONFIG", "SET", "maxmemory", bytes];
        server.command(&words).await;
    };
    set_limit("1").await;
    eventually("all leases are evicted", async || {
        let records = server.keys(0, "lh:1:{*}:l:held/*").await;
        records.is_empty().then_some(())
    })
    .await;
    set_limit("0").await;
    granted_again(&replica, &held, last).await;
}

/// Redis loses its last second, as with `appendfsync everysec` when the machine loses power: evictions, and the grants that
/// followed them. The former holders renew leases that they never released.
#[tokio::test]
async fn after_the_loss_of_an_eviction_the_evicted_and_the_next_holder_both_work() {
    let mut server = durable_redis().await;
    let replica = Replica::open(&server.database(0)).await;
    let (held, last) = holding(&replica).await;
    let kept = server.aof_len();
    for claim in &held {
        replica.evict(claim).await.expect("it answers");
    }
    let next = granted_again(&replica, &held, last).await;
    server.kill();
    server.truncate_aof(kept);
    server.restart().await;
    for claim in &held {
        eventually("it is renewed", async || match replica.renew(claim).await {
            Ok(Renewed::Extended(_)) => Some(()),
            Ok(other) => panic!("its eviction was lost, but: {other:?}"),
            Err(_) => None,
        })
        .await;
    }
    for claim in &next {
        let answer = replica.renew(claim).await.expect("it answers");
        assert_eq!(answer, not_holder(claim, NotHolder::Unknown));
    }
}
