//! Real Redis Clusters that a test starts, and those that contract tests use one after the other.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use futures_util::future::join_all;
use leasehold::config::ClusterAddress;
use redis::FromRedisValue;

use super::eventually;
use super::redis_server::{RedisOptions, RedisServer};

/// How many slots a cluster has.
const SLOTS: usize = 16_384;

/// Some nodes that know each other.
pub(crate) struct RedisCluster {
    pub(crate) nodes: Vec<RedisServer>,
}

impl RedisCluster {
    /// Starts this number of primaries, each with as many slots as the others.
    pub(crate) async fn start(primaries: usize, options: RedisOptions) -> Self {
        let mut cluster = Self { nodes: Vec::new() };
        for _ in 0..primaries {
            cluster.nodes.push(node(&options).await);
        }
        for (number, node) in cluster.nodes.iter().enumerate() {
            // Without it, all begin with the same one, and agree on others later.
            let epoch = (number + 1).to_string();
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]).await;
            let first = (SLOTS * number / primaries).to_string();
            let last = (SLOTS * (number + 1) / primaries - 1).to_string();
            node.command(&["CLUSTER", "ADDSLOTSRANGE", &first, &last])
                .await;
        }
        for node in &cluster.nodes[1..] {
            cluster.introduce(node).await;
        }
        cluster.is_well().await;
        cluster
    }

    /// Adds a primary without slots.
    pub(crate) async fn join(&mut self, options: RedisOptions) {
        let node = node(&options).await;
        self.introduce(&node).await;
        self.nodes.push(node);
        self.is_well().await;
    }

    /// Adds a replica of one of its primaries, and waits until it has everything.
    pub(crate) async fn replica(&mut self, of: usize, options: RedisOptions) {
        // Each must see every other one before: Valkey 9 may miss for good that a node was made a replica while it was
        // still being introduced.
        self.join(options).await;
        let primary = self.id(of).await;
        let replica = self.nodes.last().expect("it was just added");
        replica.command(&["CLUSTER", "REPLICATE", &primary]).await;
        self.nodes[of].is_in_step_with(replica).await;
        eventually("all nodes know the replica", async || {
            for node in &self.nodes {
                let known: String = text(node, &["CLUSTER", "NODES"]).await;
                known.contains(&format!("slave {primary} ")).then_some(())?;
            }
            Some(())
        })
        .await;
    }

    async fn introduce(&self, node: &RedisServer) {
        let (port, bus) = (node.announced_port(), node.cluster_port());
        let (port, bus) = (port.to_string(), bus.to_string());
        let meet = ["CLUSTER", "MEET", "127.0.0.1", &port, &bus];
        self.nodes[0].command(&meet).await;
    }

    /// Waits until every node knows every other one, and that all slots have a primary.
    pub(crate) async fn is_well(&self) {
        eventually("every node knows the others and all slots", async || {
            for node in &self.nodes {
                let state = text(node, &["CLUSTER", "INFO"]).await;
                let known = text(node, &["CLUSTER", "NODES"]).await;
                let lines = known.lines();
                let connected =
                    lines.filter(|it| it.contains(" connected") && !it.contains("handshake"));
                let is_well =
                    state.contains("cluster_state:ok") && connected.count() == self.nodes.len();
                is_well.then_some(())?;
            }
            Some(())
        })
        .await;
    }

    /// The id of a node.
    pub(crate) async fn id(&self, number: usize) -> String {
        text(&self.nodes[number], &["CLUSTER", "MYID"]).await
    }

    /// The address for a store, with one node that knows the others.
    pub(crate) fn address(&self) -> ClusterAddress {
        ClusterAddress {
            nodes: vec![("127.0.0.1".to_owned(), self.nodes[0].port())],
            is_encrypted: false,
        }
    }

    /// The URL for a process, with all nodes.
    pub(crate) fn url(&self) -> String {
        let nodes: Vec<_> = self.nodes.iter().map(RedisServer::address).collect();
        format!("redis+cluster://{}", nodes.join(","))
    }

    /// The numbers of the nodes that are primaries and have slots, as they know themselves.
    pub(crate) async fn primaries(&self) -> Vec<usize> {
        let mut primaries = Vec::new();
        for (number, node) in self.nodes.iter().enumerate() {
            let own = own_line(node).await;
            // Its slots begin with the ninth word.
            if own.contains("master") && own.split(' ').nth(8).is_some() {
                primaries.push(number);
            }
        }
        primaries
    }

    /// The number of a replica of this primary.
    pub(crate) async fn replica_of(&self, primary: usize) -> usize {
        let id = self.id(primary).await;
        for (number, node) in self.nodes.iter().enumerate() {
            if own_line(node).await.contains(&format!("slave {id} ")) {
                return number;
            }
        }
        panic!("no node is a replica of node {primary}");
    }

    /// The slots of a node that have keys of a store.
    pub(crate) async fn slots_in_use(&self, number: usize) -> Vec<u16> {
        let mut slots = BTreeSet::new();
        for key in self.nodes[number].keys(0, "lh:1:*").await {
            slots.insert(self.slot_of(&String::from_utf8_lossy(&key)).await);
        }
        slots.into_iter().collect()
    }

    /// The same with TLS.
    pub(crate) fn encrypted_address(&self) -> ClusterAddress {
        let seed = self.nodes[0].encrypted_database(0);
        ClusterAddress {
            nodes: vec![(seed.host, seed.port)],
            is_encrypted: true,
        }
    }

    /// Lets its nodes execute commands when slots have had no primary for long.
    pub(crate) async fn needs_no_full_coverage(&self) {
        let words = ["CONFIG", "SET", "cluster-require-full-coverage", "no"];
        join_all(self.nodes.iter().map(|node| node.command(&words))).await;
    }

    /// Deletes all data, like a cluster that was just made.
    pub(crate) async fn forget(&self) {
        let flushing = self.nodes.iter().map(|node| node.command(&["FLUSHALL"]));
        join_all(flushing).await;
    }

    /// Deletes all keys that match.
    pub(crate) async fn delete(&self, pattern: &str) {
        for node in &self.nodes {
            for key in node.keys(0, pattern).await {
                node.command(&[b"DEL", &key[..]]).await;
            }
        }
    }

    /// Waits until no process is subscribed to anything.
    async fn is_unused(&self) {
        eventually("no process uses the cluster", async || {
            for node in &self.nodes {
                let channels: Vec<String> = value(node, &["PUBSUB", "CHANNELS", "lh:*"]).await;
                channels.is_empty().then_some(())?;
            }
            Some(())
        })
        .await;
    }

    /// Moves the slot of a key with all its keys to another primary, as `redis-cli --cluster reshard` does.
    pub(crate) async fn move_slot(&self, slot: u16, from: usize, to: usize) {
        self.begin_move(slot, from, to).await;
        self.move_keys(slot, from, to).await;
        self.end_move(slot, from, to).await;
    }

    pub(crate) async fn begin_move(&self, slot: u16, from: usize, to: usize) {
        self.import(slot, from, to).await;
        let (slot, id) = (slot.to_string(), self.id(to).await);
        self.nodes[from]
            .command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id])
            .await;
    }

    /// Has a node expect a slot, which is the first step of a move.
    pub(crate) async fn import(&self, slot: u16, from: usize, to: usize) {
        let (slot, id) = (slot.to_string(), self.id(from).await);
        self.nodes[to]
            .command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id])
            .await;
    }

    pub(crate) async fn move_keys(&self, slot: u16, from: usize, to: usize) {
        let slot = slot.to_string();
        loop {
            let listing = ["CLUSTER", "GETKEYSINSLOT", &slot, "100"];
            let keys: Vec<Vec<u8>> = value(&self.nodes[from], &listing).await;
            if keys.is_empty() {
                return;
            }
            self.migrate(keys, from, to).await;
        }
    }

    /// Moves some keys of a slot that is on its way.
    pub(crate) async fn migrate(&self, keys: Vec<Vec<u8>>, from: usize, to: usize) {
        let port = self.nodes[to].port().to_string();
        let mut words: Vec<Vec<u8>> = ["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"]
            .map(|word| word.as_bytes().to_vec())
            .into();
        words.extend(keys);
        self.nodes[from].command(&words).await;
    }

    /// The key of a slot that matches.
    pub(crate) async fn key_of_slot(&self, pattern: &str, slot: u16, node: usize) -> Vec<u8> {
        for key in self.nodes[node].keys(0, pattern).await {
            if self.slot_of(&String::from_utf8_lossy(&key)).await == slot {
                return key;
            }
        }
        panic!("slot {slot} has no key like {pattern}");
    }

    pub(crate) async fn end_move(&self, slot: u16, from: usize, to: usize) {
        for node in [to, from] {
            self.assign(slot, to, node).await;
        }
    }

    /// Tells a node which primary has a slot.
    pub(crate) async fn assign(&self, slot: u16, to: usize, node: usize) {
        let (slot, id) = (slot.to_string(), self.id(to).await);
        let words = ["CLUSTER", "SETSLOT", &slot, "NODE", &id];
        self.nodes[node].command(&words).await;
    }

    /// Ends a move of which no key has moved.
    pub(crate) async fn cancel_move(&self, slot: u16, from: usize, to: usize) {
        for node in [from, to] {
            self.cancel_move_at(slot, node).await;
        }
    }

    /// The same at one of the two nodes.
    pub(crate) async fn cancel_move_at(&self, slot: u16, node: usize) {
        let slot = slot.to_string();
        self.nodes[node]
            .command(&["CLUSTER", "SETSLOT", &slot, "STABLE"])
            .await;
    }

    /// The primary that has a slot, as the first node knows it.
    pub(crate) async fn owner(&self, slot: u16) -> usize {
        let known = text(&self.nodes[0], &["CLUSTER", "NODES"]).await;
        let has = |word: &str| {
            let (first, last) = word.split_once('-').unwrap_or((word, word));
            let range = first.parse::<u16>().ok().zip(last.parse::<u16>().ok());
            range.is_some_and(|(first, last)| (first..=last).contains(&slot))
        };
        let line = known.lines().find(|line| line.split(' ').skip(8).any(has));
        let line = line.expect("a primary has the slot");
        let is_of = |node: &RedisServer| line.contains(&format!(":{}@", node.port()));
        self.nodes
            .iter()
            .position(is_of)
            .expect("it is one of these")
    }

    /// The slot of a key.
    pub(crate) async fn slot_of(&self, key: &str) -> u16 {
        value(&self.nodes[0], &["CLUSTER", "KEYSLOT", key]).await
    }

    /// The slot of the lock with this name, which has a key there.
    pub(crate) async fn slot_of_lock(&self, name: &str) -> u16 {
        for node in &self.nodes {
            let keys = node.keys(0, &format!("lh:1:{{*}}:l:{name}")).await;
            if let Some(key) = keys.first() {
                return self.slot_of(&String::from_utf8_lossy(key)).await;
            }
        }
        panic!("no node has a key of {name}");
    }
}

