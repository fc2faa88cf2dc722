//! Tests of the turns in many orders of operations that wait for theirs, and of others that are given up before they wait or
//! meanwhile.

use std::pin::pin;

use futures_util::poll;
use shuttle::future::{block_on, yield_now};
use shuttle::thread;

use super::*;
use crate::sync::explored::explore;

const ORDERS: usize = 500;

/// For how many steps one waits that is given up meanwhile.
const STEPS: usize = 3;

/// What becomes of an operation.
#[derive(Clone, Copy)]
enum Fate {
    Executed,
    GivenUpBefore,
    /// It may have its turn by then.
    GivenUpMeanwhile,
}

const OPERATIONS: [Fate; 6] = [
    Fate::Executed,
    Fate::GivenUpBefore,
    Fate::GivenUpMeanwhile,
    Fate::Executed,
    Fate::GivenUpMeanwhile,
    Fate::Executed,
];

#[test]
fn one_operation_is_in_progress_at_a_time_whichever_are_given_up() {
    explore(ORDERS, || {
        let turns = Arc::new(NodeTurns::default());
        let (token, in_progress) = (Token::random(), Arc::new(Mutex::new(false)));
        let set = |in_progress: &Mutex<bool>, to: bool| {
            let mut in_progress = in_progress.lock().expect("no test panics here");
            std::mem::replace(&mut *in_progress, to)
        };
        let operations = OPERATIONS.map(|fate| {
            let (turns, in_progress) = (Arc::clone(&turns), Arc::clone(&in_progress));
            thread::spawn(move || {
                let mut turn = turns.next(1, token).pop().expect("there is one node");
                match fate {
                    Fate::GivenUpBefore => return,
                    Fate::GivenUpMeanwhile => return block_on(wait_for_steps(&mut turn)),
                    Fate::Executed => block_on(turn.begins()),
                }
                assert!(!set(&in_progress, true), "another one is in progress");
                thread::yield_now();
                assert!(set(&in_progress, false));
            })
        });
        for operation in operations {
            operation.join().expect("it does not panic");
        }
        assert_eq!(turns.count(), 0, "something is left");
    });
}

async fn wait_for_steps(turn: &mut NodeTurn) {
    let mut begins = pin!(turn.begins());
    for _ in 0..STEPS {
        if poll!(begins.as_mut()).is_ready() {
            return;
        }
        yield_now().await;
    }
}
