//! How much evidence there is, and what the judges excuse.

/// The amount of evidence.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Counts {
    pub(in super::super) requests: usize,
    pub(in super::super) grants: usize,
    pub(in super::super) renewals: usize,
    pub(in super::super) streams: usize,
    pub(in super::super) take_overs: usize,
    pub(in super::super) waiters: usize,
    pub(in super::super) ordered_pairs: usize,
    pub(in super::super) events: usize,
    pub(in super::super) resets: usize,
    pub(in super::super) views: usize,
    /// Writes that the resource accepted.
    pub(in super::super) writes: usize,
    /// What the resource refused.
    pub(in super::super) refused_uses: usize,
    /// Overlaps with leases that a former primary reported, which the store does not exclude (`failover`).
    pub(in super::super) former_primary_overlaps: usize,
    /// What the judges excuse by what a quorum does not promise, or by a machine that stood still.
    pub(in super::super) excused: Excused,
}

/// By rule: each would be a violation otherwise, but for evictions and views.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct Excused {
    pub(in super::super) orders: usize,
    pub(in super::super) events: usize,
    pub(in super::super) fences: usize,
    /// At the end of a wait that was shorter than an operation may take.
    pub(in super::super) failures: usize,
    /// Of a lease that too few nodes may have had.
    pub(in super::super) failures_at_few_nodes: usize,
    /// Those that may have ended more than they report.
    pub(in super::super) evictions: usize,
    /// Those that show a holder without a reported grant, or a rest of a released one: the second judge leaves them out.
    pub(in super::super) views: usize,
}

impl Counts {
    /// Adds the counts of another round.
    pub(in super::super) fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.grants += other.grants;
        self.renewals += other.renewals;
        self.streams += other.streams;
        self.take_overs += other.take_overs;
        self.waiters += other.waiters;
        self.ordered_pairs += other.ordered_pairs;
        self.events += other.events;
        self.resets += other.resets;
        self.views += other.views;
        self.writes += other.writes;
        self.refused_uses += other.refused_uses;
        self.former_primary_overlaps += other.former_primary_overlaps;
        self.excused.orders += other.excused.orders;
        self.excused.events += other.excused.events;
        self.excused.fences += other.excused.fences;
        self.excused.failures += other.excused.failures;
        self.excused.failures_at_few_nodes += other.excused.failures_at_few_nodes;
        self.excused.evictions += other.excused.evictions;
        self.excused.views += other.excused.views;
    }
}
