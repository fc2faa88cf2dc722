//! Clients that are generated from the OpenAPI document: they compile in strict mode, and do what people generate them for.
//!
//! `scripts/setup-tests` installs the generators under `target/`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::process::Serving;

const DOCUMENT: &str = include_str!("../../openapi/openapi.json");

/// A directory for a generated client, with the document in it.
struct Workshop(TempDir);

impl Workshop {
    fn new() -> Self {
        let workshop = Self(tempfile::tempdir().unwrap());
        workshop.file("openapi.json", DOCUMENT);
        workshop
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Runs a tool to its end, which has to be a success, and returns what it prints.
    fn run(&self, tool: &str, arguments: &[&str]) -> String {
        let tool = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("target")
            .join(tool);
        let tools = tool.parent().unwrap().display();
        let output = Command::new(&tool)
            .args(arguments)
            .current_dir(&self.0)
            .env("PATH", format!("{tools}:/usr/local/bin:/usr/bin:/bin"))
            .env("no_proxy", "*")
            .stdin(Stdio::null())
            .output();
        let output = output.unwrap_or_else(|error| {
            panic!(
                "{}: {error}; scripts/setup-tests installs it",
                tool.display()
            )
        });
        let [stdout, stderr] = [&output.stdout, &output.stderr]
            .map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        let printed = stdout + &stderr;
        assert!(output.status.success(), "{}:\n{printed}", tool.display());
        printed
    }
}

#[test]
fn a_generated_client_in_python_is_typed_and_works() {
    let workshop = Workshop::new();
    let arguments = [
        "generate",
        "--path",
        "openapi.json",
        "--meta",
        "none",
        "--output-path",
        "leasehold_api",
    ];
    let printed = workshop.run("venv/bin/openapi-python-client", &arguments);
    assert!(!printed.to_lowercase().contains("warning"), "{printed}");
    workshop.file("scenario.py", include_str!("generated/scenario.py"));
    // The same text in every client of the generator, whatever the document.
    workshop.file(
        "mypy.ini",
        "[mypy]\nstrict = True\n[mypy-leasehold_api.client]\nignore_errors = True\n",
    );
    workshop.run("venv/bin/mypy", &["scenario.py", "leasehold_api"]);
    let serving = Serving::start(&[]);
    let printed = workshop.run("venv/bin/python", &["scenario.py", &serving.url]);
    assert_eq!(printed, "done\n");
}

#[test]
fn a_generated_client_in_typescript_is_typed_and_works() {
    let workshop = Workshop::new();
    let modules = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/node/node_modules");
    symlink(modules, workshop.path("node_modules")).unwrap();
    workshop.file("package.json", "{\"type\":\"module\"}");
    let bin = "node/node_modules/.bin";
    workshop.run(
        &format!("{bin}/openapi-typescript"),
        &["openapi.json", "-o", "leasehold.d.ts"],
    );
    workshop.file("scenario.ts", include_str!("generated/scenario.ts"));
    let strict = [
        "--strict",
        "--noUncheckedIndexedAccess",
        "--target",
        "es2022",
        "--module",
        "nodenext",
        "scenario.ts",
    ];
    workshop.run(&format!("{bin}/tsc"), &strict);
    let serving = Serving::start(&[]);
    let node = Command::new("node")
        .args(["scenario.js", &serving.url])
        .current_dir(&workshop.0)
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&node.stdout);
    assert_eq!(
        printed,
        "done\n",
        "{}",
        String::from_utf8_lossy(&node.stderr)
    );
}
