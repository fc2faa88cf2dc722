//! The order of fences. There are no exemptions: this guarantee holds under every fault.

use std::collections::BTreeMap;

use super::super::record::Micros;
use super::{Evidence, Rule, Violation, story};

pub(super) fn judge(evidence: &Evidence<'_>, found: &mut Vec<Violation>) {
    for (name, grants) in &evidence.by_name {
        shared(evidence, name, grants, found);
        order(evidence, name, grants, found);
    }
}

fn shared(evidence: &Evidence<'_>, name: &str, grants: &[usize], found: &mut Vec<Violation>) {
    let mut claims: BTreeMap<u64, usize> = BTreeMap::new();
    for grant in grants.iter().map(|index| &evidence.grants[*index]) {
        let first = *claims.entry(grant.fence).or_insert(grant.claim);
        if first != grant.claim {
            let stories = [first, grant.claim].map(|claim| story(evidence, claim));
            let what = format!("{name}, fence {}:{}", grant.fence, stories.concat());
            found.push(Violation::new(Rule::SharedFence, grant.reported, what));
        }
    }
}

/// A grant that was reported before another one was requested has the smaller fence.
fn order(evidence: &Evidence<'_>, name: &str, grants: &[usize], found: &mut Vec<Violation>) {
    let all: Vec<_> = grants
        .iter()
        .map(|index| &evidence.grants[*index])
        .collect();
    let mut by_report = all.clone();
    by_report.sort_unstable_by_key(|grant| grant.reported);
    let mut by_request = all;
    by_request.sort_unstable_by_key(|grant| grant.requested);
    let mut reported = by_report.into_iter().peekable();
    let mut largest: Option<(u64, usize, Micros)> = None;
    for grant in by_request {
        while let Some(before) = reported.next_if(|before| before.reported < grant.requested) {
            if largest.is_none_or(|(fence, ..)| before.fence > fence) {
                largest = Some((before.fence, before.claim, before.reported));
            }
        }
        if let Some((fence, claim, _)) = largest
            && fence > grant.fence
        {
            let stories = [claim, grant.claim].map(|claim| story(evidence, claim));
            let what = format!(
                "{name}, {fence} before {}:{}",
                grant.fence,
                stories.concat()
            );
            found.push(Violation::new(Rule::FenceOrder, grant.reported, what));
        }
    }
}
