//! Whether several peers use the store at the same time. Then each may have less in flight, because the others wait for it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::PeerLimits;

/// For so long after an operation its peer counts as one that uses the store.
const RECENT: Duration = Duration::from_secs(1);

/// While others use the store too, an operation weighs so many times as much at the gate of its peer. The quarter of a
/// share that is left still keeps the store busy.
const WEIGHT_BESIDE_OTHERS: usize = 4;

/// The last operation of each of the last two peers. Two suffice to know of each peer whether there is another one.
#[derive(Debug, Default)]
pub struct RecentPeers(Mutex<[Option<Operation>; 2]>);

#[derive(Clone, Copy, Debug)]
struct Operation {
    /// The address of its peer's limits. Clients without such limits count as one peer.
    peer: usize,
    at: Instant,
}

impl RecentPeers {
    /// Records an operation of a peer, and returns what one of this weight weighs at its peer's gate.
    #[must_use]
    pub fn weigh(&self, peer: Option<&Arc<PeerLimits>>, weight: usize) -> usize {
        match self.record(peer) {
            true => weight.saturating_mul(WEIGHT_BESIDE_OTHERS),
            false => weight,
        }
    }

    /// Records an operation of a peer. Returns whether another peer has had one lately.
    fn record(&self, peer: Option<&Arc<PeerLimits>>) -> bool {
        let operation = Operation {
            peer: peer.map_or(0, |peer| Arc::as_ptr(peer).addr()),
            at: Instant::now(),
        };
        let mut recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let [last, other] = &mut *recent;
        if last.is_some_and(|last| last.peer != operation.peer) {
            *other = *last;
        }
        *last = Some(operation);
        other.is_some_and(|other| operation.at - other.at < RECENT)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::peer_limits;
    use super::super::{Gate, Limit, PeerGate, Slot};
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_peer_is_alone_until_another_has_an_operation_and_again_a_while_later() {
        let recent = RecentPeers::default();
        let [one, other] = [peer_limits(1), peer_limits(1)];
        assert!(!recent.record(Some(&one)));
        assert!(!recent.record(Some(&one)));
        assert!(recent.record(Some(&other)));
        for _ in 0..3 {
            assert!(recent.record(Some(&one)), "the other one was there lately");
        }
        tokio::time::advance(RECENT).await;
        assert!(!recent.record(Some(&one)));
        assert!(recent.record(None), "a proxy is another peer");
    }

    /// How many operations the peer can have in flight at once.
    async fn in_flight(recent: &RecentPeers, all: &Gate, peer: &Arc<PeerLimits>) -> usize {
        let mut slots = Vec::new();
        loop {
            let gate = PeerGate {
                peer,
                gate: &peer.operations,
                limit: Limit::OperationsPerPeer,
                weight: recent.weigh(Some(peer), 1),
            };
            let at_once = Instant::now();
            match Slot::take((all, Limit::Operations), Some(gate), None, 1, at_once).await {
                Ok(slot) => slots.push(slot),
                Err(limit) => {
                    assert_eq!(limit, Limit::OperationsPerPeer);
                    return slots.len();
                }
            }
        }
    }

    /// Others once waited behind all of it, which took the store 3 ms for each of their operations.
    #[tokio::test(start_paused = true)]
    async fn a_peer_has_a_quarter_of_its_share_in_flight_while_others_use_the_store() {
        let (recent, all) = (RecentPeers::default(), Gate::new(128));
        let [greedy, other] = [peer_limits(64), peer_limits(64)];
        assert_eq!(in_flight(&recent, &all, &greedy).await, 64);
        let _ = recent.weigh(Some(&other), 1);
        assert_eq!(in_flight(&recent, &all, &greedy).await, 16);
        tokio::time::advance(RECENT).await;
        assert_eq!(in_flight(&recent, &all, &greedy).await, 64);
    }

    /// Otherwise it would never have its turn.
    #[tokio::test(start_paused = true)]
    async fn an_operation_never_weighs_more_than_the_share_of_its_peer() {
        let (recent, all) = (RecentPeers::default(), Gate::new(2));
        let [small, other] = [peer_limits(1), peer_limits(1)];
        let _ = recent.weigh(Some(&other), 1);
        assert_eq!(in_flight(&recent, &all, &small).await, 1);
    }
}
