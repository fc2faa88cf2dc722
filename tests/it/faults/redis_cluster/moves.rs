//! Slots that move: cancelled, away from a primary that has no others, and after a loss that no check has noticed.

use std::time::Duration;

use leasehold::config::RedisConfig;
use leasehold::domain::{Claim, Released, Renewed};
use leasehold::service::{AcquireOutcome, Scope};
use leasehold::store::{Fault, StoreError};
use tokio::time::Instant;

use super::{
    TTL, cluster, config, held_for, held_on, is_blocked, is_recovering, is_renewed, rival,
};
use crate::faults::Replica;
use crate::support::cluster::RedisCluster;
use crate::support::redis_server::RedisOptions;
use crate::support::{eventually, stores};

#[tokio::test]
async fn a_move_that_is_cancelled_changes_nothing() {
    let cluster = cluster().await;
    let replica = super::replica(&cluster).await;
    let (held, slot) = held_on(0, &cluster, &replica).await;
    cluster.begin_move(slot, 0, 1).await;
    is_renewed(&replica, &held).await;
    cluster.cancel_move(slot, 0, 1).await;
    replica.assert_holds(&held).await;
    is_blocked(&replica, &rival(&held)).await;
    replica.release(&held).await.expect("it answers");
    replica.granted(&rival(&held)).await;
}

/// It compares several keys before it uses a part, and Redis refuses a script on them while their slot is on its way.
#[tokio::test]
async fn a_process_that_starts_while_a_slot_moves_uses_its_part() {
    let cluster = cluster().await;
    let replica = super::replica(&cluster).await;
    let (held, slot) = held_on(0, &cluster, &replica).await;
    cluster.begin_move(slot, 0, 1).await;
    let started = super::replica(&cluster).await;
    is_renewed(&started, &held).await;
    cluster.move_keys(slot, 0, 1).await;
    // The slot is not there yet, but all that the process compares.
    let started_later = super::replica(&cluster).await;
    for process in [&started, &started_later] {
        is_renewed(process, &held).await;
    }
    cluster.end_move(slot, 0, 1).await;
    for process in [&started, &started_later] {
        is_renewed(process, &held).await;
        is_blocked(process, &rival(&held)).await;
    }
    started.release(&held).await.expect("it answers");
    // Nothing was lost, so nothing waits.
    started_later.granted(&rival(&held)).await;
}

/// Whichever of the keys that it compares have moved already.
#[tokio::test]
async fn a_process_that_starts_while_a_slot_is_half_moved_uses_all_other_parts() {
    let cluster = cluster().await;
    let replica = super::replica(&cluster).await;
    let (held, slot) = held_on(0, &cluster, &replica).await;
    let (other, _) = held_on(2, &cluster, &replica).await;
    for moved in ["lh:1:{*}:node", "lh:1:{*}:ttl"] {
        cluster.begin_move(slot, 0, 1).await;
        let moved = cluster.key_of_slot(moved, slot, 0).await;
        cluster.migrate(vec![moved], 0, 1).await;
        let started = super::replica(&cluster).await;
        started.assert_holds(&other).await;
        // The lease is where it was.
        is_renewed(&started, &held).await;
        let health = started.service.store_health();
        assert!(health.up, "{health:?}");
        cluster.move_keys(slot, 0, 1).await;
        cluster.end_move(slot, 0, 1).await;
        is_renewed(&started, &held).await;
        is_blocked(&started, &rival(&held)).await;
        // Back, and a process has checked its part there.
        cluster.move_slot(slot, 1, 0).await;
        is_renewed(&started, &held).await;
    }
}

/// The script reads more keys then, with one that neither node has, before it writes anything.
#[tokio::test]
async fn while_events_are_watched_a_renewal_that_redis_refuses_has_done_nothing() {
    let cluster = cluster().await;
    let replica = super::replica(&cluster).await;
    let (held, slot) = held_on(0, &cluster, &replica).await;
    let everything = Scope::Prefix(String::new());
    let watch = replica.service.watch(everything, None).await;
    cluster.begin_move(slot, 0, 1).await;
    for moves_keys in [false, true] {
        if moves_keys {
            cluster.move_keys(slot, 0, 1).await;
        }
        // On a busy machine the last try of a request may have no answer in time.
        eventually("it is refused", async || {
            let error = replica.renew(&held).await.expect_err("it reads more keys");
            let is_refused = matches!(error, StoreError::Unavailable { .. });
            (is_refused && error.fault() == Fault::Moving).then_some(())
        })
        .await;
    }
    cluster.end_move(slot, 0, 1).await;
    is_renewed(&replica, &held).await;
    drop(watch);
}

