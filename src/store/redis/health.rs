//! The health checks. What is logged of their results is in `results`.

mod results;

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, timeout_at};

use super::check_failure::CheckFailure;
use super::cluster::Cluster;
use super::cluster::Topology;
use super::cluster::partitions::COUNT;
use super::failure::Failure;
use super::info::ServerInfo;
use super::node::Node;
use super::pool::Connection;
use super::probe;
use super::recovery;
use super::{RedisStore, UNPOISONED};
use crate::domain::duration;
use crate::store::{Fault, Finding, PoolHealth};
pub(super) use results::HealthCheck;
use results::NODE;

/// How long a health check may take.
pub(super) const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// How long counting the subscribers on all nodes of a cluster may take.
const COUNT_TIMEOUT: Duration = Duration::from_millis(500);

impl Node {
    /// Checks the Redis once. The error says why that was not possible. Of each primary of a cluster, messages are tried over
    /// one partition.
    async fn check(&self, tries_messages: bool, deadline: Instant) -> Result<(), CheckFailure> {
        // The address may lead to another Redis than before, which existing connections do not notice.
        let connecting = self.pool.connect(deadline);
        let connector = self.pool.connector();
        let connecting = match connector.sentinels() {
            Some((sentinels, transport)) => {
                let checking = timeout_at(deadline, sentinels.check(transport));
                tokio::join!(connecting, checking).0
            }
            None => connecting.await,
        };
        let refusal = match connecting {
            Ok(mut connection) => {
                self.pool.sweep();
                if tries_messages {
                    self.try_messages(&mut connection, deadline).await;
                }
                // Opens a pooled connection before a request needs one.
                let _ = self.pool.get(deadline).await;
                self.check_replicas(&mut connection, deadline).await?;
                return Ok(self.check_writes()?);
            }
            Err(failure) => failure,
        };
        if refusal.is_lasting() && self.recovery.findings().is_none() {
            return Err(refusal.into());
        }
        let mut connection = self.pool.get(deadline).await?;
        let began = Instant::now();
        let checking = async {
            let is_of_cluster = self.recovery.is_of_cluster();
            let server = ServerInfo::read(connection.socket(), is_of_cluster).await?;
            let generation = connection.generation;
            let verifying = self
                .recovery
                .verify(connection.socket(), server, generation);
            verifying.await
        };
        let trouble = match timeout_at(deadline, checking).await {
            Ok(Ok(_)) => {
                self.recovery.note_answer(began);
                if tries_messages {
                    self.try_messages(&mut connection, deadline).await;
                }
                // The address may lead to a suitable Redis by now, for example after a failover.
                if self.recovery.is_refused() {
                    connection.abandon();
                }
                return Ok(self.check_writes()?);
            }
            Ok(Err(error)) => Failure::of(&error),
            Err(_) => Failure::timed_out(),
        };
        if !trouble.is_moving() {
            connection.abandon();
        }
        // That an old connection broke would hide why there is no new one.
        let is_refused = refusal.is_lasting();
        Err(if is_refused { refusal } else { trouble }.into())
    }

    /// Whether messages can be sent is independent of whether the store answers.
    async fn try_messages(&self, connection: &mut Connection, deadline: Instant) {
        let partition = self.keys.partition().unwrap_or(0);
        let trying = self.messages.probe(partition, connection.socket());
        let _ = timeout_at(deadline, trying).await;
    }

    /// Too few replicas are a finding; a missing right lasts until an operator grants it.
    async fn check_replicas(
        &self,
        connection: &mut Connection,
        deadline: Instant,
    ) -> Result<(), CheckFailure> {
        let Some(replication) = &self.replication else {
            return Ok(());
        };
        let checking = async {
            replication.keep_key(connection).await;
            replication.check().await
        };
        if let Ok(Err(failure)) = timeout_at(deadline, checking).await
            && failure.is_lasting()
        {
            return Err(failure.into());
        }
        Ok(())
    }

    fn findings(&self) -> Option<(Vec<Finding>, i64)> {
        let (mut findings, clock_offset_ms) = self.recovery.findings()?;
        findings.extend(self.replication.as_ref().map(|it| it.finding()));
        let connector = self.pool.connector();
        findings.extend(
            connector
                .sentinels()
                .map(|(sentinels, _)| sentinels.states.finding()),
        );
        Some((findings, clock_offset_ms))
    }
}

