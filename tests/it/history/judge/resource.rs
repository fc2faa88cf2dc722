//! What the resource saw, which judges by fencing tokens alone. None of these rules has an exemption, but for a holder that
//! was replaced by what a former primary granted.

use std::collections::{BTreeMap, BTreeSet};

use super::super::record::Use;
use super::{Counts, Evidence, Rule, Violation, story};

/// Who uses the resource: a claim, and its lease by the fencing token.
type Writer = (usize, u64);

/// What the resource has accepted of a lock.
#[derive(Default)]
struct Accepted {
    largest: Option<(u64, Writer)>,
    last: Option<Writer>,
    /// Those that others have followed.
    former: BTreeSet<Writer>,
}

pub(super) fn judge(evidence: &Evidence<'_>, found: &mut Vec<Violation>, counts: &mut Counts) {
    let mut by_name: BTreeMap<&str, Accepted> = BTreeMap::new();
    for used in &evidence.history.uses {
        let before = by_name.entry(&used.name).or_default();
        if used.is_accepted {
            counts.writes += usize::from(used.update.is_some());
            accepted(evidence, used, before, found);
        } else {
            counts.refused_uses += 1;
            refused(evidence, used, before, found);
        }
    }
}

fn accepted(
    evidence: &Evidence<'_>,
    used: &Use,
    before: &mut Accepted,
    found: &mut Vec<Violation>,
) {
    let writer = (used.claim, used.lease);
    if before.last != Some(writer) {
        before.former.extend(before.last.replace(writer));
    }
    let is_smaller = before.largest.is_some_and(|(fence, _)| used.fence < fence);
    if is_smaller || before.former.contains(&writer) {
        found.push(violation(evidence, Rule::OutdatedUse, used, before));
    }
    if !is_smaller {
        before.largest = Some((used.fence, writer));
    }
    if used.update.is_some_and(|(read, replaced)| read != replaced) {
        found.push(violation(evidence, Rule::LostUpdate, used, before));
    }
}

/// Who is refused holds the lock no longer.
fn refused(evidence: &Evidence<'_>, used: &Use, before: &Accepted, found: &mut Vec<Violation>) {
    let history = evidence.history;
    let of_lock = evidence.by_name.get(used.name.as_str());
    let grants = of_lock
        .into_iter()
        .flatten()
        .map(|it| &evidence.grants[*it]);
    let own = grants.filter(|grant| grant.claim == used.claim && grant.fence == used.lease);
    let mut lasting = own.flat_map(|grant| &grant.lasting);
    let holds = lasting.any(|lasting| {
        let is_former = history.is_former_answer(&history.requests[lasting.request], lasting.from);
        lasting.from <= used.at && used.at < lasting.known_until && !is_former
    });
    let mut others = before.largest.into_iter().map(|(_, writer)| writer);
    if holds && !others.any(|(claim, lease)| history.is_former_grant(claim, lease)) {
        found.push(violation(evidence, Rule::RefusedHolder, used, before));
    }
}

fn violation(evidence: &Evidence<'_>, rule: Rule, used: &Use, before: &Accepted) -> Violation {
    let with = before
        .largest
        .map_or_else(String::new, |(fence, (claim, _))| {
            format!("; before it {fence}{}", story(evidence, claim))
        });
    let what = format!("{used:?}{}{with}", story(evidence, used.claim));
    Violation::new(rule, used.at, what)
}

#[cfg(test)]
mod tests {
    use super::super::super::record::{Action, End, History, Micros};
    use super::super::super::valid::{ANN, BEN, CID, MS, valid};
    use super::super::{Rule, judge};
    use super::Use;

    /// Ann, Ben and Cid each read the counter of their lock and write it while they hold.
    fn used() -> History {
        let mut history = valid();
        for (claim, at) in [(ANN, 500), (BEN, 2_100), (CID, 2_700)] {
            let count = u64::try_from(claim).expect("few");
            history.uses.push(one(claim, at, None));
            history
                .uses
                .push(one(claim, at + 100, Some((count, count))));
        }
        history
    }

    fn one(claim: usize, at: Micros, update: Option<(u64, u64)>) -> Use {
        let fence = [100, 200, 300][claim];
        Use {
            name: "a".to_owned(),
            claim,
            lease: fence,
            fence,
            update,
            is_accepted: true,
            at: at * MS,
        }
    }

    fn rules(history: &History) -> Vec<Rule> {
        let (found, _) = judge(history);
        found.iter().map(|violation| violation.rule).collect()
    }

    #[test]
    fn holders_that_use_the_resource_one_after_the_other_are_accepted() {
        let (found, counts) = judge(&used());
        assert!(found.is_empty(), "{found:#?}");
        assert_eq!((counts.writes, counts.refused_uses), (3, 0));
    }

    #[test]
    fn a_late_client_may_be_refused_and_a_holder_may_not() {
        let mut history = used();
        let late = Use {
            is_accepted: false,
            ..one(ANN, 2_300, Some((0, 1)))
        };
        history.uses.insert(4, late);
        assert_eq!(rules(&history), []);
        history.uses[3].is_accepted = false;
        assert_eq!(rules(&history), [Rule::RefusedHolder]);
    }

    #[test]
    fn an_accepted_use_after_that_of_a_later_holder_is_rejected() {
        let mut history = used();
        history.uses.insert(3, one(ANN, 2_150, None));
        assert_eq!(rules(&history)[0], Rule::OutdatedUse);
        // The same if all have one fencing token, which the resource cannot tell apart.
        let mut history = used();
        for used in &mut history.uses {
            used.fence = 1;
        }
        assert_eq!(rules(&history), []);
        history.uses.insert(
            3,
            Use {
                fence: 1,
                ..one(ANN, 2_150, None)
            },
        );
        assert_eq!(rules(&history)[0], Rule::OutdatedUse);
    }

    #[test]
    fn an_increment_that_another_one_replaces_is_rejected() {
        let mut history = used();
        history.uses[3].update = Some((0, 1));
        assert_eq!(rules(&history), [Rule::LostUpdate]);
    }

    #[test]
    fn a_holder_that_is_refused_after_it_closed_its_stream_is_none() {
        let mut history = used();
        history.uses[3].is_accepted = false;
        history.request(BEN, 0).end = Some((2_150 * MS, End::HungUp));
        assert_eq!(rules(&history), []);
        assert!(matches!(
            history.request(BEN, 0).action,
            Action::Hold { .. }
        ));
    }
}
