//! The contract of every store, and the errors that a store may return.
//!
//! Nothing here knows HTTP, and nothing here waits: a store answers at once, and the service does the waiting. [`open`]
//! chooses the store and states what it needs.

pub mod assignment;
pub mod counting;
mod error;
pub mod file;
mod listener;
pub mod memory;
mod pace;
pub mod quorum;
pub mod redis;
pub mod state;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use crate::config::{Config, QuorumAddress, StoreUrl};
use crate::domain::{
    Acquired, Attempt, Claim, Evicted, Listing, LockName, LockNames, LockView, NamePrefixes,
    QueueRequest, Released, RenewOptions, Renewed, Rollback, StepBack, SuspendOptions, Suspended,
    Token,
};

pub use counting::CountLeases;
pub use error::{Fault, StoreError};
pub use listener::Listener;

/// How long the tombstone of an ended claim is kept, so that late or repeated requests with its token learn of the end.
pub const TOMBSTONE_TTL: Duration = Duration::from_secs(60);

/// How long a lock that opened is first reserved for the head waiter's process.
pub const RESERVATION_TTL: Duration = Duration::from_millis(700);

/// How much longer a reservation lasts, counted from when a request first finds it expired; then the next process gets
/// its turn. After a stall of the whole system, the first request to run must not find all the others too late.
pub const RESERVATION_EXTENSION: Duration = Duration::from_millis(300);

/// How often a store is checked that has no setting for it.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// What a store method returns.
pub type StoreResult<T> = Result<T, StoreError>;

/// A place where leases are kept.
///
/// # Contract
///
/// - **One clock.** Every decision is made by the store's own clock, in one atomic step per method. The caller's clock
///   is used for `deadline` and nothing else.
/// - **Attempts may be rolled back.** The attempt that made a grant may [`withdraw`](Self::withdraw) it, until the
///   store replays the grant to another attempt of the claim, or renews it without keeping the right. An attempt that
///   takes over may withdraw the lease that it found, from the step that took it over.
/// - **Tokens identify claims.** A claim on a lock is the pair of the lock and a token. Acquiring again while the claim
///   holds changes nothing but its hold count, and that only upwards; acquiring a claim that ended returns
///   [`Refused::Ended`](crate::domain::Refused::Ended) for [`TOMBSTONE_TTL`] after the end. Methods that act on a claim
///   change nothing for a token that does not hold.
/// - **Order.** Each grant of a lock carries a larger fencing token than every grant of that lock before it. It grows
///   on grants alone: not on renewal, re-entry or replay.
/// - **Time.** A lease ends `ttl` after the grant or the last renewal, and never later than `max_hold` after the grant.
///   From that moment on the claim does not hold, whichever operation comes first.
/// - **Sharing.** Shared claims hold together as long as their permits fit into their common limit; each has its own
///   token, time and fencing token. An exclusive claim holds alone.
/// - **All or none.** A claim on several locks is granted all of them in one step, or none.
/// - **Queue.** A claim with a [`QueueRequest`] that cannot be granted is enqueued on each of its locks, in the order
///   of arrival, shared and exclusive claims alike. It is granted when its locks admit it and it is first in each
///   queue, not counting claims without a waiting request. A waiter polls by acquiring again with the same token: this
///   never loses its place, and a poll's answer delivers the grant. A fair claim does not overtake a queue, whether it
///   would wait or not.
/// - **Reservations.** When a lock with waiters opens, the store calls [`Listener::reserved`] on the head waiter's
///   process and keeps the lock for it for [`RESERVATION_TTL`] and a [`RESERVATION_EXTENSION`], or longer while it
///   delivers messages late; then the next process gets its turn. Losing that message delays a waiter until its next
///   poll, and has no other effect. Silence alone costs no waiter its place: a store cannot distinguish a silent
///   process from its own outage.
/// - **Closed locks.** After a release before `min_hold`, and for `lock_delay` after an expiry or an eviction, the lock
///   is not granted; of a shared lock, the permits of the ended lease are not.
/// - **No trace.** A lock that is free, not closed, not waited for, and whose last claim ended more than
///   [`TOMBSTONE_TTL`] ago takes no memory, but for its bucket's fencing counter.
/// - **Nothing late.** After its deadline, a renewal, a step back or an eviction changes nothing, and a claim is not
///   re-entered, however late the command reaches the store. An unknown outcome of these is not reported sooner.
/// - **Errors state the effect.** [`StoreError::Unavailable`] means that nothing was done, [`StoreError::Unknown`] that
///   it may have been. Every method can be repeated after either.
///
/// # Cancel safety
/// Dropping a future leaves the outcome unknown. A caller that may drop one must be ready to
/// [`withdraw`](Self::withdraw).
#[async_trait]
pub trait LockStore: CountLeases + Send + Sync + fmt::Debug {
    /// Grants its locks to the claim if nothing is in the way, or returns why not.
    ///
    /// With a `request`, a claim that cannot be granted is enqueued, or keeps its place. Each poll of the same request
    /// repeats the `attempt` and carries the last ticket that it was given.
    async fn acquire(
        &self,
        claim: &Claim,
        attempt: Attempt,
        request: Option<&QueueRequest>,
        deadline: Instant,
    ) -> StoreResult<Acquired>;