impl RedisStore {
    /// Checks the store once. The error says why that was not possible.
    pub(super) async fn check(&self) -> Result<(), CheckFailure> {
        let deadline = Instant::now() + CHECK_TIMEOUT;
        let outcome = match &self.cluster {
            None => self.nodes[0].check(true, deadline).await,
            Some(cluster) => self.check_cluster(cluster, deadline).await,
        };
        if outcome.is_ok() {
            self.nodes[0].messages.count_unsubscribed();
        }
        outcome
    }

    /// Checks all partitions. Some that cannot be used are findings, because the others go on.
    async fn check_cluster(
        &self,
        cluster: &Cluster,
        deadline: Instant,
    ) -> Result<(), CheckFailure> {
        let messages = &self.nodes[0].messages;
        if let Ok(Err(failure)) = timeout_at(deadline, cluster.refresh()).await
            && failure.is_lasting()
        {
            return Err(failure.into());
        }
        cluster.sweep();
        if cluster.has_new_primaries() {
            // One that has joined may not have passed on messages from its beginning.
            messages.data_lost();
        }
        // Before the partitions are verified: an empty one is new if there are no other processes.
        let counted_at = Instant::now();
        let counting = cluster.count_subscribers(messages.counted_channels());
        // A node that is silent must not take the time of the others.
        let give_up = deadline.min(counted_at + COUNT_TIMEOUT);
        if let Ok(Some([watchers, others])) = timeout_at(give_up, counting).await {
            messages.on_count(counted_at, watchers, others);
        }
        let patience = recovery::verified_for(self.check_interval);
        let trying = timeout_at(deadline, cluster.try_primaries(patience));
        let representatives = cluster.topology().representatives();
        let checking = self.nodes.iter().enumerate();
        let checking =
            checking.map(|(number, node)| node.check(representatives.contains(&number), deadline));
        let checking = join_all(checking);
        let (_, checks) = tokio::join!(trying, checking);
        let mut last_health = self.last_health.lock().expect(UNPOISONED);
        let is_first = last_health.last_check.is_none();
        let outcome = outcome_of_all(&checks, is_first, &cluster.topology());
        let troubles = checks.into_iter().map(|check| check.err());
        last_health.troubles = troubles.collect();
        outcome
    }

    /// Why the last check did not reach the store, and since when no request has.
    pub(super) fn trouble(&self, last: &HealthCheck) -> Option<String> {
        let trouble = last.last_check.as_ref()?.as_ref().err()?;
        let mut explanation = trouble.explanation.clone();
        let Node { pool, recovery, .. } = &self.nodes[0];
        if let (Some(_), Some(silence)) =
            (probe::known_down(pool, recovery), recovery.outage.length())
        {
            let silence = duration::format(Duration::from_secs(silence.as_secs()));
            explanation += &format!(
                "; it has been so for {silence}, and requests are refused at once until a probe succeeds"
            );
        }
        Some(explanation)
    }

    /// The findings, and the offset of the clocks; none before the first contact.
    pub(super) fn findings(&self, last: &HealthCheck) -> Option<(Vec<Finding>, i64)> {
        let Node {
            messages,
            refused_right,
            ..
        } = &self.nodes[0];
        let (mut findings, clock_offset_ms) = match &self.cluster {
            None => self.nodes[0].findings(),
            Some(cluster) => self.findings_of_cluster(&cluster.topology(), last),
        }?;
        findings.push(messages.finding(&self.tried()));
        findings.extend(refused_right.finding());
        Some((findings, clock_offset_ms))
    }

    /// The partitions over which messages are tried, each with its primary in a cluster.
    fn tried(&self) -> Vec<(usize, Option<String>)> {
        let Some(cluster) = &self.cluster else {
            return vec![(0, None)];
        };
        let topology = cluster.topology();
        let place = |number| topology.owner(number).map(|primary| primary.place());
        let numbers = topology.representatives().into_iter();
        numbers.map(|number| (number, place(number))).collect()
    }

