//! A Redis user that lacks some of the rights that Leasehold needs.

use std::sync::Arc;

use leasehold::config::RedisConfig;
use leasehold::config::Secret;
use leasehold::domain::{GrantKind, Released};
use leasehold::service::LockService;
use leasehold::store::{Fault, Finding, LockStore, StoreError};

use super::{Replica, durable_redis, lasting};
use crate::support::fixture::{
    claim, claim_on_all, deadline, fresh_name, lock_of, names, reader, rival,
};
use crate::support::proxy::Proxy;
use crate::support::redis_server::{RedisOptions, RedisServer};
use crate::support::{EFFECT_TIMEOUT, eventually, stores};

pub(super) const USER: &str = "leasehold";
pub(super) const PASSWORD: &str = "of-a-user-with-few-rights";

/// The rights in docs/how-to/redis.md, except for the channels.
pub(super) const RIGHTS: &str = "reset resetchannels on >of-a-user-with-few-rights ~lh:1:* -@all +@connection +@read +@write -@dangerous \
    +eval +evalsha +time +publish +subscribe +unsubscribe +pubsub|numsub +info +config|get";

async fn grant(server: &RedisServer, rights: &str) {
    let command = ["ACL", "SETUSER", USER].into_iter();
    let command: Vec<_> = command.chain(rights.split_whitespace()).collect();
    server.command(&command).await;
}

fn config() -> RedisConfig {
    RedisConfig {
        username: Some(USER.to_owned()),
        password: Some(Secret::new(PASSWORD)),
        ..stores::redis_config()
    }
}

async fn store(server: &RedisServer) -> Arc<dyn LockStore> {
    let store = stores::redis_store(&server.database(0), &config()).await;
    store.expect("the store opens")
}

fn channels(service: &LockService) -> Option<Finding> {
    let findings = service.store_health().findings.into_iter();
    findings
        .into_iter()
        .find(|finding| finding.topic == "channels")
}

