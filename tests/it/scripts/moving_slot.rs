//! Scripts on two nodes of a real Redis Cluster, while a slot moves from one to the other.
//!
//! The commands are those that a store sends to another Redis, with the text of each script, which that Redis does not
//! know yet.

use leasehold::domain::{Claim, Mode};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};

use super::connection;
use crate::support::eventually;
use crate::support::fixture::{Fixture, READ, claim, in_mode, lock_of};
use crate::support::monitor::Monitor;
use crate::support::redis_server::{RedisOptions, RedisServer};

/// A node with all slots, and one without.
async fn nodes() -> [RedisServer; 2] {
    let options = RedisOptions {
        is_cluster_node: true,
        ..RedisOptions::forgetful()
    };
    let old = RedisServer::start(options.clone()).await;
    let new = RedisServer::start(options).await;
    let all_slots = ["CLUSTER", "ADDSLOTSRANGE", "0", "16383"];
    old.command(&all_slots).await;
    let (port, cluster_port) = (new.port().to_string(), new.cluster_port().to_string());
    let meet = ["CLUSTER", "MEET", "127.0.0.1", &port, &cluster_port];
    old.command(&meet).await;
    eventually("each node knows the other and the slots", async || {
        for node in [&old, &new] {
            let state = text(node, &["CLUSTER", "INFO"]).await;
            let known = text(node, &["CLUSTER", "NODES"]).await;
            if !state.contains("cluster_state:ok") || known.lines().count() < 2 {
                return None;
            }
        }
        Some(())
    })
    .await;
    [old, new]
}

async fn text(node: &RedisServer, words: &[&str]) -> String {
    redis::from_redis_value(node.command(words).await).expect("a text")
}

/// Begins to move the slot of a key.
async fn move_slot([old, new]: &[RedisServer; 2], key: &str) {
    let slot = old.integer(0, &["CLUSTER", "KEYSLOT", key]).await;
    let slot = slot.to_string();
    for (node, state, other) in [(old, "MIGRATING", new), (new, "IMPORTING", old)] {
        let other = text(other, &["CLUSTER", "MYID"]).await;
        let words = ["CLUSTER", "SETSLOT", &slot, state, &other];
        node.command(&words).await;
    }
}

/// Sends a command, and answers the code of the error if there is one.
async fn answer(
    connection: &mut MultiplexedConnection,
    words: &[Vec<u8>],
) -> Result<Value, Option<String>> {
    let mut command = Cmd::new();
    for word in words {
        command.arg(word.as_slice());
    }
    let answer = command.query_async(connection).await;
    answer.map_err(|error: redis::RedisError| error.code().map(str::to_owned))
}

/// The keys of the record and of the counter.
fn keys_of(claim: &Claim) -> [String; 2] {
    let name = lock_of(claim);
    let slot = format!("lh:1:{{{}}}:", name.bucket().index());
    [format!("{slot}l:{name}"), format!("{slot}f")]
}

#[tokio::test]
async fn a_script_changes_nothing_in_a_slot_that_moves() {
    let (alone, shared) = (claim(), in_mode(&claim(), READ));
    let [[lock, counter], [shared_lock, shared_counter]] = [&alone, &shared].map(keys_of);
    let fixture = Fixture::redis_alone().await;
    let server = fixture.redis_behind().server;
    let nodes = nodes().await;
    let [old, new] = &nodes;
    for counter in [&counter, &shared_counter] {
        let value = server.integer(0, &["GET", counter]).await.to_string();
        old.command(&["SET", counter, &value]).await;
    }
    let mut monitor = Monitor::start(&server.address()).await;
    for claim in [&alone, &shared] {
        fixture.granted(claim).await;
    }
    // It does not take a fast path.
    fixture.renew_in_mode(&alone, Mode::Exclusive).await;
    fixture.state(lock_of(&shared)).await;
    let of_locks = [lock.as_bytes(), shared_lock.as_bytes()];
    let trace = monitor.take().await.into_iter();
    let sent: Vec<_> = trace
        .filter(|executed| !executed.is_of_script)
        .map(|executed| executed.words)
        .filter(|words| words.get(3).is_some_and(|key| of_locks.contains(&&key[..])))
        .collect();
    // Redis knows no script at first, so each is sent twice.
    let [_, grant, shared_grant, _, renewal, _, inspection] = &sent[..] else {
        panic!("four scripts, three of them twice, but: {}", sent.len());
    };

    let mut on_old = connection(old).await;
    for grant in [grant, shared_grant] {
        answer(&mut on_old, grant).await.expect("it is granted");
    }
    let record = old.command(&["DUMP", &lock]).await;
    move_slot(&nodes, &lock).await;
    let try_again = Err(Some("TRYAGAIN".to_owned()));
    assert_eq!(answer(&mut on_old, renewal).await, try_again);
    assert_eq!(old.command(&["DUMP", &lock]).await, record);

    // The record of the lock has arrived, and its holders have not.
    move_slot(&nodes, &shared_lock).await;
    let port = new.port().to_string();
    let moved = ["MIGRATE", "127.0.0.1", &port, &shared_lock, "0", "5000"];
    old.command(&moved).await;
    let mut on_new = connection(new).await;
    let asking = [b"ASKING".to_vec()];
    answer(&mut on_new, &asking).await.expect("it is moving");
    assert_eq!(answer(&mut on_new, inspection).await, try_again);
    answer(&mut on_new, &asking).await.expect("it is moving");
    let limit = ["HGET", &shared_lock, "s"].map(|word| word.as_bytes().to_vec());
    let limit = answer(&mut on_new, &limit).await;
    assert_eq!(limit, Ok(Value::BulkString(b"0".to_vec())), "it is shared");
}
