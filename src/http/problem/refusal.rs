//! What becomes of operations on locks when it is not what the client asked for.

use std::time::Duration;

use super::body::{Ended, ProblemOutcome};
use super::{Code, Problem};
use crate::domain::{
    Conflict, ConflictKind, Holders, LockName, Mismatch, NotHeld, NotHolder, Token,
};
use crate::limits::Limit;
use crate::service::{NotGranted, QueueFull};

/// How often a held lock is worth asking for, at the least, in however long a lease it is held.
const RETRY_HELD_MAX: Duration = Duration::from_secs(5);
/// When those who came first may have gone on.
const RETRY_QUEUED: Duration = Duration::from_secs(1);
/// When a queue that is full, or a process that is stopping, is worth asking again.
const RETRY_CROWDED: Duration = Duration::from_secs(1);
/// A client that waited this long may ask again at once: it cannot do so more often than that.
const WAITED_LONG: Duration = Duration::from_secs(1);

impl Problem {
    /// Something is in the way of the claim, which did not want to wait.
    pub(in crate::http) fn blocked(blocked_by: Vec<Conflict>) -> Self {
        let (code, detail) = match blocked_by.first().map(|blockade| &blockade.by) {
            Some(ConflictKind::Holders(_)) | None => {
                (Code::LockHeld, "the lock is held by another claim")
            }
            Some(ConflictKind::Cooling { .. }) => (
                Code::LockCooling,
                "nobody holds the lock, but it stays closed for a while after its last lease",
            ),
            Some(ConflictKind::Waiters) => (
                Code::LockHeld,
                "others wait for the lock and came first; it is theirs next",
            ),
        };
        let retry_after = blocked_by.iter().map(retry_after_conflict).max();
        Self::new(code, detail)
            .with_conflicts(blocked_by)
            .retry_after(retry_after.unwrap_or(RETRY_HELD_MAX))
    }

    /// The time for waiting is over.
    pub(in crate::http) fn timed_out(unserved: NotGranted, token: Token, waited: Duration) -> Self {
        let detail = if unserved.blocked_by.is_empty() {
            "the wait is over; what is in the way is not known, or new grants wait because the store was away; the claim \
             keeps its place for a while, so go on with the same token"
        } else {
            "the wait is over; the claim keeps its place for a while, so go on with the same token"
        };
        let refusal = Self::new(Code::WaitTimeout, detail).with_position(unserved, token);
        if waited >= WAITED_LONG {
            refusal.retry_at_once()
        } else {
            refusal.retry_after(WAITED_LONG)
        }
    }

    /// The process is about to stop. Who was told so before asks for the second time, and need not hurry.
    pub(in crate::http) fn draining(unserved: NotGranted, token: Token, had_begun: bool) -> Self {
        let detail =
            "this process is about to stop; ask again with the same token, and another one goes on";
        let mut refusal = Self::new(Code::Draining, detail).with_position(unserved, token);
        refusal.0.extras.outcome = Some(ProblemOutcome::NothingDone);
        if had_begun {
            refusal.retry_after(RETRY_CROWDED)
        } else {
            refusal.retry_at_once()
        }
    }

    /// The process is about to stop, and leaves to the holder what it held for it.
    pub(in crate::http) fn stream_draining(token: Token) -> Self {
        let detail = "this process is about to stop; the lease or the place in the queue is kept, so go on at once \
                      with the same token";
        Self::new(Code::Draining, detail)
            .with_token(token)
            .retry_at_once()
    }

    /// There are too many waiters already.
    pub(in crate::http) fn too_many_waiters(crowd: QueueFull) -> Self {
        let refusal = match crowd {
            QueueFull::Lock { name, queue_length } => {
                let detail = "as many claims wait for the lock as may; this one was not let in";
                let mut refusal = Self::new(Code::TooManyWaiters, detail);
                refusal.0.extras.name = Some(name);
                refusal.0.extras.queue_length = Some(queue_length);
                refusal
            }
            QueueFull::Process { waiters } => Self::new(
                Code::TooManyWaiters,
                format!(
                    "{waiters} claims wait on this process, which is as many as may; one counts for each of its locks"
                ),
            ),
            QueueFull::Peer => Self::new(
                Code::TooManyWaiters,
                "as many claims of this address wait on this process as may; one counts for each of its locks",
            ),
        };
        refusal.retry_after(RETRY_CROWDED)
    }

