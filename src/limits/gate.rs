//! How many operations may be in flight at once, and what one request occupies of that. Where it is taken and released is not
//! known here.

use std::sync::{Arc, PoisonError};

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};

use super::{Budget, LeaseBudget, Limit, PeerLimits, RequestPermit};
use crate::sync::{Mutex, MutexGuard, Semaphore};

/// Operations that take more than this part of a gate are heavy.
const HEAVY: u32 = 8;
/// This part of a gate is out of reach of heavy operations.
const RESERVED_FROM_HEAVY: u32 = 4;

/// A budget of concurrent operations. Callers queue until there is capacity. Clones share it.
///
/// Heavy operations share a part of it, and queue among themselves for that. So however many there are, another operation
/// waits for none of them, except for those that the store executes already and for the next one to be let in.
#[derive(Clone, Debug)]
pub struct Gate {
    free: Arc<Semaphore>,
    /// The part of heavy operations.
    free_of_heavy: Arc<Semaphore>,
    max: u32,
    heavy_max: u32,
}

/// Permits of a gate, held until dropped.
#[derive(Debug)]
#[expect(dead_code, reason = "they are held, not read")]
pub struct GatePermit {
    of_gate: OwnedSemaphorePermit,
    of_heavy: Option<OwnedSemaphorePermit>,
}

impl Gate {
    /// A gate with `max` permits.
    #[must_use]
    pub fn new(max: usize) -> Self {
        let max = u32::try_from(max.min(Semaphore::MAX_PERMITS)).unwrap_or(u32::MAX);
        let heavy_max = max - max / RESERVED_FROM_HEAVY;
        Self {
            free: Arc::new(Semaphore::new(max as usize)),
            free_of_heavy: Arc::new(Semaphore::new(heavy_max as usize)),
            max,
            heavy_max,
        }
    }

    /// Waits for `weight` permits, at most all that an operation of this weight may have. Returns `None` at the deadline.
    ///
    /// # Cancel safety
    /// A dropped future holds no permits.
    pub async fn pass(&self, weight: usize, deadline: Instant) -> Option<GatePermit> {
        match self.try_pass(weight) {
            Some(passed) => Some(passed),
            None => timeout_at(deadline, self.pass_without_deadline(weight))
                .await
                .ok()?,
        }
    }

    fn try_pass(&self, weight: usize) -> Option<GatePermit> {
        let (weight, is_heavy) = self.weigh(weight);
        let try_take = |part: &Arc<Semaphore>| Arc::clone(part).try_acquire_many_owned(weight).ok();
        let of_heavy = match is_heavy {
            true => Some(try_take(&self.free_of_heavy)?),
            false => None,
        };
        let of_gate = try_take(&self.free)?;
        Some(GatePermit { of_gate, of_heavy })
    }

    /// Waits for `weight` permits without a deadline. Never returns `None`, because the semaphores are never closed.
    ///
    /// # Cancel safety
    /// A dropped future holds no permits.
    pub async fn pass_without_deadline(&self, weight: usize) -> Option<GatePermit> {
        let (weight, is_heavy) = self.weigh(weight);
        let take = |part: &Arc<Semaphore>| Arc::clone(part).acquire_many_owned(weight);
        let of_heavy = match is_heavy {
            true => Some(take(&self.free_of_heavy).await.ok()?),
            false => None,
        };
        let of_gate = take(&self.free).await.ok()?;
        Some(GatePermit { of_gate, of_heavy })
    }

    /// How many permits an operation of this weight takes, and whether it is heavy.
    fn weigh(&self, weight: usize) -> (u32, bool) {
        let weight = u32::try_from(weight).unwrap_or(u32::MAX);
        match weight > (self.max / HEAVY).max(1) {
            true => (weight.min(self.heavy_max), true),
            false => (weight.min(self.max), false),
        }
    }
}

/// The capacity that one request occupies in the store. It releases it while it waits, and takes it again for each
/// further operation. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Slot {
    shared: Option<Arc<SlotShared>>,
    places: Option<Budget>,
    leases: Option<LeaseBudget>,
}

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
    of_all: GatePermit,
    of_peer: Option<GatePermit>,
}

