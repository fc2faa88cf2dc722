//! Checks by external tools: a fuzzer for the OpenAPI document, a linter for it, promtool, and what cargo says of the
//! dependencies.
//!
//! `scripts/setup-tests` installs them under `target/`.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use leasehold::http::openapi;
use serde_json::{Value, json};

use crate::process::{Serving, output};
use crate::support::redis_server::{RedisOptions, RedisServer};

/// Short waits, because the fuzzer sends requests with long ones.
const SHORT_WAITS: [&str; 2] = ["--waiting-wait-max", "20ms"];

/// Schemathesis with all of its checks; exceptions are in `schemathesis.toml`, with reasons.
fn fuzz(url: &str) {
    let document = tempfile::Builder::new().suffix(".json").tempfile().unwrap();
    std::fs::write(document.path(), full_document().to_string()).unwrap();
    let found = tool("target/venv/bin/schemathesis")
        // It writes a cache into its working directory.
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("target"))
        .args(["--config-file", "../tests/it/schemathesis.toml", "run"])
        .arg(document.path())
        .args(["--url", url])
        .args(["--checks", "all", "--max-examples", "20", "--seed", "7625"])
        .output()
        .unwrap();
    assert_clean(&found);
}

/// The document with all that a request may be. That which is served describes each body as JSON alone, because it is
/// for generators of clients, and says the rest in words: the fields may be a form or the query string too, except that
/// `metadata` is only in JSON, and the token never in the query string.
fn full_document() -> Value {
    let mut document: Value = serde_json::from_str(&openapi::json()).unwrap();
    let schemas = document["components"]["schemas"].clone();
    let locks = ["/locks", "/locks/{name}"];
    for (path, method) in locks
        .into_iter()
        .flat_map(|path| [(path, "post"), (path, "put")])
    {
        let operation = &mut document["paths"][path][method];
        let content = &mut operation["requestBody"]["content"];
        let body = content["application/json"]["schema"]["$ref"].as_str();
        let body = body.unwrap().rsplit('/').next().unwrap();
        let mut fields = schemas[body].clone();
        let properties = fields["properties"].as_object_mut().unwrap();
        properties.remove("metadata");
        let in_query = properties.iter().filter(|(name, _)| *name != "token");
        let in_query: Vec<_> = in_query
            .map(|(name, schema)| json!({"name": name, "in": "query", "schema": schema}))
            .collect();
        assert!(!in_query.is_empty(), "{method} {path}");
        content["application/x-www-form-urlencoded"] = json!({"schema": fields});
        let parameters = operation["parameters"].as_array_mut().unwrap();
        parameters.extend(in_query);
    }
    document
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

/// CycloneDX refers to components by their `bom-ref`.
#[test]
fn the_bill_of_materials_has_what_is_in_the_binary() {
    let made = tool("scripts/sbom").output().unwrap();
    assert_clean(&made);
    let bill: Value = serde_json::from_slice(&made.stdout).unwrap();
    assert_eq!(bill["bomFormat"], "CycloneDX");
    let itself = &bill["metadata"]["component"];
    assert_eq!(itself["version"], env!("CARGO_PKG_VERSION"));
    let components = bill["components"].as_array().unwrap();
    let lock = include_str!("../../Cargo.lock");
    for component in components {
        let [name, version] = ["name", "version"].map(|key| component[key].as_str().unwrap());
        let locked = format!("name = \"{name}\"\nversion = \"{version}\"\n");
        assert!(lock.contains(&locked), "{component}");
        let checksum = component["hashes"][0]["content"].as_str().unwrap();
        assert!(lock.contains(checksum) && component["licenses"].is_array());
    }
    let has = |name: &str| components.iter().any(|component| component["name"] == name);
    assert!(has("axum") && has("redis") && has("tikv-jemallocator"));
    assert!(!has("insta") && !has("stateright"), "only tests need them");
    let known: Vec<_> = components.iter().chain([itself]).collect();
    for dependency in bill["dependencies"].as_array().unwrap() {
        for on in dependency["dependsOn"].as_array().unwrap() {
            assert!(known.iter().any(|known| known["bom-ref"] == *on), "{on}");
        }
    }
}

/// The builder of the image has only the files that `.dockerignore` lets through. Cargo looks for those of each target that the
/// manifest names without a path, and once found no benchmark there.
#[test]
fn the_files_that_the_image_is_built_from_are_a_package() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let context = tempfile::tempdir().unwrap();
    let let_through = include_str!("../../.dockerignore");
    for name in let_through
        .lines()
        .filter_map(|line| line.strip_prefix('!'))
    {
        let (file, copy) = (root.join(name), context.path().join(name));
        match file.is_dir() {
            true => symlink(&file, &copy).unwrap(),
            false => drop(std::fs::copy(&file, &copy).unwrap()),
        }
    }
    let mut read = tool("cargo");
    read.current_dir(context.path())
        .args(["metadata", "--no-deps", "--offline", "--locked"])
        .args(["--format-version", "1"]);
    assert_clean(&read.output().unwrap());
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
