//! Problems for operations on locks that were refused.

use std::time::Duration;

use super::body::{Ended, ProblemOutcome};
use super::{Code, Problem, sentence};
use crate::domain::{
    Conflict, ConflictKind, Holders, LockName, Mismatch, NotHeld, NotHolder, Refused, Token,
};
use crate::limits::Limit;
use crate::service::{NotGranted, QueueFull};

/// The longest `Retry-After` for a held lock, however long its lease lasts.
const RETRY_HELD_MAX: Duration = Duration::from_secs(5);
/// When to retry if other claims are ahead in the queue.
const RETRY_QUEUED: Duration = Duration::from_secs(1);
/// When to retry if a limit is reached or the process is stopping.
const RETRY_LIMIT_REACHED: Duration = Duration::from_secs(1);
/// A client that waited this long may retry at once, because that limits its request rate already.
const WAITED_LONG: Duration = Duration::from_secs(1);

impl Problem {
    /// The store refused the claim with this token.
    pub(in crate::http) fn refused(refused: Refused, token: Token) -> Self {
        match refused {
            Refused::Blocked(blocked_by) => Self::blocked(blocked_by),
            Refused::Mismatched(mismatch) => Self::mismatch(mismatch),
            Refused::TooManyWaiters { name, queue_length } => Self::queue_full(name, queue_length),
            Refused::Ended(lost) => Self::claim_ended(lost),
            Refused::Recovering { retry_in } => Self::recovering(retry_in, token),
            Refused::TooManyLeases { of_all, retry_in } => Self::too_many_leases(of_all, retry_in),
        }
    }

    /// The claim conflicts with others and did not ask to wait.
    fn blocked(blocked_by: Vec<Conflict>) -> Self {
        let first = blocked_by.first();
        let code = match first.map(|conflict| &conflict.by) {
            Some(ConflictKind::Cooling { .. }) => Code::LockCooling,
            Some(ConflictKind::Holders(_) | ConflictKind::Waiters) | None => Code::LockHeld,
        };
        let detail = first.map_or_else(|| "held by another claim".to_owned(), sentence::conflict);
        let retry_after = blocked_by.iter().map(retry_after_conflict).max();
        Self::new(code, detail)
            .with_conflicts(blocked_by)
            .retry_after(retry_after.unwrap_or(RETRY_HELD_MAX))
    }

    /// The wait timed out.
    pub(in crate::http) fn timed_out(
        not_granted: NotGranted,
        token: Token,
        waited: Duration,
    ) -> Self {
        let in_the_way = match not_granted.blocked_by.first() {
            Some(conflict) => format!(": {}", sentence::conflict(conflict)),
            None => "; the conflicting claim is not known, or new grants wait because the store was unavailable"
                .to_owned(),
        };
        let place = match not_granted.place_kept {
            Duration::ZERO => "has no place in the queue".to_owned(),
            kept => format!("keeps its place for {}", sentence::rounded(kept)),
        };
        let detail = format!(
            "the wait timed out{in_the_way}; the claim {place}: repeat the request with the same token to keep waiting"
        );
        let refusal = Self::new(Code::WaitTimeout, detail).with_position(not_granted, token);
        if waited >= WAITED_LONG {
            refusal.retry_at_once()
        } else {
            refusal.retry_after(WAITED_LONG)
        }
    }

    /// The process is about to stop. A request that arrived after draining had begun is a retry already, so it gets a
    /// longer `Retry-After`.
    pub(in crate::http) fn draining(
        not_granted: NotGranted,
        token: Token,
        had_begun: bool,
    ) -> Self {
        let detail = "this process is about to stop; repeat the request with the same token, to continue on another process";
        let mut refusal = Self::new(Code::Draining, detail).with_position(not_granted, token);
        refusal.0.extras.outcome = Some(ProblemOutcome::NothingDone);
        if had_begun {
            refusal.retry_after(RETRY_LIMIT_REACHED)
        } else {
            refusal.retry_at_once()
        }
    }

