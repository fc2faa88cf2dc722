//! Faults of the nodes of a quorum. One node at a time is struck by the faults that a single Redis has; here is what
//! strikes a majority, and what has to be well before the next node may fail.

use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};

use super::super::actor::connect;
use super::super::record::{Absence, Answer, Effect, Micros};
use super::{Fault, Nemesis, Struck};
use crate::support::EFFECT_TIMEOUT;
use crate::support::redis_server::Persistence;
use crate::waiters::http1::Request;

/// How long a node that was stopped may take to be silent.
const STOPS: Duration = Duration::from_millis(100);

/// How long a process may take to say which nodes vote.
const LOOKS: Duration = Duration::from_secs(2);

/// The pause before it is asked again.
const LOOKS_AGAIN: Duration = Duration::from_millis(50);

/// The effect of a fault on a quorum, of which it strikes one node.
pub(super) fn effect(fault: Fault, on_one: Effect) -> Effect {
    match fault {
        Fault::KillProcess | Fault::PauseProcess | Fault::LosePower | Fault::Majority => on_one,
        Fault::Clock => Effect::MinorityLoss,
        Fault::KillRedis
        | Fault::LoseRedis
        | Fault::PauseRedis
        | Fault::LoseBoth
        | Fault::Cut
        | Fault::Stall
        | Fault::LoseAnswers
        | Fault::LoseRequests
        | Fault::LateDelivery
        | Fault::FlushAll
        | Fault::Replaced
        | Fault::ScriptFlush
        | Fault::FullMemory
        | Fault::LostPubSub
        | Fault::SlowNeighbour
        | Fault::Failover
        | Fault::PlannedFailover
        | Fault::Partition
        | Fault::KillSentinels
        | Fault::Reshard => match on_one {
            Effect::Away | Effect::Full => Effect::Minority,
            Effect::Loss => Effect::MinorityLoss,
            Effect::Failover
            | Effect::FormerPrimary
            | Effect::Minority
            | Effect::MinorityLoss
            | Effect::Slower
            | Effect::Stall => on_one,
        },
    }
}

impl Nemesis<'_> {
    /// The node that the fault has struck, if it strikes one.
    pub(super) fn struck_node(&self, fault: Fault) -> Option<usize> {
        let is_of_one = !matches!(
            fault,
            Fault::KillProcess | Fault::PauseProcess | Fault::LosePower | Fault::Majority
        );
        (self.fleet.is_quorum() && is_of_one).then_some(self.node)
    }

    /// Waits until all processes count the votes of all nodes, and then until each lease has ended or was renewed: a node
    /// that was away gets the leases of that time only by their renewals. If another node failed before, two would lack
    /// them, which is no minority.
    pub(super) async fn settle(&self) {
        // A node that has lost leases waits until they have ended.
        let limit = self.ttl_max * 2 + EFFECT_TIMEOUT;
        let give_up = Instant::now() + limit;
        loop {
            let missing = self.missing_votes().await;
            if missing.is_empty() {
                break;
            }
            let is_in_time = Instant::now() < give_up;
            assert!(is_in_time, "votes are missing for {limit:?}: {missing:?}");
            sleep(LOOKS_AGAIN).await;
        }
        sleep(self.ttl_max).await;
    }

    /// Why some node has no vote, as each process says.
    async fn missing_votes(&self) -> Vec<String> {
        let mut missing = Vec::new();
        for process in 0..self.fleet.processes.len() {
            let Some(checks) = self.checks_of(process).await else {
                missing.push(format!("process {process} does not answer"));
                continue;
            };
            let of_quorum = |check: &&Value| check["name"] == "quorum" || check["name"] == "node";
            let mut all_vote = false;
            for check in checks.iter().filter(of_quorum) {
                match check["ok"] == true {
                    true => all_vote = true,
                    false => missing.push(format!("process {process}: {check}")),
                }
            }
            if !all_vote {
                missing.push(format!("process {process} knows of no node that votes"));
            }
        }
        missing
    }

    /// What a process has found at its last check of the nodes.
    async fn checks_of(&self, process: usize) -> Option<Vec<Value>> {
        let request = Request {
            method: "GET",
            path: "/readyz?verbose",
            token: None,
            body: "",
        };
        let asked = timeout(LOOKS, async {
            let mut connection = connect(&self.fleet.addresses, process).await?;
            connection.ask(request).await
        });
        let health = asked.await.ok()?.ok()?.json();
        health["checks"].as_array().cloned()
    }

    /// Records that the node has been away from then until now, if it is one of a quorum.
    pub(super) fn was_away(&self, from: Micros) {
        if self.fleet.is_quorum() {
            self.recorder.absence(Absence {
                from,
                until: self.recorder.now(),
                is_minority: true,
            });
        }
    }

    /// All nodes but one are killed, or stopped. Counts the requests that were refused meanwhile.
    pub(super) async fn majority(&mut self) -> Struck {
        let away = self.chance.millis(1_500, 4_000);
        // Nodes that keep nothing would lose leases, which a majority must not.
        let is_kept = self.store().persistence != Persistence::Nothing;
        let kills = is_kept && self.chance.percent(50);
        let others = (0..self.fleet.stores.len()).filter(|number| *number != self.node);
        let struck: Vec<_> = others.collect();
        let began = self.recorder.now();
        for number in &struck {
            let redis = &mut self.fleet.stores[*number].redis;
            match kills {
                true => redis.kill(),
                false => redis.pause(),
            }
        }
        let mut is_silent = true;
        for number in struck.iter().filter(|_| !kills) {
            let redis = &self.fleet.stores[*number].redis;
            let answer = timeout(STOPS, redis.command(&["PING"]));
            is_silent &= answer.await.is_err();
        }
        let from = self.recorder.now();
        sleep(away).await;
        let until = self.recorder.now();
        for number in struck {
            let redis = &mut self.fleet.stores[number].redis;
            match kills {
                true => redis.restart().await,
                false => redis.resume(),
            }
        }
        self.recorder.absence(Absence {
            from,
            until,
            is_minority: false,
        });
        let refused = self.refused_within(from, until);
        self.struck(began, Effect::Away, if is_silent { refused } else { 0 })
    }

    /// How many requests were answered in this time with 503, as they should be.
    fn refused_within(&self, from: Micros, until: Micros) -> u64 {
        let history = self.recorder.history();
        let arrivals = history
            .requests
            .iter()
            .flat_map(|request| &request.arrivals);
        let refused = arrivals.filter(|(at, answer)| {
            let is_refused = matches!(answer, Answer::Refused(refusal) if refusal.status == 503);
            is_refused && (from..until).contains(at)
        });
        refused.count() as u64
    }
}
