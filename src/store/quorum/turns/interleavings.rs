//! Tests of the turns in many orders of operations that wait for theirs, and of others that are given up meanwhile.

use shuttle::future::block_on;
use shuttle::thread;

use super::*;
use crate::sync::explored::explore;

const ORDERS: usize = 500;

/// Each operation, by whether it is given up before its turn.
const OPERATIONS: [bool; 5] = [false, true, false, true, false];

#[test]
fn one_operation_is_in_progress_at_a_time_whichever_are_given_up() {
    explore(ORDERS, || {
        let turns = Arc::new(NodeTurns::default());
        let (token, in_progress) = (Token::random(), Arc::new(Mutex::new(false)));
        let set = |in_progress: &Mutex<bool>, to: bool| {
            let mut in_progress = in_progress.lock().expect("no test panics here");
            std::mem::replace(&mut *in_progress, to)
        };
        let operations = OPERATIONS.map(|is_given_up| {
            let (turns, in_progress) = (Arc::clone(&turns), Arc::clone(&in_progress));
            thread::spawn(move || {
                let mut turn = turns.next(1, token).pop().expect("there is one node");
                if is_given_up {
                    return;
                }
                block_on(turn.begins());
                assert!(!set(&in_progress, true), "another one is in progress");
                assert!(set(&in_progress, false));
            })
        });
        for operation in operations {
            operation.join().expect("it does not panic");
        }
        assert_eq!(turns.count(), 0, "something is left");
    });
}