    /// Removes a waiting claim from the queue of this process and keeps its place for a while: until then, a request on any
    /// process continues from there, and nobody waits for it. Changes nothing for a claim that does not wait.
    async fn suspend(
        &self,
        claim: &Claim,
        options: SuspendOptions,
        deadline: Instant,
    ) -> StoreResult<Suspended>;

    /// Ends the leases that `attempt` was granted or took over. Keeps the attempt from being granted or queued if its
    /// request arrives late; the store remembers this for the last attempts of a claim, at least 32.
    ///
    /// A grant that was replayed to a later attempt of the same claim stays. The claim does not count as ended: its
    /// token may be used again.
    ///
    /// Returns how many leases this has ended, by this call alone: a repeated one ends none.
    async fn withdraw(
        &self,
        claim: &Claim,
        attempt: Attempt,
        rollback: Rollback,
        deadline: Instant,
    ) -> StoreResult<usize>;

    /// Extends the leases on all of these locks, or on none. Never creates a lease.
    async fn renew(
        &self,
        names: &LockNames,
        token: Token,
        change: RenewOptions,
        deadline: Instant,
    ) -> StoreResult<Renewed>;

    /// Ends the claim on each of these locks, or only lowers its hold count. A waiting claim leaves the queue. The answer
    /// has one entry per name: locks that the token does not hold do not keep the others from being released.
    async fn release(
        &self,
        names: &LockNames,
        token: Token,
        step_back: Option<StepBack>,
        deadline: Instant,
    ) -> StoreResult<Vec<Released>>;

    /// Takes the lock away from its holders, in as many steps as time permits, and returns them. Their later requests
    /// get `reason`.
    async fn evict(
        &self,
        name: &LockName,
        reason: &str,
        deadlines: Deadlines,
    ) -> StoreResult<Evicted>;

    /// The state of the lock, and the nodes of a quorum that disagree.
    async fn inspect(&self, name: &LockName, deadline: Instant) -> StoreResult<LockView>;

    /// The state of the lock alone, for decisions of the service: no node is waited for to be compared.
    async fn view(&self, name: &LockName, deadline: Instant) -> StoreResult<LockView> {
        self.inspect(name, deadline).await
    }

    /// One page of the locks that are held or waited for, in the order of names: no lock twice, and no lock missing
    /// that stays held or waited for throughout. All listings of a process together take a small share of the store's
    /// time, in small steps.
    async fn list(&self, query: &ListQuery, deadlines: Deadlines) -> StoreResult<Listing>;

    /// Checks the state of the store itself and drops entries that are due. Called every few seconds.
    async fn refresh_health(&self);

