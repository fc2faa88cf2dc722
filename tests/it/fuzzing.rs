//! Schemathesis sends what the OpenAPI document permits and what it forbids, with the rights of each role, and judges the
//! answers by the document: no answer is a 5xx, none has another form, and without a key there is nothing but what is open to
//! all. Exceptions are in `schemathesis.toml`, with reasons.
//!
//! `LEASEHOLD_FUZZ` sets the number of examples of each operation, and then every role has all phases.

use std::io::Write as _;
use std::path::Path;

use leasehold::config::KeyHash;
use leasehold::http::openapi;
use reqwest::{Client, Method};
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::process::Serving;
use crate::support::redis_server::{RedisOptions, RedisServer};
use crate::tools::{assert_clean, tool};

/// Short waits, because the fuzzer sends requests with long ones.
const SHORT_WAITS: [&str; 2] = ["--waiting-wait-max", "20ms"];

/// How many examples there are of each operation over Redis, where nobody needs a key.
const EXAMPLES: &str = "20";

/// Who sends the requests.
struct Role {
    name: &'static str,
    /// The rules of its principal; none if it has no key.
    rules: Option<&'static str>,
    /// The names of locks that it asks for, if it may use only some.
    names: Option<&'static str>,
}

const ROLES: [Role; 4] = [
    Role {
        name: "nobody",
        rules: None,
        names: None,
    },
    Role {
        name: "reader",
        rules: Some(r#"[{ prefix = "", verbs = ["read", "list"] }]"#),
        names: None,
    },
    Role {
        name: "worker",
        rules: Some(r#"[{ prefix = "job", verbs = ["acquire"] }]"#),
        names: Some("^job/[a-z]{1,8}$"),
    },
    Role {
        name: "admin",
        rules: Some(r#"[{ prefix = "", verbs = ["admin"] }]"#),
        names: None,
    },
];

impl Role {
    fn key(&self) -> String {
        format!("the-key-of-the-role-{}", self.name)
    }

    /// Its table in the keys file.
    fn table(&self) -> Option<String> {
        let hash = KeyHash::of(self.key().as_bytes());
        let (name, rules) = (self.name, self.rules?);
        Some(format!(
            "[principals.{name}]\nkeys = [\"{hash}\"]\nrules = {rules}\n"
        ))
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "a knob of the tests is no configuration of the service"
)]
fn examples_of_long_run() -> Option<String> {
    std::env::var("LEASEHOLD_FUZZ").ok()
}

fn fuzz(url: &str, role: Option<&Role>) {
    let document = tempfile::Builder::new().suffix(".json").tempfile().unwrap();
    std::fs::write(document.path(), full_document(role).to_string()).unwrap();
    let long = examples_of_long_run();
    let mut fuzzer = tool("target/venv/bin/schemathesis");
    fuzzer
        // It writes a cache into its working directory.
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("target"))
        .args(["--config-file", "../tests/it/schemathesis.toml", "run"])
        .arg(document.path())
        .args(["--url", url, "--checks", "all", "--seed", "7625"]);
    match (&long, role) {
        (Some(examples), _) => fuzzer.args(["--max-examples", examples]),
        (None, None) => fuzzer.args(["--max-examples", EXAMPLES]),
        // All roles have the same code behind them: what differs is who may do what.
        (None, Some(_)) => fuzzer.args(["--max-examples", "3", "--phases", "fuzzing"]),
    };
    if let Some(role) = role.filter(|role| role.rules.is_some()) {
        let header = format!("Authorization: Bearer {}", role.key());
        fuzzer.args(["--header", &header]);
    }
    assert_clean(&fuzzer.output().unwrap());
}

/// The document with all that a request may be. That which is served describes each body as JSON alone, because it is
/// for generators of clients, and says the rest in words: the fields may be a form or the query string too, except that
/// `metadata` is only in JSON, and the token never in the query string.
fn full_document(role: Option<&Role>) -> Value {
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
    if let Some(role) = role {
        // A service with keys wants one.
        document["security"] = json!([{"api_key": []}]);
        if let Some(pattern) = role.names {
            for (_, operation) in document["paths"]["/locks/{name}"].as_object_mut().unwrap() {
                operation["parameters"][0]["schema"]["pattern"] = json!(pattern);
            }
        }
    }
    document
}

#[tokio::test]
async fn a_fuzzer_finds_nothing_over_redis() {
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let store = format!("redis://{}", redis.address());
    let [wait_max, so_long] = SHORT_WAITS;
    let serving = Serving::start(&["--store", &store, wait_max, so_long]);
    fuzz(&serving.url, None);
}

/// A service with a principal for each role that has a key.
fn with_keys() -> (Serving, NamedTempFile) {
    let mut keys = NamedTempFile::new().unwrap();
    let tables: String = ROLES.iter().filter_map(Role::table).collect();
    keys.write_all(tables.as_bytes()).unwrap();
    let path = keys.path().to_str().unwrap();
    let [wait_max, so_long] = SHORT_WAITS;
    let arguments = ["--auth-keys-file", path, wait_max, so_long];
    // The fuzzer tries what happens with a wrong key, too.
    let arguments = [&arguments[..], &["--auth-failures-max", "1000000"]].concat();
    (Serving::start(&arguments), keys)
}

#[test]
fn a_fuzzer_finds_nothing_with_the_rights_of_any_role() {
    let (serving, _keys) = with_keys();
    for role in &ROLES {
        fuzz(&serving.url, Some(role));
    }
}

#[tokio::test]
async fn without_a_key_there_is_nothing_but_what_is_documented_as_open() {
    let (serving, _keys) = with_keys();
    let document: Value = serde_json::from_str(&openapi::json()).unwrap();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let is_open = operation["security"] == json!([]);
            let example = path.replace("{name}", "a").replace("{code}", "lock_held");
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let url = format!("{}{example}", serving.url);
            let answer = Client::new().request(method.clone(), url).send().await;
            let status = answer.unwrap().status().as_u16();
            assert_eq!(status != 401, is_open, "{method} {path}: {status}");
        }
    }
}
