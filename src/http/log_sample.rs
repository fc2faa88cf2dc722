//! Sampling of log lines that can come in any number. The lines themselves are written elsewhere.

use std::net::IpAddr;

use super::peers::{PeerCounts, TotalCount};
use super::problem::{Code, Problem};
use crate::config::LogRequests;

/// The lines of one kind that are written within a minute. After them, a line is written each time its number is a power
/// of two. It carries that number, which shows how many lines were left out.
const LOGGED_EACH: u32 = 5;

/// A kind of line that can come in any number.
#[derive(Clone, Copy, Debug)]
pub(super) enum Frequent {
    /// Refusals that any client can cause, with or without a key.
    PeerRefusal(IpAddr),
    /// Other refusals of what a client asks for: a lock that is held, a field that is wrong.
    ClientError(IpAddr),
    /// Evictions by clients without a key, on a service that has none.
    Eviction(IpAddr),
    /// While the store is unavailable, all requests fail.
    StoreFailure,
    /// While the store is slow, all requests are slow.
    SlowRequest,
}

impl Frequent {
    /// The kind of a line about this problem of this peer; none if such lines are always written, as those about client
    /// errors are where every request has a line.
    pub(super) fn of(problem: &Problem, peer: IpAddr, mode: LogRequests) -> Option<Self> {
        let code = problem.code();
        // Limits are checked before keys.
        let is_over_limit = matches!(code, Code::RateLimited | Code::Overloaded);
        if is_over_limit || problem.access_refusal().is_some() {
            return Some(Self::PeerRefusal(peer));
        }
        if matches!(code, Code::StoreUnavailable | Code::Recovering) {
            return Some(Self::StoreFailure);
        }
        let is_client_error = code.facts().status.is_client_error();
        (is_client_error && mode == LogRequests::Failed).then_some(Self::ClientError(peer))
    }
}

/// The number of lines of each kind, written or not.
#[derive(Debug, Default)]
pub(super) struct LogSample {
    peer_refusals: PeerCounts,
    client_errors: PeerCounts,
    evictions: PeerCounts,
    store_failures: TotalCount,
    slow_requests: TotalCount,
}

/// The number of a line among those of its kind within the minute, as fields of the line.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LineNumber {
    pub(super) peer_refusals: Option<u32>,
    pub(super) client_errors: Option<u32>,
    pub(super) evictions: Option<u32>,
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
            Some(Frequent::ClientError(peer)) => (
                &mut number.client_errors,
                self.client_errors.count(peer).count,
            ),
            Some(Frequent::Eviction(peer)) => {
                (&mut number.evictions, self.evictions.count(peer).count)
            }
            Some(Frequent::StoreFailure) => {
                (&mut number.store_failures, self.store_failures.count())
            }
            Some(Frequent::SlowRequest) => (&mut number.slow_requests, self.slow_requests.count()),
        };
        *field = Some(count);
        (count <= LOGGED_EACH || count.is_power_of_two()).then_some(number)
    }
}