    /// The process is about to stop; the claim of the stream keeps its lease or place.
    pub(in crate::http) fn stream_draining(token: Token) -> Self {
        let detail = "this process is about to stop; the claim keeps its lease or its place in the queue: repeat the request \
                      at once with the same token";
        Self::new(Code::Draining, detail)
            .with_token(token)
            .retry_at_once()
    }

    /// The queue of the lock has its maximum number of waiters.
    fn queue_full(name: LockName, queue_length: u64) -> Self {
        let detail = "the queue of the lock has its maximum number of waiters";
        let mut refusal = Self::new(Code::TooManyWaiters, detail);
        refusal.0.extras.name = Some(name);
        refusal.0.extras.queue_length = Some(queue_length);
        refusal.retry_after(RETRY_LIMIT_REACHED)
    }

    /// This process has its maximum number of waiters, in all, of one peer or of one principal.
    pub(in crate::http) fn too_many_waiters(full: QueueFull) -> Self {
        let refusal = match full {
            QueueFull::Process { waiters } => Self::new(
                Code::TooManyWaiters,
                format!(
                    "this process has its maximum of {waiters} waiters; a claim counts once for each of its locks"
                ),
            ),
            QueueFull::Principal => Self::over_quota(
                "waiters_max",
                "the principal has as many waiters on this process as its quota permits; a claim counts once for each of its \
                 locks",
            ),
            QueueFull::Peer => Self::new(
                Code::TooManyWaiters,
                "this address has its maximum number of waiters on this process; a claim counts once for each of its locks",
            ),
        };
        refusal.retry_after(RETRY_LIMIT_REACHED)
    }

    /// The principal, or all together, hold as many locks as they may.
    fn too_many_leases(of_all: bool, retry_in: Duration) -> Self {
        let (quota, who) = match of_all {
            true => ("server.locks_max", "all clients together hold"),
            false => ("locks_max", "the principal holds"),
        };
        let detail = format!(
            "{who} as many locks as the quota permits, over all processes; release one, or wait until a lease has run out"
        );
        Self::over_quota(quota, detail).retry_after(retry_in.min(RETRY_HELD_MAX))
    }

    /// One peer, or all together, have reached a limit.
    pub(in crate::http) fn over_limit(limit: Limit) -> Self {
        let (code, detail) = match limit {
            Limit::ConnectionsPerPeer
            | Limit::TlsHandshakesPerPeer
            | Limit::Http2ConnectionsPerPeer
            | Limit::RequestsPerPeer
            | Limit::OperationsPerPeer
            | Limit::RenewalsPerPeer
            | Limit::ListingsPerPeer
            | Limit::EventStreamsPerPeer
            | Limit::WaitersPerPeer
            | Limit::BodyBytesPerPeer => (
                Code::RateLimited,
                "this address has reached its limit of requests in flight",
            ),
            Limit::RequestRate | Limit::LocksHeld => (
                Code::QuotaExceeded,
                "all clients together have used up what the service permits",
            ),
            Limit::RequestRatePerPrincipal
            | Limit::WaitersPerPrincipal
            | Limit::LocksPerPrincipal => {
                (Code::QuotaExceeded, "this principal has used up its quota")
            }
            Limit::AnswerBytesPerPeer => (
                Code::RateLimited,
                "this address has reached its limit of unread response bytes",
            ),
            Limit::AnswerBytes => (
                Code::Overloaded,
                "this process has reached its limit of unread response bytes",
            ),
            Limit::ConnectionsReserved
            | Limit::TlsHandshakes
            | Limit::Http2Connections
            | Limit::Http2Flood
            | Limit::Requests
            | Limit::BodyBytes
            | Limit::HeadTimeout
            | Limit::HeadSize
            | Limit::TokenSize
            | Limit::BodyTimeout
            | Limit::BodySize
            | Limit::WriteTimeout
            | Limit::AnswerTimeout
            | Limit::Operations
            | Limit::Listings
            | Limit::EventStreams
            | Limit::EventsKept
            | Limit::Waiters
            | Limit::WaitersPerLock
            | Limit::Locks
            | Limit::Renewals => (
                Code::Overloaded,
                "this process has reached its limit of requests in flight",
            ),
        };
        // For these limits only the response is refused; the operation may be done already.
        let is_done = matches!(limit, Limit::AnswerBytesPerPeer | Limit::AnswerBytes);
        let outcome = match is_done {
            true => ProblemOutcome::Unknown,
            false => ProblemOutcome::NothingDone,
        };
        let mut refusal = Self::new(code, detail);
        refusal.0.extras.outcome = Some(outcome);
        refusal.retry_after(RETRY_LIMIT_REACHED)
    }