async fn node(options: &RedisOptions) -> RedisServer {
    RedisServer::start(RedisOptions {
        is_cluster_node: true,
        ..options.clone()
    })
    .await
}

/// What a node knows about itself.
async fn own_line(node: &RedisServer) -> String {
    let known = text(node, &["CLUSTER", "NODES"]).await;
    let own = known.lines().find(|line| line.contains("myself"));
    own.unwrap_or_default().to_owned()
}

async fn text(node: &RedisServer, words: &[&str]) -> String {
    value(node, words).await
}

async fn value<T: FromRedisValue>(node: &RedisServer, words: &[&str]) -> T {
    redis::from_redis_value(node.command(words).await).expect("a suitable answer")
}

/// A cluster that one fixture uses at a time, and returns when all processes on it are gone.
#[derive(Clone)]
pub(crate) struct BorrowedCluster {
    borrowed: Arc<Borrowed>,
    /// Name and password of the user that processes are to the nodes, if not the default one.
    pub(super) user: Option<[&'static str; 2]>,
}

struct Borrowed(&'static RedisCluster);

static UNUSED: Mutex<Vec<&'static RedisCluster>> = Mutex::new(Vec::new());

impl BorrowedCluster {
    /// An empty cluster that no other fixture uses.
    pub(crate) async fn new() -> Self {
        let unused = UNUSED.lock().expect("nobody panics while holding it").pop();
        let cluster = match unused {
            Some(cluster) => cluster,
            // It ends with the process of the tests.
            None => Box::leak(Box::new(
                RedisCluster::start(3, RedisOptions::forgetful()).await,
            )),
        };
        cluster.is_unused().await;
        cluster.forget().await;
        Self {
            borrowed: Arc::new(Borrowed(cluster)),
            user: None,
        }
    }

    /// For processes with this name and password.
    pub(crate) fn with_user(self, name: &'static str, password: &'static str) -> Self {
        Self {
            user: Some([name, password]),
            ..self
        }
    }

    pub(crate) fn cluster(&self) -> &'static RedisCluster {
        self.borrowed.0
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        UNUSED
            .lock()
            .expect("nobody panics while holding it")
            .push(self.0);
    }
}
