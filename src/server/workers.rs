//! The worker threads that serve connections. Nothing here knows what they serve.
//!
//! Each has its own single-threaded runtime, and a connection never leaves it: its socket, timers, requests and, in the
//! store, connections to Redis are polled by the same thread. A multi-threaded runtime would move tasks between
//! threads, which costs each request one or two cross-thread wake-ups.

use std::future::pending;
use std::io;
use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;

use tokio::runtime::{Builder, Handle};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::connections::OpenConnections;

/// Requests that arrive together wait for the store together, and their thread is idle meanwhile. With two threads, a
/// core works for one while the other waits: with Redis and the service on two cores, throughput is a quarter higher.
const PER_CORE: usize = 2;

/// Worker threads, which run until the last clone of this is dropped.
#[derive(Clone, Debug)]
pub struct Workers {
    all: Arc<[Worker]>,
    /// Ends the threads when it is dropped.
    _alive: watch::Sender<()>,
}

/// One worker thread.
#[derive(Clone, Debug)]
pub(super) struct Worker {
    pub(super) runtime: Handle,
    pub(super) open: OpenConnections,
}

impl Workers {
    /// Starts so many threads.
    ///
    /// # Errors
    ///
    /// When the system cannot create a thread or a runtime.
    pub fn start(threads: usize) -> io::Result<Self> {
        let alive = watch::Sender::new(());
        let all = (0..threads).map(|index| Worker::start(index, alive.subscribe()));
        Ok(Self {
            all: all.collect::<io::Result<_>>()?,
            _alive: alive,
        })
    }

    /// Two threads for each core that this process may use; CPU limits of containers are taken into account.
    #[must_use]
    pub fn of_machine() -> usize {
        PER_CORE * thread::available_parallelism().map_or(1, NonZero::get)
    }

    /// No threads: the current runtime serves the connections itself.
    #[must_use]
    pub fn here() -> Self {
        Self {
            all: Arc::new([Worker::on(Handle::current())]),
            _alive: watch::Sender::new(()),
        }
    }

    /// Spawns a task on each worker, without waiting for it.
    pub fn on_each<T: Future<Output = ()> + Send + 'static>(&self, task: impl Fn() -> T) {
        for worker in self.all.iter() {
            worker.runtime.spawn(task());
        }
    }

    /// Runs this on the worker with the fewest connections.
    ///
    /// # Cancel safety
    ///
    /// Dropping this aborts it.
    ///
    /// # Panics
    ///
    /// If it panics.
    pub async fn run<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let worker = self.least_busy();
        let counted = worker.open.enter();
        let task = worker.runtime.spawn(async move {
            let done = task.await;
            drop(counted);
            done
        });
        match AbortOnDropHandle::new(task).await {
            Ok(done) => done,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                // The worker has ended, so the process ends.
                Err(_) => pending().await,
            },
        }
    }

    /// The worker with the fewest connections. Connections live long, so an uneven distribution would last.
    pub(super) fn least_busy(&self) -> &Worker {
        let all = self.all.iter();
        all.min_by_key(|worker| worker.open.count())
            .expect("there is at least one")
    }
}

impl Worker {
    fn on(runtime: Handle) -> Self {
        Self {
            runtime,
            open: OpenConnections::default(),
        }
    }

    fn start(index: usize, mut alive: watch::Receiver<()>) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        thread::Builder::new()
            .name(format!("worker-{index}"))
            .spawn(move || {
                runtime.block_on(async {
                    // Nothing is ever sent: this fails when the sender is dropped.
                    while alive.changed().await.is_ok() {}
                });
                // Do not wait for tasks that still run.
                runtime.shutdown_background();
            })?;
        Ok(Self::on(handle))
    }
}
