//! Claims on locks of several primaries, of which one gets commands late, or answers late: a late command grants and
//! enqueues nothing, and a retry meanwhile is no other claim.

use std::time::Duration;

use leasehold::config::RedisConfig;
use leasehold::domain::{Claim, GrantKind, LockName, LockState, Refused};
use leasehold::service::AcquireOutcome;
use tokio::time::sleep;

use super::{FOR_EVER, cluster, config, lasting, locks_on, replica};
use crate::faults::Replica;
use crate::support::cluster::RedisCluster;
use crate::support::fixture::{claim_on, claim_on_all, names};
use crate::support::proxy::Proxy;
use crate::support::{eventually, stores};

/// Long enough for what was begun to be sent to a primary; the deadline of a request is much later.
const SENT_WITHIN: Duration = Duration::from_millis(200);

/// How much later than its repetition a command arrives.
const LATE: Duration = Duration::from_millis(700);

/// Two processes that reach two primaries over a network that can fail, and a lock on each of these.
struct LateNetwork {
    cluster: RedisCluster,
    proxies: [Proxy; 2],
    /// The first one is granted first.
    locks: [LockName; 2],
    processes: [Replica; 2],
}

impl LateNetwork {
    async fn start() -> Self {
        let cluster = cluster().await;
        let locks = locks_on([0, 1], &cluster, &replica(&cluster).await).await;
        let proxies = [before(0, &cluster).await, before(1, &cluster).await];
        eventually("all nodes know the proxies", async || {
            for node in &cluster.nodes {
                let known = node.command(&["CLUSTER", "NODES"]).await;
                let known: String = redis::from_redis_value(known).expect("a text");
                let mut proxies = proxies.iter();
                let knows = |it: &Proxy| known.contains(&format!("{}@", it.address()));
                proxies.all(knows).then_some(())?;
            }
            Some(())
        })
        .await;
        let processes = [process(&cluster).await, process(&cluster).await];
        let network = Self {
            cluster,
            proxies,
            locks,
            processes,
        };
        // Opens connections before anything is late.
        for process in &network.processes {
            let both = network.claim_on_both();
            let granted = process.acquire(&both).await;
            assert!(
                matches!(granted, Ok(AcquireOutcome::Granted(_))),
                "{granted:?}"
            );
            release(process, &both).await;
        }
        network
    }

    fn claim_on_both(&self) -> Claim {
        lasting(claim_on_all(names(&self.locks)))
    }

    /// A claim that holds the second lock.
    async fn second_is_held(&self) -> Claim {
        let held = lasting(claim_on(&self.locks[1]));
        self.processes[1].granted(&held).await;
        held
    }

    /// Carries out a request on both locks. Once both primaries were asked whether they would grant them, `meanwhile`
    /// happens. The next command to `primary` is held back, and repeated after its connection was cut; the first try
    /// arrives later.
    async fn tried_twice<T>(
        &self,
        primary: usize,
        request: impl Future<Output = T>,
        meanwhile: impl Future,
    ) -> T {
        // The first primary has the question before it, but not the answer, when the other one has answered.
        let [asked, late] = [&self.proxies[0], &self.proxies[primary]];
        let (stalled, arrived) = (asked.stalled(), late.late());
        asked.stall(true);
        let failing = async {
            eventually("it is asked", async || {
                (asked.stalled() > stalled).then_some(())
            })
            .await;
            sleep(SENT_WITHIN).await;
            meanwhile.await;
            late.hold_back();
            asked.stall(false);
            sleep(SENT_WITHIN).await;
            late.deliver_late(LATE);
        };
        let (answer, ()) = tokio::join!(request, failing);
        eventually("the first try arrives", async || {
            (late.late() > arrived).then_some(())
        })
        .await;
        answer
    }

