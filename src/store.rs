//! Where the truth lives: the contract that every store keeps, and the errors that a store may answer with.
//!
//! Nothing here knows HTTP, and nothing here waits: a store answers at once what is so, and waiting is the service's.
//! How a store is chosen and what it needs is in [`open`].

pub mod memory;
mod pace;
pub mod redis;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use thiserror::Error;
use tokio::time::Instant;

use crate::config::{Config, StoreUrl};
use crate::domain::{
    Acquired, Attempt, Claim, ClaimDigest, Evicted, HoldCount, Listing, LockEvent, LockName,
    LockNames, LockView, QueueRequest, Released, RenewOptions, Renewed, Rollback, Suspended, Token,
};

/// How long an ended claim is remembered, so that a late or repeated request with its token finds out.
pub const TOMBSTONE_TTL: Duration = Duration::from_secs(60);

/// How long a lock that opened is kept for the first waiter's process before it gets its [`LAST_CALL`].
pub const RESERVATION_TTL: Duration = Duration::from_millis(700);

/// How much longer the lock is kept from when somebody finds the offer to be over; then the next process gets its turn. When
/// everything has stood still for a while, the first request that is executed must not find that others came too late.
pub const LAST_CALL: Duration = Duration::from_millis(300);

/// What a store method returns.
pub type StoreFuture<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// A place where leases are kept.
///
/// # Contract
///
/// - **One clock.** Every decision is made by the store's own clock, in one atomic step per method. The caller's
///   clock is used for `deadline` and nothing else.
/// - **Attempts may be rolled back.** The attempt that made a grant may [`withdraw`](Self::withdraw) it, until another
///   attempt of the claim is told of it, or a renewal that does not say otherwise. An attempt that takes over may withdraw
///   what it finds held, from the step in which it is told.
/// - **Tokens identify claims.** A claim on a lock is the pair of the lock and a token. Asking again for a claim that
///   holds changes nothing but its depth, and that only upwards; asking for one that ended is [`Acquired::Ended`] for
///   [`REMEMBERED`] after the end. Methods that act on a claim change nothing for a token that does not hold.
/// - **Order.** Each grant of a lock carries a larger fencing token than every grant of that lock before it. It grows
///   on grants alone: not on renewal, re-entry or replay.
/// - **Time.** A lease ends `ttl` after the grant or the last renewal, and never later than `max_hold` after the
///   grant. From that moment on the claim does not hold, whatever is asked first.
/// - **Sharing.** Shared claims hold together as long as their permits fit into their common limit; each has its own
///   token, time and fencing token. An exclusive claim holds alone.
/// - **All or none.** A claim on several locks is granted all of them in one step, or none.
/// - **Queue.** A claim that comes with a [`QueueRequest`] and cannot be granted stands in the queue of each of its locks, in
///   the order of arrival, shared and exclusive claims alike. It is granted when its locks admit it and it is the first
///   in each queue that somebody still waits for. Asking again with the same token is how a waiter looks after its
///   place: it never loses the place, and it is granted by the answer. A claim that is fair does not overtake a queue,
///   whether it would wait or not.
/// - **Offers.** When a lock that is waited for opens, the process of the first waiter hears
///   [`Listener::offered`]; the lock is kept for it for [`OFFER`] and a [`LAST_CALL`], then the next process gets its
///   turn. Losing that message delays a waiter until it looks again by itself, and does nothing else. Silence alone costs
///   nobody a place: a store cannot tell the silence of a process from its own absence.
/// - **Closed locks.** After a release before `min_hold`, and for `lock_delay` after an expiry or an eviction, the
///   lock is granted to nobody; of a shared lock, what the ended lease took is not granted.
/// - **No trace.** A lock that is free, not closed, not waited for, and whose last claim ended more than
///   [`REMEMBERED`] ago takes no room, but for its bucket's fencing counter.
/// - **Nothing late.** A renewal, a step back or an eviction changes nothing after its deadline, nor is a claim entered
///   again then, however long it was on its way to the store. Unknown outcomes of these are not told sooner.
/// - **Errors tell the effect.** [`StoreError::Unavailable`] means that nothing was done, [`StoreError::Unknown`] that
///   it may have been. Every method can be repeated after either.
///
/// # Cancel safety
/// Dropping a future leaves the outcome unknown. Whoever may drop one must be ready to [`withdraw`](Self::withdraw).
pub trait LockStore: Send + Sync + fmt::Debug {
    /// Grants its locks to the claim if nothing is in the way, or says why not.
    ///
    /// With a `stand`, a claim that cannot be granted comes to stand in the queue, or goes on standing there. The same
    /// request asks again and again with the same `attempt`, and with the place that it was told last.
    fn acquire<'a>(
        &'a self,
        claim: &'a Claim,
        attempt: Attempt,
        stand: Option<&'a QueueRequest>,
        deadline: Instant,
    ) -> StoreFuture<'a, Acquired>;

    /// Takes a waiting claim out of the queue of this process and keeps its place for `keep`: posted again within that
    /// time, on any process, it stands where it stood. Nobody waits for it meanwhile. Changes nothing for a claim that
    /// does not wait.
    fn suspend<'a>(
        &'a self,
        claim: &'a Claim,
        keep: Duration,
        deadline: Instant,
    ) -> StoreFuture<'a, Suspended>;

    /// Ends what `attempt` was granted or took over, or keeps it from being granted, or queued, should its request arrive
    /// late; that is remembered of the last attempts of a claim, at least 32.
    ///
    /// A grant that a later attempt of the same claim was told of stays. The claim does not count as ended: its token
    /// may be posted again.
    fn withdraw<'a>(
        &'a self,
        claim: &'a Claim,
        attempt: Attempt,
        rollback: Rollback,
        deadline: Instant,
    ) -> StoreFuture<'a, ()>;

    /// Lets the leases on all of these locks last longer from now, or none of them. Never creates a lease.
    fn renew<'a>(
        &'a self,
        names: &'a LockNames,
        token: Token,
        change: RenewOptions,
        deadline: Instant,
    ) -> StoreFuture<'a, Renewed>;

    /// Ends the claim on each of these locks, or steps it back to `hold_count` where one is given and the claim holds
    /// deeper. A claim that waits leaves the queue. The answer has one entry for each name: what the token does not hold
    /// does not keep the rest from being released.
    fn release<'a>(
        &'a self,
        names: &'a LockNames,
        token: Token,
        hold_count: Option<HoldCount>,
        deadline: Instant,
    ) -> StoreFuture<'a, Vec<Released>>;

    /// Takes the lock away from its holders, in as many steps as there is time for, and returns who they were. They are
    /// told `reason` when they ask.
    fn evict<'a>(
        &'a self,
        name: &'a LockName,
        reason: &'a str,
        deadlines: Deadlines,
    ) -> StoreFuture<'a, Evicted>;

    /// What the lock is doing.
    fn inspect<'a>(&'a self, name: &'a LockName, deadline: Instant) -> StoreFuture<'a, LockView>;

    /// One page of the locks that are held or waited for, in the order of names: no lock twice, and none left out that
    /// stays so. All listings of a process take a small share of the store's time together, in small steps.
    fn list<'a>(&'a self, query: &'a ListQuery, deadlines: Deadlines) -> StoreFuture<'a, Listing>;

    /// Looks after the store itself: checks what it stands on, drops what is due. Called every few seconds.
    fn refresh_health(&self) -> BoxFuture<'_, ()>;

    /// Does what needs a look at every lock, if it is due: counts those that are held, and puts right what a clock that was
    /// set back has left. Called as often as [`refresh_health`](Self::survey) and apart from it, because it may take as long as looking
    /// at millions of locks takes.
    fn sweep(&self) -> BoxFuture<'_, ()>;

    /// What the last [`refresh_health`](Self::survey) found. Does no I/O.
    fn health(&self) -> StoreHealth;

    /// Names who is told what happens in the store, once and before the first operation. Nobody else is told.
    fn set_listener(&self, listener: Arc<dyn Listener>);

    /// Says whether this process wants to hear of events. While no process does, nobody tells any. The future completes
    /// when all events that begin from now on are told, or when that cannot be made sure of; in that case
    /// [`Listener::events_lost`] follows when it can.
    fn set_event_delivery(&self, wanted: bool) -> BoxFuture<'_, ()>;
}

