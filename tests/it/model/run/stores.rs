//! The stores that histories run on. Those of Redis serve all histories, each with locks of its own.

use std::sync::{Arc, OnceLock};

use leasehold::store::memory::MemoryStore;
use tokio::runtime::{Builder, Runtime};

use crate::support::fixture::Fixture;

/// What a history runs on.
pub(in super::super) struct Stores {
    pub(super) runtime: Arc<Runtime>,
    /// One for each process.
    pub(super) benches: Arc<[Fixture]>,
    /// The store itself, if it counts its records.
    pub(super) memory: Option<Arc<MemoryStore>>,
}

/// A runtime with a stopped clock.
fn stopped() -> Runtime {
    let mut builder = Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build();
    runtime.expect("a runtime")
}

/// A new store in a directory, with a stopped clock.
pub(in super::super) fn file() -> Stores {
    alone(stopped(), None, Fixture::file())
}

/// A new quorum of embedded nodes with a stopped clock.
pub(in super::super) fn quorum() -> Stores {
    alone(stopped(), None, Fixture::quorum())
}

/// A new embedded store with a stopped clock.
pub(in super::super) fn memory() -> Stores {
    let runtime = stopped();
    let memory = runtime.block_on(async { Arc::new(MemoryStore::new(100_000)) });
    let fixture = Fixture::on(Arc::clone(&memory) as _, None);
    alone(runtime, Some(memory), async { fixture })
}

/// The store of a single process.
fn alone(
    runtime: Runtime,
    memory: Option<Arc<MemoryStore>>,
    opening: impl Future<Output = Fixture>,
) -> Stores {
    let fixture = runtime.block_on(opening);
    Stores {
        runtime: Arc::new(runtime),
        benches: Arc::new([fixture]),
        memory,
    }
}

/// One Redis for all histories, which use different locks.
pub(in super::super) fn redis() -> Stores {
    static SHARED: Shared = Shared::new();
    SHARED.stores(threads, async || Fixture::redis().await)
}

/// The same with one Redis Cluster.
pub(in super::super) fn cluster() -> Stores {
    static SHARED: Shared = Shared::new();
    SHARED.stores(threads, async || Fixture::cluster().await)
}

/// The same with a Redis that Sentinels name, and whose replica confirms what is reported.
pub(in super::super) fn sentinel() -> Stores {
    static SHARED: Shared = Shared::new();
    SHARED.stores(threads, async || Fixture::sentinel_safe().await)
}

/// The same with a quorum of Redis nodes. With several threads, its nodes could subscribe before anybody listens to it.
pub(in super::super) fn quorum_redis() -> Stores {
    static SHARED: Shared = Shared::new();
    SHARED.stores(one_thread, async || Fixture::quorum_redis().await)
}

fn threads() -> Runtime {
    Runtime::new().expect("a runtime")
}

fn one_thread() -> Runtime {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime")
}

/// The stores of two processes that all histories use.
struct Shared(OnceLock<(Arc<Runtime>, Arc<[Fixture]>)>);

impl Shared {
    const fn new() -> Self {
        Self(OnceLock::new())
    }

    fn stores(&self, runtime: fn() -> Runtime, first: impl AsyncFnOnce() -> Fixture) -> Stores {
        let opened = self.0.get_or_init(|| {
            let runtime = runtime();
            let benches = runtime.block_on(async {
                let first = first().await;
                let second = first.another_process().await;
                first.listens().await;
                second.listens().await;
                [first, second].into()
            });
            (Arc::new(runtime), benches)
        });
        let (runtime, benches) = opened.clone();
        Stores {
            runtime,
            benches,
            memory: None,
        }
    }
}
