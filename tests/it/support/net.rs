//! A network of namespaces: nodes with an address each, on one bridge, whose links a test cuts one by one and one way.
//!
//! The test runs in a process of its own, in a user namespace where it is root, and on the bridge. So this works for every
//! user, and nothing of the machine's network is touched. What runs at a node is in a namespace of processes, too: it ends
//! with the node, and the nodes end with the test, even if that is killed.

use std::ffi::OsStr;
use std::io::{Write as _, stderr};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};

use super::TURN;

/// Says that a test process is on the bridge already.
const INSIDE: &str = "LEASEHOLD_TEST_ON_BRIDGE";

/// Says that a test must not be left out, and to `history::namespaces` how often it repeats its faults.
pub(crate) const ROUNDS: &str = "LEASEHOLD_NAMESPACES";

const NEEDS: &str = "it needs network namespaces: `unshare -rn ip link` has to work, for which the system permits user \
                     namespaces (kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns) or \
                     the user has CAP_SYS_ADMIN, and the package iproute2 is installed";

/// The network of all nodes, and the mask.
const SUBNET: [u8; 3] = [10, 77, 0];

/// Its hardware address.
const OF_BRIDGE: &str = "02:00:00:00:00:01";

/// Runs the body of the test of this name on a bridge of its own. Where that is impossible, says that it has not run.
pub(crate) fn on_bridge(test: &str, body: impl Future<Output = ()>) {
    if is_set(INSIDE) {
        let [a, b, c] = SUBNET;
        run(["link", "set", "lo", "up"], None);
        // Otherwise it has the address of one of its links, and another one when that vanishes.
        run(
            ["link", "add", "br0", "address", OF_BRIDGE, "type", "bridge"],
            None,
        );
        run(
            ["addr", "add", &format!("{a}.{b}.{c}.254/24"), "dev", "br0"],
            None,
        );
        run(["link", "set", "br0", "up"], None);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(4)
            .enable_all()
            .build();
        return runtime.expect("threads can be started").block_on(body);
    }
    drop(body);
    let Some(kind_of_namespaces) = kind_of_namespaces() else {
        assert!(!is_set(ROUNDS), "{test}: {NEEDS}");
        // Not by a macro, whose output is shown of tests that fail.
        return writeln!(stderr(), "\nNOT RUN: {test}: {NEEDS}").expect("it is open");
    };
    let _turn = TURN.blocking_read();
    let mut inside = Command::new("unshare");
    inside
        .arg(kind_of_namespaces)
        .arg(std::env::current_exe().expect("the path of this binary"));
    inside
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1");
    let output = inside.output().expect("unshare starts");
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}");
    assert!(
        output.status.success(),
        "{test}: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(text.contains("1 passed"), "there is no test {test}: {text}");
}

#[allow(
    clippy::disallowed_methods,
    reason = "a knob of the tests is no configuration of the service"
)]
fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some()
}

/// The option of `unshare` by which this user gets a network, without rights on the machine if possible.
fn kind_of_namespaces() -> Option<&'static str> {
    let works = |option: &&str| {
        let tried = Command::new("unshare")
            .args([option, "ip", "link"])
            .output();
        tried.is_ok_and(|output| output.status.success())
    };
    ["-rn", "-n"].into_iter().find(works)
}

/// Where the programs of a node are looked for. Of the environment of the test they get nothing else, as some of it would
/// be configuration to them.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A network with nodes.
pub(crate) struct Net {
    nodes: Vec<Node>,
}

struct Node {
    /// `unshare`, which ends the node when it ends itself.
    unshare: Child,
    /// The first process of the node, which ends all others when it ends.
    first: u32,
}

impl Net {
    /// With nodes of the numbers 1 to `count`.
    pub(crate) fn start(count: u8) -> Self {
        // Former nodes had the same addresses.
        run(["neigh", "flush", "dev", "br0"], None);
        Self {
            nodes: (1..=count).map(Node::start).collect(),
        }
    }

    pub(crate) fn address(&self, node: u8) -> Ipv4Addr {
        assert!(
            usize::from(node) <= self.nodes.len(),
            "there is no node {node}"
        );
        address(node)
    }