    /// One peer, or all together, have too much under way.
    pub(in crate::http) fn over_limit(limit: Limit) -> Self {
        let (code, detail) = match limit {
            Limit::ConnectionsPerPeer
            | Limit::Http2ConnectionsPerPeer
            | Limit::RequestsPerPeer
            | Limit::OperationsPerPeer
            | Limit::RenewalsPerPeer
            | Limit::ListingsPerPeer
            | Limit::EventStreamsPerPeer
            | Limit::WaitersPerPeer
            | Limit::BodyBytesPerPeer => (
                Code::RateLimited,
                "this address has as many requests under way as one address may have",
            ),
            Limit::AnswerBytesPerPeer => (
                Code::RateLimited,
                "the answers to this address that it has not read are as large as they may be",
            ),
            Limit::AnswerBytes => (
                Code::Overloaded,
                "the answers of this process that nobody has read are as large as they may be",
            ),
            Limit::ConnectionsReserved
            | Limit::Http2Connections
            | Limit::Http2Flood
            | Limit::Requests
            | Limit::BodyBytes
            | Limit::HeadTimeout
            | Limit::WriteTimeout
            | Limit::AnswerTimeout
            | Limit::Operations
            | Limit::Listings
            | Limit::EventStreams
            | Limit::Waiters
            | Limit::Locks
            | Limit::Renewals => (
                Code::Overloaded,
                "this process has as many requests under way as it may have",
            ),
        };
        // Where only the answer is refused, what it was to tell of has come about.
        let is_done = matches!(limit, Limit::AnswerBytesPerPeer | Limit::AnswerBytes);
        let outcome = match is_done {
            true => ProblemOutcome::Unknown,
            false => ProblemOutcome::NothingDone,
        };
        let mut refusal = Self::new(code, detail);
        refusal.0.extras.outcome = Some(outcome);
        refusal.retry_after(RETRY_CROWDED)
    }

    /// Waiting cannot help.
    pub(in crate::http) fn mismatch(contradiction: Mismatch) -> Self {
        let (mut refusal, name) = match contradiction {
            Mismatch::Limit { name, in_force } => {
                let detail = match in_force {
                    Some(limit) => format!("those who hold the lock agreed on the limit {limit}"),
                    None => "those who hold the lock read it, without a limit".to_owned(),
                };
                let mut refusal = Self::new(Code::LimitMismatch, detail);
                refusal.0.extras.limit_in_force = Some(in_force);
                (refusal, name)
            }
            Mismatch::Upgrade { name } => {
                let detail =
                    "the claim shares the lock and cannot come to hold it alone; release it first";
                (Self::new(Code::UpgradeUnsupported, detail), name)
            }
            Mismatch::Claim { name } => {
                let detail = "the claim of this token was made with another mode, limit or permits, or on other locks";
                (Self::new(Code::ClaimMismatch, detail), name)
            }
        };
        refusal.0.extras.name = Some(name);
        refusal
    }

    /// New grants wait.
    pub(in crate::http) fn recovering(retry_in: Duration, token: Token) -> Self {
        let mut refusal = Self::new(
            Code::Recovering,
            "the store was away, or may have lost data; new grants wait until every process has been heard, and every \
             lease that may have been lost is over",
        );
        refusal.0.extras.outcome = Some(ProblemOutcome::NothingDone);
        refusal.retry_after(retry_in).with_token(token)
    }

