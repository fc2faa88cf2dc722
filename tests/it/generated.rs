//! Clients that are generated from the OpenAPI document: they compile in strict mode, do what people generate them for, and
//! carry out the scenarios of the clients in `clients/`.
//!
//! `scripts/setup-tests` installs the generators under `target/`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::process::Serving;

const DOCUMENT: &str = include_str!("../../openapi/openapi.json");
const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// A directory for a generated client, with the document in it. It is in another one, as those of the clients are in
/// `clients/`, with the scenarios and what starts their servers.
struct Workshop(TempDir);

impl Workshop {
    fn new() -> Self {
        let workshop = Self(tempfile::tempdir().unwrap());
        fs::create_dir(workshop.path("")).unwrap();
        workshop.file("openapi.json", DOCUMENT);
        for shared in ["scenarios.json", "testbed.py"] {
            let original = Path::new(ROOT).join("clients").join(shared);
            symlink(original, workshop.0.path().join(shared)).unwrap();
        }
        workshop
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join("client").join(name)
    }

    fn file(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Runs a tool to its end, which has to be a success, and returns what it prints.
    fn run(&self, tool: &str, arguments: &[&str]) -> String {
        let tool = Path::new(ROOT).join("target").join(tool);
        let tools = tool.parent().unwrap().display();
        let mut command = Command::new(&tool);
        command.env("PATH", format!("{tools}:/usr/local/bin:/usr/bin:/bin"));
        self.output(command.args(arguments))
    }

    /// Runs a compiled script with Node.js.
    fn node(&self, arguments: &[&str]) -> String {
        self.output(Command::new("node").args(arguments))
    }

    fn output(&self, command: &mut Command) -> String {
        let of_tests = Path::new(ROOT).join("clients/python/tests");
        command
            .current_dir(self.path(""))
            .env("no_proxy", "*")
            .env("LEASEHOLD_BINARY", env!("CARGO_BIN_EXE_leasehold"))
            .envs(["PYTHONPATH", "MYPYPATH"].map(|variable| (variable, &of_tests)))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::null());
        let output = command.output();
        let output = output.unwrap_or_else(|error| {
            panic!("{command:?}: {error}; scripts/setup-tests installs it")
        });
        let [stdout, stderr] = [&output.stdout, &output.stderr]
            .map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        let printed = stdout + &stderr;
        assert!(output.status.success(), "{command:?}:\n{printed}");
        printed
    }
}

/// What a driver prints that has carried out all scenarios: their names.
fn scenarios() -> String {
    let text = include_str!("../../clients/scenarios.json");
    let scenarios: Vec<serde_json::Value> = serde_json::from_str(text).unwrap();
    let names = scenarios
        .iter()
        .map(|scenario| scenario["name"].as_str().unwrap());
    names.map(|name| format!("{name}\n")).collect()
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
    workshop.file("scenarios.py", include_str!("generated/scenarios.py"));
    // The same text in every client of the generator, whatever the document.
    workshop.file(
        "mypy.ini",
        "[mypy]\nstrict = True\n[mypy-leasehold_api.client]\nignore_errors = True\n",
    );
    let typed = ["scenario.py", "scenarios.py", "leasehold_api"];
    workshop.run("venv/bin/mypy", &typed);
    let serving = Serving::start(&[]);
    let printed = workshop.run("venv/bin/python", &["scenario.py", &serving.url]);
    assert_eq!(printed, "done\n");
    let printed = workshop.run("venv/bin/python", &["scenarios.py"]);
    assert_eq!(printed, scenarios());
}

#[test]
fn a_generated_client_in_typescript_is_typed_and_works() {
    let workshop = Workshop::new();
    let modules = Path::new(ROOT).join("target/node/node_modules");
    symlink(modules, workshop.path("node_modules")).unwrap();
    workshop.file("package.json", "{\"type\":\"module\"}");
    let bin = "node/node_modules/.bin";
    workshop.run(
        &format!("{bin}/openapi-typescript"),
        &["openapi.json", "-o", "leasehold.d.ts"],
    );
    workshop.file("scenario.ts", include_str!("generated/scenario.ts"));
    workshop.file("scenarios.ts", include_str!("generated/scenarios.ts"));
    let testbed = include_str!("../../clients/typescript/test/testbed.ts");
    workshop.file("testbed.ts", testbed);
    let strict = [
        "--strict",
        "--noUncheckedIndexedAccess",
        "--target",
        "es2022",
        "--module",
        "nodenext",
        "scenario.ts",
        "scenarios.ts",
    ];
    workshop.run(&format!("{bin}/tsc"), &strict);
    let serving = Serving::start(&[]);
    assert_eq!(workshop.node(&["scenario.js", &serving.url]), "done\n");
    assert_eq!(workshop.node(&["scenarios.js"]), scenarios());
}
