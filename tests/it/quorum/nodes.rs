//! The fixture: one process's quorum, and the nodes behind it.

use std::sync::Arc;
use std::time::Duration;

use leasehold::domain::{
    Acquired, Attempt, Claim, Holders, LockName, LockState, Released, RenewOptions, Renewed,
};
use leasehold::store::assignment::AssignFences;
use leasehold::store::memory::MemoryStore;
use leasehold::store::quorum::{Drift, QuorumStore};
use leasehold::store::state::StoreTime;
use leasehold::store::{Fault, LockStore, StoreError};

use crate::support::eventually;
use crate::support::fixture::{Fixture, deadline, leases_granted, lock_of, only};
use crate::support::scripted_store::{Behavior, ScriptedStore};

/// One process's quorum.
pub(super) struct Process {
    pub(super) quorum: Arc<QuorumStore>,
    /// The way to each node.
    pub(super) nodes: Vec<Arc<ScriptedStore>>,
    /// The quorum as the contract tests use a store.
    pub(super) fixture: Fixture,
}

/// Stores whose clocks are ahead of the time by this much.
pub(super) fn stores(ahead: &[Duration]) -> Vec<Arc<MemoryStore>> {
    let since_1970 = std::time::UNIX_EPOCH.elapsed().expect("it is after 1970");
    let store =
        |ahead: &Duration| MemoryStore::starting_at(10_000, StoreTime::at(since_1970 + *ahead));
    ahead.iter().map(|ahead| Arc::new(store(ahead))).collect()
}

/// Stores with about the right time.
pub(super) fn plain_stores(count: u64) -> Vec<Arc<MemoryStore>> {
    let ahead: Vec<_> = (0..count).map(Duration::from_micros).collect();
    stores(&ahead)
}

impl Process {
    /// A process of its own, on three nodes.
    pub(super) fn alone() -> Self {
        Self::on(&plain_stores(3))
    }

    /// A process on these nodes.
    pub(super) fn on(stores: &[Arc<MemoryStore>]) -> Self {
        Self::with_drift(stores, Drift::NONE)
    }

    pub(super) fn with_drift(stores: &[Arc<MemoryStore>], drift: Drift) -> Self {
        let way = |store: &Arc<MemoryStore>| Arc::new(ScriptedStore::on(Arc::clone(store)));
        let nodes: Vec<_> = stores.iter().map(way).collect();
        let shared = nodes
            .iter()
            .map(|node| Arc::clone(node) as Arc<dyn AssignFences>);
        let quorum = Arc::new(QuorumStore::new(shared.collect(), drift));
        let fixture = Fixture::on(Arc::clone(&quorum) as _, None);
        Self {
            quorum,
            nodes,
            fixture,
        }
    }

    /// Makes these nodes fail, and the others work.
    pub(super) fn without(&self, down: &[usize]) {
        for (index, node) in self.nodes.iter().enumerate() {
            node.goes_down(down.contains(&index));
        }
    }

    /// From now on, this happens to every operation at these nodes.
    pub(super) fn behaves(&self, nodes: &[usize], behavior: &Behavior) {
        for index in nodes {
            self.nodes[*index].behaves(behavior.clone());
        }
    }

    pub(super) async fn acquire(&self, claim: &Claim) -> Result<Acquired, StoreError> {
        self.fixture.attempt(claim, Attempt::random()).await
    }

    /// Has the claim granted at one node alone, as another process might leave it.
    pub(super) async fn leave_at(&self, node: usize, claim: &Claim) {
        let store = &self.nodes[node].store;
        let left = store.acquire(claim, Attempt::random(), None, deadline());
        assert!(is_granted(left.await));
    }

    /// The fencing token of a claim that must be granted, and is released again.
    pub(super) async fn fence_of_next(&self, claim: &Claim) -> u64 {
        let fence = self.fixture.granted(claim).await.holder.fence.get();
        assert!(matches!(
            self.fixture.release(claim).await,
            Released::Freed { .. }
        ));
        fence
    }

    /// Waits until all nodes have carried out what was decided.
    pub(super) async fn settled(&self) {
        eventually("all nodes have followed", async || {
            (self.quorum.in_progress() == 0).then_some(())
        })
        .await;
    }

    /// A renewal by a stream: whoever may roll the lease back still may.
    pub(super) async fn renew_as_before(&self, claim: &Claim) {
        let change = RenewOptions::AS_BEFORE;
        let renewed = self
            .quorum
            .renew(&claim.names, claim.token, change, deadline());
        let renewed = renewed.await.expect("a majority answers");
        assert!(matches!(renewed, Renewed::Extended(_)), "{renewed:?}");
    }

    /// The holders of a lock at one node, of which there must be some.
    pub(super) async fn holders_at(&self, node: usize, name: &LockName) -> Holders {
        let view = self.nodes[node].store.inspect(name, deadline()).await;
        match view.expect("the node answers").state {
            LockState::Held(holders) => holders,
            other => panic!("it is held there, but: {other:?}"),
        }
    }

    /// At which nodes the lock of the claim is held.
    pub(super) async fn held_at(&self, claim: &Claim) -> Vec<usize> {
        let mut held = Vec::new();
        for (index, node) in self.nodes.iter().enumerate() {
            let view = node.store.inspect(lock_of(claim), deadline()).await;
            let state = view.expect("the node answers").state;
            if matches!(state, LockState::Held(_)) {
                held.push(index);
            }
        }
        held
    }

    /// The fencing token of the only holder at each node; 0 if there is none.
    pub(super) async fn fences_at_nodes(&self, claim: &Claim) -> Vec<u64> {
        let mut fences = Vec::new();
        for node in &self.nodes {
            let view = node.store.inspect(lock_of(claim), deadline()).await;
            fences.push(match view.expect("the node answers").state {
                LockState::Held(holders) => only(holders.listed).fence.get(),
                LockState::Free | LockState::Cooling { .. } => 0,
            });
        }
        fences
    }
}

/// Whether the claim was granted.
pub(super) fn is_granted(answer: Result<Acquired, StoreError>) -> bool {
    answer.is_ok_and(|answer| match answer {
        Acquired::Granted(_) => !leases_granted(answer).is_empty(),
        _ => false,
    })
}

/// Whether the claim was granted, now or before.
pub(super) fn has_granted(answer: Result<Acquired, StoreError>) -> bool {
    matches!(answer, Ok(Acquired::Granted(_)))
}

/// The failure of an operation that a node has not carried out.
pub(super) fn unreachable() -> Behavior {
    Behavior::Fails(StoreError::Unavailable {
        fault: Fault::Io,
        detail: "scripted".to_owned(),
    })
}
