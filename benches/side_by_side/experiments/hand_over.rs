//! How long a hand-over takes: from the answer to a release until the next waiter's answer, as a ratio to an uncontended
//! acquire of the same round, with few waiters and with many.
//!
//! All processes are up at once and take turns, because the machine's speed drifts. Clients and service share the
//! machine, so the clients are one thread that does next to nothing.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{Plan, ratios, redis_url};
use crate::http1::{Answer, Connection, Request};
use crate::machine::Served;
use crate::redis_server::{RedisOptions, RedisServer};
use crate::report::{Finding, median, percentile};

const NAME: &str = "hand_over";
const WAITERS: [usize; 3] = [1, 10, 10_000];
/// So many of each in a turn, and so many turns in a round of the plan.
const TURN: usize = 100;
const TURNS: usize = 3;
const WAITING: &str = "ttl=1h&wait=1h";

pub(super) async fn run(plan: Plan) -> Vec<Finding> {
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let mut findings = Vec::new();
    for (store, url) in [("memory:", "memory:"), ("redis://", &redis_url(&redis))] {
        let mut crowds = Vec::new();
        for waiters in WAITERS {
            crowds.push(
                Crowd::gather(
                    url,
                    if waiters > 10 {
                        waiters / plan.less
                    } else {
                        waiters
                    },
                )
                .await,
            );
        }
        let (mut alone, mut handed) = (Vec::new(), [const { Vec::new() }; WAITERS.len()]);
        for _ in 0..plan.rounds * TURNS {
            let mut lone = Vec::new();
            for (crowd, handed) in crowds.iter_mut().zip(&mut handed) {
                lone.extend(crowd.uncontended().await);
                handed.push(median(&crowd.hand_overs().await));
            }
            lone.sort_by(f64::total_cmp);
            alone.push(percentile(&lone, 50));
        }
        for (crowd, handed) in crowds.iter().zip(&handed) {
            let figure = format!(
                "{store} over an uncontended acquire, {} waiters",
                crowd.waiters
            );
            findings.push(Finding::new(NAME, figure, "", ratios(handed, &alone)).at_most(1.5));
        }
        let figure = format!(
            "{store} {} waiters over {}",
            crowds[2].waiters, crowds[1].waiters
        );
        findings.push(Finding::new(NAME, figure, "", ratios(&handed[2], &handed[1])).at_most(1.1));
        findings.push(Finding::new(
            NAME,
            format!("{store} uncontended acquire, p50"),
            "µs",
            alone,
        ));
    }
    findings
}

/// A process with a lock that is held and waited for.
struct Crowd {
    _served: Served,
    waiters: usize,
    /// Looks at the queue, and acquires what nobody else wants.
    other: Client,
    holder: Client,
    line: JoinSet<(Client, Instant)>,
}

/// A client with a token and a connection.
struct Client {
    connection: Connection,
    path: String,
    token: String,
}

impl Crowd {
    async fn gather(store: &str, waiters: usize) -> Self {
        let flags = [
            ["--server-connections-max", "15000"],
            ["--waiting-wait-max", "1h"],
            ["--waiting-waiters-per-lock-max", "15000"],
            ["--log-requests", "off"],
        ];
        let served = Served::leasehold(store, flags.as_flattened());
        let path = format!("/locks/crowded-{}", uuid::Uuid::new_v4());
        let mut holder = Client::new(&served, &path).await;
        holder.ask("POST", WAITING).await;
        let mut line = JoinSet::new();
        for _ in 0..waiters {
            line.spawn(Client::new(&served, &path).await.wait());
        }
        let mut other = Client::new(&served, &path).await;
        other.until_queued(waiters).await;
        Self {
            _served: served,
            waiters,
            other,
            holder,
            line,
        }
    }

    /// How long acquires take that meet nobody, in microseconds.
    async fn uncontended(&mut self) -> Vec<f64> {
        let crowded = self.other.path.clone();
        let mut took = Vec::new();
        for _ in 0..TURN {
            self.other.token = uuid::Uuid::new_v4().to_string();
            self.other.path = format!("/locks/{}", self.other.token);
            let asked = Instant::now();
            took.push(micros(self.other.ask("POST", "ttl=1h").await.at - asked));
            self.other.ask("DELETE", "").await;
        }
        self.other.path = crowded;
        took
    }

    /// How long hand-overs take, in microseconds. Who held goes back to the end of the line.
    async fn hand_overs(&mut self) -> Vec<f64> {
        let mut took = Vec::new();
        for _ in 0..TURN {
            let released = self.holder.ask("DELETE", "").await.at;
            let (next, at) = self
                .line
                .join_next()
                .await
                .expect("somebody waits")
                .unwrap();
            took.push(micros(at.saturating_duration_since(released)));
            let mut former = std::mem::replace(&mut self.holder, next);
            former.token = uuid::Uuid::new_v4().to_string();
            self.line.spawn(former.wait());
            self.other.until_queued(self.waiters).await;
        }
        took
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

    async fn until_queued(&mut self, length: usize) {
        while self.ask("GET", "").await.json()["queue_length"] != length {}
    }
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}
