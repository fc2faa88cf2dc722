//! Every minority of three nodes, and one of five: while its nodes have a failure, leases are kept and locks are granted
//! with growing tokens, and afterwards its nodes vote again.

use std::time::Duration;

use leasehold::domain::Claim;
use leasehold::store::NodeHealth;

use super::{is_granted, keep, next_fence, process};
use crate::faults::{Replica, lasting_for};
use crate::support::eventually;
use crate::support::fixture::{claim, rival};
use crate::support::proxy::Proxy;
use crate::support::redis_server::{RedisOptions, RedisServer};

/// A node that has lost its data has no vote for so long. Long enough for a busy machine to renew it in time.
const TTL: Duration = Duration::from_secs(6);

/// What the clocks of all nodes are ahead of the machine's, so that one can be set back.
const AHEAD: Duration = Duration::from_secs(60);

/// By how much the clock of a node is set.
const STEP: Duration = Duration::from_secs(20);

/// What happens to a node.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Failure {
    Killed,
    Paused,
    /// It cannot be reached.
    Cut,
    /// It loses its data.
    Wiped,
    ClockAhead,
    ClockBehind,
}

/// The nodes, each behind a proxy.
struct Nodes {
    servers: Vec<RedisServer>,
    proxies: Vec<Proxy>,
}

impl Nodes {
    async fn start(count: usize) -> Self {
        let (mut servers, mut proxies) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let options = RedisOptions {
                has_movable_clock: true,
                ..RedisOptions::default()
            };
            let server = RedisServer::start(options).await;
            server.move_clock(AHEAD).await;
            proxies.push(Proxy::start(server.address()).await);
            servers.push(server);
        }
        Self { servers, proxies }
    }

    async fn process(&self) -> Replica {
        let addresses: Vec<_> = self.proxies.iter().map(|it| it.database(0)).collect();
        process(&addresses).await.0
    }

    async fn strike(&mut self, number: usize, failure: Failure) {
        let (server, proxy) = (&mut self.servers[number], &self.proxies[number]);
        match failure {
            Failure::Killed => server.kill(),
            Failure::Paused => server.pause(),
            Failure::Cut => {
                proxy.refuse(true);
                proxy.cut();
            }
            Failure::Wiped => drop(server.command(&["FLUSHALL"]).await),
            Failure::ClockAhead => server.move_clock(AHEAD + STEP).await,
            Failure::ClockBehind => server.move_clock(AHEAD - STEP).await,
        }
    }

    async fn mend(&mut self, number: usize, failure: Failure) {
        let server = &mut self.servers[number];
        match failure {
            Failure::Killed => server.restart().await,
            Failure::Paused => server.resume(),
            Failure::Cut => self.proxies[number].refuse(false),
            Failure::Wiped => {}
            Failure::ClockAhead | Failure::ClockBehind => server.move_clock(AHEAD).await,
        }
    }
}

fn is_ahead_by(expected: Duration, offset_ms: Option<i64>) -> bool {
    let millis = |time: Duration| i64::try_from(time.as_millis()).expect("it is short");
    offset_ms.is_some_and(|offset| (offset - millis(expected)).abs() < millis(STEP) / 2)
}

/// Renews a lease until this process shows that of a node.
async fn shows(replica: &Replica, held: &Claim, number: usize, that: impl Fn(NodeHealth) -> bool) {
    eventually("it is noticed", async || {
        keep(replica, held).await;
        let node = replica.service.store_health().nodes.swap_remove(number);
        that(node).then_some(())
    })
    .await;
}

/// Waits until this process has noticed the failure of a node.
async fn notices(replica: &Replica, held: &Claim, number: usize, failure: Failure) {
    let is_noticed = |node: NodeHealth| match failure {
        Failure::ClockAhead => is_ahead_by(AHEAD + STEP, node.clock_offset_ms),
        Failure::ClockBehind => is_ahead_by(AHEAD - STEP, node.clock_offset_ms),
        Failure::Killed | Failure::Paused | Failure::Cut | Failure::Wiped => !node.votes,
    };
    shows(replica, held, number, is_noticed).await;
}

