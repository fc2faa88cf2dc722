//! The moment from which on a stream may not hold its lock. Who may hold a lock, and until when, is known in `http`.

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

/// The moment from which on the claim may not hold the lock; `None` once it has come.
pub(super) struct Revocation(Option<BoxFuture<'static, ()>>);

impl Revocation {
    pub(super) fn new(revoked: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(Some(revoked.boxed()))
    }

    /// Waits for it. It stays come.
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
