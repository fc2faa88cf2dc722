//! Checks by external tools: a fuzzer for the OpenAPI document, a linter for it, and promtool.
//!
//! `scripts/setup-tests` installs them under `target/`.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::process::{Serving, output};
use crate::support::redis_server::{RedisOptions, RedisServer};

/// Short waits, because the fuzzer sends requests with long ones.
const SHORT_WAITS: [&str; 2] = ["--waiting-wait-max", "20ms"];

/// Schemathesis with all of its checks; exceptions are in `schemathesis.toml`, with reasons.
fn fuzz(url: &str) {
    let found = tool("target/venv/bin/schemathesis")
        // It writes a cache into its working directory.
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("target"))
        .args(["--config-file", "../tests/it/schemathesis.toml", "run"])
        .arg(format!("{url}/openapi.json"))
        .args(["--checks", "all", "--max-examples", "20", "--seed", "7625"])
        .output()
        .unwrap();
    assert_clean(&found);
}

#[test]
fn a_fuzzer_finds_nothing_over_the_embedded_store() {
    let serving = Serving::start(&SHORT_WAITS);
    fuzz(&serving.url);
}

#[tokio::test]
async fn a_fuzzer_finds_nothing_over_redis() {
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let store = format!("redis://{}", redis.address());
    let [wait_max, so_long] = SHORT_WAITS;
    let serving = Serving::start(&["--store", &store, wait_max, so_long]);
    fuzz(&serving.url);
}

#[test]
fn the_linter_is_content_with_the_document() {
    let found = tool("target/node/node_modules/.bin/redocly")
        .args(["lint", "openapi/openapi.json", "--max-problems", "50"])
        .env("REDOCLY_TELEMETRY", "off")
        .env("REDOCLY_SUPPRESS_UPDATE_NOTICE", "true")
        .output()
        .unwrap();
    assert_clean(&found);
    assert!(
        !text(&found.stderr).contains("warning"),
        "{}",
        text(&found.stderr)
    );
}

/// After some traffic, so that the histograms have samples.
#[tokio::test]
async fn prometheus_is_content_with_the_metrics() {
    let serving = Serving::start(&[]);
    for _ in 0..3 {
        reqwest::Client::new()
            .post(format!("{}/locks/a", serving.url))
            .send()
            .await
            .unwrap();
    }
    let metrics = reqwest::get(format!("{}/metrics", serving.url))
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &metrics).unwrap();
    let found = tool("promtool")
        .args(["check", "metrics"])
        .stdin(std::fs::File::open(file.path()).unwrap())
        .output()
        .unwrap();
    assert_clean(&found);
    assert!(
        found.stderr.is_empty() && found.stdout.is_empty(),
        "{}",
        text(&found.stdout)
    );
}

#[test]
fn the_command_prints_the_document_that_is_committed() {
    let printed = output(&["openapi"]);
    assert_eq!(
        text(&printed.stdout),
        include_str!("../../openapi/openapi.json")
    );
}

/// A tool, started in the root of the repository.
fn tool(program: &str) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = if program.contains('/') {
        root.join(program)
    } else {
        program.into()
    };
    let mut command = Command::new(program);
    command.current_dir(root).stdin(Stdio::null());
    command
}

fn assert_clean(found: &Output) {
    assert!(
        found.status.success(),
        "{}\n{}",
        text(&found.stdout),
        text(&found.stderr)
    );
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
