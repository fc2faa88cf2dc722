//! The allowance for clocks that run at different rates, or show another time.
//!
//! A node keeps a lease longer than its holder has been told, by what the clocks of node and holder may drift apart
//! meanwhile, as Redlock allows for it: a hundredth of the TTL and two milliseconds. So the holder has all of the TTL that it
//! asked for, and considers the lease over before any node grants the lock to another claim.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::domain::{Claim, Holder, Lease, Timestamp, Ttl};
use crate::store::StoreHealth;

const MILLI: Duration = Duration::from_millis(1);

/// How far a proposed token may be ahead of the clock of this process: a day. A node that is further ahead has no vote, or
/// one node whose clock is years ahead would use up the tokens of all.
const CLOCK_LEAD_MAX_US: u64 = 24 * 3_600 * 1_000_000;

/// What to do about such a node.
pub(super) const TOO_FAR_AHEAD: &str = "its clock is or was more than a day ahead, and so are its fencing tokens; set the clock, \
                                        empty the node, and restart all processes";

/// How far the clocks of a node and of a process may drift apart during a lease.
#[derive(Clone, Copy, Debug)]
pub struct Drift {
    /// This many thousandths of the TTL.
    pub thousandths: u32,
    /// And this long, whatever the TTL: the resolution of the clocks, and of the answers. Whole milliseconds.
    pub resolution: Duration,
}

impl Drift {
    /// Nothing, for nodes with the clock of this process.
    pub const NONE: Self = Self {
        thousandths: 0,
        resolution: Duration::ZERO,
    };

    /// This many thousandths of the TTL, and the resolution that Redlock allows for.
    #[must_use]
    pub const fn per_thousand(thousandths: u32) -> Self {
        Self {
            thousandths,
            resolution: Duration::from_millis(2),
        }
    }

    /// How much longer than its holder a node keeps a lease with this TTL; whole milliseconds.
    pub(super) fn of(self, ttl: Duration) -> Duration {
        whole_millis(ttl * self.thousandths / 1_000) + self.resolution
    }

    /// How long a node keeps a lease whose holder is told that it lasts this long.
    #[must_use]
    pub fn at_nodes(self, lasts: Duration) -> Duration {
        lasts + self.of(lasts)
    }

    /// How long a node keeps a lease with this TTL.
    pub(super) fn kept_at_nodes(self, ttl: Ttl) -> Ttl {
        Ttl::from_store(ttl.get() + self.of(ttl.get()))
    }

    /// The claim as the nodes get it. They keep no lease longer than its `max_hold`, so a holder whose lease ends with that is
    /// told of an earlier end.
    pub(super) fn claim_at_nodes(self, claim: &Claim) -> Claim {
        Claim {
            ttl: self.kept_at_nodes(claim.ttl),
            ..claim.clone()
        }
    }

    /// The time for a holder of which a node has made this one, if it is a TTL; and otherwise about that.
    pub(super) fn without(self, kept: Duration) -> Duration {
        let part = kept.saturating_sub(self.resolution) * self.thousandths;
        let allowance = whole_millis(part / (1_000 + self.thousandths)) + self.resolution;
        let ttl = kept.saturating_sub(allowance);
        let longer = ttl + MILLI;
        if ttl + self.of(ttl) > kept {
            ttl.saturating_sub(MILLI)
        } else if longer + self.of(longer) <= kept {
            longer
        } else {
            ttl
        }
    }

    /// The TTL as the holder of a lease is told of it.
    pub(super) fn ttl_of_holder(self, kept: Ttl) -> Ttl {
        Ttl::from_store(self.without(kept.get()))
    }

    /// The lease as its holder is told of it. The allowance is that for what is left of it: its TTL may be longer than its
    /// `max_hold`.
    pub(super) fn lease_of_holder(self, lease: Lease) -> Lease {
        Lease {
            ttl: self.ttl_of_holder(lease.ttl),
            holder: self.public(lease.holder),
        }
    }

    /// The lease as others see it.
    pub(super) fn public(self, mut holder: Holder) -> Holder {
        let left = self.without(holder.expires_in);
        let allowance = holder.expires_in.saturating_sub(left);
        let expires_at_ms = holder.expires_at.unix_ms();
        holder.expires_in = left;
        holder.expires_at =
            Timestamp::from_unix_ms(expires_at_ms.saturating_sub(millis(allowance)));
        holder
    }