/// Who is told what happens in a store. Called in the middle of the store's own work, so nothing here may wait or ask the
/// store.
pub trait Listener: Send + Sync + fmt::Debug {
    /// The lock is offered to the first of this process's waiters.
    fn reserved(&self, name: &LockName);

    /// Whoever held the lock was evicted, by any process. Those who hold leases for others ask what is left of them.
    fn evicted(&self, name: &LockName);

    /// A request released a lease of this claim that a stream may hold, at any process. The stream asks what is left of it.
    fn released(&self, name: &LockName, claim: ClaimDigest);

    /// Something happened to a lock.
    fn event(&self, event: LockEvent);

    /// Offers may have been lost.
    fn messages_lost(&self);

    /// Events may have been lost, though this process wants to hear of them. All that begin from now on are told.
    fn events_lost(&self);
}

/// How much time there is for an operation of many steps.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// How long one step may take.
    pub step: Duration,
    /// By when all must be over.
    pub end: Instant,
}

impl Deadlines {
    /// By when a step must be over that begins now.
    #[must_use]
    pub fn of_step(&self) -> Instant {
        self.end.min(Instant::now() + self.step)
    }
}

/// Which page of which locks.
#[derive(Clone, Debug)]
pub struct ListQuery {
    /// Only names that begin so; empty for all.
    pub prefix: String,
    /// Only names after this one.
    pub after: Option<LockName>,
    /// At most this many locks; fewer where the page has no room for them.
    pub page_size: usize,
}

