//! The allowance for clocks that run at different rates.
//!
//! A node keeps a lease longer than its holder has been told, by what the clocks of node and holder may drift apart
//! meanwhile, as Redlock allows for it: a hundredth of the TTL and two milliseconds. So the holder has all of the TTL that it
//! asked for, and considers the lease over before any node grants the lock to another claim.

use std::time::Duration;

use crate::domain::{Claim, Holder, Lease, Timestamp, Ttl};

/// What is added to the hundredth: the resolution of the clocks of Redis, and of the answers.
const RESOLUTION: Duration = Duration::from_millis(2);

/// How much longer than its holder a node keeps a lease with this TTL; whole milliseconds.
pub(super) fn of(ttl: Duration) -> Duration {
    whole_millis(ttl / 100) + RESOLUTION
}

/// How long a node keeps a lease with this TTL.
pub(super) fn kept_at_nodes(ttl: Ttl) -> Ttl {
    Ttl::from_store(ttl.get() + of(ttl.get()))
}

/// The claim as the nodes get it.
pub(super) fn claim_at_nodes(claim: &Claim) -> Claim {
    let allowance = of(claim.ttl.get());
    Claim {
        ttl: kept_at_nodes(claim.ttl),
        // The allowance is taken off whatever is left of a lease, at its ceiling too.
        max_hold: claim.max_hold.map(|max_hold| max_hold + allowance),
        ..claim.clone()
    }
}

/// The time for a holder of which a node has made this one, if it is a TTL; and otherwise about that.
pub(super) fn without(kept: Duration) -> Duration {
    let part = kept.saturating_sub(RESOLUTION) / 101;
    let ttl = kept.saturating_sub(whole_millis(part) + RESOLUTION);
    let (longer, shorter) = (ttl + MILLI, ttl.saturating_sub(MILLI));
    match () {
        () if ttl + of(ttl) > kept => shorter,
        () if longer + of(longer) <= kept => longer,
        () => ttl,
    }
}

/// The lease as its holder is told of it.
pub(super) fn lease_of_holder(mut lease: Lease) -> Lease {
    let ttl = without(lease.ttl.get());
    let allowance = of(ttl);
    lease.ttl = Ttl::from_store(ttl);
    shorten(&mut lease.holder, allowance);
    lease
}

/// The lease as others see it. They are not told of the TTL, so what is left of it is an estimate.
pub(super) fn public(mut holder: Holder) -> Holder {
    let allowance = holder.expires_in - without(holder.expires_in).min(holder.expires_in);
    shorten(&mut holder, allowance);
    holder
}

/// When a lease ends for its holder that was granted or renewed at `since`.
pub(super) fn end_of_holder(since: Timestamp, kept_until: Timestamp) -> Timestamp {
    let kept = kept_until.unix_ms().saturating_sub(since.unix_ms());
    let left = without(Duration::from_millis(kept));
    let left_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
    Timestamp::from_unix_ms(since.unix_ms().saturating_add(left_ms))
}

fn shorten(holder: &mut Holder, allowance: Duration) {
    let allowance_ms = u64::try_from(allowance.as_millis()).unwrap_or(u64::MAX);
    holder.expires_in = holder.expires_in.saturating_sub(allowance);
    let expires_at_ms = holder.expires_at.unix_ms().saturating_sub(allowance_ms);
    holder.expires_at = Timestamp::from_unix_ms(expires_at_ms);
}

const MILLI: Duration = Duration::from_millis(1);

/// The duration, rounded up to whole milliseconds.
fn whole_millis(duration: Duration) -> Duration {
    let millis = duration.as_nanos().div_ceil(MILLI.as_nanos());
    Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_keeps_a_lease_a_hundredth_and_two_milliseconds_longer() {
        let kept = kept_at_nodes(Ttl::from_store(Duration::from_secs(30)));
        assert_eq!(kept.get(), Duration::from_millis(30_302));
    }

    #[test]
    fn every_ttl_is_recognised() {
        for millis in (0..3_700).chain([59_999, 60_000, 60_001, 3_600_000]) {
            for micros in [0, 1, 999] {
                let ttl = Duration::from_millis(millis) + Duration::from_micros(micros);
                assert_eq!(without(ttl + of(ttl)), ttl);
            }
        }
    }
}
