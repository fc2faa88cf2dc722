//! Values to which several rows refer by number. Each has a row of its own for as long as something in the state has it.
//! What the values are, and how they are written, is not known here.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// All values of one kind that have rows. Clones are the same register.
pub(super) struct Register<V>(Arc<RegisterShared<V>>);

/// A value with its number. It leaves the register, and its row goes, with the last reference to it.
#[derive(Debug)]
pub(super) struct Registered<V> {
    /// The number of its row. No other value gets it while the process runs: a commit that is written in parts could
    /// otherwise leave rows of one value that refer to another.
    pub(super) number: u64,
    pub(super) value: V,
    counts: usize,
    register: Register<V>,
}

struct RegisterShared<V> {
    /// How much of `locks_max` they use together.
    counted: AtomicUsize,
    rows: Mutex<RegisterRows<V>>,
}

struct RegisterRows<V> {
    kept: BTreeMap<u64, Weak<Registered<V>>>,
    /// The last number that was given to a value.
    last: u64,
    /// Those that came or went since they were taken last.
    changed: Vec<u64>,
}

impl<V> Register<V> {
    /// How much of `locks_max` the values use.
    pub(super) fn count(&self) -> usize {
        self.0.counted.load(Ordering::Relaxed)
    }

    /// The value of a row, if something still refers to it.
    pub(super) fn get(&self, number: u64) -> Option<Arc<Registered<V>>> {
        self.rows().kept.get(&number)?.upgrade()
    }

    /// The rows that came or went.
    pub(super) fn take_changed(&self) -> Vec<u64> {
        std::mem::take(&mut self.rows().changed)
    }

    /// Registers a value that uses `counts` of `locks_max`, with the next number.
    pub(super) fn add(&self, value: V, counts: usize) -> Arc<Registered<V>> {
        let number = self.rows().last + 1;
        self.restore(number, value, counts)
    }

    /// Registers a value whose row was loaded.
    pub(super) fn restore(&self, number: u64, value: V, counts: usize) -> Arc<Registered<V>> {
        self.0.counted.fetch_add(counts, Ordering::Relaxed);
        let registered = Arc::new(Registered {
            number,
            value,
            counts,
            register: Self(Arc::clone(&self.0)),
        });
        let mut rows = self.rows();
        rows.kept.insert(number, Arc::downgrade(&registered));
        rows.last = rows.last.max(number);
        rows.changed.push(number);
        registered
    }

    fn rows(&self) -> MutexGuard<'_, RegisterRows<V>> {
        let rows = self.0.rows.lock();
        rows.unwrap_or_else(PoisonError::into_inner)
    }
}

impl<V> Default for Register<V> {
    fn default() -> Self {
        Self(Arc::new(RegisterShared {
            counted: AtomicUsize::new(0),
            rows: Mutex::new(RegisterRows {
                kept: BTreeMap::new(),
                last: 0,
                changed: Vec::new(),
            }),
        }))
    }
}

impl<V> fmt::Debug for Register<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Register")
    }
}

impl<V> Drop for Registered<V> {
    fn drop(&mut self) {
        let register = &self.register;
        register.0.counted.fetch_sub(self.counts, Ordering::Relaxed);
        let mut rows = register.rows();
        rows.kept.remove(&self.number);
        rows.changed.push(self.number);
    }
}
