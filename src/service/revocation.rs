//! The moment from which a stream may no longer hold its lock. `http` knows who may hold a lock, and until when.

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

/// Completes when the claim may no longer hold the lock; `None` once it has.
pub(super) struct Revocation(Option<BoxFuture<'static, ()>>);

impl Revocation {
    pub(super) fn new(revoked: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(Some(revoked.boxed()))
    }

    /// Waits for that moment. Once it has come, this returns at once.
    pub(super) async fn come(&mut self) {
        if let Some(revoked) = &mut self.0 {
            revoked.await;
            self.0 = None;
        }
    }

    pub(super) fn has_come(&mut self) -> bool {
        self.come().now_or_never().is_some()
    }
}