/// As when an operator stops in the middle. The other node sends every request for a missing key back.
#[tokio::test]
async fn a_slot_that_only_its_owner_moves_is_named_and_its_leases_can_be_renewed() {
    let cluster = cluster().await;
    let replica = super::replica(&cluster).await;
    let (held, slot) = held_on(0, &cluster, &replica).await;
    let (other, _) = held_on(2, &cluster, &replica).await;
    let words = ["CLUSTER", "SETSLOT", &slot.to_string()];
    let id = cluster.id(1).await;
    let migrating = [&words[..], &["MIGRATING", &id]].concat();
    let stable = [&words[..], &["STABLE"]].concat();
    let [from, to] = [0, 1].map(|number| cluster.nodes[number].address());
    let named = format!("slot {slot} is MIGRATING from {from} to {to}, which does not import it");
    let mut faults = None;
    // A node that does not answer in time, as on a busy machine, loses its connections, and no other one can be opened.
    for _ in 0..3 {
        cluster.nodes[0].command(&migrating).await;
        faults = refusals_while_renewed(&replica, &held).await;
        if faults.is_some() {
            break;
        }
        cluster.nodes[0].command(&stable).await;
        is_renewed(&replica, &held).await;
    }
    let faults = faults.expect("one time of three, nothing else happens");
    // On a busy machine the last try of a request may have no answer in time.
    let is_expected = |fault: &Fault| matches!(fault, Fault::Moving | Fault::Timeout);
    assert!(faults.iter().all(is_expected), "{faults:?}");
    assert!(faults.contains(&Fault::Moving), "{faults:?}");
    eventually("it is named, and nothing else is wrong", async || {
        let health = replica.service.store_health();
        let not_fine = health.findings.iter().filter(|found| !found.is_fine);
        let not_fine: Vec<_> = not_fine.map(|it| (it.topic, &*it.detail)).collect();
        let is_named =
            matches!(not_fine[..], [("moving_slots", detail)] if detail.starts_with(&named));
        (health.up && is_named).then_some(())
    })
    .await;
    // It cannot know what the keys that are not there would say.
    let started = super::replica(&cluster).await;
    started.assert_holds(&other).await;
    eventually("it says why it cannot renew", async || {
        let error = started.renew(&held).await.expect_err("it is not verified");
        let is_named = error.fault() == Fault::Moving && error.detail().contains("--cluster fix");
        is_named.then_some(())
    })
    .await;
    cluster.nodes[0].command(&stable).await;
    for process in [&replica, &started] {
        is_renewed(process, &held).await;
        is_blocked(process, &rival(&held)).await;
    }
    replica.release(&held).await.expect("it answers");
    replica.granted(&rival(&held)).await;
}

/// The owner is fine, and passes every request for a missing key on.
#[tokio::test]
async fn a_slot_on_its_way_to_a_node_that_has_gone_is_named() {
    let mut cluster = cluster().await;
    let replica = super::replica(&cluster).await;
    let (held, slot) = held_on(0, &cluster, &replica).await;
    cluster.needs_no_full_coverage().await;
    cluster.begin_move(slot, 0, 1).await;
    cluster.move_keys(slot, 0, 1).await;
    cluster.nodes[1].kill();
    let [from, to] = [0, 1].map(|number| cluster.nodes[number].address());
    eventually("the refusal names the move", async || {
        let renewed = replica.renew(&held).await;
        let error = renewed.expect_err("its keys are at the other node");
        let is_named = error.detail().contains("that node does not answer");
        (error.fault() == Fault::Moving && is_named).then_some(())
    })
    .await;
    eventually("the node that is down is named", async || {
        let health = replica.service.store_health();
        let says = |topic, is_fine, text: &str| {
            let mut findings = health.findings.iter();
            findings.any(|found| {
                (found.topic, found.is_fine) == (topic, is_fine) && found.detail.starts_with(text)
            })
        };
        let named = format!("slot {slot} is on its way from {from} to {to}, which is down");
        let is_named = says("moving_slots", false, &named);
        (is_named && says("node", true, &from.to_string())).then_some(())
    })
    .await;
}

/// Why Redis refuses a rival, for longer than a process uses its connections if it cannot open others; none if the lease
/// could not be renewed all the time.
async fn refusals_while_renewed(replica: &Replica, held: &Claim) -> Option<Vec<Fault>> {
    let mut faults = Vec::new();
    let until = Instant::now() + Duration::from_secs(8);
    while Instant::now() < until {
        let refused = replica.acquire(&rival(held)).await;
        let error = refused.expect_err("it needs keys that are not there");
        faults.push(error.fault());
        let renewed = replica.renew(held).await.ok()?;
        assert!(matches!(renewed, Renewed::Extended(_)), "{renewed:?}");
    }
    Some(faults)
}

