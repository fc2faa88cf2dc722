//! The health of a quorum: which nodes vote, and whether those are a majority.

use std::time::Duration;

use super::{Core, merge};
use crate::domain::duration;
use crate::store::memory::wall_time;
use crate::store::{Finding, NodeHealth, PoolHealth, ScanSteps, StoreHealth};

impl Core {
    pub(super) fn health(&self) -> StoreHealth {
        let healths = self.nodes.healths(wall_time().unix_us());
        let majority = self.nodes.majority();
        let at_nodes = self.addresses.iter().zip(&healths);
        let counts = self.nodes.dropped().zip(self.disagreements.counts());
        let nodes = at_nodes.zip(counts);
        let nodes =
            nodes.map(
                |((address, health), (dropped_follow_ups, disagreements))| NodeHealth {
                    address: address.clone(),
                    votes: votes(health),
                    clock_offset_ms: health.clock_offset_ms,
                    dropped_follow_ups,
                    disagreements,
                },
            );
        let up = healths.iter().filter(|health| health.up).count();
        let few_are_fit = healths.iter().filter(|health| is_fit(health)).count() < majority;
        StoreHealth {
            contacted: healths.iter().filter(|health| health.contacted).count() >= majority,
            up: up >= majority,
            trouble: self
                .first(&healths, |health| health.trouble.as_ref())
                .filter(|_| up < majority),
            refused: self
                .first(&healths, |health| health.refused.as_ref())
                .filter(|_| up >= majority && few_are_fit),
            recovering_for: recovering_for(&healths, majority),
            findings: self.findings(&healths),
            held_locks: merge::reached_by(
                majority,
                healths.iter().filter_map(|health| health.held_locks),
            ),
            scan_steps: ScanSteps {
                listings: healths
                    .iter()
                    .map(|health| health.scan_steps.listings)
                    .sum(),
                counts: healths.iter().map(|health| health.scan_steps.counts).sum(),
            },
            clock_offset_ms: healths
                .iter()
                .filter_map(|health| health.clock_offset_ms)
                .max_by_key(|offset| offset.abs()),
            pool: pool(&healths),
            disk: None,
            response_mismatches: healths
                .iter()
                .map(|health| health.response_mismatches)
                .sum(),
            fencing_regressions: healths
                .iter()
                .map(|health| health.fencing_regressions)
                .sum(),
            nodes: nodes.collect(),
        }
    }

    /// What is wrong with the first node with such a problem.
    fn first(
        &self,
        healths: &[StoreHealth],
        problem: impl Fn(&StoreHealth) -> Option<&String>,
    ) -> Option<String> {
        let mut at_nodes = self.addresses.iter().zip(healths);
        at_nodes.find_map(|(address, health)| {
            Some(format!(
                "too few nodes vote: {address}: {}",
                problem(health)?
            ))
        })
    }

    /// What an operator learns of the nodes: how many vote, and what each finds.
    fn findings(&self, healths: &[StoreHealth]) -> Vec<Finding> {
        let (nodes, majority) = (healths.len(), self.nodes.majority());
        let voting = healths.iter().filter(|health| votes(health)).count();
        let consequence = match voting >= majority {
            true => "",
            false => {
                ": nothing is granted until more nodes vote; their own checks say why they do not"
            }
        };
        let quorum = Finding {
            topic: "quorum",
            is_fine: voting == nodes,
            detail: format!("{voting} of {nodes} nodes vote, {majority} are needed{consequence}"),
        };
        let at_nodes = || self.addresses.iter().zip(healths);
        let of_nodes = at_nodes().map(|(address, health)| node(address, health));
        let of_stores = at_nodes().flat_map(|(address, health)| {
            health.findings.iter().map(move |finding| Finding {
                detail: format!("{address}: {}", finding.detail),
                ..finding.clone()
            })
        });
        std::iter::once(quorum)
            .chain(of_nodes)
            .chain(of_stores)
            .collect()
    }
}

/// Whether the node answers, and nothing that only an operator can mend keeps it from granting.
fn is_fit(health: &StoreHealth) -> bool {
    health.up && health.refused.is_none()
}

fn votes(health: &StoreHealth) -> bool {
    is_fit(health) && health.recovering_for.is_none()
}

/// How long new grants wait until as many nodes have a vote as a majority needs.
fn recovering_for(healths: &[StoreHealth], majority: usize) -> Option<Duration> {
    let fit = healths.iter().filter(|health| is_fit(health));
    let mut waits: Vec<_> = fit
        .map(|health| health.recovering_for.unwrap_or_default())
        .collect();
    waits.sort_unstable();
    let wait = waits.get(majority - 1).copied();
    wait.filter(|wait| !wait.is_zero())
}

/// The connections to all nodes.
fn pool(healths: &[StoreHealth]) -> Option<PoolHealth> {
    let pools = healths.iter().filter_map(|health| health.pool);
    pools.reduce(|sum, pool| PoolHealth {
        open: sum.open + pool.open,
        max: sum.max + pool.max,
        waits: sum.waits + pool.waits,
        timeouts: sum.timeouts + pool.timeouts,
    })
}

/// Whether a node has a vote, and what its clock shows if it answers.
fn node(address: &str, health: &StoreHealth) -> Finding {
    let recovering = health.recovering_for.map(|wait| {
        let wait = duration::format(Duration::from_secs(wait.as_secs() + 1));
        format!("it was away or lost its data, and votes again within {wait}")
    });
    let silence = (!health.up).then(|| "it does not answer".to_owned());
    let problem = (health.refused.clone())
        .or_else(|| health.trouble.clone())
        .or(silence)
        .or(recovering);
    let clock = match health.clock_offset_ms.filter(|_| health.up) {
        Some(offset) if offset < 0 => format!("; its clock is {} ms behind", -offset),
        Some(offset) => format!("; its clock is {offset} ms ahead"),
        None => String::new(),
    };
    Finding {
        topic: "node",
        is_fine: problem.is_none(),
        detail: match problem {
            None => format!("{address} votes{clock}"),
            Some(problem) => format!("{address} has no vote: {problem}{clock}"),
        },
    }
}
