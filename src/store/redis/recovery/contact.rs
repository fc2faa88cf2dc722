//! Which Redis the connections of a generation lead to; and what follows from whether it answers and connections to it
//! can be opened, and from the time that it shows.

use std::sync::Arc;

use redis::RedisError;
use tokio::time::Instant;

use super::{Recovery, UNPOISONED};
use crate::store::redis::constants::CLOCK_TOO_LATE;

impl Recovery {
    /// Notes that Redis did not answer a request that began at `since`.
    pub(in crate::store::redis) fn note_no_answer(&self, since: Instant) {
        self.outage.note_no_answer(since);
    }

    /// Notes that Redis has answered a request that began at `since`.
    pub(in crate::store::redis) fn note_answer(&self, since: Instant) {
        self.outage.note_answer(since);
    }

    /// Notes that a connection was opened from `since` on, and that the Redis behind it was verified.
    pub(in crate::store::redis) fn note_connected(&self, since: Instant) {
        self.outage.note_verified(since);
        self.outage.end();
    }

    /// Notes that no connection could be opened from `since` on, because the slot of a partition is on its way: the
    /// existing ones lead to where it still is.
    pub(in crate::store::redis) fn note_moving(&self, since: Instant) {
        self.outage.note_verified(since);
    }

    /// Notes that no connection could be opened since `since`.
    pub(in crate::store::redis) fn note_not_connected(&self, since: Instant) {
        self.outage.note_not_connected(since);
    }

    /// If none could be opened for long, the existing connections are not used: they may lead to another Redis than the
    /// address does now.
    pub(in crate::store::redis) fn renew_if_unverified(&self) {
        if self.outage.is_unverified() {
            self.fleet.renew_connections();
        }
    }

    /// After a long outage, connections from before are not used: only opening a new one shows whether all processes
    /// were cut off.
    pub(in crate::store::redis) fn renew_if_long_away(&self) {
        if self.outage.distrusts() {
            self.fleet.renew_connections();
        }
    }

    /// Whether no claim may be sent, because Redis has taken no writes for long. The first check that it stores shows that all
    /// processes were cut off, and must come before the first grant.
    pub(in crate::store::redis) fn awaits_writes(&self) -> bool {
        self.outage.is_unwritable() && self.outage.is_long()
    }

    /// Whether silent waiters may be passed over: Redis had no recent outage, so they could have polled.
    pub(in crate::store::redis) fn passes_over(&self) -> bool {
        !self.outage.is_recent()
    }

    /// Whether Redis's clock was set back, if it showed this time in the answer to a request sent at `sent_at`.
    pub(in crate::store::redis) fn is_behind(&self, redis_us: u64, sent_at: Instant) -> bool {
        redis_us < self.fleet.clock.earliest_us(sent_at)
    }

    /// Whether Redis's clock was set forward, if it shows this time now.
    pub(in crate::store::redis) fn is_ahead(&self, redis_us: u64) -> bool {
        redis_us > self.fleet.clock.latest_us(Instant::now())
    }

    /// By how much Redis's clock was set since the first contact, in milliseconds.
    pub(in crate::store::redis) fn clock_shift_ms(&self) -> i64 {
        self.fleet.clock.shift_ms()
    }

    /// Declares lost the data behind connections of this generation: a counter regressed, or leases ended early because the
    /// clock was set forward. The store learns it before any connection is used again.
    pub(in crate::store::redis) fn declare_lost(&self, generation: u64) {
        let mut known = self.known.lock().expect(UNPOISONED);
        // Of many requests that find out at the same time, the first one is enough.
        if generation == self.generation() {
            known.lost_epoch = known.data_epoch;
            self.fleet.renew_connections();
        }
    }

    /// Notes why the data could not be checked. By a clock that is later than any token, leases have ended early.
    pub(super) fn note_failed_check(&self, error: &RedisError) {
        if error.code() == Some(CLOCK_TOO_LATE) {
            let mut known = self.known.lock().expect(UNPOISONED);
            known.lost_epoch = known.data_epoch;
        }
    }

    /// The Redis that connections of this generation lead to; none if they are not used any more.
    pub(in crate::store::redis) fn run_id_at(&self, generation: u64) -> Option<Arc<str>> {
        let known = self.known.lock().expect(UNPOISONED);
        let server = known
            .server
            .as_ref()
            .filter(|_| generation == self.generation())?;
        Some(Arc::from(server.run_id.as_str()))
    }

    /// Whether connections of this generation are still used, and lead to this Redis.
    pub(in crate::store::redis) fn is_at(&self, generation: u64, run_id: &str) -> bool {
        self.is_now_at(run_id) && generation == self.generation()
    }

    /// Whether this is the Redis that was verified last.
    pub(in crate::store::redis) fn is_now_at(&self, run_id: &str) -> bool {
        let known = self.known.lock().expect(UNPOISONED);
        known.server.as_ref().is_some_and(|it| it.run_id == run_id)
    }
}
