//! Keys of the binary: replaced without a restart, and guessed at without filling the log.

use std::process::Stdio;

use reqwest::Client;
use tempfile::NamedTempFile;

use crate::config::{KEY, OTHER_KEY, file};
use crate::process::{Serving, leasehold};
use crate::support::eventually;

async fn status(serving: &Serving, key: &str) -> u16 {
    let request = Client::new().get(format!("{}/locks", serving.url));
    let answer = request.bearer_auth(key).send().await.unwrap();
    answer.status().as_u16()
}

fn serve(keys: &NamedTempFile) -> Serving {
    let path = keys.path().to_str().unwrap();
    Serving::start(&["--api-key-file", path, "--auth-reread-interval", "10ms"])
}

#[tokio::test]
async fn metrics_need_the_key_on_the_second_address_too_unless_they_are_open() {
    let keys = file(KEY);
    let path = keys.path().to_str().unwrap();
    for (metrics, status) in [("key", 401), ("none", 200)] {
        let serving = Serving::start(&[
            "--api-key-file",
            path,
            "--auth-metrics",
            metrics,
            "--server-admin-listen",
            "127.0.0.1:0",
        ]);
        for url in [&serving.url, &serving.admin_url] {
            let answer = Client::new().get(format!("{url}/metrics")).send().await;
            assert_eq!(answer.unwrap().status(), status, "{metrics}");
        }
        let answer = Client::new().get(format!("{}/livez", serving.admin_url));
        assert_eq!(answer.send().await.unwrap().status(), 200);
    }
}

#[tokio::test]
async fn a_key_is_replaced_without_a_restart_and_half_a_write_locks_nobody_out() {
    let keys = file(KEY);
    let mut serving = serve(&keys);
    assert_eq!(status(&serving, KEY).await, 200);
    assert_eq!(status(&serving, OTHER_KEY).await, 401);
    std::fs::write(keys.path(), "").unwrap();
    let warned = serving.wait_for_line("cannot reload the API keys; the previous keys stay valid");
    assert!(warned["problem"].as_str().unwrap().contains("is empty"));
    assert_eq!(status(&serving, KEY).await, 200);
    std::fs::write(keys.path(), OTHER_KEY).unwrap();
    eventually("the new key is valid", async || {
        (status(&serving, OTHER_KEY).await == 200).then_some(())
    })
    .await;
    assert_eq!(status(&serving, KEY).await, 401);
}

/// Each line has the address of the peer, and there are few of them.
#[tokio::test]
async fn guessing_keys_is_answered_with_429_and_leaves_few_lines() {
    let keys = file(KEY);
    let mut serving = serve(&keys);
    let client = Client::new();
    let (mut refused, mut slowed) = (0, 0);
    for number in 0..500 {
        let guess = client.post(format!("{}/locks/a", serving.url));
        let guess = guess.bearer_auth(format!("a-guess-at-the-key-{number}"));
        match guess.send().await.unwrap().status().as_u16() {
            401 => refused += 1,
            429 => slowed += 1,
            status => panic!("{status}"),
        }
    }
    assert_eq!((refused, slowed), (60, 440));
    assert_eq!(status(&serving, KEY).await, 200);
    let line = serving.wait_for_line("The request was refused.");
    assert!(line["peer"].as_str().unwrap().starts_with("127.0.0.1:"));
    serving.signal(nix::sys::signal::Signal::SIGTERM);
    let mut lines = 1;
    loop {
        let line = serving.next_line();
        match line["message"].as_str() {
            Some("The request was refused.") => lines += 1,
            Some("stopped") => break,
            _ => {}
        }
    }
    assert!(lines < 20, "{lines}");
}

#[test]
fn a_service_for_other_machines_does_not_start_with_a_read_key_alone() {
    let mut command = leasehold(&["--listen", "0.0.0.0:0"]);
    let output = command
        .env("LEASEHOLD_READ_KEY", KEY)
        .stdout(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(78));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.contains("read_key: has no effect without an api_key"),
        "{error}"
    );
}