/// Only the script can judge what it may have lost.
#[tokio::test]
async fn a_process_that_starts_while_a_slot_of_a_restarted_primary_moves_leaves_its_part_alone() {
    let cluster = cluster().await;
    let replica = super::replica(&cluster).await;
    let (held, slot) = held_on(0, &cluster, &replica).await;
    let (other, _) = held_on(2, &cluster, &replica).await;
    drop(replica);
    let key = cluster.key_of_slot("lh:1:{*}:node", slot, 0).await;
    let before_restart: [&[u8]; 4] = [b"HSET", &key, b"run_id", b"another"];
    cluster.nodes[0].command(&before_restart).await;
    cluster.begin_move(slot, 0, 1).await;
    let started = super::replica(&cluster).await;
    started.assert_holds(&other).await;
    let refused = started.renew(&held).await;
    assert!(refused.is_err(), "{refused:?}");
    let health = started.service.store_health();
    assert!(health.up, "{health:?}");
}

/// Redis makes it a replica of the primary that its last slot has moved to. If no process has checked the slot there by
/// then, this looks like a failover.
#[tokio::test]
async fn a_primary_whose_last_slot_moves_away_takes_no_lease_with_it() {
    let mut cluster = cluster().await;
    let replica = super::replica(&cluster).await;
    let (held, slot) = held_for(TTL, 0, &cluster, &replica).await;
    cluster.join(RedisOptions::forgetful()).await;
    cluster.move_slot(slot, 0, 3).await;
    replica.assert_holds(&held).await;
    cluster.begin_move(slot, 3, 0).await;
    cluster.move_keys(slot, 3, 0).await;
    // The other one learns it from this one: it may be a replica before it could be told.
    cluster.assign(slot, 0, 0).await;
    eventually("it has become a replica", async || {
        // The lease must last until then.
        drop(replica.renew(&held).await);
        let role = cluster.nodes[3].info("replication", "role").await;
        (role == "slave").then_some(())
    })
    .await;
    is_renewed(&replica, &held).await;
    let taken = replica.acquire(&rival(&held)).await;
    let is_granted = matches!(taken, Ok(AcquireOutcome::Granted(_)));
    assert!(!is_granted, "{taken:?}");
    let released = replica.release(&held).await;
    let is_freed = matches!(released, Ok(Released::Freed { .. }));
    assert!(is_freed, "{released:?}");
    let now = Instant::now();
    replica.granted_not_before(&rival(&held), now).await;
}

/// What the slot has lost is not known to the primary that it moved to.
#[tokio::test]
async fn a_slot_that_lost_its_data_before_it_moved_makes_its_locks_wait() {
    let cluster = cluster().await;
    let replica = rarely_checked(&cluster).await;
    let (held, slot) = held_on(0, &cluster, &replica).await;
    let (other, _) = held_on(2, &cluster, &replica).await;
    cluster.nodes[0].command(&["FLUSHALL"]).await;
    cluster.move_slot(slot, 0, 1).await;
    is_recovering(&replica, &rival(&held)).await;
    replica.release(&other).await.expect("it answers");
    replica.granted(&rival(&other)).await;
}

/// The seed that the store was opened with is one of the nodes that a failure takes away.
#[tokio::test]
async fn without_the_node_of_the_url_the_others_show_where_slots_have_moved() {
    let mut cluster = cluster().await;
    let replica = super::replica(&cluster).await;
    let (held, slot) = held_on(1, &cluster, &replica).await;
    cluster.needs_no_full_coverage().await;
    let port = cluster.nodes[0].port();
    assert_eq!(cluster.address().nodes[0].1, port);
    cluster.nodes[0].kill();
    replica.assert_holds(&held).await;
    cluster.move_slot(slot, 1, 2).await;
    is_renewed(&replica, &held).await;
    is_blocked(&replica, &rival(&held)).await;
    replica.release(&held).await.expect("it answers");
    replica.granted(&rival(&held)).await;
}

/// A process that checks the store at its start, and not again within the test.
async fn rarely_checked(cluster: &RedisCluster) -> Replica {
    let config = RedisConfig {
        check_interval: Duration::from_secs(600),
        ..config()
    };
    let store = stores::cluster_store(&cluster.address(), &config).await;
    Replica::on(store.expect("the store opens"))
}
