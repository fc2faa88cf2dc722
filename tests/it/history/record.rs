//! The record of a run: every request with the times at which it was sent, answered and ended, what observers and
//! watchers saw, and when each fault was active. All times are by the monotonic clock of the test process.

/// Microseconds since the run began.
pub(super) type Micros = u64;

/// One second.
pub(super) const SECOND: Micros = 1_000_000;

/// The input of the judge.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    /// Every claim; each token belongs to exactly one.
    pub(super) claims: Vec<Claim>,
    /// Every request of a claim, and every eviction, in the order of sending.
    pub(super) requests: Vec<Request>,
    /// The responses to `GET /locks/{name}`.
    pub(super) views: Vec<View>,
    /// The events from `GET /events`.
    pub(super) watches: Vec<Watch>,
    /// When each fault was active.
    pub(super) outages: Vec<Outage>,
    /// How the clock of Redis was changed.
    pub(super) clock_steps: Vec<ClockStep>,
    /// When nodes of a quorum did not answer any process.
    pub(super) absences: Vec<Absence>,
    /// What the resource decided, in its order (`resource`).
    pub(super) uses: Vec<Use>,
    /// The locks that were still held, closed or waited for when every lease must have ended.
    pub(super) left_over: Vec<String>,
    /// The time bounds of the run.
    pub(super) bounds: Bounds,
    /// When the clients stopped.
    pub(super) ended: Micros,
}

/// Durations that the rules use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// `waiting.place_kept`.
    pub(super) place_kept: Micros,
    /// How late a response may be on this machine, beyond what the outages explain.
    pub(super) late: Micros,
    /// Whether the locks of a claim may be on several nodes, where they are granted and released one after the other.
    pub(super) is_partitioned: bool,
    /// Whether a majority of nodes decides.
    pub(super) is_quorum: bool,
    /// Whether all replicas confirm what is reported.
    pub(super) is_confirmed: bool,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            place_kept: 3 * SECOND,
            late: 250_000,
            is_partitioned: false,
            is_quorum: false,
            is_confirmed: false,
        }
    }
}

/// One claim and its terms.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    /// Unique in the run: it identifies the claim of a lease in a view.
    pub(super) owner: String,
    pub(super) names: Vec<String>,
    pub(super) mode: Mode,
    pub(super) is_fair: bool,
    /// The longest time that its lease lasts without renewal.
    pub(super) lease: Micros,
    /// Whether renewals may not make it longer at will (`max_hold`).
    pub(super) is_capped: bool,
    pub(super) min_hold: Micros,
    pub(super) lock_delay: Micros,
}

/// How a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Exclusive,
    Shared { limit: Option<u32>, permits: u32 },
}

/// A request and its outcome. Without an end it stays open: its outcome is unknown.
#[derive(Clone, Debug)]
pub(super) struct Request {
    /// An index into the claims; `None` for an eviction.
    pub(super) claim: Option<usize>,
    /// The locks that it is about.
    pub(super) names: Vec<String>,
    /// The process that it was sent to.
    pub(super) process: usize,
    pub(super) action: Action,
    pub(super) sent: Micros,
    /// The arrivals with their times: one response, or the events of a stream.
    pub(super) arrivals: Vec<(Micros, Answer)>,
    pub(super) end: Option<(Micros, End)>,
}

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// `POST`, with the longest wait.
    Acquire { wait: Micros },
    /// `POST` as a stream.
    Hold { wait: Micros },
    /// `PUT`.
    Renew,
    /// `PUT` with `mode=shared`.
    StepDown,
    /// `DELETE`.
    Release,
    /// `DELETE` with `hold_count`.
    StepBack,
    /// `DELETE` with `force`.
    Evict,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The whole response arrived.
    Answered,
    /// The client closed the connection as planned.
    HungUp,
    /// The client closed the connection because no response arrived in time.
    GaveUp,
    /// The connection broke.
    Broken,
}

/// The response to a request, or an event of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The claim holds.
    Granted {
        leases: Vec<Lease>,
        /// Whether this request created the leases: 201, or an event that is not a replay.
        is_new: bool,
        /// How long the request had waited when this was written.
        waited: Micros,
    },
    /// The claim waits.
    Queued,
    /// 204.
    Freed,
    /// The fences of the evicted holders.
    Evicted(Vec<u64>),
    /// A problem.
    Refused(Refusal),
}

/// A lease as reported to its holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lease {
    pub(super) name: String,
    pub(super) fence: u64,
    pub(super) expires_in: Micros,
}

/// The parts of a problem that the judge uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: u16,
    pub(super) code: String,
    /// Whether the claim has a place in the queue.
    pub(super) has_place: bool,
    /// Whether nothing was done, so that the request does not count.
    pub(super) is_without_effect: bool,
    /// What it says to people.
    pub(super) detail: String,
}

/// The state of a lock at some time between the two times.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub(super) name: String,
    /// The process that was asked.
    pub(super) process: usize,
    pub(super) sent: Micros,
    pub(super) at: Micros,
    pub(super) is_free: bool,
    /// Owners and fences.
    pub(super) holders: Vec<(String, u64)>,
    pub(super) queue_length: u64,
    /// The owner of the claim at the head of the queue.
    pub(super) head: Option<String>,
}

