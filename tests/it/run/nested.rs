//! A run within the command of another run of the same lock.

use super::{assert_code, output, state};
use crate::process::Serving;

const PROGRAM: &str = env!("CARGO_BIN_EXE_leasehold");

#[tokio::test]
async fn a_nested_run_of_the_same_lock_re_enters() {
    let serving = Serving::start(&[]);
    let arguments = [
        "a", "--", PROGRAM, "run", "a", "--", PROGRAM, "run", "a", "--",
    ];
    let script = "echo $LEASEHOLD_HOLD_COUNT $LEASEHOLD_LOCK_NAME";
    let nested = output(&serving, &[&arguments[..], &["sh", "-c", script]].concat());
    assert_code(&nested, 0);
    assert_eq!(nested.stdout, b"3 a\n");
    assert_eq!(state(&serving, "a").await["state"], "free");
}

#[test]
fn a_nested_run_of_one_of_the_locks_re_enters() {
    let serving = Serving::start(&[]);
    let arguments = ["a", "b", "--", PROGRAM, "run", "b", "--", "echo", "inside"];
    let nested = output(&serving, &arguments);
    assert_code(&nested, 0);
    assert_eq!(nested.stdout, b"inside\n");
}

#[tokio::test]
async fn the_outer_run_still_holds_after_a_nested_one() {
    let serving = Serving::start(&[]);
    let script = format!("{PROGRAM} run a -- true; curl -s $LEASEHOLD_URL/locks/a");
    let outer = output(&serving, &["a", "--", "sh", "-c", &script]);
    let lock: serde_json::Value = serde_json::from_slice(&outer.stdout).unwrap();
    assert_eq!(lock["state"], "held", "{outer:?}");
    assert_eq!(lock["holders"][0]["hold_count"], 1);
}

#[test]
fn a_nested_run_that_wants_more_locks_is_refused_instead_of_waiting_for_ever() {
    let serving = Serving::start(&[]);
    let arguments = ["a", "--", PROGRAM, "run", "a", "b", "--", "true"];
    assert_code(&output(&serving, &arguments), 64);
}

#[test]
fn a_nested_run_of_another_lock_takes_it() {
    let serving = Serving::start(&[]);
    let arguments = ["a", "--", PROGRAM, "run", "-n", "b", "--", "true"];
    assert_code(&output(&serving, &arguments), 0);
}
