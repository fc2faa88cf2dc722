//! Runs every shell block of the README, in order, in one shell, against the service that its first command starts.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::process::Serving;
use crate::support::redis_server::{RedisOptions, RedisServer};

const README: &str = include_str!("../../README.md");

/// The blocks marked as shell.
fn shell_blocks() -> Vec<&'static str> {
    let fenced = README.split("```").skip(1).step_by(2);
    fenced
        .filter_map(|block| block.strip_prefix("sh\n"))
        .collect()
}

/// The test starts the service on a port of its own; everything else runs unchanged.
#[test]
fn every_shell_block_does_what_it_says() {
    let (starts, tours): (Vec<_>, Vec<_>) = shell_blocks()
        .into_iter()
        .partition(|block| block.contains("cargo run"));
    assert_eq!(
        starts[0], "cargo run --release\n",
        "the first command starts the service without arguments"
    );
    assert!(starts[1].starts_with("LEASEHOLD_STORE=redis://localhost:6379/0 cargo run"));
    assert!(!tours.is_empty());

    let serving = Serving::start(&[]);
    let place = serving.url.trim_start_matches("http://");
    let program = Path::new(env!("CARGO_BIN_EXE_leasehold"));
    let directory = program.parent().unwrap().display();
    let script = tours.concat().replace("localhost:7625", place);
    let script = format!("PATH={directory}:$PATH\n{script}");
    let output = Command::new("bash")
        .args(["-euo", "pipefail", "-c", &script])
        .env("no_proxy", "*")
        .env("LEASEHOLD_URL", &serving.url)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{script}\n{stdout}\n{stderr}");
    for expected in [
        "\"fencing_token\"",
        "lock_held",
        "\"evicted\":[",
        "making the report",
        "making another report",
        "event: acquired\ndata: {\"name\":\"acct/3\"",
    ] {
        assert!(stdout.contains(expected), "no {expected} in:\n{stdout}");
    }
}

/// The second start of the README, with the port of a Redis that the test owns.
#[tokio::test]
async fn with_a_redis_everything_stays_the_same() {
    let redis = RedisServer::start(RedisOptions::default()).await;
    let serving = Serving::start(&["--store", &format!("redis://{}", redis.address())]);
    let grant = reqwest::Client::new()
        .post(format!("{}/locks/backup", serving.url))
        .send()
        .await
        .unwrap();
    assert_eq!(grant.status(), 201);
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
