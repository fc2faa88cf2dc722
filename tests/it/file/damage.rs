//! Directories that a process must not use, or cannot write to.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tokio::time::Instant;

use super::{serve, url_of};
use crate::process::{Serving, leasehold};
use crate::support::{EFFECT_TIMEOUT, eventually, stores};

const FILE: &str = "leases.redb";

/// Starts a process that is expected to refuse, and returns what it says.
fn refused(directory: &std::path::Path) -> String {
    let arguments = ["--listen", "127.0.0.1:0", "--store", &url_of(directory)];
    let mut process = leasehold(&arguments)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let give_up = Instant::now() + EFFECT_TIMEOUT;
    while process.try_wait().unwrap().is_none() && Instant::now() < give_up {
        std::thread::yield_now();
    }
    // It would serve for ever if it were not refused.
    process.kill().unwrap();
    let Output { status, stderr, .. } = process.wait_with_output().unwrap();
    let said = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(78), "{said}");
    said
}

#[test]
fn a_second_process_is_refused_until_the_first_has_ended() {
    let directory = stores::directory();
    let first = serve(directory.path());
    let said = refused(directory.path());
    assert!(
        said.contains("another process uses the directory"),
        "{said}"
    );
    drop(first);
    serve(directory.path());
}

#[test]
fn a_file_of_another_program_is_refused_and_left_alone() {
    let directory = stores::directory();
    let file = directory.path().join(FILE);
    for content in ["not a database".repeat(10_000), "x".to_owned()] {
        fs::write(&file, &content).unwrap();
        let said = refused(directory.path());
        assert!(said.contains(FILE) && said.contains("backup"), "{said}");
        assert_eq!(fs::read_to_string(&file).unwrap(), content);
    }
}

#[tokio::test]
async fn a_file_that_is_cut_off_or_changed_is_refused() {
    let directory = stores::directory();
    let serving = serve(directory.path());
    for number in 0..500 {
        assert_eq!(post(&serving, &format!("/locks/a/{number}")).await.0, 201);
    }
    drop(serving);
    let file = directory.path().join(FILE);
    let whole = fs::read(&file).unwrap();
    for left in [whole.len() / 2, whole.len() / 4] {
        fs::write(&file, &whole[..left]).unwrap();
        assert!(refused(directory.path()).contains("backup"));
    }
    // In all pages, because some are not used any more.
    let mut changed = whole.clone();
    for at in 0..changed.len() - 4 {
        if &changed[at..at + 4] == b"la/1" {
            changed[at + 1] = b'b';
        }
    }
    assert_ne!(changed, whole);
    fs::write(&file, &changed).unwrap();
    assert!(refused(directory.path()).contains("backup"));
    fs::write(&file, &whole).unwrap();
    serve(directory.path());
}

#[test]
fn a_directory_that_cannot_be_made_is_refused() {
    let directory = stores::directory();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    let said = refused(&file.join("store"));
    assert!(said.contains("cannot use the directory"), "{said}");
}

/// A creation that was cut short leaves a file of another name.
#[test]
fn what_an_interrupted_creation_left_is_replaced() {
    let directory = stores::directory();
    fs::write(directory.path().join("leases.redb.new"), "half").unwrap();
    serve(directory.path());
    assert!(directory.path().join(FILE).exists());
}

/// The limit of a file's size stands for a full disk: the operating system refuses to write more.
#[tokio::test]
async fn a_full_disk_grants_nothing_and_loses_nothing() {
    let directory = stores::directory();
    let mut shell = Command::new("sh");
    let limited = "trap '' XFSZ; ulimit -S -f 600; exec \"$0\" \"$@\"";
    shell
        .args(["-c", limited])
        .arg(leasehold(&[]).get_program())
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .stdin(Stdio::null())
        .arg0("sh");
    let serving = Serving::start_as(shell, &["--store", &url_of(directory.path())]);
    let mut granted = Vec::new();
    let problem = loop {
        let path = format!("/locks/full/{}", granted.len());
        match post(&serving, &path).await {
            (201, _) => granted.push(path),
            (status, problem) => {
                assert_eq!(status, 503, "{problem}");
                break problem;
            }
        }
        assert!(granted.len() < 100_000, "the limit has no effect");
    };
    assert_eq!(problem["code"], "store_unavailable");
    let ready = reqwest::get(format!("{}/readyz?verbose", serving.url)).await;
    let ready = ready.unwrap();
    assert_eq!(ready.status(), 503);
    assert!(
        ready
            .text()
            .await
            .unwrap()
            .contains("cannot write to the disk")
    );
    // There is room again.
    let pid = serving.pid().to_string();
    let raised = Command::new("prlimit")
        .args(["--pid", &pid, "--fsize=unlimited:"])
        .status();
    assert!(raised.unwrap().success());
    eventually("the store grants again", async || {
        (post(&serving, "/locks/after").await.0 == 201).then_some(())
    })
    .await;
    serving.signal(nix::sys::signal::Signal::SIGKILL);
    drop(serving);
    let serving = serve(directory.path());
    for path in granted.iter().map(String::as_str).chain(["/locks/after"]) {
        assert_eq!(post(&serving, path).await.0, 423, "{path} is held");
    }
}

/// Acquires a lock. Returns the status and the body.
pub(super) async fn post(serving: &Serving, path: &str) -> (u16, Value) {
    static CLIENT: std::sync::LazyLock<reqwest::Client> =
        std::sync::LazyLock::new(reqwest::Client::new);
    let request = CLIENT.post(format!("{}{path}?ttl=1h", serving.url));
    let answer = request.send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}
