//! Which primaries a Redis Cluster has, which of them has each partition, and the sockets to them.
//!
//! All nodes are asked again whenever something shows that the slots may have moved, and with every check of the store.
//! Of two answers about a slot the one with the later configuration counts. An outdated one costs a round trip: a node
//! executes no command for a slot that it does not have.

mod across;
mod answers;
mod moves;
mod partial_claim;
pub(super) mod partitions;
mod sockets;
mod topology;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use redis::{RedisConnectionInfo, RedisError};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::UNPOISONED;
use super::barriers::Barriers;
use super::failure::{Execution, Failure, NO_PRIMARY};
use super::transport::{Endpoint, Transport};
use crate::config::ClusterAddress;
use crate::store::Fault;
use sockets::NodeSockets;
pub(super) use topology::{ClusterView, NodeLine, Topology};

/// How long a node may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// How long the others may take once one has answered: one of them may know a later configuration.
const LAST_ANSWERS_WITHIN: Duration = Duration::from_millis(50);
/// The least time between two rounds of questions.
const ASK_PAUSE: Duration = Duration::from_millis(50);

/// The cluster as this process knows it.
pub(super) struct Cluster {
    seeds: Vec<Endpoint>,
    topology: RwLock<Arc<Topology>>,
    /// How often something has shown that slots may have moved, and how often it had when the topology was last asked
    /// for.
    moves: AtomicU64,
    moves_known: AtomicU64,
    /// Whether primaries have joined or left since somebody asked.
    has_new_primaries: AtomicBool,
    /// The last round of questions that was completed. Held during the next one.
    last_round: tokio::sync::Mutex<LastRound>,
    pub(super) sockets: NodeSockets,
    /// By the primary at whose replicas they are.
    barriers: Mutex<HashMap<Endpoint, Arc<Barriers>>>,
}

struct LastRound {
    began: Instant,
    outcome: Result<(), Failure>,
}

impl Cluster {
    pub(super) fn new(
        address: &ClusterAddress,
        connecting: (Arc<Transport>, RedisConnectionInfo),
        sockets_max: usize,
    ) -> Self {
        let never = Failure::new(Fault::Io, Execution::NotDone, "not asked yet");
        Self {
            seeds: address.nodes.clone(),
            topology: RwLock::default(),
            moves: AtomicU64::new(1),
            moves_known: AtomicU64::new(0),
            has_new_primaries: AtomicBool::new(false),
            last_round: tokio::sync::Mutex::new(LastRound {
                began: Instant::now(),
                outcome: Err(never),
            }),
            sockets: NodeSockets::new(connecting, sockets_max.max(1)),
            barriers: Mutex::default(),
        }
    }

    pub(super) fn topology(&self) -> Arc<Topology> {
        Arc::clone(&self.topology.read().expect(UNPOISONED))
    }

