//! How long a hand-over takes: from the answer to a release until the next waiter's answer, as a ratio to an uncontended
//! acquire of the same round, with few waiters and with many.
//!
//! All processes are up at once and take turns, because the machine's speed drifts. Clients and service share the
//! machine, so the clients are one thread that does next to nothing.
//!
//! Two things are kept apart that grow together: how long a line is, and how many clients take turns, each of whom has
//! not been heard of for so long that its connection has left the caches of the cores. So there are also as many waiters
//! in short lines.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{Plan, ratios, redis_url};
use crate::http1::{Answer, Connection, Request};
use crate::machine::Served;
use crate::redis_server::{RedisOptions, RedisServer};
use crate::report::{Finding, median};

const NAME: &str = "hand_over";
/// How many lines there are in a process, and how many wait in each.
type Shape = (usize, usize);

const ONE_LINE: [Shape; 3] = [(1, 1), (1, 10), (1, 10_000)];
const SHORT_LINES: [Shape; 2] = [(1, 10), (1_000, 10)];
/// So many of each in a turn, and so many turns in a round of the plan.
const TURN: usize = 100;
const TURNS: usize = 3;
const WAITING: &str = "ttl=1h&wait=1h";

pub(super) async fn run(plan: Plan) -> Vec<Finding> {
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let mut findings = Vec::new();
    for (store, url) in [("memory:", "memory:"), ("redis://", &redis_url(&redis))] {
        let (alone, [one, few, many]) = take_turns(url, ONE_LINE, plan).await;
        for handed in [&one, &few, &many] {
            let figure = format!("{store} over an uncontended acquire, {}", handed.to);
            let ratios = ratios(&handed.took, &alone);
            findings.push(Finding::new(NAME, figure, "", ratios).at_most(1.5));
        }
        findings.push(many.over(&few, store).at_most(1.1));
        let figure = format!("{store} uncontended acquire, p50");
        findings.push(Finding::new(NAME, figure, "µs", alone));
    }
    let (_, [few, spread]) = take_turns("memory:", SHORT_LINES, plan).await;
    findings.push(spread.over(&few, "memory:"));
    findings
}

/// Hand-overs to the waiters of one process: the median of each turn, in microseconds.
struct HandOvers {
    to: String,
    took: Vec<f64>,
}

/// How long an uncontended acquire takes in each turn, in microseconds, and hand-overs in each shape.
async fn take_turns<const N: usize>(
    store: &str,
    shapes: [Shape; N],
    plan: Plan,
) -> (Vec<f64>, [HandOvers; N]) {
    let less = |count: usize| if count > 10 { count / plan.less } else { count };
    let mut services = Vec::new();
    for (lines, waiters) in shapes {
        services.push(LoadedService::gather(store, less(lines), less(waiters)).await);
    }
    let mut alone = Vec::new();
    let mut handed = shapes.map(|(lines, waiters)| HandOvers {
        to: described(less(lines), less(waiters)),
        took: Vec::new(),
    });
    for _ in 0..plan.rounds * TURNS {
        let mut lone = Vec::new();
        for (service, handed) in services.iter_mut().zip(&mut handed) {
            lone.extend(service.uncontended().await);
            handed.took.push(median(&service.hand_overs().await));
        }
        alone.push(median(&lone));
    }
    (alone, handed)
}

fn described(lines: usize, waiters: usize) -> String {
    match lines {
        1 => format!("{waiters} waiters"),
        _ => format!("{} waiters in lines of {waiters}", lines * waiters),
    }
}

impl HandOvers {
    fn over(&self, others: &Self, store: &str) -> Finding {
        let figure = format!("{store} {} over {}", self.to, others.to);
        Finding::new(NAME, figure, "", ratios(&self.took, &others.took))
    }
}

/// A process with locks that are held and waited for.
struct LoadedService {
    _served: Served,
    /// The next to be handed over is the first.
    queues: VecDeque<WaiterQueue>,
    /// Looks at the queues, and acquires what nobody else wants.
    other: Client,
}