    /// How often to call [`refresh_health`](Self::refresh_health) and [`sweep`](Self::sweep).
    fn check_interval(&self) -> Duration {
        CHECK_INTERVAL
    }

    /// Does the work that visits every lock, if it is due: counts the held ones, and repairs the effects of a clock
    /// that was set back. Called as often as [`refresh_health`](Self::refresh_health) but apart from it, because
    /// visiting millions of locks takes long.
    async fn sweep(&self);

    /// What traces call the store, if they have a span for each of its operations; `None` if it records its own.
    fn traced_as(&self) -> Option<&'static str> {
        None
    }

    /// The result of the last [`refresh_health`](Self::refresh_health). Does no I/O.
    fn health(&self) -> StoreHealth;

    /// Sets the only listener, once and before the first operation.
    fn set_listener(&self, listener: Arc<dyn Listener>);

    /// Sets whether this process receives events. While no process does, none are published. The future completes when
    /// every event from now on will be delivered, or when the store cannot ensure that; in that case
    /// [`Listener::events_lost`] follows as soon as it can.
    async fn set_event_delivery(&self, wanted: bool);

    /// Ends the store's own work, after the last operation.
    async fn close(&self) {}
}

/// The time limits of an operation of many steps.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// How long one step may take.
    pub step: Duration,
    /// When the whole operation must be over.
    pub end: Instant,
}

impl Deadlines {
    /// The deadline of a step that begins now.
    #[must_use]
    pub fn of_step(&self) -> Instant {
        self.end.min(Instant::now() + self.step)
    }
}

/// Selects one page of a listing.
#[derive(Clone, Debug)]
pub struct ListQuery {
    /// Only names with this prefix; empty for all.
    pub prefix: String,
    /// Only these names; `None` for all.
    pub within: Option<NamePrefixes>,
    /// Only names after this one.
    pub after: Option<LockName>,
    /// [`Listing::snapshot`] of the page before.
    pub snapshot: Option<u64>,
    /// At most this many locks; fewer if the page has no room for them.
    pub page_size: usize,
}

impl ListQuery {
    /// Whether this lock is among those to list, if it has the prefix.
    #[must_use]
    pub fn has(&self, name: &LockName) -> bool {
        self.within.as_ref().is_none_or(|within| within.cover(name))
    }
}

/// What is known about a store without contacting it.
#[derive(Clone, Debug, Default)]
pub struct StoreHealth {
    /// Whether the store has answered at least once since the process started.
    pub contacted: bool,
    /// Whether it answered the last check.
    pub up: bool,
    /// Why it did not, for operators.
    pub trouble: Option<String>,
    /// Why grants are refused, if the store is configured in a way that would lose leases.
    pub refused: Option<String>,
    /// How long new grants still wait, because the store was unavailable or may have lost data.
    pub recovering_for: Option<Duration>,
    /// The findings of the last check, for people to read.
    pub findings: Vec<Finding>,
    /// Locks held at the last count, across all processes; none until counted.
    pub held_locks: Option<u64>,
    /// The steps of this process that have visited all locks for listings, and for counts.
    pub scan_steps: ScanSteps,
    /// By how much the store's clock is ahead of this machine's, in milliseconds.
    pub clock_offset_ms: Option<i64>,
    /// The connection pool, if there is one.
    pub pool: Option<PoolHealth>,
    /// The file of the store, if there is one.
    pub disk: Option<DiskHealth>,
    /// Answers that did not belong to their request; always 0 unless the client library is broken.
    pub response_mismatches: u64,
    /// Tries of claims that were not granted because the fencing counter was missing, or behind a token that this process
    /// has seen.
    pub fencing_regressions: u64,
    /// The nodes, if a majority of several decides.
    pub nodes: Vec<NodeHealth>,
}

/// Steps of work that visits all locks, each of which keeps the store busy for less than a millisecond or so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanSteps {
    /// Those of listings, and of corrections after the clock was set back.
    pub listings: u64,
    /// Those of counts of held locks.
    pub counts: u64,
}

