//! Tests of the gate in many orders of its callers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use shuttle::future::{block_on, spawn};

use super::*;
use crate::sync::explored::explore;

const ORDERS: usize = 500;

/// Operations of more than one permit are heavy, and may have six.
const PERMITS: usize = 8;
const HEAVY_PERMITS: usize = 6;

/// Runs the futures side by side until all have ended.
fn run_all(futures: Vec<impl Future<Output = ()> + Send + 'static>) {
    block_on(async {
        let tasks: Vec<_> = futures.into_iter().map(spawn).collect();
        for task in tasks {
            task.await.expect("it ends");
        }
    });
}

#[test]
fn no_order_of_operations_exceeds_a_gate_or_keeps_one_of_them_waiting_for_ever() {
    explore(ORDERS, || {
        let gate = Gate::new(PERMITS);
        let in_use = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
        let operation = |weight: usize| {
            let (gate, in_use) = (gate.clone(), Arc::clone(&in_use));
            async move {
                let passed = gate.pass_without_deadline(weight).await;
                let (taken, is_heavy) = gate.weigh(weight);
                let taken = [taken as usize, if is_heavy { taken as usize } else { 0 }];
                let maxima = [PERMITS, HEAVY_PERMITS];
                for ((used, taken), max) in in_use.iter().zip(taken).zip(maxima) {
                    assert!(used.fetch_add(taken, Ordering::Relaxed) + taken <= max);
                }
                // One that gives up while it waits takes nothing along.
                drop(gate.pass_without_deadline(PERMITS).now_or_never());
                for (used, taken) in in_use.iter().zip(taken) {
                    used.fetch_sub(taken, Ordering::Relaxed);
                }
                drop(passed);
            }
        };
        run_all([1, 64, 3, 1, 2].map(operation).into());
        let all = gate.pass_without_deadline(HEAVY_PERMITS).now_or_never();
        assert!(all.is_some(), "everything was given back");
    });
}

#[test]
fn a_light_operation_waits_for_no_heavy_one_in_any_order() {
    explore(ORDERS, || {
        let gate = Gate::new(PERMITS);
        let has_passed = Arc::new(crate::sync::Notify::new());
        let operation = |number: usize| {
            let (gate, has_passed) = (gate.clone(), Arc::clone(&has_passed));
            async move {
                let weight = if number == 0 { 1 } else { PERMITS };
                let passed = gate.pass_without_deadline(weight).await;
                match number {
                    0 => has_passed.notify_one(),
                    // The first heavy operation lasts until the light one has passed.
                    1 => has_passed.notified().await,
                    _ => {}
                }
                drop(passed);
            }
        };
        run_all((0..3).map(operation).collect());
    });
}

#[test]
fn slots_that_become_heavier_while_they_wait_do_not_wait_for_each_other() {
    explore(ORDERS, || {
        let gate = Gate::new(PERMITS);
        let weight = Arc::new(AtomicUsize::new(3));
        let operation = |_| {
            let (gate, weight) = (gate.clone(), Arc::clone(&weight));
            async move {
                let weigh = || weight.fetch_add(1, Ordering::Relaxed).min(5);
                let deadline = Instant::now() + Duration::from_secs(3_600);
                let limit = Limit::Operations;
                let slot = Slot::take((&gate, limit), None, None, weigh, deadline).await;
                let slot = slot.expect("no deadline passes");
                slot.release();
                slot.retake().await;
            }
        };
        run_all((0..3).map(operation).collect());
    });
}