/// What a store could not do.
#[derive(Clone, Debug, Error)]
pub enum StoreError {
    /// Nothing was done.
    #[error("{fault}: {detail}; nothing was done")]
    Unavailable {
        /// The kind, for metrics.
        fault: Fault,
        /// For the log, not for callers.
        detail: String,
    },
    /// It may have been done or not.
    #[error("{fault}: {detail}; the outcome is unknown")]
    Unknown {
        /// The kind, for metrics.
        fault: Fault,
        /// For the log, not for callers.
        detail: String,
    },
}

impl StoreError {
    /// Nothing was done.
    pub(crate) fn unavailable(fault: Fault, detail: impl fmt::Display) -> Self {
        Self::Unavailable {
            fault,
            detail: detail.to_string(),
        }
    }

    /// It may have been done or not.
    pub(crate) fn unknown(fault: Fault, detail: impl fmt::Display) -> Self {
        Self::Unknown {
            fault,
            detail: detail.to_string(),
        }
    }

    /// What happened, for the log and for operators.
    #[must_use]
    pub fn detail(&self) -> &str {
        match self {
            Self::Unavailable { detail, .. } | Self::Unknown { detail, .. } => detail,
        }
    }

    /// The kind, for metrics.
    #[must_use]
    pub fn fault(&self) -> Fault {
        match self {
            Self::Unavailable { fault, .. } | Self::Unknown { fault, .. } => *fault,
        }
    }
}

/// Kinds of failure, few enough for a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// No answer before the deadline.
    Timeout,
    /// No connection, or it broke.
    Io,
    /// The store refused the credentials or the command.
    Auth,
    /// The store is a replica, or has too few replicas to accept writes.
    ReadOnly,
    /// The store is starting or busy with a script.
    Busy,
    /// The store has no memory for another lease.
    Full,
    /// The store keeps as much as it may by its own limit.
    Limit,
    /// The store is configured so that it would lose leases.
    Refused,
    /// The store answered what it should never answer.
    Corrupt,
}

impl Fault {
    /// All kinds, for metrics that are present from the start.
    pub const ALL: [Self; 9] = [
        Self::Timeout,
        Self::Io,
        Self::Auth,
        Self::ReadOnly,
        Self::Busy,
        Self::Full,
        Self::Limit,
        Self::Refused,
        Self::Corrupt,
    ];

    /// The metric label.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Io => "io",
            Self::Auth => "auth",
            Self::ReadOnly => "readonly",
            Self::Busy => "busy",
            Self::Full => "full",
            Self::Limit => "limit",
            Self::Refused => "refused",
            Self::Corrupt => "corrupt",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// What is known about a store without asking it.
#[derive(Clone, Debug, Default)]
pub struct StoreHealth {
    /// Whether the store has answered at least once since the process began.
    pub contacted: bool,
    /// Whether it answered last time.
    pub up: bool,
    /// Why it did not, for operators.
    pub trouble: Option<String>,
    /// Why grants are refused, where the store is configured so that it would lose leases.
    pub refused: Option<String>,
    /// How long new grants still wait, because the store was away or may have lost data.
    pub recovering_for: Option<Duration>,
    /// What was found, for people: a topic and what is to be said about it.
    pub findings: Vec<Finding>,
    /// Locks held at the last count, across all processes; none until counted.
    pub held_locks: Option<u64>,
    /// By how much the store's clock is ahead of this machine's, in milliseconds.
    pub clock_offset_ms: Option<i64>,
    /// The pool, where there is one.
    pub pool: Option<PoolHealth>,
    /// Answers that did not belong to their request; always 0 unless the client library is broken.
    pub response_mismatches: u64,
}

/// One thing that a survey found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What it is about, such as `maxmemory-policy`.
    pub topic: &'static str,
    /// Whether it is as it should be.
    pub is_fine: bool,
    /// What was found and, if it is not fine, what to do.
    pub detail: String,
}

/// How many connections there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolHealth {
    /// Open connections.
    pub open: u32,
    /// How many there may be.
    pub max: u32,
}

/// Opens the store that the configuration names.
///
/// # Errors
/// The store answers, and it is configured so that it would lose leases. A store that does not answer is no error: the
/// service starts unready and goes on trying.
pub async fn open(config: &Config) -> Result<Arc<dyn LockStore>, StoreError> {
    match &config.store {
        StoreUrl::Memory => Ok(Arc::new(memory::MemoryStore::new(config.memory.locks_max))),
        StoreUrl::Redis(address) => Ok(Arc::new(
            redis::RedisStore::open(address, &config.redis, config.lease.ttl_max).await?,
        )),
    }
}
