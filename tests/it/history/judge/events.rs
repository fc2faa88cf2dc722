//! Whether watchers got an event for every grant, or a `reset`.

use std::collections::BTreeSet;

use super::super::minority::Together;
use super::super::record::{Micros, SECOND, Watch, WatchEntry};
use super::{Evidence, Excused, Grant, Rule, SETTLING, Violation, story};

/// How long an event may be in flight before an unexplained end of the watch.
const UNDER_WAY: Micros = 3 * SECOND;

/// How long a process may take to subscribe again to a node that it can reach.
const SUBSCRIBING: Micros = SECOND;

/// Failures after which processes subscribe again, at several nodes. What a node reports late, because it was slow for less
/// than that, is counted.
const UNSUBSCRIBED: Together = Together {
    at_least: SECOND / 2,
    apart: SUBSCRIBING,
};

/// A time without `reset`: every lease that begins and is reported within it must be among the events.
struct Stretch {
    from: Micros,
    /// Everything that was reported by then must have arrived.
    until: Micros,
}

pub(super) fn judge(evidence: &Evidence<'_>, found: &mut Vec<Violation>, excused: &mut Excused) {
    for watch in &evidence.history.watches {
        let mut reported = BTreeSet::new();
        for (_, what) in &watch.entries {
            if let WatchEntry::Acquired { name, fence } = what {
                reported.insert((name.as_str(), *fence));
            }
        }
        for stretch in stretches(watch) {
            let until = received_until(evidence, stretch.until);
            let missing = evidence.grants.iter().filter(|grant| {
                stretch.from < grant.requested
                    && grant.reported < until
                    && !reported.contains(&(grant.name, grant.fence))
                    && !evidence.history.is_former_grant(grant.claim, grant.fence)
            });
            let is_excused = |grant: &&Grant<'_>| is_of_few_nodes(evidence, grant);
            let (of_few, missing) = missing.partition::<Vec<_>, _>(is_excused);
            excused.events += of_few.len();
            if let Some(first) = missing.first() {
                let what = format!(
                    "{} grants between {:.3} and {:.3} were never reported, the first is {} {}:{}",
                    missing.len(),
                    stretch.from as f64 / 1e6,
                    until as f64 / 1e6,
                    first.name,
                    first.fence,
                    story(evidence, first.claim)
                );
                found.push(Violation::new(Rule::LostEvent, first.reported, what));
            }
        }
    }
}

/// Whether more than one node of a quorum failed about then. An event that no majority reports is not passed on, and after a
/// failure it takes a moment until processes are subscribed to a node again. Events may come before the `reset` of that.
fn is_of_few_nodes(evidence: &Evidence<'_>, grant: &Grant<'_>) -> bool {
    let from = grant.requested.saturating_sub(SETTLING);
    let until = grant.reported + SUBSCRIBING;
    // A process may use a node again a moment before it is subscribed there.
    let unheard = (grant.requested.saturating_sub(SUBSCRIBING), grant.reported);
    let history = evidence.history;
    history.has_no_majority((from, until), UNSUBSCRIBED)
        || history.bounds.is_quorum && history.may_be_heard_of_few(grant.claim, unheard)
}

/// Events that arrived until this time may have been in a socket since before a process was paused or cut off, with the
/// `reset` behind them.
fn received_until(evidence: &Evidence<'_>, until: Micros) -> Micros {
    let outages = evidence.history.outages.iter();
    let of_processes = outages.filter(|outage| outage.process.is_some());
    let under_way = of_processes.filter(|outage| outage.overlaps(until, until + SECOND));
    let since = under_way.map(|outage| outage.from.saturating_sub(SECOND / 2));
    since.min().map_or(until, |since| since.min(until))
}

/// The times between two resets. Each begins when the stream is open, or with a `reset`: every later lease has an
/// event. It ends with the last event before the next `reset`, which may cover everything since; or, at the end of the
/// watch, at the last time from which events certainly arrived.
fn stretches(watch: &Watch) -> Vec<Stretch> {
    let mut stretches = Vec::new();
    let mut from = None;
    let mut last_event = None;
    for (at, entry) in &watch.entries {
        match entry {
            WatchEntry::Opened { resumed: true } if from.is_some() => {}
            WatchEntry::Opened { .. } => {
                close(&mut stretches, from, last_event);
                (from, last_event) = (Some(*at), None);
            }
            WatchEntry::Acquired { .. } | WatchEntry::Other => last_event = Some(*at),
            WatchEntry::Reset => {
                close(&mut stretches, from, last_event);
                (from, last_event) = (Some(*at), None);
            }
            WatchEntry::Closed => {}
        }
    }
    if let Some((at, WatchEntry::Closed)) = watch.entries.last() {
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