impl Slot {
    /// Takes `weight` permits of the peer's gate, then of the common gate. In this order, an operation that waits for
    /// its own peer's gate holds nothing that other peers need.
    ///
    /// The operation is weighed again when its turn has come, and queues again if it takes more by then. Otherwise all
    /// operations that arrive before the first answer shows how long they take would be let in at once.
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
        weigh: impl Fn() -> usize,
        deadline: Instant,
    ) -> Result<Self, Limit> {
        let asked_at = Instant::now();
        let mut weight = weigh();
        let permits = loop {
            let permits = SlotPermits {
                of_peer: match of_peer {
                    Some((_, gate, limit)) => Some(gate.pass(weight, deadline).await.ok_or(limit)?),
                    None => None,
                },
                of_all: of_all.0.pass(weight, deadline).await.ok_or(of_all.1)?,
            };
            let weight_now = weigh();
            if weight_now <= weight {
                break permits;
            }
            // Waiting for the difference with these permits in hand could end in two operations that wait for each other.
            drop(permits);
            weight = weight_now;
        };
        let shared = SlotShared {
            of_all: of_all.0.clone(),
            of_peer: of_peer.map(|(_, gate, _)| gate.clone()),
            peer: of_peer.map(|(peer, ..)| Arc::clone(peer)),
            _request: request,
            asked_at,
            weight,
            permits: Mutex::new(Some(permits)),
        };
        Ok(Self {
            shared: Some(Arc::new(shared)),
            places: None,
            leases: None,
        })
    }

    /// The same slot, of a request that may take these places in queues, and add these leases.
    #[must_use]
    pub fn with_quota(self, places: Option<Budget>, leases: Option<LeaseBudget>) -> Self {
        let shared = self.shared;
        Self {
            shared,
            places,
            leases,
        }
    }

    /// The places in queues of the principal whose request it is; `None` if they are not limited.
    #[must_use]
    pub fn places(&self) -> Option<&Budget> {
        self.places.as_ref()
    }

    /// The leases that its request may add; `None` if they are not limited.
    #[must_use]
    pub fn leases(&self) -> Option<&LeaseBudget> {
        self.leases.as_ref()
    }

    /// The limits of the peer whose request it is.
    #[must_use]
    pub fn peer(&self) -> Option<&Arc<PeerLimits>> {
        self.shared.as_ref()?.peer.as_ref()
    }

    /// When the request began to wait for the slot.
    #[must_use]
    pub fn asked_at(&self) -> Option<Instant> {
        Some(self.shared.as_ref()?.asked_at)
    }

    /// Releases the capacity while the request waits.
    pub fn release(&self) {
        if let Some(slot) = &self.shared {
            drop(slot.permits().take());
        }
    }

    /// Waits for the same capacity again. Returns at once if the slot was not released.
    ///
    /// # Cancel safety
    /// A dropped future has taken nothing.
    pub async fn retake(&self) {
        if let Some(slot) = &self.shared {
            slot.retake(slot.of_peer.as_ref()).await;
        }
    }

    /// The same, whatever else the peer does: for operations that others wait for.
    ///
    /// # Cancel safety
    /// A dropped future has taken nothing.
    pub async fn retake_before_peer(&self) {
        if let Some(slot) = &self.shared {
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

#[cfg(test)]
mod interleavings;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::mpsc;
    use tokio::task::yield_now;

    use super::*;

    /// A claim on 64 locks takes the store 3 ms. With two hundred of them, every other operation once waited for all, and
    /// later for the one in progress and the next.
    #[tokio::test]
    async fn an_operation_does_not_wait_for_the_heavy_ones_that_came_before() {
        let gate = Gate::new(128);
        let (passed, mut order) = mpsc::unbounded_channel();
        let pass = |weight, name| {
            let (gate, passed) = (gate.clone(), passed.clone());
            tokio::spawn(async move {
                let permits = gate.pass_without_deadline(weight).await;
                let _ = passed.send((name, permits));
            })
        };
        for _ in 0..5 {
            pass(256, "heavy");
            yield_now().await;
        }
        pass(1, "light");
        yield_now().await;
        let mut names = Vec::new();
        for _ in 0..6 {
            let next = tokio::time::timeout(Duration::from_secs(10), order.recv()).await;
            let (name, permits) = next.expect("the gate opens").expect("they are not dropped");
            names.push(name);
            drop(permits);
        }
        let light = names.iter().position(|name| *name == "light");
        assert_eq!(light, Some(1), "{names:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_heavy_operation_that_gives_up_lets_the_next_one_have_its_turn() {
        let gate = Gate::new(128);
        let all = gate.pass_without_deadline(128).await;
        let soon = Instant::now() + Duration::from_secs(1);
        assert!(gate.pass(64, soon).await.is_none());
        drop(all);
        assert!(gate.pass(64, soon).await.is_some());
    }
}