    /// When a lease ends for its holder that was granted or renewed at `since`.
    pub(super) fn end_of_holder(self, since: Timestamp, kept_until: Timestamp) -> Timestamp {
        let kept_ms = kept_until.unix_ms().saturating_sub(since.unix_ms());
        let left = self.without(Duration::from_millis(kept_ms));
        Timestamp::from_unix_ms(since.unix_ms().saturating_add(millis(left)))
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The duration, rounded up to whole milliseconds.
fn whole_millis(duration: Duration) -> Duration {
    let millis = duration.as_nanos().div_ceil(MILLI.as_nanos());
    Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
}

/// The largest token that a node has proposed. Cloning is cheap.
#[derive(Clone, Debug, Default)]
pub(super) struct TokenLead(Arc<AtomicU64>);

impl TokenLead {
    /// Notes the tokens of leases at the node. Returns whether they are too far ahead of the time `now_us` of this process.
    pub(super) fn is_too_far<'a>(
        &self,
        leases: impl IntoIterator<Item = &'a Lease>,
        now_us: u64,
    ) -> bool {
        let fences = leases.into_iter().map(|lease| lease.holder.fence.get());
        let largest = fences.max().unwrap_or_default();
        self.0.fetch_max(largest, Ordering::Relaxed);
        is_too_far_ahead(largest, now_us)
    }

    /// The health of the node, which is refused while its clock or its tokens are too far ahead. It is judged anew each time:
    /// it may be the clock of this process that is wrong, and will be set.
    pub(super) fn judged(&self, health: StoreHealth, now_us: u64) -> StoreHealth {
        let ahead_ms = health.clock_offset_ms.unwrap_or_default().max(0);
        let ahead_us = ahead_ms.cast_unsigned().saturating_mul(1_000);
        let is_too_far = ahead_us > CLOCK_LEAD_MAX_US
            || is_too_far_ahead(self.0.load(Ordering::Relaxed), now_us);
        match is_too_far && health.refused.is_none() {
            true => StoreHealth {
                refused: Some(TOO_FAR_AHEAD.to_owned()),
                ..health
            },
            false => health,
        }
    }
}

fn is_too_far_ahead(fence: u64, now_us: u64) -> bool {
    fence > now_us.saturating_add(CLOCK_LEAD_MAX_US)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Fence, HoldCount, LockName, Mode, Owner, Token};

    const TTL: Duration = Duration::from_secs(30);
    const KEPT: Duration = Duration::from_millis(30_302);

    #[test]
    fn a_node_keeps_a_lease_a_hundredth_and_two_milliseconds_longer() {
        let drift = Drift::per_thousand(10);
        let name = LockName::parse(b"a").expect("a name");
        let most = Duration::from_secs(60);
        let claim = Claim {
            max_hold: Some(most),
            ..Claim::plain(name.into(), Token::random(), Ttl::from_store(TTL))
        };
        let at_nodes = drift.claim_at_nodes(&claim);
        assert_eq!(at_nodes.ttl.get(), KEPT);
        assert_eq!(at_nodes.max_hold, Some(most));
        assert_eq!(drift.at_nodes(TTL), KEPT);
    }

    #[test]
    fn a_holder_and_all_others_are_told_of_an_earlier_end() {
        let drift = Drift::per_thousand(10);
        let at_ms = |ms: u64| Timestamp::from_unix_ms(1_000_000 + ms);
        let name = LockName::parse(b"a").expect("a name");
        let holder = Holder {
            claim: Token::random().digest(&name),
            owner: Owner::default(),
            metadata: None,
            mode: Mode::Exclusive,
            fence: Fence::new(1).expect("a small one"),
            hold_count: HoldCount::ONE,
            acquired_at: at_ms(0),
            expires_at: at_ms(30_302),
            expires_in: KEPT,
        };
        let ttl = Ttl::from_store(KEPT);
        let lease = drift.lease_of_holder(Lease {
            holder: holder.clone(),
            ttl,
        });
        assert_eq!(lease.ttl.get(), TTL);
        for told in [lease.holder, drift.public(holder)] {
            assert_eq!((told.expires_in, told.expires_at), (TTL, at_ms(30_000)));
        }
        let end = drift.end_of_holder(at_ms(0), at_ms(30_302));
        assert_eq!(end, at_ms(30_000));
    }

    #[test]
    fn every_ttl_is_recognised() {
        for drift in [1, 10, 200]
            .map(Drift::per_thousand)
            .into_iter()
            .chain([Drift::NONE])
        {
            for millis in (0..3_700).chain([59_999, 60_000, 60_001, 3_600_000]) {
                for micros in [0, 1, 999] {
                    let ttl = Duration::from_millis(millis) + Duration::from_micros(micros);
                    assert_eq!(drift.without(ttl + drift.of(ttl)), ttl);
                }
            }
        }
    }

    /// Else a process whose own clock was behind for a moment would refuse all nodes, and never be ready again.
    #[test]
    fn a_node_is_refused_only_while_its_tokens_are_too_far_ahead() {
        let day = CLOCK_LEAD_MAX_US;
        let lead = TokenLead(Arc::new(AtomicU64::new(3 * day)));
        let judged = |now_us| lead.judged(StoreHealth::default(), now_us);
        assert!(judged(day).refused.is_some());
        assert!(judged(2 * day).refused.is_none());
    }
}
