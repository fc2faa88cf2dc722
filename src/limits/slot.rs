//! What one request occupies of the limits on operations. Where it is taken and released is not known here.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use super::{Gate, Limit, Passed, PeerLimits, RequestPermit};

/// The capacity that one request occupies in the store. It releases it while it waits, and takes it again for each
/// further operation. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Slot(Option<Arc<SlotShared>>);

#[derive(Debug)]
struct SlotShared {
    of_all: Gate,
    of_peer: Option<Gate>,
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
    /// Takes `weight` permits of the peer's gate, then of the common gate. In this order, an operation that waits for
    /// its own peer's gate holds nothing that other peers need.
    ///
    /// # Errors
    /// The limit that was still reached at the deadline.
    ///
    /// # Cancel safety
    /// A dropped future has taken nothing.
    pub async fn take(
        of_all: (&Gate, Limit),
        of_peer: Option<(&Arc<PeerLimits>, &Gate, Limit)>,
        request: Option<RequestPermit>,
        weight: usize,
        deadline: Instant,
    ) -> Result<Self, Limit> {
        let asked_at = Instant::now();
        let permits = SlotPermits {
            of_peer: match of_peer {
                Some((_, gate, limit)) => Some(gate.pass(weight, deadline).await.ok_or(limit)?),
                None => None,
            },
            of_all: of_all.0.pass(weight, deadline).await.ok_or(of_all.1)?,
        };
        Ok(Self(Some(Arc::new(SlotShared {
            of_all: of_all.0.clone(),
            of_peer: of_peer.map(|(_, gate, _)| gate.clone()),
            peer: of_peer.map(|(peer, ..)| Arc::clone(peer)),
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
    async fn retake(&self, of_peer: Option<&Gate>) {
        if self.permits().is_some() {
            return;
        }
        let of_peer = match of_peer {
            Some(gate) => gate.pass_without_deadline(self.weight).await,
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
