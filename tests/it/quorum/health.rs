//! The health of a quorum: how many of its nodes vote, and whether those are enough.

use std::sync::Arc;
use std::time::Duration;

use leasehold::store::assignment::AssignFences;
use leasehold::store::quorum::{Drift, QuorumStore};
use leasehold::store::{LockStore, PoolHealth, StoreHealth};

use super::nodes::Process;
use crate::support::scripted_store::ScriptedStore;

/// The health of a quorum of nodes in this health.
fn health_of(nodes: [StoreHealth; 3]) -> StoreHealth {
    let node = |health| -> Arc<dyn AssignFences> { Arc::new(ScriptedStore::in_health(health)) };
    QuorumStore::new(nodes.map(node).into(), Drift::NONE).health()
}

#[tokio::test(start_paused = true)]
async fn health_tells_which_nodes_vote() {
    let process = Process::alone();
    let health = process.quorum.health();
    assert!(health.up && health.contacted);
    let quorum = &health.findings[0];
    assert_eq!((quorum.topic, quorum.is_fine), ("quorum", true));
    assert_eq!(quorum.detail, "3 of 3 nodes vote, 2 are needed");
    let of_nodes = health
        .findings
        .iter()
        .filter(|finding| finding.topic == "node");
    assert_eq!(of_nodes.count(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_down_and_one_that_is_unfit_leave_no_majority() {
    let fit = || StoreHealth {
        contacted: true,
        up: true,
        ..StoreHealth::default()
    };
    let down = || StoreHealth {
        up: false,
        trouble: Some("it is silent".to_owned()),
        ..fit()
    };
    let unfit = || StoreHealth {
        refused: Some("it evicts keys".to_owned()),
        ..fit()
    };
    let health = health_of([down(), unfit(), fit()]);
    let why = "too few nodes vote: node 2: it evicts keys";
    assert_eq!(health.refused.as_deref(), Some(why));
    let nothing = "1 of 3 nodes vote, 2 are needed: nothing is granted until more nodes vote; their own \
                   checks say why they do not";
    assert_eq!(health.findings[0].detail, nothing);
    for minority in [down(), unfit()] {
        let health = health_of([minority, fit(), fit()]);
        assert!(health.up && health.refused.is_none() && health.trouble.is_none());
        assert!(!health.findings[0].is_fine, "operators see it");
    }
    let health = health_of([down(), down(), unfit()]);
    let why = "too few nodes vote: node 1: it is silent";
    assert_eq!(health.trouble.as_deref().filter(|_| !health.up), Some(why));
}

#[tokio::test(start_paused = true)]
async fn new_grants_wait_for_the_node_that_completes_a_majority_if_it_recovers() {
    let recovering = |seconds| StoreHealth {
        contacted: true,
        up: true,
        recovering_for: Some(Duration::from_secs(seconds)),
        ..StoreHealth::default()
    };
    let fit = || StoreHealth {
        recovering_for: None,
        ..recovering(0)
    };
    for (nodes, waits) in [
        ([fit(), fit(), recovering(9)], None),
        ([fit(), recovering(9), recovering(5)], Some(5)),
        ([recovering(7), recovering(9), recovering(5)], Some(7)),
    ] {
        let waits = waits.map(Duration::from_secs);
        assert_eq!(health_of(nodes).recovering_for, waits);
    }
}

#[tokio::test(start_paused = true)]
async fn the_connections_are_those_to_all_nodes() {
    let with_pool = |open, max, timeouts| StoreHealth {
        pool: Some(PoolHealth {
            open,
            max,
            waits: timeouts + 1,
            timeouts,
        }),
        ..StoreHealth::default()
    };
    let health = health_of([with_pool(1, 8, 3), with_pool(5, 8, 0), with_pool(2, 8, 4)]);
    let pool = health.pool.expect("nodes have some");
    assert_eq!((pool.open, pool.max), (8, 24));
    assert_eq!((pool.waits, pool.timeouts), (10, 7));
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_clock_is_more_than_a_day_ahead_has_no_vote() {
    const DAY_MS: i64 = 24 * 3_600 * 1_000;
    let of_clock = |clock_offset_ms| StoreHealth {
        contacted: true,
        up: true,
        clock_offset_ms: Some(clock_offset_ms),
        ..StoreHealth::default()
    };
    for (offset_ms, has_vote) in [
        (DAY_MS / 2, true),
        (DAY_MS + 1, false),
        (i64::MAX, false),
        (-2 * DAY_MS, true),
    ] {
        let health = health_of([of_clock(0), of_clock(0), of_clock(offset_ms)]);
        assert_eq!(health.nodes[2].votes, has_vote, "{offset_ms} ms");
        assert_eq!(health.findings[0].is_fine, has_vote);
    }
}