    async fn queue_lengths(&self) -> Option<[u64; 2]> {
        let mut lengths = [0; 2];
        for (length, lock) in lengths.iter_mut().zip(&self.locks) {
            let view = self.processes[1].service.inspect(lock).await.ok()?;
            *length = view.queue.length;
        }
        Some(lengths)
    }
}

/// A process that sends nothing but what it is asked for: all else would be late, too.
async fn process(cluster: &RedisCluster) -> Replica {
    let config = RedisConfig {
        check_interval: FOR_EVER,
        ..config()
    };
    let store = stores::cluster_store(&cluster.address(), &config).await;
    let store = store.expect("the store opens");
    store.refresh_health().await;
    Replica::on(store)
}

/// A proxy that clients have to use to reach a node.
async fn before(number: usize, cluster: &RedisCluster) -> Proxy {
    let node = &cluster.nodes[number];
    let proxy = Proxy::start(node.address()).await;
    let port = proxy.address().port().to_string();
    node.command(&["CONFIG", "SET", "cluster-announce-port", &port])
        .await;
    proxy
}

async fn release(process: &Replica, claim: &Claim) {
    let released = process
        .service
        .release(claim.names.clone(), claim.token, None, |_| {})
        .await;
    released.expect("it answers");
}

/// Whichever primary gets a command twice: the one that has granted its lock, or the one that refuses.
#[tokio::test]
async fn a_refused_claim_is_not_granted_a_part_of_its_locks_by_a_late_command() {
    for late in [0, 1] {
        let network = LateNetwork::start().await;
        let claim = network.claim_on_both();
        let refused = network.processes[0].acquire(&claim);
        let answer = network
            .tried_twice(late, refused, network.second_is_held())
            .await;
        let is_blocked = matches!(answer, Ok(AcquireOutcome::Refused(Refused::Blocked(_))));
        assert!(is_blocked, "{answer:?}");
        let view = network.processes[1].service.inspect(&network.locks[0]);
        let view = view.await.expect("it answers");
        assert_eq!(view.state, LockState::Free, "primary {late}");
    }
}

#[tokio::test]
async fn a_claim_whose_client_has_gone_is_not_enqueued_again_by_a_late_command() {
    let network = LateNetwork::start().await;
    network.second_is_held().await;
    let claim = network.claim_on_both();
    let waiting = network.processes[0].acquire_within(&claim, FOR_EVER);
    let hangs_up = async {
        tokio::select! {
            answer = waiting => panic!("it waits, but: {answer:?}"),
            () = eventually("it is in both queues", async || {
                (network.queue_lengths().await? == [1, 1]).then_some(())
            }) => {}
        }
    };
    network.tried_twice(0, hangs_up, async {}).await;
    assert_eq!(network.queue_lengths().await, Some([0, 0]));
}

/// The first primary has granted its lock to the first request, and the second one has not yet.
#[tokio::test]
async fn a_retry_while_a_claim_is_being_granted_its_locks_is_granted_them() {
    let network = LateNetwork::start().await;
    for wait in [Duration::ZERO, Duration::from_secs(10)] {
        let claim = network.claim_on_both();
        network.proxies[0].delay_replies(SENT_WITHIN / 2);
        let first = network.processes[0].acquire(&claim);
        let retry = async {
            let pattern = format!("lh:1:{{*}}:l:{}", network.locks[0]);
            eventually("it holds the first lock", async || {
                let keys = network.cluster.nodes[0].keys(0, &pattern).await;
                (!keys.is_empty()).then_some(())
            })
            .await;
            network.processes[1].acquire_within(&claim, wait).await
        };
        let (first, retry) = tokio::join!(first, retry);
        network.proxies[0].delay_replies(Duration::ZERO);
        let [first, retry] = [first, retry].map(|answer| answer.expect("there was time"));
        assert_eq!(first.kind(), Some(GrantKind::New), "{first:?}");
        assert_eq!(retry.kind(), Some(GrantKind::Replayed), "{retry:?}");
        release(&network.processes[0], &claim).await;
    }
}
