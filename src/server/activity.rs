//! What a connection is doing, as its socket, its requests and its answers report it. Its limits are decided elsewhere.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The state of one connection, shared by its socket and its requests.
#[derive(Debug, Default)]
pub(super) struct Activity {
    /// How many requests have begun so far.
    begun: AtomicUsize,
    /// How many of them have no complete answer.
    answering: AtomicUsize,
    /// How many bytes of the paths and bodies of requests were passed on so far. It may wrap.
    received: AtomicUsize,
    /// Whether one of the answers is an endless stream.
    is_stream: AtomicBool,
    /// Whether the socket has ended it because of a flood.
    is_flooded: AtomicBool,
}

impl Activity {
    pub(super) fn begin(&self) {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.answering.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn end(&self) {
        self.answering.fetch_sub(1, Ordering::Relaxed);
        self.is_stream.store(false, Ordering::Relaxed);
    }

    pub(super) fn begun(&self) -> usize {
        self.begun.load(Ordering::Relaxed)
    }

    /// Counts bytes of a path or a body.
    pub(super) fn receive(&self, bytes: usize) {
        self.received.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn received(&self) -> usize {
        self.received.load(Ordering::Relaxed)
    }

    pub(super) fn is_answering(&self) -> bool {
        self.answering.load(Ordering::Relaxed) > 0
    }

    pub(super) fn begin_stream(&self) {
        self.is_stream.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_stream(&self) -> bool {
        self.is_stream.load(Ordering::Relaxed)
    }

    pub(super) fn end_for_flood(&self) {
        self.is_flooded.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_flooded(&self) -> bool {
        self.is_flooded.load(Ordering::Relaxed)
    }
}
