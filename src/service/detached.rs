//! Operations that outlive their caller. They cost nothing while the caller stays.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use tokio_util::task::TaskTracker;

use crate::limits::Slot;

/// A future that continues as a background task when dropped before completion.
///
/// A client that disconnects must not cancel a store operation halfway: its outcome would be unknown, and its grant
/// would be lost.
pub(super) struct Detached<T: Send + 'static> {
    operation: Option<BoxFuture<'static, T>>,
    background: TaskTracker,
    /// Held until the operation completes, here or in the background.
    slot: Slot,
}

impl<T: Send + 'static> Detached<T> {
    pub(super) fn new(
        operation: impl Future<Output = T> + Send + 'static,
        background: TaskTracker,
        slot: Slot,
    ) -> Self {
        Self {
            operation: Some(Box::pin(operation)),
            background,
            slot,
        }
    }
}

impl<T: Send + 'static> Future for Detached<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let operation = self
            .operation
            .as_mut()
            .expect("a future is not polled after its end");
        let poll = operation.as_mut().poll(context);
        if poll.is_ready() {
            self.operation = None;
        }
        poll
    }
}

impl<T: Send + 'static> Drop for Detached<T> {
    fn drop(&mut self) {
        // An operation that panicked has ended; polling it again would panic again.
        if std::thread::panicking() {
            return;
        }
        // Outside of a runtime the process is exiting, and the operation cannot continue.
        if let (Some(operation), Ok(runtime)) =
            (self.operation.take(), tokio::runtime::Handle::try_current())
        {
            let slot = std::mem::take(&mut self.slot);
            let operation = async move {
                operation.await;
                drop(slot);
            };
            self.background.spawn_on(operation, &runtime);
        }
    }
}