    /// One finding for each primary, what is not as it should be on any, and the rest as of the first.
    fn findings_of_cluster(
        &self,
        topology: &Topology,
        last: &HealthCheck,
    ) -> Option<(Vec<Finding>, i64)> {
        let (mut findings, mut known) = (Vec::new(), None);
        for number in topology.representatives() {
            let Some(primary) = topology.owner(number) else {
                continue;
            };
            let place = primary.place();
            let share = topology.partitions_of(&primary.id);
            let trouble = last.troubles.get(number).and_then(Option::as_ref);
            // That is of one part of the primary, and named below.
            let trouble = trouble.filter(|failure| failure.fault != Fault::Moving);
            findings.push(Finding {
                topic: NODE,
                is_fine: trouble.is_none(),
                detail: match trouble {
                    None => format!("{place} answers, with {share} of {COUNT} parts of the locks"),
                    Some(failure) => format!(
                        "{place}, with {share} of {COUNT} parts of the locks: {}",
                        failure.explanation
                    ),
                },
            });
            let Some((of_node, offset_ms)) = self.nodes[number].findings() else {
                continue;
            };
            let (fine, not_fine) = of_node
                .into_iter()
                .partition::<Vec<_>, _>(|finding| finding.is_fine);
            findings.extend(not_fine.into_iter().map(|finding| Finding {
                detail: format!("{place}: {}", finding.detail),
                ..finding
            }));
            known.get_or_insert((fine, offset_ms));
        }
        let missing = topology.count_without_primary();
        if missing > 0 {
            findings.push(Finding {
                topic: "slots",
                is_fine: false,
                detail: format!("{missing} of {COUNT} parts of the locks have no primary"),
            });
        }
        findings.extend(topology.moving_finding());
        let (fine, offset_ms) = known?;
        findings.extend(fine);
        Some((findings, offset_ms))
    }

    /// Why all grants are refused: a cluster of which a primary is fit grants its locks.
    pub(super) fn refusal_of_all(&self) -> Option<String> {
        let refusals = self.nodes.iter().map(|it| it.recovery.refusal());
        let refusals: Option<Vec<_>> = refusals.collect();
        refusals?.into_iter().next().map(|(_, why)| why)
    }

    /// Why some grants are refused; none if they are not.
    pub(super) fn refusal(&self) -> Option<(Fault, String)> {
        let refusals = self.nodes.iter().map(|it| it.recovery.refusal());
        let (number, (fault, why)) = refusals
            .enumerate()
            .find_map(|(number, refusal)| Some((number, refusal?)))?;
        let topology = self.cluster.as_ref().map(|cluster| cluster.topology());
        let primary = topology.as_ref().and_then(|it| it.owner(number));
        Some(match primary {
            Some(primary) => (fault, format!("{}: {why}", primary.place())),
            None => (fault, why),
        })
    }

    pub(super) fn pool_health(&self) -> PoolHealth {
        let Some(cluster) = &self.cluster else {
            return self.nodes[0].pool.health();
        };
        let [open, max] = cluster.sockets.counts();
        let number = |count| u32::try_from(count).unwrap_or(u32::MAX);
        PoolHealth {
            open: number(open),
            max: number(max),
            waits: self.nodes.iter().map(|it| it.pool.waits()).sum(),
            timeouts: self.nodes.iter().map(|it| it.pool.timeouts()).sum(),
        }
    }

    pub(super) fn log_changes(&self, check: &Result<(), CheckFailure>) {
        let mut last_health = self.last_health.lock().expect(UNPOISONED);
        let findings = self.findings(&last_health).map(|(findings, _)| findings);
        last_health.log_changes(self.nodes[0].pool.address(), check, findings);
    }
}

/// The outcome of the checks of all partitions. If one succeeds, those that fail are reported with their primary alone; but
/// the first check, when the process starts, fails if one fails for good.
fn outcome_of_all(
    checks: &[Result<(), CheckFailure>],
    is_first: bool,
    topology: &Topology,
) -> Result<(), CheckFailure> {
    let failures = checks.iter().enumerate();
    let mut failures = failures.filter_map(|(number, check)| Some((number, check.as_ref().err()?)));
    let all_fail = checks.iter().all(Result::is_err);
    let first = failures.clone().next().filter(|_| all_fail);
    let lasting = failures.find(|(_, failure)| failure.is_lasting);
    let lasting = lasting.filter(|_| all_fail || is_first);
    let Some((number, failure)) = lasting.or(first) else {
        return Ok(());
    };
    let explanation = match topology.owner(number) {
        Some(primary) => format!("{}: {}", primary.place(), failure.explanation),
        None => failure.explanation.clone(),
    };
    Err(CheckFailure {
        explanation,
        ..failure.clone()
    })
}
