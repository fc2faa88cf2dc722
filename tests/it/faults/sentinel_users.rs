//! Sentinels that ask who connects, and that know other users than the Redis that they watch.

use std::net::TcpListener;

use leasehold::config::{RedisConfig, Secret};
use leasehold::store::Fault;

use super::{Replica, lasting};
use crate::process::leasehold;
use crate::support::certificates::Authority;
use crate::support::fixture::claim;
use crate::support::redis_server::{RedisOptions, RedisServer};
use crate::support::sentinels::{PRIMARY, PROCESSES, Sentinels, WatchedPair};
use crate::support::{eventually, stores};

const USER: &str = "watcher";
const PASSWORD: &str = "of-a-sentinel";

/// The rights in docs/how-to/redis.md.
const RIGHTS: &str = "resetchannels &+switch-master -@all +@connection +sentinel +subscribe";

/// As the user of the Redis, and as this one of the Sentinels.
fn config(user: Option<&str>, password: Option<&str>) -> RedisConfig {
    let [name, of_redis] = PROCESSES;
    RedisConfig {
        username: Some(name.to_owned()),
        password: Some(Secret::new(of_redis)),
        sentinel_username: user.map(str::to_owned),
        sentinel_password: password.map(Secret::new),
        ..stores::redis_config()
    }
}

/// What a process that starts with these settings says when it exits with code 78. Its port is taken, so it ends in any
/// case once it has looked at its store: on a busy machine, a Sentinel may be silent.
async fn refusal(sentinels: &Sentinels, variables: &[(&str, &str)]) -> String {
    let [name, password] = PROCESSES;
    let addresses = sentinels.addresses().join(",");
    let store = format!("redis+sentinel://{name}:{password}@{addresses}/{PRIMARY}");
    let taken = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let listen = taken.local_addr().expect("it is bound").to_string();
    eventually("it exits with code 78", async || {
        let mut command = leasehold(&["--listen", &listen, "--store", &store]);
        let output = command.envs(variables.iter().copied()).output();
        let output = output.expect("it starts");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code() == Some(78)).then_some(error)
    })
    .await
}

const ASKS: &str = "a Sentinel asks for a password";
const REFUSES: &str = "a Sentinel refuses the user or the password";

#[tokio::test]
async fn sentinels_have_a_user_and_a_password_of_their_own() {
    let mut pair = WatchedPair::start(RedisOptions::forgetful()).await;
    for server in [&pair.primary, &pair.replica] {
        server.admit_processes().await;
    }
    pair.sentinels.admit_only(USER, PASSWORD, RIGHTS).await;
    let address = pair.sentinels.database(0);
    let of_redis = PROCESSES[1];
    for (user, password, expected) in [
        (None, None, ASKS),
        (Some(USER), Some(of_redis), REFUSES),
        (Some(PROCESSES[0]), Some(of_redis), REFUSES),
    ] {
        let why = eventually("it is refused", async || {
            match stores::sentinel_store(&address, &config(user, password)).await {
                Err(error) => Some((error.fault(), error.detail().to_owned())),
                Ok(store) => {
                    let health = store.health();
                    assert!(!health.contacted, "it must be refused: {health:?}");
                    None
                }
            }
        });
        let (fault, why) = why.await;
        assert_eq!(fault, Fault::Auth, "{why}");
        assert!(why.starts_with(expected), "{why}");
    }
    let store = stores::sentinel_store(&address, &config(Some(USER), Some(PASSWORD))).await;
    let replica = Replica::on(store.expect("the primary is found"));
    replica.granted(&lasting(claim())).await;
    eventually("it listens to all Sentinels", async || {
        (pair.sentinels.listeners_as(USER).await? == 3).then_some(())
    })
    .await;

    pair.sentinels.change_password(USER, "another").await;
    let finding = eventually("it is reported", async || {
        let findings = replica.service.store_health().findings;
        let found = findings.into_iter().find(|it| it.topic == "sentinels")?;
        (!found.is_fine).then_some(found.detail)
    })
    .await;
    assert!(finding.contains(REFUSES), "{finding}");
}

#[tokio::test]
async fn a_process_that_sentinels_refuse_exits_78_with_the_settings_to_change() {
    let server = RedisServer::start(RedisOptions::forgetful()).await;
    server.admit_processes().await;
    let mut sentinels = Sentinels::watch(server.port(), 1, None).await;
    // As with `requirepass`.
    sentinels
        .admit_only("default", PASSWORD, "~* &* +@all")
        .await;
    let error = refusal(&sentinels, &[]).await;
    assert!(error.contains(ASKS), "{error}");
    assert!(
        error.contains("LEASEHOLD_REDIS_SENTINEL_PASSWORD"),
        "{error}"
    );
    let wrong = [("LEASEHOLD_REDIS_SENTINEL_PASSWORD", PROCESSES[1])];
    let error = refusal(&sentinels, &wrong).await;
    assert!(error.contains(REFUSES), "{error}");
    assert!(error.contains("redis.sentinel_username"), "{error}");

    let config = config(None, Some(PASSWORD));
    let store = stores::sentinel_store(&sentinels.database(0), &config).await;
    let replica = Replica::on(store.expect("a password without a user is enough"));
    replica.granted(&lasting(claim())).await;

    // The Redis that they name refuses the process: that is another sentence.
    server.command(&["ACL", "DELUSER", PROCESSES[0]]).await;
    let right = [("LEASEHOLD_REDIS_SENTINEL_PASSWORD", PASSWORD)];
    let error = refusal(&sentinels, &right).await;
    let of_redis = "it refuses the user or the password";
    assert!(error.contains(of_redis), "{error}");
}

#[tokio::test]
async fn a_process_that_most_sentinels_refuse_exits_78_although_one_answers() {
    let server = RedisServer::start(RedisOptions::forgetful()).await;
    server.admit_processes().await;
    let sentinels = Sentinels::watch(server.port(), 3, None).await;
    for number in [0, 1] {
        sentinels.require_password(number, PASSWORD).await;
    }
    let error = refusal(&sentinels, &[]).await;
    assert!(error.contains(ASKS), "{error}");
    let refusing = &sentinels.addresses()[..2];
    assert!(refusing.iter().any(|it| error.contains(it)), "{error}");
}

#[tokio::test]
async fn a_sentinel_whose_certificate_cannot_be_verified_is_refused_with_the_reason() {
    let (authority, other) = (Authority::new(), Authority::new());
    let files = authority.files_for("127.0.0.1");
    let server = RedisServer::start(RedisOptions {
        tls: Some(files.clone()),
        ..RedisOptions::forgetful()
    })
    .await;
    let primary = server.encrypted_database(0).port;
    let sentinels = Sentinels::watch(primary, 1, Some(&files)).await;
    let opened = async |authority: &Authority| {
        let config = RedisConfig {
            tls: authority.trusted(),
            ..stores::redis_config()
        };
        stores::sentinel_store(&sentinels.database(0), &config).await
    };
    let store = eventually("the Sentinel answers", async || {
        opened(&authority).await.ok()
    })
    .await;
    Replica::on(store).granted(&lasting(claim())).await;
    match opened(&other).await {
        Err(error) => {
            assert_eq!(error.fault(), Fault::Tls, "{error}");
            assert!(error.detail().contains("redis.tls_ca_file"), "{error}");
        }
        Ok(store) => panic!("it must be refused: {:?}", store.health()),
    }
}
