//! What one request occupies of the limits on operations. Where it is taken and released is not known here.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use super::{Gate, Limit, Passed, PeerLimits, RequestPermit};

/// The capacity that one request occupies in the store. It releases it while it waits, and takes it again for each
/// further operation. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Slot(Option<Arc<SlotShared>>);

/// The gate of a peer.
#[derive(Clone, Copy, Debug)]
pub struct PeerGate<'a> {
    /// The peer.
    pub peer: &'a Arc<PeerLimits>,
    /// One of its gates.
    pub gate: &'a Gate,
    /// The limit that the gate enforces.
    pub limit: Limit,
    /// What the operation weighs at this gate, which may be more than at the common one.
    pub weight: usize,
}

#[derive(Debug)]
struct SlotShared {
    of_all: Gate,
    /// The peer's gate, and the weight there.
    of_peer: Option<(Gate, usize)>,
    /// Keeps the peer's limits alive while they are in use, even after its last connection has closed.
    peer: Option<Arc<PeerLimits>>,
    /// The request counts until all that it began in the store has ended, though its client may be gone.
    _request: Option<RequestPermit>,
    asked_at: Instant,
    weight: usize,
    permits: Mutex<Option<SlotPermits>>,
}

#[derive(Debug)]
#[expect(dead_code, reason = "it is held, not read")]
struct SlotPermits {
    of_all: Passed,
    of_peer: Option<Passed>,
}

impl Slot {
    /// Takes permits of the peer's gate, then `weight` of the common gate. In this order, an operation that waits for its
    /// own peer's gate holds nothing that other peers need.
    ///
    /// # Errors
    /// The limit that was still reached at the deadline.
    ///
    /// # Cancel safety
    /// A dropped future has taken nothing.
    pub async fn take(
        of_all: (&Gate, Limit),
        of_peer: Option<PeerGate<'_>>,
        request: Option<RequestPermit>,
        weight: usize,
        deadline: Instant,
    ) -> Result<Self, Limit> {
        let asked_at = Instant::now();
        let permits = SlotPermits {
            of_peer: match of_peer {
                Some(peer) => {
                    let passed = peer.gate.pass(peer.weight, deadline).await;
                    Some(passed.ok_or(peer.limit)?)
                }
                None => None,
            },
            of_all: of_all.0.pass(weight, deadline).await.ok_or(of_all.1)?,
        };
        Ok(Self(Some(Arc::new(SlotShared {
            of_all: of_all.0.clone(),
            of_peer: of_peer.map(|of_peer| (of_peer.gate.clone(), of_peer.weight)),
            peer: of_peer.map(|of_peer| Arc::clone(of_peer.peer)),
            _request: request,
            asked_at,
            weight,
            permits: Mutex::new(Some(permits)),
        }))))
    }

    /// The limits of the peer whose request it is.
    #[must_use]
    pub fn peer(&self) -> Option<&Arc<PeerLimits>> {
        self.0.as_ref()?.peer.as_ref()
    }

    /// When the request began to wait for the slot.
    #[must_use]
    pub fn asked_at(&self) -> Option<Instant> {
        Some(self.0.as_ref()?.asked_at)
    }

    /// Releases the capacity while the request waits.
    pub fn release(&self) {
        if let Some(slot) = &self.0 {
            drop(slot.permits().take());
        }
    }

    /// Waits for the same capacity again. Returns at once if the slot was not released.
    ///
    /// # Cancel safety
    /// A dropped future has taken nothing.
    pub async fn retake(&self) {
        if let Some(slot) = &self.0 {
            slot.retake(slot.of_peer.as_ref()).await;
        }
    }

    /// The same, whatever else the peer does: for operations that others wait for.
    ///
    /// # Cancel safety
    /// A dropped future has taken nothing.
    pub async fn retake_before_peer(&self) {
        if let Some(slot) = &self.0 {
            slot.retake(None).await;
        }
    }
}

impl SlotShared {
    async fn retake(&self, of_peer: Option<&(Gate, usize)>) {
        if self.permits().is_some() {
            return;
        }
        let of_peer = match of_peer {
            Some((gate, weight)) => gate.pass_without_deadline(*weight).await,
            None => None,
        };
        if let Some(of_all) = self.of_all.pass_without_deadline(self.weight).await {
            *self.permits() = Some(SlotPermits { of_all, of_peer });
        }
    }

    fn permits(&self) -> MutexGuard<'_, Option<SlotPermits>> {
        self.permits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