/// What one watcher of all locks received.
#[derive(Clone, Debug, Default)]
pub(super) struct Watch {
    pub(super) entries: Vec<(Micros, WatchEntry)>,
}

/// One entry of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WatchEntry {
    /// The stream began; `resumed` if it continues after the last event of the previous stream.
    Opened { resumed: bool },
    /// A lease began.
    Acquired { name: String, fence: u64 },
    /// Another event.
    Other,
    /// Events may be missing before this.
    Reset,
    /// The stream ended.
    Closed,
}

/// A fault and its time.
#[derive(Clone, Debug)]
pub(super) struct Outage {
    pub(super) fault: &'static str,
    /// The affected process; `None` for all.
    pub(super) process: Option<usize>,
    /// The node of a quorum that failed, if it was one.
    pub(super) node: Option<usize>,
    pub(super) from: Micros,
    pub(super) until: Micros,
    pub(super) effect: Effect,
    /// Whether the process ended, and lost its state.
    pub(super) ends_process: bool,
}

/// The effect of a fault on the guarantees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Requests get no response or a late one; nothing is lost.
    Away,
    /// The same, and Redis loses data.
    Loss,
    /// A replica took the place of the primary, and may lack what it did not confirm.
    Failover,
    /// A former primary may answer (see `failover`).
    FormerPrimary,
    /// A minority of the nodes of a quorum is away; nothing is lost.
    Minority,
    /// A minority of the nodes of a quorum has lost its data or its time. A lease that only a bare majority has may be
    /// lost to its holder (see `minority`). It is not granted to others.
    MinorityLoss,
    /// New claims are refused; everything else works.
    Full,
    /// Everything works, a little slower.
    Slower,
    /// The whole machine stood still, and the clients with it.
    Stall,
}

/// Some nodes of a quorum did not answer any process in this time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Absence {
    pub(super) from: Micros,
    pub(super) until: Micros,
    /// Whether the others are a majority.
    pub(super) is_minority: bool,
}

/// One use of the resource: a counter was read, or read before and written now.
#[derive(Clone, Debug)]
pub(super) struct Use {
    pub(super) name: String,
    /// Whose it is: a claim, and the fencing token of its lease.
    pub(super) claim: usize,
    pub(super) lease: u64,
    /// The fencing token that it presented.
    pub(super) fence: u64,
    /// If it writes: the value that it had read, and the value that it replaces.
    pub(super) update: Option<(u64, u64)>,
    pub(super) is_accepted: bool,
    pub(super) at: Micros,
}

/// The clock of Redis was changed by this many microseconds between the two moments.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClockStep {
    pub(super) before: Micros,
    pub(super) after: Micros,
    pub(super) by: i64,
}

impl Request {
    /// The last response or event.
    pub(super) fn last(&self) -> Option<&Answer> {
        self.arrivals.last().map(|(_, answer)| answer)
    }

    /// When the first thing arrived.
    pub(super) fn first_arrival(&self) -> Option<Micros> {
        self.arrivals.first().map(|(at, _)| *at)
    }

    /// When it ended for the client.
    pub(super) fn ended(&self) -> Micros {
        self.end.map_or(Micros::MAX, |(at, _)| at)
    }

    /// Whether it is an acquire.
    pub(super) fn asks(&self) -> bool {
        matches!(self.action, Action::Acquire { .. } | Action::Hold { .. })
    }

    /// The end of its wait.
    pub(super) fn deadline(&self) -> Micros {
        match self.action {
            Action::Acquire { wait } | Action::Hold { wait } => self.sent + wait,
            Action::Renew
            | Action::StepDown
            | Action::Release
            | Action::StepBack
            | Action::Evict => self.sent,
        }
    }

    /// The problem that it got, and when.
    pub(super) fn refusal(&self) -> Option<(Micros, &Refusal)> {
        self.arrivals.iter().find_map(|(at, answer)| match answer {
            Answer::Refused(refusal) => Some((*at, refusal)),
            Answer::Granted { .. } | Answer::Queued | Answer::Freed | Answer::Evicted(_) => None,
        })
    }

    /// Whether it got a lease.
    pub(super) fn is_granted(&self) -> bool {
        let is_grant = |(_, answer): &(_, Answer)| matches!(answer, Answer::Granted { .. });
        self.arrivals.iter().any(is_grant)
    }
}

impl Refusal {
    /// Whether it says that the claim does not hold the lock.
    pub(super) fn is_loss(&self) -> bool {
        self.status == 412 || self.code == "claim_ended" || self.is_busy()
    }

    /// Whether it says that another claim has the lock.
    pub(super) fn is_busy(&self) -> bool {
        self.status == 423
    }

    /// Whether it says that the claim held and has ended, which the store remembers for a minute.
    pub(super) fn is_end(&self) -> bool {
        let ends = [
            "claim_ended",
            "lease_released",
            "lease_expired",
            "lease_evicted",
        ];
        ends.contains(&self.code.as_str())
    }
}

impl Outage {
    /// Whether it affected the process in this time.
    pub(super) fn strikes(&self, process: usize, from: Micros, until: Micros) -> bool {
        let is_struck = self.process.is_none_or(|struck| struck == process);
        is_struck && self.overlaps(from, until)
    }

    /// Whether it was active in this time.
    pub(super) fn overlaps(&self, from: Micros, until: Micros) -> bool {
        self.from <= until && from <= self.until
    }
}
