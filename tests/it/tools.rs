//! Checks by external tools: a linter for the OpenAPI document, promtool, and what cargo says of the dependencies. The fuzzer
//! is in `fuzzing`.
//!
//! `scripts/setup-tests` installs them under `target/`.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::process::{Serving, output};

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
pub(crate) fn tool(program: &str) -> Command {
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

pub(crate) fn assert_clean(found: &Output) {
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
