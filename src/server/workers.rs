//! The threads that serve connections. What they serve is not known here.
//!
//! Each has a runtime of its own, which a connection never leaves: its socket, its timers, its requests and, in the
//! store, the connections to Redis are woken by the thread that goes on with them. One runtime over all threads would move
//! tasks between them, which costs each request a wake-up across threads or two.

use std::io;
use std::num::NonZero;
use std::sync::Arc;
use std::thread;

use tokio::runtime::{Builder, Handle};
use tokio::sync::watch;

use super::connections::OpenConnections;

/// Requests that arrive together wait for the store together, and a thread has nothing to do meanwhile. With two, the core
/// works for the one while the other waits: Redis beside the service on two cores then does a quarter more.
const PER_CORE: usize = 2;

/// Threads with a runtime each, until the last clone of this is dropped.
#[derive(Clone, Debug)]
pub struct Workers {
    all: Arc<[Worker]>,
    /// Dropped, it ends the threads.
    _alive: watch::Sender<()>,
}

/// One of them.
#[derive(Clone, Debug)]
pub(super) struct Worker {
    pub(super) runtime: Handle,
    pub(super) open: OpenConnections,
}

impl Workers {
    /// Two threads for each core that this process may use, as far as the system says so; containers are taken into account.
    ///
    /// # Errors
    ///
    /// When the system has no thread to give, or nothing to wait on.
    pub fn start() -> io::Result<Self> {
        let alive = watch::Sender::new(());
        let all = (0..Self::threads()).map(|index| Worker::start(index, alive.subscribe()));
        Ok(Self {
            all: all.collect::<io::Result<_>>()?,
            _alive: alive,
        })
    }

    /// How many threads [`start`](Self::start) makes.
    #[must_use]
    pub fn threads() -> usize {
        PER_CORE * thread::available_parallelism().map_or(1, NonZero::get)
    }

    /// No threads: the runtime that this is called in serves by itself.
    #[must_use]
    pub fn here() -> Self {
        Self {
            all: Arc::new([Worker::on(Handle::current())]),
            _alive: watch::Sender::new(()),
        }
    }

    /// Starts a task on each, which is not waited for.
    pub fn on_each<T: Future<Output = ()> + Send + 'static>(&self, task: impl Fn() -> T) {
        for worker in self.all.iter() {
            worker.runtime.spawn(task());
        }
    }

    /// The one with the fewest connections: they live long, so they are not left to chance.
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
                    // Nothing is ever sent: this completes, with an error, when the sender is gone.
                    while alive.changed().await.is_ok() {}
                });
                // What still runs then is not waited for.
                runtime.shutdown_background();
            })?;
        Ok(Self::on(handle))
    }
}
