//! The report of a run: its findings, and whether it passed.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::judge::{Counts, Rule};
use super::options::{Backend, Options};
use super::run::{Report, Round, kept};
use super::watched::REPLICAS;

/// With fewer grants per second than this, a run is invalid.
const GRANTS_MIN: f64 = 1.5;

/// With fewer writes of the resource per grant than this, a run is invalid: many claims share, and some end early.
const WRITES_MIN: f64 = 0.1;

/// After so many grants a run is invalid if no client was too late for the resource.
const GRANTS_TO_BE_LATE: usize = 300;

/// How many violations of a rule are shown in full.
const SHOWN: usize = 2;

/// One line about a round.
pub(super) fn line(round: &Round) -> String {
    let mut rules: BTreeMap<Rule, usize> = BTreeMap::new();
    for violation in &round.violations {
        *rules.entry(violation.rule).or_default() += 1;
    }
    format!(
        "seed {}, {:?}: {} violations {rules:?}; {:?}",
        round.seed,
        round.time,
        round.violations.len(),
        round.counts
    )
}

impl Report {
    /// The whole report, and the reason if the run did not pass.
    pub(super) fn text(&self, options: &Options) -> (String, Option<String>) {
        let mut text = String::new();
        let seeds: Vec<_> = self
            .rounds
            .iter()
            .map(|round| round.seed.to_string())
            .collect();
        let store = match options.backend {
            Backend::Redis => {
                let first = options.persistence(options.seed);
                format!(
                    "redis {} that keeps {} (first round)",
                    self.redis_version,
                    kept(first)
                )
            }
            Backend::Cluster => format!("a cluster of redis {}", self.redis_version),
            Backend::Sentinel => format!(
                "redis {} with Sentinels and {REPLICAS} replicas, of which {} confirm",
                self.redis_version, options.wait_replicas
            ),
            Backend::Quorum => {
                let first = options.persistence(options.seed);
                format!(
                    "a quorum of redis {} that keep {} (first round)",
                    self.redis_version,
                    kept(first)
                )
            }
            Backend::Memory => "memory".to_owned(),
            Backend::File => "file".to_owned(),
        };
        let version = env!("CARGO_PKG_VERSION");
        let _ = writeln!(
            text,
            "leasehold {version}, {store}, {} processes, seeds {}",
            options.processes,
            seeds.join(" ")
        );
        let counts = self.sum();
        let _ = writeln!(text, "{counts:#?}");
        for (fault, (tried, effective, observed)) in &self.effects {
            let name = fault.name();
            let _ = writeln!(
                text,
                "fault {name}: {tried} times, {effective} with effect, {observed} observed"
            );
        }
        for round in &self.rounds {
            Self::violations(&mut text, options, round);
        }
        (text, self.failure(options, &counts))
    }

    fn violations(text: &mut String, options: &Options, round: &Round) {
        let mut shown: BTreeMap<Rule, usize> = BTreeMap::new();
        for violation in &round.violations {
            let shown = shown.entry(violation.rule).or_default();
            *shown += 1;
            if *shown <= SHOWN {
                let at = violation.at as f64 / 1e6;
                let _ = writeln!(
                    text,
                    "\n{:?} at {at:.3} (seed {}): {}",
                    violation.rule, round.seed, violation.what
                );
            }
        }
        if !round.violations.is_empty() {
            let command = options.command(round.seed, round.time);
            let _ = writeln!(
                text,
                "\nseed {}: {:?}; to repeat: {command}",
                round.seed, shown
            );
        }
    }

    fn sum(&self) -> Counts {
        let mut sum = Counts::default();
        for round in &self.rounds {
            sum.add(&round.counts);
        }
        sum
    }

    fn failure(&self, options: &Options, counts: &Counts) -> Option<String> {
        let violations: usize = self.rounds.iter().map(|round| round.violations.len()).sum();
        if violations > 0 {
            return Some(format!("{violations} violations"));
        }
        if let Some(round) = self.rounds.iter().find(|round| !round.crashed.is_empty()) {
            return Some(format!(
                "seed {}: processes {:?} ended by themselves",
                round.seed, round.crashed
            ));
        }
        if let Some(round) = self.rounds.iter().find(|round| !round.is_finished) {
            return Some(format!(
                "seed {}: a client did not come to its end",
                round.seed
            ));
        }
        for fault in &options.faults {
            if self
                .effects
                .get(fault)
                .is_none_or(|(_, effective, _)| *effective == 0)
            {
                return Some(format!("invalid: {} had no effect", fault.name()));
            }
        }
        let seconds = options.time.as_secs_f64();
        let is_enough = counts.grants as f64 >= GRANTS_MIN * seconds;
        if !is_enough {
            let grants = counts.grants;
            return Some(format!("invalid: only {grants} grants in {seconds} s"));
        }
        let (writes, refused) = (counts.writes, counts.refused_uses);
        let is_used = writes as f64 >= WRITES_MIN * counts.grants as f64
            && (refused > 0 || counts.grants < GRANTS_TO_BE_LATE);
        (!is_used).then(|| {
            format!("invalid: {writes} writes of the resource, {refused} uses refused as too late")
        })
    }
}
