//! Whether one order of the requests on a lock explains everything that its clients saw: linearizability.
//!
//! This judge shares no rule with the other one (`judge`). It knows a sequential lock, and searches for an order of
//! operations in which each takes effect once, between its sending and its answer, and in which the lock gives exactly
//! the recorded answers. The algorithm is that of Wing and Gong with the memory of configurations of Lowe, in the variant
//! that takes an operation into the order only when an answer requires it. A view or an eviction that is under way may also
//! come before that, because it needs the lock as it is. Linearizability is local, so each lock is checked alone (Horn and
//! Kroening): of an operation on several locks, each lock has its part.
//!
//! # The sequential lock
//!
//! Its state is the number of leases granted so far, and those that are held, each with a mode, an earliest and a latest
//! end. Its operations are in `operations`, and what each requires and does is in `register`.
//!
//! - A lease is granted once. Its fence is larger than all before, so fences order the grants: they are the witnesses
//!   that keep the search small. It is granted between the first request of its claim and the first answer, view or
//!   eviction that shows it. Everything that conflicts with it must have ended before.
//! - A report of a lease (an acquire, a renewal, an event of its stream) requires that it is held, and extends it.
//! - A release that succeeds ends the leases of its claim. If it is refused, and was for several locks, it may have ended
//!   those that were left.
//! - A refusal that says "not the holder", of a request for one lock, requires that the claim holds nothing.
//! - A view requires that exactly its holders hold. An eviction requires the same, and ends them.
//!
//! # The ends of leases
//!
//! Expiry is an event inside the lock: no answer shows when it happens. A lease may expire at any time from its earliest
//! possible end on: the end that was reported, counted from the earliest time at which the report can have been written,
//! by a clock of the store that steps forward as far as recorded. From then on it may also still be held, until its
//! latest possible end: its full length after the arrival of the last report. A report for which a request was sent
//! after that is rejected. Any fault makes the latest end unknown, because a delayed command may have extended the
//! lease.
//!
//! An operation without a definite answer may take effect at any time from its sending on, or never. So may the
//! roll-back of a lease that was reported to nobody, and the end of a stream's lease when its connection closes.
//!
//! What a former primary may have answered says nothing, if no replica had to confirm it: the new one knows nothing of it.
//!
//! After a loss of data or a step of the store's clock, the store may have forgotten the claims that it knew, or remember
//! ended ones. Their views and refusals say nothing any more; their leases as reported still exclude others.
//!
//! # The bound
//!
//! The search is exponential in the worst case. It ends after a number of configurations that a history of a minute stays
//! far below, and then reports [`Rule::Undecided`], with which a run fails as with a violation.

mod bounds;
mod cases;
mod evictions;
mod in_flight;
mod operations;
mod register;
mod search;

use super::judge::{Rule, Violation, about, shown};
use super::record::{Action, Claim, History, Micros, SECOND, View};
use operations::{LockHistory, Source};
use register::Held;
use search::Verdict;

/// After this many configurations of one lock, the search gives up.
const CONFIGURATIONS_MAX: usize = 2_000_000;

/// How many requests of a claim are shown.
const REQUESTS_SHOWN: usize = 12;

/// How many views before a rejected one are shown.
const VIEWS_SHOWN: usize = 4;

/// Checks each lock of the history.
pub(super) fn check(history: &History) -> Vec<Violation> {
    check_within(history, CONFIGURATIONS_MAX)
}

fn check_within(history: &History, configurations_max: usize) -> Vec<Violation> {
    let locks = LockHistory::of_each(history);
    let violation = |lock: &LockHistory| {
        let (rule, at, what) = match search::search(lock, configurations_max) {
            Verdict::Linearizable => return None,
            Verdict::Undecided => {
                let what = format!("{}: {} operations", lock.name, lock.operations.len());
                (Rule::Undecided, history.ended, what)
            }
            Verdict::Rejected { operation, before } => {
                let answer = described(history, lock.operations[operation].source);
                let holders = before.iter().map(|held| holder(history, lock, held));
                let holders: String = holders.collect();
                let at = lock.operations[operation].at;
                let evictions = evictions(history, &lock.name, at);
                let what = format!(
                    "{}: no order explains {answer}\n    held before it:{holders}{evictions}",
                    lock.name
                );
                (Rule::Linearizability, at, what)
            }
        };
        let what = what + &about(history, at);
        Some(Violation { rule, at, what })
    };
    locks.iter().filter_map(violation).collect()
}

/// A description of a lease that is held, with the requests of its claim.
fn holder(history: &History, lock: &LockHistory, held: &Held) -> String {
    let lease = &lock.leases[held.lease];
    let owner = &history.claims[lease.claim].owner;
    let until = held.until as f64 / 1e6;
    let requests = story(history, lease.claim);
    format!(
        "\n    {owner} with {} until {until:.3}\n      {requests}",
        lease.fence
    )
}

/// The evictions that were under way then, or shortly before.
fn evictions(history: &History, name: &str, at: Micros) -> String {
    let requests = history.requests.iter();
    let evictions = requests.filter(|request| {
        let is_near = request.sent <= at && at <= request.ended().saturating_add(SECOND);
        request.action == Action::Evict && request.names == [name] && is_near
    });
    let shown = evictions.map(|eviction| format!("\n    beside it: {}", shown(eviction)));
    shown.collect()
}

/// The requests of a claim.
fn story(history: &History, claim: usize) -> String {
    let own = history.requests.iter();
    let own = own.filter(|request| request.claim == Some(claim));
    let requests: Vec<_> = own.take(REQUESTS_SHOWN).map(shown).collect();
    let Claim {
        owner, mode, lease, ..
    } = &history.claims[claim];
    let terms = format!("{owner} wants {mode:?} for {} ms", lease / 1_000);
    format!("{terms}\n      {}", requests.join("\n      "))
}

/// A description of the request or of the view with this answer.
fn described(history: &History, source: Source) -> String {
    match source {
        Source::Request(request) => {
            let request = &history.requests[request];
            match request.claim {
                Some(claim) => format!("{}\n      {}", shown(request), story(history, claim)),
                None => shown(request),
            }
        }
        Source::View(view) => {
            let view = &history.views[view];
            let holders = view.holders.iter().map(|(owner, _)| owner);
            let of_holder = |owner: &String| {
                let mut claims = history.claims.iter();
                claims.position(|claim| claim.owner == *owner)
            };
            let stories = holders.filter_map(of_holder);
            let stories: Vec<_> = stories.map(|claim| story(history, claim)).collect();
            let same = history.views.iter().filter(|it| it.name == view.name);
            let mut before: Vec<_> = same.filter(|it| it.at < view.at).collect();
            before.sort_unstable_by_key(|view| view.at);
            let skipped = before.len().saturating_sub(VIEWS_SHOWN);
            let before: String = before[skipped..]
                .iter()
                .map(|it| format!("\n    before it: {}", seen(it)))
                .collect();
            format!("{}\n      {}{before}", seen(view), stories.join("\n      "))
        }
    }
}

fn seen(view: &View) -> String {
    let (sent, at) = (view.sent as f64 / 1e6, view.at as f64 / 1e6);
    format!(
        "the view from {sent:.3} to {at:.3} of the holders {:?}",
        view.holders
    )
}
