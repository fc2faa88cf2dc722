//! Every minority of five nodes, with every pair of failures: leases are kept, locks are granted with growing tokens and to
//! one claim at a time, and afterwards all nodes have the lease. `faults::quorum::minorities` does the same with a few
//! minorities of real Redis.

use std::sync::Arc;
use std::time::Duration;

use leasehold::domain::{Claim, RenewOptions};
use leasehold::store::LockStore;
use leasehold::store::memory::MemoryStore;

use super::nodes::{Process, is_granted, stores, unreachable};
use crate::support::fixture::{LONG, SHORT, claim, deadline, rival, ttl};
use crate::support::scripted_store::Behavior;

const NODES: usize = 5;

/// By how much the clock of a node is set.
const STEP: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug)]
enum Failure {
    Down,
    Paused,
    /// It carries requests out, and its answers are lost.
    Mute,
    /// It has lost its data, and grants nothing while leases may be alive that it has forgotten.
    Wiped,
    /// Its clock is set forward: leases end there too early.
    ClockAhead,
    /// Its clock is set back: leases end there too late.
    ClockBehind,
}

const FAILURES: [Failure; 6] = [
    Failure::Down,
    Failure::Paused,
    Failure::Mute,
    Failure::Wiped,
    Failure::ClockAhead,
    Failure::ClockBehind,
];

impl Failure {
    /// What the clock of the node is ahead of the others', whose own is ahead by [`STEP`].
    fn clock(self) -> Duration {
        match self {
            Self::ClockAhead => STEP * 2,
            Self::ClockBehind => Duration::ZERO,
            Self::Down | Self::Paused | Self::Mute | Self::Wiped => STEP,
        }
    }
}

/// Has a lease last this long from now on at one node, as if the clock of the node was set.
async fn set_end(store: &MemoryStore, claim: &Claim, left: Duration) {
    let change = RenewOptions {
        ttl: Some(ttl(left)),
        ..RenewOptions::default()
    };
    let renewed = store.renew(&claim.names, claim.token, change, deadline());
    renewed.await.expect("the node answers");
}

/// The stores after these failures: one that was wiped is new.
async fn stricken(
    nodes: &[Arc<MemoryStore>],
    failing: [(usize, Failure); 2],
    held: &Claim,
) -> Vec<Arc<MemoryStore>> {
    let mut nodes = nodes.to_vec();
    for (node, failure) in failing {
        match failure {
            Failure::Down | Failure::Paused | Failure::Mute => {}
            Failure::Wiped => nodes[node] = stores(&[STEP]).swap_remove(0),
            Failure::ClockAhead => set_end(&nodes[node], held, SHORT).await,
            Failure::ClockBehind => set_end(&nodes[node], held, LONG + STEP).await,
        }
    }
    nodes
}

fn strike(process: &Process, failing: [(usize, Failure); 2]) {
    for (node, failure) in failing {
        let way = &process.nodes[node];
        match failure {
            Failure::Down => way.behaves(unreachable()),
            Failure::Paused => way.behaves(Behavior::Unanswered),
            Failure::Mute => way.behaves(Behavior::Lost),
            Failure::Wiped => way.recovers(true),
            // A process that notices the step has the node grant nothing for a while; this one does not notice it.
            Failure::ClockAhead | Failure::ClockBehind => {}
        }
    }
}

async fn survives(failing: [(usize, Failure); 2]) {
    let mut clocks = [STEP; NODES];
    for (node, failure) in failing {
        clocks[node] = failure.clock();
    }
    let nodes = stores(&clocks);
    let [held, contended] = [claim(), claim()];
    let before = Process::on(&nodes);
    let mut last = before.fence_of_next(&contended).await;
    before.fixture.granted(&held).await;
    before.settled().await;
    let process = Process::on(&stricken(&nodes, failing, &held).await);
    strike(&process, failing);
    process.fixture.advance(SHORT * 2).await;
    for _ in 0..3 {
        let fence = process.fence_of_next(&rival(&contended)).await;
        assert!(last < fence, "{last} then {fence} with {failing:?}");
        last = fence;
        let granted = is_granted(process.acquire(&rival(&held)).await);
        assert!(!granted, "two hold it with {failing:?}");
        process.fixture.renewed(&held, None).await;
    }
    process.without(&[]);
    for (node, _) in failing {
        process.nodes[node].recovers(false);
    }
    process.settled().await;
    // A node where the lease ran out takes it back after a minute.
    for _ in 0..4 {
        process.fixture.advance(LONG / 3).await;
        process.fixture.renewed(&held, None).await;
        process.settled().await;
    }
    assert_eq!(process.held_at(&held).await, [0, 1, 2, 3, 4], "{failing:?}");
    process.fixture.freed(&held).await;
    process.settled().await;
    assert!(process.held_at(&held).await.is_empty(), "{failing:?}");
}

#[tokio::test(start_paused = true)]
async fn any_two_of_five_nodes_may_fail_in_any_two_ways() {
    for first in 0..NODES {
        for second in first + 1..NODES {
            for one in FAILURES {
                for other in FAILURES {
                    survives([(first, one), (second, other)]).await;
                }
            }
        }
    }
}
