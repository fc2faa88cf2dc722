//! Which lines of the log are written of those that may come in any number. The lines are made elsewhere.

use std::net::IpAddr;

use super::peers::{PeerCounts, TotalCount};
use super::problem::{Code, Problem};

/// Of lines of one kind, how many are written within a minute. Of the rest only those are whose number is a power of two, and
/// each says its number, and so how many were left out.
const LOGGED_EACH: u32 = 5;

/// Why there may be any number of lines.
#[derive(Clone, Copy, Debug)]
pub(super) enum Frequent {
    /// Anybody can be refused so, key or no key, and as often as they like.
    PeerRefusal(IpAddr),
    /// Without the store, all requests fail.
    StoreFailure,
    /// When the store is slow, all requests are.
    SlowRequest,
}

impl Frequent {
    /// Why there may be any number of lines about this problem of this peer, if there may.
    pub(super) fn of(problem: &Problem, peer: IpAddr) -> Option<Self> {
        if let Some(reason) = problem.access_refusal() {
            return reason.is_anybodys().then_some(Self::PeerRefusal(peer));
        }
        let code = problem.code();
        // Limits refuse before a key is asked for.
        if matches!(code, Code::RateLimited | Code::Overloaded) {
            return Some(Self::PeerRefusal(peer));
        }
        matches!(code, Code::StoreUnavailable | Code::Recovering).then_some(Self::StoreFailure)
    }
}

/// How many lines there were of each kind, or would have been.
#[derive(Debug, Default)]
pub(super) struct LogSample {
    peer_refusals: PeerCounts,
    store_failures: TotalCount,
    slow_requests: TotalCount,
}

/// The number of a line among those of its kind within the minute, as the fields of the line have it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LineNumber {
    pub(super) peer_refusals: Option<u32>,
    pub(super) store_failures: Option<u32>,
    pub(super) slow_requests: Option<u32>,
}

impl LogSample {
    /// Counts a line, and returns its number unless it is left out.
    pub(super) fn number(&self, frequent: Option<Frequent>) -> Option<LineNumber> {
        let mut number = LineNumber::default();
        let (field, count) = match frequent {
            None => return Some(number),
            Some(Frequent::PeerRefusal(peer)) => (
                &mut number.peer_refusals,
                self.peer_refusals.count(peer).count,
            ),
            Some(Frequent::StoreFailure) => {
                (&mut number.store_failures, self.store_failures.count())
            }
            Some(Frequent::SlowRequest) => (&mut number.slow_requests, self.slow_requests.count()),
        };
        *field = Some(count);
        (count <= LOGGED_EACH || count.is_power_of_two()).then_some(number)
    }
}
