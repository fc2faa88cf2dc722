//! Primitives whose every use is a point at which another thread may go on, and the exploration of the orders that follow.
//!
//! `shuttle` runs the threads of a test one at a time, as coroutines on one thread of the system, and draws which goes on
//! at each point. So a test meets orders that the system's scheduler hardly ever chooses, and a lost wake-up is found as
//! a deadlock. Outside of [`explore`], the points do nothing.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, LockResult, PoisonError, TryLockError};

use shuttle::current::try_get_current_task;
use shuttle::scheduler::RandomScheduler;
use shuttle::{Config, MaxSteps, Runner, thread};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, TryAcquireError};

/// The same orders in every run, as far as the test itself is the same.
const SEED: u64 = 1;

/// A test that takes more steps than this goes round in circles.
const STEPS_MAX: usize = 100_000;

/// For futures in an unoptimised build.
const STACK_BYTES: usize = 512 * 1024;

/// Runs the test in this many random orders of its threads, or in as many as `LEASEHOLD_INTERLEAVINGS` says. The test has
/// to start the threads with `shuttle`. No timer ever fires.
#[expect(
    clippy::disallowed_methods,
    reason = "a knob of the tests is no configuration of the service"
)]
pub(crate) fn explore(orders: usize, test: impl Fn() + Send + Sync + 'static) {
    let wanted = std::env::var("LEASEHOLD_INTERLEAVINGS");
    let orders = wanted.map_or(orders, |number| {
        number.parse().expect("LEASEHOLD_INTERLEAVINGS is a number")
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    // Timers need it, though nothing drives it.
    let _context = runtime.enter();
    let mut config = Config::new();
    config.max_steps = MaxSteps::FailAfter(STEPS_MAX);
    config.stack_size = STACK_BYTES;
    let scheduler = RandomScheduler::new_from_seed(SEED, orders);
    Runner::new(scheduler, config).run(test);
}

/// Another thread may go on here.
fn switch() {
    if is_explored() {
        thread::yield_now();
    }
}

/// Whether this is a thread of an exploration that has not failed.
fn is_explored() -> bool {
    try_get_current_task().is_some() && !std::thread::panicking()
}

/// [`std::sync::Mutex`]
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

/// [`std::sync::MutexGuard`]
#[derive(Debug)]
pub(crate) struct MutexGuard<'a, T>(Option<std::sync::MutexGuard<'a, T>>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        switch();
        // The thread that has it may have been interrupted, and this one must not keep it from going on.
        while is_explored() && matches!(self.0.try_lock(), Err(TryLockError::WouldBlock)) {
            switch();
        }
        match self.0.lock() {
            Ok(guard) => Ok(MutexGuard(Some(guard))),
            Err(poisoned) => Err(PoisonError::new(MutexGuard(Some(poisoned.into_inner())))),
        }
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("it is taken by `drop` only")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("it is taken by `drop` only")
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        drop(self.0.take());
        switch();
    }
}

/// [`tokio::sync::Notify`]
#[derive(Debug, Default)]
pub(crate) struct Notify(tokio::sync::Notify);

impl Notify {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn notify_one(&self) {
        switch();
        self.0.notify_one();
    }

    pub(crate) async fn notified(&self) {
        switch();
        self.0.notified().await;
    }
}

/// [`tokio::sync::Semaphore`]
#[derive(Debug)]
pub(crate) struct Semaphore(Arc<tokio::sync::Semaphore>);

impl Semaphore {
    pub(crate) const MAX_PERMITS: usize = tokio::sync::Semaphore::MAX_PERMITS;

    pub(crate) fn new(permits: usize) -> Self {
        Self(Arc::new(tokio::sync::Semaphore::new(permits)))
    }

    pub(crate) fn try_acquire_many_owned(
        self: Arc<Self>,
        permits: u32,
    ) -> Result<OwnedSemaphorePermit, TryAcquireError> {
        switch();
        Arc::clone(&self.0).try_acquire_many_owned(permits)
    }

    pub(crate) async fn acquire_many_owned(
        self: Arc<Self>,
        permits: u32,
    ) -> Result<OwnedSemaphorePermit, AcquireError> {
        switch();
        Arc::clone(&self.0).acquire_many_owned(permits).await
    }
}
