//! Whether watchers were told of every grant, or that they may have missed some.

use std::collections::BTreeSet;

use super::super::record::{Micros, SECOND, Told, Watch};
use super::{Evidence, Rule, Violation, story};

/// How long an event may be under way before an end of the watch that nothing explains.
const UNDER_WAY: Micros = 3 * SECOND;

/// A time without `reset`: what begins and is told within it has to be among the events.
struct Stretch {
    from: Micros,
    /// Everything that was told by then has to have arrived.
    until: Micros,
}

pub(super) fn judge(evidence: &Evidence<'_>, found: &mut Vec<Violation>) {
    for watch in &evidence.history.watches {
        let mut told = BTreeSet::new();
        for (_, what) in &watch.told {
            if let Told::Acquired { name, fence } = what {
                told.insert((name.as_str(), *fence));
            }
        }
        for stretch in stretches(watch) {
            let until = heard_until(evidence, stretch.until);
            let missing = evidence.grants.iter().filter(|grant| {
                stretch.from < grant.asked
                    && grant.told < until
                    && !told.contains(&(grant.name, grant.fence))
            });
            let missing: Vec<_> = missing.collect();
            if let Some(first) = missing.first() {
                let what = format!(
                    "{} grants between {:.3} and {:.3} were never told, the first is {} {}:{}",
                    missing.len(),
                    stretch.from as f64 / 1e6,
                    until as f64 / 1e6,
                    first.name,
                    first.fence,
                    story(evidence, first.claim)
                );
                found.push(Violation::new(Rule::LostEvent, first.told, what));
            }
        }
    }
}

/// What was told until a moment may have lain in a socket since before a process stood still or was cut off, and the `reset`
/// comes behind it.
fn heard_until(evidence: &Evidence<'_>, until: Micros) -> Micros {
    let outages = evidence.history.outages.iter();
    let of_processes = outages.filter(|outage| outage.process.is_some());
    let under_way = of_processes.filter(|outage| outage.overlaps(until, until + SECOND));
    let since = under_way.map(|outage| outage.from.saturating_sub(SECOND / 2));
    since.min().map_or(until, |since| since.min(until))
}

/// The times between two resets. One begins when the stream is there, or with a `reset`: everything that begins later is
/// told. It ends with the last event before the next `reset`, which may be about everything since; at the end of the watch,
/// with what had time enough to arrive.
fn stretches(watch: &Watch) -> Vec<Stretch> {
    let mut stretches = Vec::new();
    let mut from = None;
    let mut last_event = None;
    for (at, told) in &watch.told {
        match told {
            Told::Opened { resumed: true } if from.is_some() => {}
            Told::Opened { .. } => {
                close(&mut stretches, from, last_event);
                (from, last_event) = (Some(*at), None);
            }
            Told::Acquired { .. } | Told::Other => last_event = Some(*at),
            Told::Reset => {
                close(&mut stretches, from, last_event);
                (from, last_event) = (Some(*at), None);
            }
            Told::Closed => {}
        }
    }
    if let Some((at, Told::Closed)) = watch.told.last() {
        close(&mut stretches, from, Some(at.saturating_sub(UNDER_WAY)));
    }
    stretches
}

fn close(stretches: &mut Vec<Stretch>, from: Option<Micros>, until: Option<Micros>) {
    if let (Some(from), Some(until)) = (from, until) {
        let until = until.saturating_sub(SECOND / 2);
        stretches.push(Stretch { from, until });
    }
}