    /// A claim cannot be granted again.
    pub(in crate::http) fn claim_ended(lost: NotHeld) -> Self {
        let (ended, reason, how) = match lost.reason {
            NotHolder::Released => (Ended::Released, None, "it was released"),
            NotHolder::Expired | NotHolder::Lost => (Ended::Expired, None, "its lease ran out"),
            NotHolder::Evicted { reason } => (
                Ended::Evicted,
                Some(reason),
                "an operator took the lock away",
            ),
            NotHolder::Unknown => (Ended::Unknown, None, "it is no longer known how"),
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

    /// The token does not hold the lock (any more).
    pub(in crate::http) fn not_holder(lost: NotHeld) -> Self {
        let detail = match &lost.reason {
            NotHolder::Expired => {
                "the lease ran out before this request; stop what the lock protects"
            }
            NotHolder::Lost => {
                "the lease ran out and the lock went to another claim; stop what the lock protects"
            }
            NotHolder::Evicted { .. } => {
                "an operator took the lock away; stop what the lock protects"
            }
            NotHolder::Released => {
                "the claim was released with this token before; stop what the lock protects"
            }
            NotHolder::Unknown => {
                "no lease of this lock is known by this token: its claim waits still, was never granted, was given back \
                 because its stream or connection closed, or ended over a minute ago"
            }
        };
        let mut refusal = Self::new(code_of(&lost.reason), detail);
        refusal.0.extras.name = Some(lost.name);
        if let NotHolder::Evicted { reason } = lost.reason {
            refusal.0.extras.reason = Some(reason);
        }
        refusal
    }

    /// The token does not hold all of several locks. `rest` says what became of the others.
    pub(in crate::http) fn lost(lost: Vec<NotHeld>, rest: &str) -> Self {
        let worst = lost.iter().max_by_key(|lost| severity(&lost.reason));
        let code = worst.map_or(Code::TokenUnknown, |worst| code_of(&worst.reason));
        let count = lost.len();
        let detail = format!("this token does not hold {count} of the locks, see `lost`; {rest}");
        let mut refusal = Self::new(code, detail);
        refusal.0.extras.lost = Some(lost);
        refusal
    }

    /// Some holders of the lock were evicted, and then there was no time for the rest, or the store was gone.
    pub(in crate::http) fn eviction_unfinished(name: LockName, evicted: &Holders) -> Self {
        let count = evicted.total;
        let detail = format!(
            "{count} holders were evicted before the time was over, and others hold the lock still; evict again to go on"
        );
        let mut refusal = Self::new(Code::StoreUnavailable, detail);
        refusal.0.extras.name = Some(name);
        refusal.0.extras.evicted_total = Some(count);
        refusal.0.extras.outcome = Some(ProblemOutcome::Unknown);
        refusal.retry_after(RETRY_CROWDED)
    }

    /// The members of the first lock in the way, and all of them.
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

    /// Where the claim stands, and how long it may stay away.
    fn with_position(self, unserved: NotGranted, token: Token) -> Self {
        let mut refusal = self.with_conflicts(unserved.blocked_by).with_token(token);
        let extras = &mut refusal.0.extras;
        extras.place_kept = Some(unserved.place_kept);
        if let Some(position) = unserved.position {
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

/// What a request for this lock alone is answered with.
pub(super) fn code_of(how: &NotHolder) -> Code {
    match how {
        NotHolder::Expired => Code::LeaseExpired,
        NotHolder::Lost => Code::LeaseLost,
        NotHolder::Evicted { .. } => Code::LeaseEvicted,
        NotHolder::Released => Code::LeaseReleased,
        NotHolder::Unknown => Code::TokenUnknown,
    }
}

/// How much harm there may be in going on: others may be at work, or it is at least not known that they are not.
fn severity(how: &NotHolder) -> u8 {
    match how {
        NotHolder::Evicted { .. } => 4,
        NotHolder::Lost => 3,
        NotHolder::Expired => 2,
        NotHolder::Unknown => 1,
        NotHolder::Released => 0,
    }
}

fn retry_after_conflict(blockade: &Conflict) -> Duration {
    match &blockade.by {
        ConflictKind::Holders(holders) => {
            let soonest = holders.listed.iter().map(|holder| holder.expires_in).min();
            soonest.map_or(RETRY_HELD_MAX, |soonest| soonest.min(RETRY_HELD_MAX))
        }
        ConflictKind::Cooling { free_in } => *free_in,
        ConflictKind::Waiters => RETRY_QUEUED,
    }
}