    /// Starts a program at a node, which ends with the node. It writes to `output`.
    pub(crate) fn spawn<S: AsRef<OsStr>>(&self, node: u8, words: &[S], output: Stdio) -> Child {
        let first = self.node(node).first.to_string();
        let mut command = Command::new("nsenter");
        command
            .args(["--target", &first, "--net", "--pid", "--"])
            .args(words);
        command
            .env_clear()
            .env("PATH", PATH)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(Stdio::null());
        command.spawn().expect("nsenter starts")
    }

    /// Lets nothing that `from` sends arrive at `to`. Nobody is told: it is lost on the way.
    pub(crate) fn cut_one_way(&self, from: u8, to: u8) {
        self.rule("add", from, to);
    }

    /// The same in both directions.
    pub(crate) fn cut(&self, one: u8, other: u8) {
        self.cut_one_way(one, other);
        self.cut_one_way(other, one);
    }

    /// Ends [`cut_one_way`](Self::cut_one_way).
    pub(crate) fn mend_one_way(&self, from: u8, to: u8) {
        self.rule("del", from, to);
    }

    /// Ends [`cut`](Self::cut).
    pub(crate) fn mend(&self, one: u8, other: u8) {
        self.mend_one_way(one, other);
        self.mend_one_way(other, one);
    }

    fn rule(&self, verb: &str, from: u8, to: u8) {
        let from = self.address(from).to_string();
        let words = ["rule", verb, "pref", "10", "from", &from, "blackhole"];
        run(words, Some(self.node(to)));
    }

    fn node(&self, number: u8) -> &Node {
        &self.nodes[usize::from(number) - 1]
    }
}

impl Node {
    fn start(number: u8) -> Self {
        let mut unshare = Command::new("unshare");
        unshare.args(["--net", "--pid", "--fork", "--kill-child", "cat"]);
        let unshare = unshare.stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        let unshare = unshare.expect("unshare starts");
        let children = format!("/proc/{0}/task/{0}/children", unshare.id());
        let first = loop {
            let text = std::fs::read_to_string(&children).expect("it runs");
            if let Ok(first) = text.trim().parse() {
                break first;
            }
            std::thread::yield_now();
        };
        let node = Self { unshare, first };
        let (here, there) = (node.link(), first.to_string());
        let link = [
            "link", "add", &here, "type", "veth", "peer", "name", "eth0", "netns", &there,
        ];
        run(link, None);
        run(["link", "set", &here, "master", "br0", "up"], None);
        let address = format!("{}/24", address(number));
        run(["link", "set", "lo", "up"], Some(&node));
        run(["addr", "add", &address, "dev", "eth0"], Some(&node));
        run(["link", "set", "eth0", "up"], Some(&node));
        // What arrives is looked up here first otherwise, before any rule of ours.
        run(
            ["rule", "add", "pref", "100", "table", "local"],
            Some(&node),
        );
        run(["rule", "del", "pref", "0"], Some(&node));
        node
    }

    /// The end of its link at the bridge.
    fn link(&self) -> String {
        format!("node{}", self.first)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // A connection that has data left keeps the namespace for a while, and another node may have its address by then.
        run(["link", "del", &self.link()], None);
        // The first process ends with its input, and with it everything at the node.
        drop(self.unshare.stdin.take());
        drop(self.unshare.wait());
    }
}

fn address(node: u8) -> Ipv4Addr {
    let [a, b, c] = SUBNET;
    Ipv4Addr::new(a, b, c, node)
}

/// Runs `ip` with these words, at a node or on the bridge.
fn run<const N: usize>(words: [&str; N], node: Option<&Node>) {
    let mut command = match node {
        None => Command::new("ip"),
        Some(node) => {
            let mut enter = Command::new("nsenter");
            enter.args(["--target", &node.first.to_string(), "--net", "--", "ip"]);
            enter
        }
    };
    let output = command.args(words).output().expect("iproute2 is installed");
    let problem = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {words:?}: {problem}");
}