/// Who holds a lock and who waits for it.
struct WaiterQueue {
    path: String,
    length: usize,
    holder: Client,
    waiting: JoinSet<(Client, Instant)>,
}

/// A client with a token and a connection.
struct Client {
    connection: Connection,
    path: String,
    token: String,
}

impl LoadedService {
    async fn gather(store: &str, lines: usize, waiters: usize) -> Self {
        let flags = [
            ["--server-connections-max", "15000"],
            ["--server-connections-per-peer-max", "15000"],
            ["--waiting-wait-max", "1h"],
            ["--waiting-waiters-per-lock-max", "15000"],
            ["--log-requests", "off"],
        ];
        let served = Served::leasehold(store, flags.as_flattened());
        let mut other = Client::new(&served, "").await;
        let mut gathered = VecDeque::new();
        for _ in 0..lines {
            gathered.push_back(WaiterQueue::gather(&served, waiters, &mut other).await);
        }
        Self {
            _served: served,
            queues: gathered,
            other,
        }
    }

    /// How long acquires take that meet nobody, in microseconds.
    async fn uncontended(&mut self) -> Vec<f64> {
        let mut took = Vec::new();
        for _ in 0..TURN {
            self.other.token = uuid::Uuid::new_v4().to_string();
            self.other.path = format!("/locks/{}", self.other.token);
            let asked = Instant::now();
            took.push(micros(self.other.ask("POST", "ttl=1h").await.at - asked));
            self.other.ask("DELETE", "").await;
        }
        took
    }

    /// How long hand-overs take, in microseconds, one line after the other.
    async fn hand_overs(&mut self) -> Vec<f64> {
        let mut took = Vec::new();
        for _ in 0..TURN {
            took.push(micros(self.queues[0].hand_over(&mut self.other).await));
            self.queues.rotate_left(1);
        }
        took
    }
}

impl WaiterQueue {
    /// They come one after the other, so their connections, and with them neighbours in the line, are on the service's
    /// threads in turn. Whoever comes at once stands beside others of the same thread, in short lines by chance, and a
    /// hand-over within one thread is faster.
    async fn gather(served: &Served, length: usize, other: &mut Client) -> Self {
        let path = format!("/locks/crowded-{}", uuid::Uuid::new_v4());
        let mut holder = Client::new(served, &path).await;
        holder.ask("POST", WAITING).await;
        let mut waiting = JoinSet::new();
        for before in 0..length {
            waiting.spawn(Client::new(served, &path).await.wait());
            other.until_queued(&path, before + 1).await;
        }
        Self {
            path,
            length,
            holder,
            waiting,
        }
    }

    /// Who held goes back to the end of the line.
    async fn hand_over(&mut self, other: &mut Client) -> Duration {
        let released = self.holder.ask("DELETE", "").await.at;
        let next = self.waiting.join_next().await.expect("somebody waits");
        let (next, at) = next.unwrap();
        let mut former = std::mem::replace(&mut self.holder, next);
        former.token = uuid::Uuid::new_v4().to_string();
        self.waiting.spawn(former.wait());
        other.until_queued(&self.path, self.length).await;
        at.saturating_duration_since(released)
    }
}

impl Client {
    async fn new(served: &Served, path: &str) -> Self {
        Self {
            connection: Connection::open(served.address).await.expect("it listens"),
            path: path.to_owned(),
            token: uuid::Uuid::new_v4().to_string(),
        }
    }

    async fn ask(&mut self, method: &str, body: &str) -> Answer {
        let token = (method != "GET").then_some(self.token.as_str());
        let request = Request {
            method,
            path: &self.path,
            token,
            body,
        };
        let answer = self.connection.ask(request).await.expect("it is answered");
        assert!(
            answer.grants() || answer.status == 204,
            "{}: {}",
            answer.status,
            answer.json()
        );
        answer
    }

    async fn wait(mut self) -> (Self, Instant) {
        let at = self.ask("POST", WAITING).await.at;
        (self, at)
    }

    async fn until_queued(&mut self, path: &str, length: usize) {
        path.clone_into(&mut self.path);
        while self.ask("GET", "").await.json()["queue_length"] != length {}
    }
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}
