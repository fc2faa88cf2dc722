//! What a quorum grants while some of its nodes are away.

use super::super::record::{Absence, Micros, Mode, SECOND};
use super::{Evidence, Grant, Rule, Violation, story};

/// How long nodes have to be away, all absences together, for something to be granted without them.
const LONG: Micros = 3 * SECOND;

/// How far apart the reports of two grants may be that were made at the same time: each takes two round trips more.
const TOGETHER: Micros = SECOND / 10;

/// Whether a claim was granted its lock together with this grant. Claims that share a lock hold it together, and their
/// tokens do not say in which order the nodes have admitted them.
pub(super) fn are_together(evidence: &Evidence<'_>, claim: usize, grant: &Grant<'_>) -> bool {
    let claims = [claim, grant.claim].map(|claim| &evidence.history.claims[claim]);
    let mut own = evidence
        .grants
        .iter()
        .filter(|own| own.claim == claim && own.name == grant.name);
    evidence.history.bounds.is_quorum
        && claims.iter().all(|claim| claim.mode != Mode::Exclusive)
        && own.any(|own| own.reported.abs_diff(grant.reported) <= TOGETHER)
}

pub(super) fn judge(evidence: &Evidence<'_>, found: &mut Vec<Violation>) {
    let absences = || evidence.history.absences.iter();
    for absence in absences().filter(|absence| !absence.is_minority) {
        for (index, claim, at) in granted_within(evidence, *absence) {
            let name = evidence.grants[index].name;
            let what = format!("{name}:{}", story(evidence, claim));
            found.push(Violation::new(Rule::NoMajority, at, what));
        }
    }
    let of_minorities = || absences().filter(|absence| absence.is_minority);
    let total: Micros = of_minorities()
        .map(|absence| absence.until - absence.from)
        .sum();
    let mut granted = of_minorities().flat_map(|absence| granted_within(evidence, *absence));
    if total >= LONG && granted.next().is_none() {
        let what = format!("nothing was granted in {:.3} s", total as f64 / 1e6);
        let at = of_minorities().map(|absence| absence.from).min();
        found.push(Violation::new(Rule::Standstill, at.unwrap_or(0), what));
    }
}

/// The grants that were requested and reported within this time: their numbers, their claims, and when they were reported.
fn granted_within(
    evidence: &Evidence<'_>,
    absence: Absence,
) -> impl Iterator<Item = (usize, usize, Micros)> {
    let grants = evidence.grants.iter().enumerate();
    let within = grants
        .filter(move |(_, grant)| grant.requested > absence.from && grant.reported < absence.until);
    within.map(|(index, grant)| (index, grant.claim, grant.reported))
}