    /// Slots may have moved.
    pub(super) fn may_have_moved(&self) {
        self.moves.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether slots may have moved since the topology was read.
    fn is_outdated(&self) -> bool {
        self.moves.load(Ordering::SeqCst) != self.moves_known.load(Ordering::SeqCst)
    }

    /// The primary that has a partition.
    ///
    /// # Errors
    /// No node answers, or none has the slot.
    pub(super) async fn owner(&self, partition: usize) -> Result<Endpoint, Failure> {
        if self.is_outdated() {
            self.refresh().await?;
        }
        if let Some(node) = self.topology().owner(partition) {
            return Ok(node.endpoint.clone());
        }
        self.may_have_moved();
        let detail = format!("{NO_PRIMARY} slot {}", partitions::slot(partition));
        Err(Failure::new(Fault::ClusterDown, Execution::NotDone, detail).passing())
    }

    /// Whether primaries have joined or left since the last call.
    pub(super) fn has_new_primaries(&self) -> bool {
        self.has_new_primaries.swap(false, Ordering::SeqCst)
    }

    /// Asks the nodes for the topology. Many callers share one round.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing has changed, and the next caller begins another round.
    pub(super) async fn refresh(&self) -> Result<(), Failure> {
        self.refresh_within(LAST_ANSWERS_WITHIN).await
    }

    /// The same, and waits for slow nodes, too: only the nodes between which a slot moves know that it does. If the round
    /// was another caller's, some answers may be missing.
    pub(super) async fn refresh_from_all(&self) -> Result<(), Failure> {
        self.refresh_within(ANSWER_TIMEOUT).await
    }

    async fn refresh_within(&self, last_answers_within: Duration) -> Result<(), Failure> {
        let asked_at = Instant::now();
        let mut last = self.last_round.lock().await;
        if last.began >= asked_at {
            return last.outcome.clone();
        }
        sleep_until(last.began + ASK_PAUSE).await;
        let began = Instant::now();
        let moves = self.moves.load(Ordering::SeqCst);
        let discovered = self.discover(last_answers_within).await;
        *last = LastRound {
            began,
            outcome: discovered.as_ref().map(drop).map_err(Clone::clone),
        };
        let found = match discovered {
            Ok(found) => found,
            Err(failure) => {
                self.may_have_moved();
                return Err(failure);
            }
        };
        let before = self.topology();
        if before.primaries() != found.primaries() {
            self.has_new_primaries.store(true, Ordering::SeqCst);
        }
        *self.topology.write().expect(UNPOISONED) = Arc::new(found);
        self.moves_known.store(moves, Ordering::SeqCst);
        Ok(())
    }

    async fn discover(&self, last_answers_within: Duration) -> Result<Topology, Failure> {
        let known = self.topology();
        let known = known.nodes.values().map(|node| node.endpoint.clone());
        let all: BTreeSet<Endpoint> = known.chain(self.seeds.iter().cloned()).collect();
        let asking = all.iter();
        let asking = asking.map(async |endpoint| (endpoint, self.ask(endpoint).await));
        let mut asking: FuturesUnordered<_> = asking.collect();
        let (mut answers, mut failures) = (Vec::new(), BTreeMap::new());
        let mut give_up = Instant::now() + ANSWER_TIMEOUT;
        while let Ok(Some((endpoint, answer))) = timeout_at(give_up, asking.next()).await {
            match answer {
                Ok(lines) => answers.push(lines),
                Err(failure) => drop(failures.insert(endpoint, failure)),
            }
            if !answers.is_empty() {
                give_up = give_up.min(Instant::now() + last_answers_within);
            }
        }
        if !answers.is_empty() {
            return Ok(Topology::of(&answers));
        }
        // The time for an answer is too short to notice that one side alone uses TLS.
        let silent = all.iter().filter(|it| !failures.contains_key(it));
        let explaining = silent.map(|endpoint| self.sockets.why_silent(endpoint));
        let silent = join_all(explaining).await;
        Err(no_answer(failures.into_values().chain(silent).collect()))
    }

    async fn ask(&self, endpoint: &Endpoint) -> Result<Vec<NodeLine>, Failure> {
        let asking = self.sockets.answer(endpoint, 0, |socket| {
            Box::pin(async move {
                let mut command = redis::cmd("CLUSTER");
                command.arg("NODES");
                let asking = command.query_async::<String>(&mut socket.shared);
                match timeout_at(Instant::now() + ANSWER_TIMEOUT, asking).await {
                    Ok(Ok(answer)) => Ok(answer),
                    Ok(Err(error)) => Err(
                        match error.to_string().contains("cluster support disabled") {
                            true => no_cluster(&error),
                            false => Failure::of(&error).before_any_command(),
                        },
                    ),
                    Err(_) => Err(Failure::timed_out().before_any_command()),
                }
            })
        });
        let (_, answer) = asking.await?;
        Ok(topology::node_lines(&answer, &endpoint.0))
    }

    /// How many subscribers some channels have on all nodes together; none unless all of them answer.
    pub(super) async fn count_subscribers(&self, channels: [&str; 2]) -> Option<[u64; 2]> {
        let topology = self.topology();
        let nodes = topology.nodes.values().filter(|node| node.is_healthy);
        let counting = nodes.map(async |node| {
            let mut socket = self.sockets.open(&node.endpoint, 0).await.ok()?;
            let mut command = redis::cmd("PUBSUB");
            command.arg("NUMSUB").arg(&channels);
            let counted = command.query_async(&mut socket.shared).await;
            let (_, first, _, second): (String, u64, String, u64) = counted.ok()?;
            Some([first, second])
        });
        let counts: Option<Vec<_>> = join_all(counting).await.into_iter().collect();
        let sum = |counts: Vec<[u64; 2]>| {
            let add = |sum: [u64; 2], it: [u64; 2]| [sum[0] + it[0], sum[1] + it[1]];
            counts.into_iter().fold([0, 0], add)
        };
        counts.map(sum)
    }

    /// Finds out whether the primaries admit this process still. The sockets are shared and stay open, so nothing else does.
    pub(super) async fn try_primaries(&self, patience: Duration) {
        let topology = self.topology();
        let primaries = topology.representatives().into_iter();
        let primaries = primaries.filter_map(|number| topology.owner(number));
        let endpoints = primaries.map(|node| node.endpoint.clone());
        self.sockets.try_all(endpoints, patience).await;
    }

    /// Closes the sockets to nodes that have left, and to former addresses of those that are there.
    pub(super) fn sweep(&self) {
        let topology = self.topology();
        let known = topology.nodes.values().map(|node| &node.endpoint);
        // Every round of questions asks those of the URL, too.
        let known: BTreeSet<_> = known.chain(&self.seeds).collect();
        self.sockets.keep(&known);
        let mut barriers = self.barriers.lock().expect(UNPOISONED);
        barriers.retain(|endpoint, _| known.contains(endpoint));
    }

    /// The barriers of a primary.
    pub(super) fn barriers(&self, primary: Endpoint) -> Arc<Barriers> {
        let mut barriers = self.barriers.lock().expect(UNPOISONED);
        Arc::clone(barriers.entry(primary).or_default())
    }
}

fn no_cluster(error: &RedisError) -> Failure {
    let failure = Failure::new(Fault::Cluster, Execution::NotDone, error.to_string());
    failure.because(
        "it is no node of a Redis Cluster; write redis:// in LEASEHOLD_STORE, or set cluster-enabled to yes",
    )
}

/// Why no node answers. If none refuses this process for good, and they have no reason in common, it may pass.
fn no_answer(failures: Vec<Failure>) -> Failure {
    let is_lasting = failures.iter().all(Failure::is_lasting);
    let has_one_reason = failures.iter().all(|it| it.has_reason_of(&failures[0]));
    let is_explained = is_lasting || has_one_reason;
    let details: Vec<&str> = failures.iter().map(|it| it.detail.as_str()).collect();
    let detail = format!("no node of the cluster answers ({})", details.join("; "));
    match failures.into_iter().next() {
        Some(failure) if is_explained => failure,
        Some(_) | None => Failure::new(Fault::Io, Execution::NotDone, detail)
            .because("no node of the cluster answers")
            .passing(),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;
    use crate::store::redis::connector::Connector;
    use crate::store::redis::recovery::tests::config;

    /// A cluster of which nothing is known but an address.
    fn cluster(seed: Endpoint) -> Cluster {
        let address = ClusterAddress {
            nodes: vec![seed],
            is_encrypted: false,
        };
        let transport = Transport::new(&config(), false).expect("it needs nothing");
        let with = (Arc::new(transport), RedisConnectionInfo::default());
        Cluster::new(&address, with, 1)
    }

    #[test]
    fn a_reason_that_all_nodes_have_in_common_is_why_none_answers() {
        let broken = |reason: &'static str| {
            let failure = Failure::new(Fault::Io, Execution::NotDone, "Broken pipe");
            failure.because(reason).passing()
        };
        let explained = |failures: Vec<Failure>| no_answer(failures).explanation();
        for count in [1, 2] {
            assert_eq!(explained(vec![broken("it is full"); count]), "it is full");
        }
        for failures in [vec![broken("it is full"), broken("it is old")], Vec::new()] {
            assert_eq!(explained(failures), "no node of the cluster answers");
        }
    }

    #[tokio::test]
    async fn a_round_of_questions_that_is_cancelled_says_nothing_about_the_slots() {
        let silent = TcpListener::bind("127.0.0.1:0").await.expect("it listens");
        let port = silent.local_addr().expect("it listens").port();
        let cluster = cluster(("127.0.0.1".to_owned(), port));
        let cancelled = timeout(Duration::from_millis(20), cluster.refresh()).await;
        assert!(cancelled.is_err(), "nobody answers");
        assert!(cluster.is_outdated());
        // Whoever asks next does not get the outcome of a round that had none.
        let failure = cluster.refresh().await.expect_err("nobody answers");
        assert!(failure.detail.contains("no node"), "{failure:?}");
    }

    /// Each grant that replicas confirm needs them, and while a node is down, every attempt to reach it shows that slots may
    /// have moved.
    #[tokio::test]
    async fn the_barriers_of_a_known_primary_cost_no_question() {
        let unasked = TcpListener::bind("127.0.0.1:0").await.expect("it listens");
        let port = unasked.local_addr().expect("it listens").port();
        let address = ClusterAddress {
            nodes: vec![("127.0.0.1".to_owned(), port)],
            is_encrypted: false,
        };
        let within = Connector::within(&address, &config());
        let (cluster, connectors) = within.expect("it needs no certificates");
        let answer = format!("a 127.0.0.1:{port}@1 myself,master - 0 0 1 connected 0-16383");
        let known = Topology::of(&[topology::node_lines(&answer, "")]);
        *cluster.topology.write().expect(UNPOISONED) = Arc::new(known);
        assert!(cluster.is_outdated());
        let of_first = connectors[0].barriers().await.expect("it is known");
        let of_last = connectors[63].barriers().await.expect("it is known");
        let [of_first, of_last] = [of_first, of_last].map(|it| it.expect("it is of a cluster"));
        assert!(Arc::ptr_eq(&of_first, &of_last));
        assert!(unasked.accept().now_or_never().is_none());
    }

    #[tokio::test]
    async fn sockets_to_former_addresses_are_closed_and_those_to_the_urls_are_not() {
        let seed = ("127.0.0.1".to_owned(), 1);
        let cluster = cluster(seed.clone());
        for endpoint in [&seed, &("127.0.0.1".to_owned(), 2)] {
            let opening = cluster.sockets.open(endpoint, 0).await;
            assert!(opening.is_err(), "nobody listens there");
        }
        cluster.sweep();
        assert_eq!(cluster.sockets.endpoints(), [seed]);
    }
}