    /// The same of a request that changes nothing, whether it was done or not.
    pub(in crate::http) fn nothing_done(mut self) -> Self {
        self.0.extras.outcome = Some(ProblemOutcome::NothingDone);
        self
    }

    /// The claim does not match the lock or an earlier request, so waiting cannot help.
    pub(in crate::http) fn mismatch(mismatch: Mismatch) -> Self {
        let (mut refusal, name) = match mismatch {
            Mismatch::Limit { name, in_force } => {
                let detail = match in_force {
                    Some(limit) => format!("the holders of the lock use the limit {limit}"),
                    None => "the holders of the lock are readers, without a limit".to_owned(),
                };
                let mut refusal = Self::new(Code::LimitMismatch, detail);
                refusal.0.extras.limit_in_force = Some(in_force);
                (refusal, name)
            }
            Mismatch::Upgrade { name } => {
                let detail = "the claim shares the lock and cannot become exclusive; release it first, or send mode=shared again if \
                              you meant the same claim";
                (Self::new(Code::UpgradeUnsupported, detail), name)
            }
            Mismatch::Claim { name } => {
                let detail = "an earlier request with this token has another mode, limit or number of permits, or other locks";
                (Self::new(Code::ClaimMismatch, detail), name)
            }
        };
        refusal.0.extras.name = Some(name);
        refusal
    }

    /// New grants wait while the store recovers.
    fn recovering(retry_in: Duration, token: Token) -> Self {
        let mut refusal = Self::new(
            Code::Recovering,
            "the store was unavailable, or may have lost data; new grants wait until every lease that may have been lost \
             has ended",
        );
        refusal.0.extras.outcome = Some(ProblemOutcome::NothingDone);
        refusal.retry_after(retry_in).with_token(token)
    }

    /// The claim has ended; it cannot be granted again.
    fn claim_ended(lost: NotHeld) -> Self {
        let (ended, reason, how) = match lost.reason {
            NotHolder::Released => (Ended::Released, None, "it was released"),
            NotHolder::Expired | NotHolder::Lost => (Ended::Expired, None, "its lease expired"),
            NotHolder::Evicted { reason } => (
                Ended::Evicted,
                Some(reason),
                "an operator took the lock away",
            ),
            NotHolder::Unknown => (Ended::Unknown, None, "the reason is no longer known"),
        };
        let mut refusal = Self::new(
            Code::ClaimEnded,
            format!("the claim of this token has ended: {how}; a new claim needs a new token"),
        );
        refusal.0.extras.name = Some(lost.name);
        refusal.0.extras.ended = Some(ended);
        refusal.0.extras.reason = reason;
        refusal
    }

    /// The token does not hold the lock, or no longer.
    pub(in crate::http) fn not_holder(lost: NotHeld) -> Self {
        let detail = match &lost.reason {
            NotHolder::Expired => {
                "the lease expired before this request; stop the work that the lock protects"
            }
            NotHolder::Lost => {
                "the lease expired and the lock went to another claim; stop the work that the lock protects"
            }
            NotHolder::Evicted { .. } => {
                "an operator took the lock away; stop the work that the lock protects"
            }
            NotHolder::Released => {
                "an earlier request with this token released the claim; stop the work that the lock protects"
            }
            NotHolder::Unknown => {
                "this lock has no lease with this token: the claim is still waiting, was never granted, was rolled back \
                 because its stream or connection closed, ended over a minute ago, or is lost with a service that was \
                 restarted with its locks in memory; or the token and the name belong to different locks"
            }
        };
        let mut refusal = Self::new(code_of(&lost.reason), detail);
        refusal.0.extras.name = Some(lost.name);
        if let NotHolder::Evicted { reason } = lost.reason {
            refusal.0.extras.reason = Some(reason);
        }
        refusal
    }