/// One node of a quorum.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeHealth {
    /// Its URL, without credentials.
    pub address: String,
    /// Whether it counts towards a majority.
    pub votes: bool,
    /// By how much its clock is ahead of this machine's, in milliseconds.
    pub clock_offset_ms: Option<i64>,
    /// Operations that the node has missed and will not make up for, because too many were waiting for it.
    pub dropped_follow_ups: u64,
    /// How often an inspection has found that it shows another state of a lock than the majority.
    pub disagreements: u64,
}

/// One finding of a health check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The subject, such as `maxmemory-policy`.
    pub topic: &'static str,
    /// Whether it is as it should be.
    pub is_fine: bool,
    /// What was found and, if it is not fine, what to do.
    pub detail: String,
}

/// The use of a connection pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolHealth {
    /// Open connections.
    pub open: u32,
    /// The most connections.
    pub max: u32,
    /// How often a request found no open connection at once, since the process started.
    pub waits: u64,
    /// How often it found none in time.
    pub timeouts: u64,
}

/// The use of a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskHealth {
    /// The size of the file at the last check, in bytes.
    pub file_bytes: u64,
    /// Commits that the disk has confirmed, each with the changes of many operations.
    pub commits: u64,
    /// Commits that failed.
    pub failed_commits: u64,
    /// Whether there is the reserve for commits on a full disk. Without it, new claims are refused.
    pub has_reserve: bool,
}

/// Opens the configured store.
///
/// # Errors
/// The store answers, and it is configured in a way that would lose leases. A store that does not answer is no error:
/// the service starts unready and keeps trying. A directory is opened when its disk can be read and written.
///
/// # Cancel safety
/// If the future is dropped, nothing was opened, or it is closed again.
pub async fn open(config: &Config) -> Result<Arc<dyn LockStore>, StoreError> {
    match &config.store {
        StoreUrl::Memory => Ok(Arc::new(memory::MemoryStore::new(config.memory.locks_max))),
        StoreUrl::File(directory) => Ok(Arc::new(
            file::FileStore::open(directory, config.memory.locks_max).await?,
        )),
        StoreUrl::Redis(address) => Ok(Arc::new(
            redis::RedisStore::open(address, &config.redis, config.lease.ttl_max).await?,
        )),
        StoreUrl::Sentinel(address) => Ok(Arc::new(
            redis::RedisStore::open_by_sentinels(address, &config.redis, config.lease.ttl_max)
                .await?,
        )),
        StoreUrl::Cluster(address) => Ok(Arc::new(
            redis::RedisStore::open_cluster(address, &config.redis, config.lease.ttl_max).await?,
        )),
        StoreUrl::Quorum(address) => Ok(Arc::new(open_quorum(address, config).await?)),
    }
}

/// Opens the nodes of a quorum. As long as a majority can be used, the others are findings.
async fn open_quorum(
    address: &QuorumAddress,
    config: &Config,
) -> Result<quorum::QuorumStore, StoreError> {
    let drift = quorum::Drift::per_thousand(config.quorum.drift_per_thousand);
    let lease_max = drift.at_nodes(config.lease.ttl_max) + config.lease.lock_delay_max;
    let opened = redis::RedisStore::open_nodes(&address.nodes, &config.redis, lease_max).await?;
    let addresses: Vec<_> = address.nodes.iter().map(ToString::to_string).collect();
    let mut nodes: Vec<Arc<dyn assignment::AssignFences>> = Vec::new();
    let mut problems = Vec::new();
    for ((store, problem), address) in opened.into_iter().zip(&addresses) {
        nodes.push(Arc::new(store));
        if let Some(problem) = problem {
            let detail = format!("{address}: {}", problem.detail());
            tracing::warn!("a node of the quorum has no vote: {detail}");
            problems.push(StoreError::unavailable(problem.fault(), detail));
        }
    }
    if problems.len() > nodes.len() / 2 {
        return Err(problems.swap_remove(0));
    }
    Ok(quorum::QuorumStore::new(nodes, drift).at(addresses))
}
