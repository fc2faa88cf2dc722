//! What a run records: every request with the moments at which it was sent, answered and ended, what observers and
//! watchers saw, and when which fault was active. All moments are of one monotonic clock, that of the test process.

/// Microseconds since the run began.
pub(super) type Micros = u64;

/// One second.
pub(super) const SECOND: Micros = 1_000_000;

/// Everything that the judge knows.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    /// Every claim that was made; a token stands for exactly one.
    pub(super) claims: Vec<Claim>,
    /// Every request about a claim, and every eviction, in the order of sending.
    pub(super) requests: Vec<Request>,
    /// What `GET /locks/{name}` showed.
    pub(super) views: Vec<View>,
    /// What `GET /events` told.
    pub(super) watches: Vec<Watch>,
    /// When which fault was active.
    pub(super) outages: Vec<Outage>,
    /// How the clock of Redis was changed.
    pub(super) clock_steps: Vec<ClockStep>,
    /// The locks that were still held, closed or waited for when every lease had to be over.
    pub(super) left_over: Vec<String>,
    /// What the run promised to itself.
    pub(super) bounds: Bounds,
    /// When the clients stopped.
    pub(super) ended: Micros,
}

/// Durations that the judgement depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// `waiting.place_kept`.
    pub(super) place_kept: Micros,
    /// How much later than promised an answer may be on this machine, beside what the outages explain.
    pub(super) late: Micros,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            place_kept: 3 * SECOND,
            late: 250_000,
        }
    }
}

/// One claim and its terms.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    /// Unique in the run: by it, views tell whose lease they show.
    pub(super) owner: String,
    pub(super) names: Vec<String>,
    pub(super) mode: Mode,
    pub(super) is_fair: bool,
    /// How long its lease lasts at the most without renewal.
    pub(super) lease: Micros,
    pub(super) min_hold: Micros,
    pub(super) lock_delay: Micros,
}

/// How a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Exclusive,
    Shared { limit: Option<u32>, permits: u32 },
}

/// A request and what came of it. Without an end it is open for ever: its outcome is unknown.
#[derive(Clone, Debug)]
pub(super) struct Request {
    /// An index into the claims; an eviction has none.
    pub(super) claim: Option<usize>,
    /// The locks that it is about.
    pub(super) names: Vec<String>,
    /// The process that it was sent to.
    pub(super) process: usize,
    pub(super) action: Action,
    pub(super) sent: Micros,
    /// What arrived and when: one answer, or the events of a stream.
    pub(super) arrivals: Vec<(Micros, Answer)>,
    pub(super) end: Option<(Micros, End)>,
}

/// What a request asks for.
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
    /// The whole answer was there.
    Answered,
    /// The client closed the connection, as it had planned.
    HungUp,
    /// The client closed the connection because no answer came in time.
    GaveUp,
    /// The connection broke.
    Broken,
}

/// What a request was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The claim holds.
    Granted {
        leases: Vec<Lease>,
        /// Whether this request made the leases: 201, or an event that is no replay.
        is_new: bool,
        /// How long the request had waited when this was written.
        waited: Micros,
    },
    /// The claim waits.
    Queued,
    /// 204.
    Freed,
    /// The fences of those who were evicted.
    Evicted(Vec<u64>),
    /// A problem.
    Refused(Refusal),
}

/// A lease as its holder is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lease {
    pub(super) name: String,
    pub(super) fence: u64,
    pub(super) expires_in: Micros,
}

/// A problem as its reader goes by it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: u16,
    pub(super) code: String,
    /// Whether the claim has a place in the queue.
    pub(super) has_place: bool,
    /// Whether nothing was done, so that the request does not count.
    pub(super) is_without_effect: bool,
}

/// What a lock looked like at some moment between the two.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub(super) name: String,
    pub(super) sent: Micros,
    pub(super) at: Micros,
    pub(super) is_free: bool,
    /// Owners and fences.
    pub(super) holders: Vec<(String, u64)>,
    pub(super) queue_length: u64,
    /// The owner of the claim that is next in turn.
    pub(super) head: Option<String>,
}

/// What one watcher of all locks was told.
#[derive(Clone, Debug, Default)]
pub(super) struct Watch {
    pub(super) told: Vec<(Micros, Told)>,
}

/// One thing that a watcher learned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// The stream began; `resumed` if it goes on after the last event of the stream before.
    Opened { resumed: bool },
    /// A lease began.
    Acquired { name: String, fence: u64 },
    /// Something else happened.
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
    /// The process that was struck; none if all of them were.
    pub(super) process: Option<usize>,
    pub(super) from: Micros,
    pub(super) until: Micros,
    pub(super) effect: Effect,
    /// Whether the process forgot all that it knew.
    pub(super) ends_process: bool,
}

/// What a fault does to promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Requests are not answered, or answered late; nothing is lost.
    Away,
    /// The same, and data of Redis are lost.
    Loss,
    /// New claims are refused; everything else goes on.
    Full,
    /// Everything goes on, a little later.
    Slower,
}

/// The clock of Redis was changed by this many microseconds between the two moments.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClockStep {
    pub(super) before: Micros,
    pub(super) after: Micros,
    pub(super) by: i64,
}

impl Request {
    /// What was said in the end, or last.
    pub(super) fn last(&self) -> Option<&Answer> {
        self.arrivals.last().map(|(_, answer)| answer)
    }

    /// When the first thing arrived.
    pub(super) fn first_arrival(&self) -> Option<Micros> {
        self.arrivals.first().map(|(at, _)| *at)
    }

    /// When it was over for the client.
    pub(super) fn ended(&self) -> Micros {
        self.end.map_or(Micros::MAX, |(at, _)| at)
    }

    /// Whether it is a request for the lock.
    pub(super) fn asks(&self) -> bool {
        matches!(self.action, Action::Acquire { .. } | Action::Hold { .. })
    }

    /// Until when it waits at the most.
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

    /// The problem that it was answered with, and when.
    pub(super) fn refusal(&self) -> Option<(Micros, &Refusal)> {
        self.arrivals.iter().find_map(|(at, answer)| match answer {
            Answer::Refused(refusal) => Some((*at, refusal)),
            Answer::Granted { .. } | Answer::Queued | Answer::Freed | Answer::Evicted(_) => None,
        })
    }

    /// Whether it was told of a lease.
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

    /// Whether it says that somebody else has the lock.
    pub(super) fn is_busy(&self) -> bool {
        self.status == 423
    }

    /// Whether it says that the claim held and has ended, which is remembered for a minute.
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
    /// Whether it concerns the process at some moment of this time.
    pub(super) fn strikes(&self, process: usize, from: Micros, until: Micros) -> bool {
        let is_struck = self.process.is_none_or(|struck| struck == process);
        is_struck && self.overlaps(from, until)
    }

    /// Whether it was active at some moment of this time.
    pub(super) fn overlaps(&self, from: Micros, until: Micros) -> bool {
        self.from <= until && from <= self.until
    }
}
