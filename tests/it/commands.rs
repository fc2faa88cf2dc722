//! The client commands beside `run`: what scripts get from them, what people see, and how they fail.

mod answers;
mod claims;
mod doctor;
mod keys;
mod locks;
mod manual;
mod outages;
mod quotas;
mod retries;
mod service;
mod tls;
mod unwritable;
mod watch;

use std::process::Output;

use crate::process::Serving;
use crate::run::client;

fn output(serving: &Serving, arguments: &[&str]) -> Output {
    client(serving, arguments).output().unwrap()
}

/// What a command prints that succeeds.
#[track_caller]
fn printed(serving: &Serving, arguments: &[&str]) -> String {
    let output = output(serving, arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?} {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The exit code of a command, and what it says about that.
fn failed(serving: &Serving, arguments: &[&str]) -> (Option<i32>, String) {
    let output = output(serving, arguments);
    let text = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), text)
}

/// The token of a lock that a script takes.
#[track_caller]
fn acquired(serving: &Serving, name: &str) -> String {
    let token = printed(serving, &["acquire", name, "-q", "-n", "--owner", "alice"]);
    token.trim_end().to_owned()
}

/// The words of each line of a table.
fn table(text: &str) -> Vec<Vec<&str>> {
    let lines = text.lines();
    lines
        .map(|line| line.split_whitespace().collect())
        .collect()
}