/// No right is missing, and every check is answered.
#[tokio::test]
async fn a_redis_that_delivers_no_messages_is_reported() {
    let options = RedisOptions {
        without: &["SUBSCRIBE"],
        ..RedisOptions::default()
    };
    let server = RedisServer::start(options).await;
    let config = stores::redis_config();
    let store = stores::redis_store(&server.database(0), &config).await;
    let replica = Replica::on(store.expect("the store opens"));
    let words = "no messages can be received";
    eventually("it is found out", async || {
        let finding = channels(&replica.service)?;
        (!finding.is_fine && finding.detail.contains(words)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn without_the_right_to_channels_everything_works_and_it_is_reported() {
    let server = durable_redis().await;
    grant(&server, RIGHTS).await;
    let replica = Replica::on(store(&server).await);
    eventually("it is found out", async || {
        let finding = channels(&replica.service)?;
        let is_reported = !finding.is_fine
            && ["subscribe", "publish", "second"]
                .iter()
                .all(|word| finding.detail.contains(word));
        is_reported.then_some(())
    })
    .await;
    // On another process, so that the waiter would be notified by a message.
    let other = Replica::on(store(&server).await);
    let held = lasting(claim());
    for ended_by_release in [true, false] {
        let (held, waiter) = (rival(&held), lasting(rival(&held)));
        replica.granted(&held).await;
        let waiting = other.acquire_within(&waiter, EFFECT_TIMEOUT);
        let ending = async {
            eventually("it is queued", async || {
                let view = replica.service.inspect(lock_of(&held)).await.ok()?;
                (view.queue.length == 1).then_some(())
            })
            .await;
            if ended_by_release {
                let answer = replica.release(&held).await;
                assert!(matches!(answer, Ok(Released::Freed { .. })), "{answer:?}");
            } else {
                let name = lock_of(&held).clone();
                let evicted = replica.service.evict(name, String::new(), |_| {}).await;
                assert_eq!(evicted.expect("it is done").holders.total, 1);
            }
        };
        let (granted, ()) = tokio::join!(waiting, ending);
        assert!(
            matches!(&granted, Ok(granted) if granted.kind() == Some(GrantKind::New)),
            "{granted:?}"
        );
        let answer = other.release(&waiter).await;
        assert!(matches!(answer, Ok(Released::Freed { .. })), "{answer:?}");
    }
    let watched = async {
        let everything = leasehold::service::Scope::Prefix(String::new());
        let watch = replica.service.watch(everything, None).await;
        let claim = lasting(claim());
        replica.granted(&claim).await;
        let answer = replica.release(&claim).await;
        assert!(matches!(answer, Ok(Released::Freed { .. })), "{answer:?}");
        drop(watch);
    };
    watched.await;

    grant(&server, "&lh:1:*").await;
    eventually("it is well", async || {
        channels(&replica.service)?.is_fine.then_some(())
    })
    .await;
}

/// Only the words of the error say so, and they depend on the version.
#[tokio::test]
async fn what_a_script_may_not_do_in_the_middle_may_be_done() {
    let server = durable_redis().await;
    grant(&server, &format!("{RIGHTS} &lh:1:*")).await;
    let store = store(&server).await;
    let claim = lasting(claim());
    let attempt = leasehold::domain::Attempt::random();
    let answer = store.acquire(&claim, attempt, None, deadline()).await;
    assert!(
        matches!(&answer, Ok(granted) if granted.kind() == Some(GrantKind::New)),
        "{answer:?}"
    );

    grant(&server, "-set").await;
    let answer = store
        .release(&claim.names, claim.token, None, deadline())
        .await;
    match answer {
        Err(StoreError::Unknown { fault, .. }) => assert_eq!(fault, Fault::Permission),
        other => panic!("its first write was done, but: {other:?}"),
    }
    grant(&server, "+set -evalsha").await;
    let answer = store
        .acquire(&rival(&claim), attempt, None, deadline())
        .await;
    match answer {
        Err(StoreError::Unavailable { fault, .. }) => assert_eq!(fault, Fault::Permission),
        other => panic!("nothing was done, but: {other:?}"),
    }
}

#[tokio::test]
async fn without_the_right_to_count_subscribers_locks_are_granted_and_it_is_reported() {
    let server = durable_redis().await;
    grant(&server, &format!("{RIGHTS} &lh:1:* -pubsub|numsub")).await;
    let replica = Replica::on(store(&server).await);
    let held = lasting(claim());
    eventually("the first grants are over their wait", async || {
        let answer = replica.acquire(&held).await;
        matches!(&answer, Ok(granted) if granted.kind() == Some(GrantKind::New)).then_some(())
    })
    .await;
    let finding = channels(&replica.service).expect("Redis was looked at");
    assert!(
        !finding.is_fine && finding.detail.contains("NUMSUB"),
        "{finding:?}"
    );
    let waiter = lasting(rival(&held));
    let waiting = replica.acquire_within(&waiter, EFFECT_TIMEOUT);
    let (granted, released) = tokio::join!(waiting, replica.release(&held));
    assert!(
        matches!(released, Ok(Released::Freed { .. })),
        "{released:?}"
    );
    assert!(
        matches!(&granted, Ok(granted) if granted.kind() == Some(GrantKind::New)),
        "{granted:?}"
    );
}

/// What the opening of a store reports, if it is refused.
async fn refusal(server: &RedisServer, database: u16, config: &RedisConfig) -> (Fault, String) {
    match stores::redis_store(&server.database(database), config).await {
        Err(error) => (error.fault(), error.detail().to_owned()),
        Ok(store) => panic!("it must be refused: {:?}", store.health()),
    }
}

#[tokio::test]
async fn a_redis_that_refuses_a_starting_process_is_reported_with_the_reason() {
    let server = durable_redis().await;
    grant(&server, &format!("{RIGHTS} &lh:1:* -info")).await;
    let wrong = RedisConfig {
        password: Some(Secret::new("wrong")),
        ..config()
    };
    let (fault, why) = refusal(&server, 0, &wrong).await;
    assert_eq!(fault, Fault::Auth, "{why}");
    assert!(why.contains("the user or the password"), "{why}");
    let (fault, why) = refusal(&server, 0, &config()).await;
    assert_eq!(fault, Fault::Permission, "{why}");
    assert!(why.contains("may not run info"), "{why}");
    grant(&server, "+info").await;
    let (fault, why) = refusal(&server, 9_999, &config()).await;
    assert_eq!(fault, Fault::Database, "{why}");
    assert!(why.contains("database"), "{why}");
    server
        .command(&["CONFIG", "SET", "requirepass", "secret"])
        .await;
    let (fault, why) = refusal(&server, 0, &stores::redis_config()).await;
    assert_eq!(fault, Fault::Auth, "{why}");
    assert!(why.contains("asks for a password"), "{why}");
}

/// Those that Memorystore for Redis blocks, according to its page of constraints. Other services have most of them, or
/// more.
const NOT_OF_A_SERVICE: &[&str] = &[
    "ACL",
    "BGREWRITEAOF",
    "BGSAVE",
    "CLIENT",
    "CLUSTER",
    "COMMAND",
    "CONFIG",
    "DEBUG",
    "LASTSAVE",
    "MIGRATE",
    "MONITOR",
    "OBJECT",
    "SHUTDOWN",
    "REPLICAOF",
    "SAVE",
];

#[tokio::test]
async fn without_the_commands_of_operators_all_is_fine_but_nothing_is_known_of_the_disk() {
    let server = RedisServer::start(RedisOptions {
        without: NOT_OF_A_SERVICE,
        ..RedisOptions::default()
    })
    .await;
    let address = server.database(0);
    let replica = Replica::open(&address).await;
    let other = Replica::open(&address).await;
    super::assert_hands_over(&replica, &other).await;
    let findings = replica.service.store_health().findings;
    assert!(findings.iter().all(|found| found.is_fine), "{findings:?}");
    let persistence = findings.iter().find(|it| it.topic == "persistence");
    let persistence = persistence.map(|it| it.detail.as_str()).unwrap_or_default();
    let unknown = "append-only file whose appendfsync cannot be read";
    assert!(persistence.starts_with(unknown), "{persistence}");
}

#[tokio::test]
async fn a_redis_that_cannot_wait_for_replicas_is_refused_if_they_have_to_confirm() {
    let server = RedisServer::start(RedisOptions {
        without: &["WAIT"],
        ..RedisOptions::default()
    })
    .await;
    let store = stores::redis_store(&server.database(0), &stores::confirmed_by(1)).await;
    match store {
        Err(error) => {
            assert_eq!(error.fault(), Fault::Permission, "{error}");
            assert!(error.detail().contains("has no command WAIT"), "{error}");
        }
        Ok(store) => panic!("it must be refused: {:?}", store.health()),
    }
}

/// Its connections stay open, and the checks use one of them if they get no new one.
#[tokio::test]
async fn an_old_connection_that_breaks_does_not_hide_why_a_new_one_is_refused() {
    let server = durable_redis().await;
    grant(&server, &format!("{RIGHTS} &lh:1:*")).await;
    let proxy = Proxy::start(server.address()).await;
    let store = stores::redis_store(&proxy.database(0), &config()).await;
    let store = store.expect("the store opens");
    store.refresh_health().await;
    grant(&server, "off").await;
    proxy.end_at_next_command();
    store.refresh_health().await;
    let trouble = store.health().trouble.expect("no connection is left");
    let reason = "refuses the user or the password";
    assert!(trouble.contains(reason), "{trouble}");
}

#[tokio::test]
async fn a_right_that_is_taken_back_later_is_reported_until_it_is_back() {
    let server = durable_redis().await;
    grant(&server, &format!("{RIGHTS} &lh:1:*")).await;
    let replica = Replica::on(store(&server).await);
    let held = lasting(claim());
    replica.granted(&held).await;
    // The second one is of a command that only scripts use. Redis 7.2 and Valkey name it, and older ones name its line.
    for (right, reason) in [
        ("evalsha", "may not run evalsha"),
        ("hset", "may not run hset"),
    ] {
        grant(&server, &format!("-{right}")).await;
        eventually("it is noticed", async || {
            let trouble = replica.service.store_health().trouble?;
            trouble.contains(reason).then_some(())
        })
        .await;
        // Of those who share a lock, the first one needs both.
        let answer = replica.acquire(&lasting(reader(&claim()))).await;
        let fault = answer.as_ref().err().map(StoreError::fault);
        assert_eq!(fault, Some(Fault::Permission), "{right}: {answer:?}");
        grant(&server, &format!("+{right}")).await;
        eventually("it works again", async || {
            replica.renew(&held).await.ok()?;
            let trouble = replica.service.store_health().trouble;
            trouble.is_none().then_some(())
        })
        .await;
    }
    replica.assert_holds(&held).await;
}

/// The checks of the store do not need it.
#[tokio::test]
async fn a_right_that_only_some_requests_need_is_reported_once_one_was_refused() {
    let server = durable_redis().await;
    grant(&server, &format!("{RIGHTS} &lh:1:*")).await;
    let replica = Replica::on(store(&server).await);
    let finding = || {
        let findings = replica.service.store_health().findings.into_iter();
        findings
            .into_iter()
            .find(|finding| finding.topic == "rights")
    };
    grant(&server, "-mget").await;
    let several = lasting(claim_on_all(names(&[fresh_name(), fresh_name()])));
    assert_eq!(finding(), None);
    let answer = replica.acquire(&several).await;
    match answer {
        Err(StoreError::Unavailable { fault, .. }) => assert_eq!(fault, Fault::Permission),
        other => panic!("nothing was done, but: {other:?}"),
    }
    let finding = finding().expect("it is reported");
    assert!(
        !finding.is_fine && finding.detail.contains("may not run mget"),
        "{finding:?}"
    );
    assert_eq!(replica.service.store_health().trouble, None);
}