    /// The token does not hold all of several locks. `rest` says what happened to the others.
    pub(in crate::http) fn lost(lost: Vec<NotHeld>, rest: &str) -> Self {
        let worst = lost.iter().max_by_key(|lost| severity(&lost.reason));
        let code = worst.map_or(Code::TokenUnknown, |worst| code_of(&worst.reason));
        let count = lost.len();
        let detail = format!("this token does not hold {count} of the locks (see `lost`); {rest}");
        let mut refusal = Self::new(code, detail);
        refusal.0.extras.lost = Some(lost);
        refusal
    }

    /// The eviction removed some holders, and then timed out or lost the store.
    pub(in crate::http) fn eviction_unfinished(name: LockName, evicted: &Holders) -> Self {
        let count = evicted.total;
        let detail = format!(
            "{count} holders were evicted, and others may still hold the lock; repeat the request to continue"
        );
        let mut refusal = Self::new(Code::StoreUnavailable, detail);
        refusal.0.extras.name = Some(name);
        refusal.0.extras.evicted_total = Some(count);
        refusal.0.extras.outcome = Some(ProblemOutcome::Unknown);
        refusal.retry_after(RETRY_LIMIT_REACHED)
    }

    /// Adds all conflicts, and the members for the first of them.
    fn with_conflicts(mut self, blocked_by: Vec<Conflict>) -> Self {
        if let Some(first) = blocked_by.first() {
            let holders = match &first.by {
                ConflictKind::Holders(holders) => holders.clone(),
                ConflictKind::Cooling { .. } | ConflictKind::Waiters => Holders::none(),
            };
            self.0.extras.name = Some(first.name.clone());
            self.0.extras.holders = Some(holders);
            self.0.extras.queue_length = Some(first.queue_length);
        }
        self.0.extras.blocked_by = Some(blocked_by);
        self
    }

    /// Adds the position of the claim, and how long it keeps its place.
    fn with_position(self, not_granted: NotGranted, token: Token) -> Self {
        let mut refusal = self
            .with_conflicts(not_granted.blocked_by)
            .with_token(token);
        let extras = &mut refusal.0.extras;
        extras.place_kept = Some(not_granted.place_kept);
        if let Some(position) = not_granted.position {
            extras.position = Some(position.position);
            extras.queue_length = Some(position.queue_length);
        }
        refusal
    }

    fn retry_at_once(mut self) -> Self {
        self.0.retry_after = Some(Duration::ZERO);
        self
    }
}

/// The code of a request for this lock alone.
pub(super) fn code_of(how: &NotHolder) -> Code {
    match how {
        NotHolder::Expired => Code::LeaseExpired,
        NotHolder::Lost => Code::LeaseLost,
        NotHolder::Evicted { .. } => Code::LeaseEvicted,
        NotHolder::Released => Code::LeaseReleased,
        NotHolder::Unknown => Code::TokenUnknown,
    }
}

/// How dangerous it is for the client to continue its work: the highest is for certainty that another claim may hold
/// the lock, the lowest for an end that the client caused itself.
fn severity(how: &NotHolder) -> u8 {
    match how {
        NotHolder::Evicted { .. } => 4,
        NotHolder::Lost => 3,
        NotHolder::Expired => 2,
        NotHolder::Unknown => 1,
        NotHolder::Released => 0,
    }
}

fn retry_after_conflict(conflict: &Conflict) -> Duration {
    match &conflict.by {
        ConflictKind::Holders(holders) => {
            let soonest = holders.listed.iter().map(|holder| holder.expires_in).min();
            soonest.map_or(RETRY_HELD_MAX, |soonest| soonest.min(RETRY_HELD_MAX))
        }
        ConflictKind::Cooling { free_in } => *free_in,
        ConflictKind::Waiters => RETRY_QUEUED,
    }
}
