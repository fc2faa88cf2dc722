//! Sampling of log lines that can come in any number. The lines themselves are written elsewhere.

use std::net::IpAddr;

use super::peers::{PeerCounts, TotalCount};
use super::problem::{Code, Problem};

/// The lines of one kind that are written within a minute. After them, a line is written each time its number is a power
/// of two. It carries that number, which shows how many lines were left out.
const LOGGED_EACH: u32 = 5;

/// A kind of line that can come in any number.
#[derive(Clone, Copy, Debug)]
pub(super) enum Frequent {
    /// Refusals that any client can cause, with or without a key.
    PeerRefusal(IpAddr),
    /// While the store is unavailable, all requests fail.
    StoreFailure,
    /// While the store is slow, all requests are slow.
    SlowRequest,
}

impl Frequent {
    /// The kind of a line about this problem of this peer; none if such lines are always written.
    pub(super) fn of(problem: &Problem, peer: IpAddr) -> Option<Self> {
        if let Some(reason) = problem.access_refusal() {
            return reason.needs_no_key().then_some(Self::PeerRefusal(peer));
        }
        let code = problem.code();
        // Limits are checked before keys.
        if matches!(code, Code::RateLimited | Code::Overloaded) {
            return Some(Self::PeerRefusal(peer));
        }
        matches!(code, Code::StoreUnavailable | Code::Recovering).then_some(Self::StoreFailure)
    }
}

/// The number of lines of each kind, written or not.
#[derive(Debug, Default)]
pub(super) struct LogSample {
    peer_refusals: PeerCounts,
    store_failures: TotalCount,
    slow_requests: TotalCount,
}

/// The number of a line among those of its kind within the minute, as fields of the line.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LineNumber {
    pub(super) peer_refusals: Option<u32>,
    pub(super) store_failures: Option<u32>,
    pub(super) slow_requests: Option<u32>,
}

impl LogSample {
    /// Counts a line. Returns its number, or none if the line is left out.
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