/// Renews a lease while something else takes its time: a grant may have to wait until nodes vote again, for longer than the
/// lease lasts.
async fn while_renewed<T>(replica: &Replica, held: &Claim, other: impl Future<Output = T>) -> T {
    let renewals = async {
        let mut ticks = tokio::time::interval(TTL / 6);
        loop {
            ticks.tick().await;
            keep(replica, held).await;
        }
    };
    tokio::select! {
        done = other => done,
        () = renewals => unreachable!("they go on"),
    }
}

/// All of these nodes fail at once.
async fn survives(failures: &[(usize, Failure)], nodes: &mut Nodes, replica: &Replica) {
    let [held, contended] = [claim(), claim()].map(|claim| lasting_for(TTL, claim));
    let mut last = replica.granted(&contended).await;
    replica
        .release(&contended)
        .await
        .expect("nothing has failed yet");
    replica.granted(&held).await;
    for (number, failure) in failures {
        nodes.strike(*number, *failure).await;
    }
    for is_noticed in [false, true] {
        if is_noticed {
            for (number, failure) in failures {
                notices(replica, &held, *number, *failure).await;
            }
        }
        for _ in 0..2 {
            let next = lasting_for(TTL, rival(&contended));
            let fence = while_renewed(replica, &held, next_fence(replica, &next)).await;
            assert!(last < fence, "{last} then {fence} with {failures:?}");
            last = fence;
            let answer = replica.acquire(&lasting_for(TTL, rival(&held))).await;
            assert!(!is_granted(&answer), "two hold it with {failures:?}");
            keep(replica, &held).await;
        }
    }
    for (number, failure) in failures {
        nodes.mend(*number, *failure).await;
        if *failure == Failure::ClockBehind {
            // Set forward, it has ended leases early. The node shows the new time a moment before it loses its vote.
            shows(replica, &held, *number, |node| !node.votes).await;
        }
    }
    eventually("all nodes vote", async || {
        keep(replica, &held).await;
        let mut nodes = replica.service.store_health().nodes.into_iter();
        let is_well = |node: NodeHealth| node.votes && is_ahead_by(AHEAD, node.clock_offset_ms);
        nodes.all(is_well).then_some(())
    })
    .await;
    replica
        .release(&held)
        .await
        .expect("nothing fails any more");
}

/// Each of three nodes fails, one after the other.
async fn any_of_three_may_be(failure: Failure) {
    let mut nodes = Nodes::start(3).await;
    let replica = nodes.process().await;
    for number in 0..3 {
        survives(&[(number, failure)], &mut nodes, &replica).await;
    }
}

#[tokio::test]
async fn any_of_three_nodes_may_be_killed() {
    any_of_three_may_be(Failure::Killed).await;
}

#[tokio::test]
async fn any_of_three_nodes_may_be_paused() {
    any_of_three_may_be(Failure::Paused).await;
}

#[tokio::test]
async fn any_of_three_nodes_may_be_cut_off() {
    any_of_three_may_be(Failure::Cut).await;
}

#[tokio::test]
async fn any_of_three_nodes_may_lose_its_data() {
    any_of_three_may_be(Failure::Wiped).await;
}

#[tokio::test]
async fn any_of_three_nodes_may_have_its_clock_set_forward() {
    any_of_three_may_be(Failure::ClockAhead).await;
}

#[tokio::test]
async fn any_of_three_nodes_may_have_its_clock_set_back() {
    any_of_three_may_be(Failure::ClockBehind).await;
}

#[tokio::test]
async fn two_of_five_nodes_may_fail_in_different_ways() {
    let mut nodes = Nodes::start(5).await;
    let replica = nodes.process().await;
    let first = [(1, Failure::Killed), (3, Failure::Wiped)];
    survives(&first, &mut nodes, &replica).await;
    let second = [(0, Failure::ClockAhead), (4, Failure::Cut)];
    survives(&second, &mut nodes, &replica).await;
}
