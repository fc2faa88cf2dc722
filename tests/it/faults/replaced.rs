//! A Redis that stops being the primary while connections to it stay open.

use leasehold::domain::{Attempt, GrantKind, LockState, NotHolder, Released, RenewOptions};
use leasehold::store::{Fault, ListQuery, StoreError};
use tokio::runtime::{Builder, Runtime};

use super::{Replica, durable_redis, lasting};
use crate::support::eventually;
use crate::support::fixture::{claim, deadline, deadlines, for_short, lock_of, not_holder};
use crate::support::proxy::Proxy;
use crate::support::redis_server::RedisServer;
use crate::support::stores;

/// Makes it read-only, and redirects its address to the new primary.
async fn replace(former: &RedisServer, proxy: &Proxy, by: &RedisServer) {
    // Nothing listens there: the former primary gets no data of the new one and keeps its identity.
    former.command(&["REPLICAOF", "127.0.0.1", "1"]).await;
    proxy.redirect(by.address());
}

#[tokio::test]
async fn a_connection_to_a_redis_that_became_read_only_is_not_used_again() {
    let (former, new) = (durable_redis().await, durable_redis().await);
    let proxy = Proxy::start(former.address()).await;
    // Without periodic checks, which would detect this by themselves.
    let store = stores::redis_store(&proxy.database(0), &stores::redis_config()).await;
    let store = store.expect("the store opens");
    let acquire = async || {
        let attempt = Attempt::random();
        // Short, so that after it there is no grace for leases that the new primary does not know.
        let claim = for_short(&claim());
        store.acquire(&claim, attempt, None, deadline()).await
    };
    acquire().await.expect("it may write");
    replace(&former, &proxy, &new).await;
    match acquire().await {
        Err(StoreError::Unavailable { fault, .. }) => assert_eq!(fault, Fault::Replica),
        other => panic!("it is read-only, but: {other:?}"),
    }
    eventually("the new primary grants", async || {
        let granted =
            matches!(&acquire().await, Ok(granted) if granted.kind() == Some(GrantKind::New));
        granted.then_some(())
    })
    .await;
    let keys = new.keys(0, "lh:1:*:l:*").await;
    assert_eq!(keys.len(), 1, "it was granted there");
}

/// Each thread of the service has its own runtime, and each runtime its own connections. All of them lead to one Redis.
#[test]
fn one_answer_that_it_is_read_only_closes_all_connections() {
    let of_servers = Runtime::new().expect("a runtime");
    let (former, new, proxy, store) = of_servers.block_on(async {
        let (former, new) = (durable_redis().await, durable_redis().await);
        let proxy = Proxy::start(former.address()).await;
        // Without periodic checks, which would detect this by themselves.
        let store = stores::redis_store(&proxy.database(0), &stores::redis_config()).await;
        (former, new, proxy, store.expect("the store opens"))
    });
    // One that waits for a connection for long uses one of another, which therefore has to run.
    let threads = [(); 3].map(|()| {
        let mut builder = Builder::new_multi_thread();
        let builder = builder.worker_threads(1).enable_all();
        builder.build().expect("a runtime")
    });
    let acquire = async || {
        let claim = for_short(&claim());
        let acquiring = store.acquire(&claim, Attempt::random(), None, deadline());
        acquiring.await
    };
    let open = || store.health().pool.map_or(0, |pool| pool.open);
    for thread in &threads {
        let before = open();
        thread.block_on(eventually("it has a connection of its own", async || {
            acquire().await.expect("it may write");
            (open() > before).then_some(())
        }));
    }
    of_servers.block_on(replace(&former, &proxy, &new));
    let answers = threads.iter().map(|thread| thread.block_on(acquire()));
    let refused = answers.filter(|answer| {
        let fault = answer.as_ref().err().map(StoreError::fault);
        fault == Some(Fault::Replica)
    });
    assert_eq!(refused.count(), 1, "requests that the former primary got");
}

/// It may have old data for long, and a process that only reads would not learn that another Redis is the primary.
#[tokio::test]
async fn a_redis_that_became_read_only_shows_no_locks() {
    let (former, new) = (durable_redis().await, durable_redis().await);
    let proxy = Proxy::start(former.address()).await;
    // Without periodic checks, which would detect this by themselves.
    let open = async || {
        let store = stores::redis_store(&proxy.database(0), &stores::redis_config()).await;
        store.expect("the store opens")
    };
    let [looking, listing] = [open().await, open().await];
    let claim = lasting(claim());
    let granted = looking.acquire(&claim, Attempt::random(), None, deadline());
    granted.await.expect("it may write");
    let looked = async || {
        let view = looking.inspect(lock_of(&claim), deadline()).await;
        view.map(|view| matches!(view.state, LockState::Held(_)))
    };
    let listed = async || {
        let query = ListQuery {
            prefix: lock_of(&claim).as_str().to_owned(),
            within: None,
            after: None,
            snapshot: None,
            page_size: 10,
        };
        let listed = listing.list(&query, deadlines()).await;
        listed.map(|listed| listed.locks.len() == 1)
    };
    assert!(looked().await.expect("it is the primary"));
    assert!(listed().await.expect("it is the primary"));
    replace(&former, &proxy, &new).await;
    for seen in [looked().await, listed().await] {
        let refused = seen.expect_err("it is read-only");
        assert_eq!(refused.fault(), Fault::Replica);
    }
    eventually("the new primary answers", async || {
        let seen = [looked().await.ok()?, listed().await.ok()?];
        (seen == [false, false]).then_some(())
    })
    .await;
}

/// The lease may have been granted by the new primary, and a client that is told otherwise gives up what it holds.
#[tokio::test]
async fn a_redis_that_became_read_only_denies_no_lease() {
    let (former, new) = (durable_redis().await, durable_redis().await);
    let proxy = Proxy::start(former.address()).await;
    // Without periodic checks, which would detect this by themselves.
    let open = async || {
        let store = stores::redis_store(&proxy.database(0), &stores::redis_config()).await;
        store.expect("the store opens")
    };
    let [renewing, releasing] = [open().await, open().await];
    let elsewhere = lasting(claim());
    let (names, token) = (&elsewhere.names, elsewhere.token);
    let renew = async || {
        let change = RenewOptions::default();
        renewing.renew(names, token, change, deadline()).await
    };
    let release = async || releasing.release(names, token, None, deadline()).await;
    assert_eq!(
        renew().await.ok(),
        Some(not_holder(&elsewhere, NotHolder::Unknown))
    );
    let unknown = Released::NotHolder(NotHolder::Unknown);
    assert_eq!(release().await.ok(), Some(vec![unknown]));
    replace(&former, &proxy, &new).await;
    let refused = [renew().await.err(), release().await.err()];
    let faults = refused.map(|error| error.map(|error| error.fault()));
    assert_eq!(faults, [Some(Fault::Replica); 2]);
}

/// A process without requests finds the new primary too.
#[tokio::test]
async fn a_check_that_finds_a_replica_asks_the_address_anew() {
    let (former, new) = (durable_redis().await, durable_redis().await);
    let proxy = Proxy::start(former.address()).await;
    let replica = Replica::open(&proxy.database(0)).await;
    replica.granted(&lasting(claim())).await;
    replace(&former, &proxy, &new).await;
    eventually("the new primary is found", async || {
        (!new.keys(0, "lh:1:*").await.is_empty()).then_some(())
    })
    .await;
    eventually("it is fit to grant", async || {
        let health = replica.service.store_health();
        (health.up && health.refused.is_none()).then_some(())
    })
    .await;
}
