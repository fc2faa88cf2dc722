//! The OpenAPI document: up to date, complete, and consistent with the served API.

use std::collections::BTreeSet;
use std::path::Path;

use leasehold::domain::{LockName, duration};
use leasehold::http::{Code, Route, openapi};
use proptest::prelude::*;
use proptest::string::string_regex;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

use crate::api::support::{Api, EventStream, call};

fn document() -> Value {
    serde_json::from_str(&openapi::json()).expect("the document is JSON")
}

/// `UPDATE=1 cargo test` writes the file.
#[test]
fn the_committed_document_is_the_one_that_the_code_makes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi/openapi.json");
    let made = openapi::json();
    #[expect(
        clippy::disallowed_methods,
        reason = "a switch for people, not configuration"
    )]
    let is_update = std::env::var_os("UPDATE").is_some();
    if is_update {
        std::fs::write(&path, &made).expect("written");
    }
    let committed = std::fs::read_to_string(&path).expect("openapi/openapi.json is committed");
    assert!(
        committed == made,
        "the document has changed; run the tests with UPDATE=1 and commit it"
    );
}

#[tokio::test]
async fn the_served_document_is_the_same() {
    let answer = Api::new().await.send(call("GET", "/openapi.json")).await;
    assert_eq!(answer.header("content-type"), "application/json");
    assert_eq!(answer.text(), openapi::json());
}

#[tokio::test]
async fn what_is_documented_is_served_and_what_is_served_is_documented() {
    let (api, document) = (Api::new().await, document());
    let documented: BTreeSet<_> = document["paths"]
        .as_object()
        .expect("paths")
        .keys()
        .cloned()
        .collect();
    let routes: BTreeSet<_> = Route::ALL
        .iter()
        .map(|route| route.template().to_owned())
        .collect();
    assert_eq!(documented, routes);
    for path in routes {
        let example = path.replace("{name}", "a").replace("{code}", "lock_held");
        for method in ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"] {
            // The response may be an endless stream.
            let status = api.open(call(method, &example)).await.status().as_u16();
            let is_served = ![404, 405].contains(&status);
            let operation = &document["paths"][&path][method.to_lowercase()];
            assert_eq!(is_served, operation.is_object(), "{method} {path}");
        }
    }
}

#[test]
fn every_operation_says_who_it_is() {
    let document = document();
    assert_eq!(document["openapi"], "3.1.0");
    assert_eq!(document["security"], json!([{"api_key": []}, {}]));
    let mut ids = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for (method, operation) in methods.as_object().expect("methods") {
            let id = operation["operationId"].as_str().expect("an operationId");
            assert!(ids.insert(id.to_owned()), "{id} twice");
            assert!(operation["summary"].is_string(), "{method} {path}");
            let is_open = operation["security"] == json!([]);
            let is_of_locks = operation["tags"] == json!(["locks"]) || path == "/metrics";
            assert_eq!(is_open, !is_of_locks, "{method} {path}");
        }
    }
    for id in [
        "acquire",
        "renew",
        "release",
        "inspect",
        "list_locks",
        "acquire_several",
        "renew_several",
        "release_several",
        "watch",
    ] {
        assert!(ids.contains(id), "{id}");
    }
}

#[test]
fn every_code_that_a_route_of_its_own_can_answer_with_is_documented() {
    let document = openapi::json();
    for code in Code::ALL {
        // No documented operation can return this code.
        if *code != Code::MethodNotAllowed {
            assert!(
                document.contains(&format!("- `{}`: ", code.as_str())),
                "{code:?}"
            );
        }
    }
}

#[test]
fn every_reference_leads_somewhere() {
    let document = document();
    let mut open = vec![&document];
    while let Some(value) = open.pop() {
        if let Some(reference) = value.get("$ref").and_then(Value::as_str) {
            let pointer = reference.strip_prefix('#').expect("within the document");
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
        match value {
            Value::Object(members) => open.extend(members.values()),
            Value::Array(items) => open.extend(items),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
}

/// By a reference, or by its name in the description of a stream.
#[test]
fn every_schema_is_used() {
    let (document, text) = (document(), openapi::json());
    let schemas = document["components"]["schemas"].as_object();
    for name in schemas.expect("schemas").keys() {
        let is_referenced = text.contains(&format!("\"#/components/schemas/{name}\""));
        assert!(
            is_referenced || text.contains(&format!("`{name}`")),
            "{name}"
        );
    }
}

#[test]
fn what_the_patterns_allow_is_taken() {
    let document = document();
    let post = &document["paths"]["/locks/{name}"]["post"];
    let name = &post["parameters"][0]["schema"];
    assert_eq!(name["maxLength"], LockName::BYTES_MAX);
    generated(&name["pattern"], |name| {
        let is_dotted = name
            .split('/')
            .any(|segment| segment == "." || segment == "..");
        if !is_dotted && name.len() <= LockName::BYTES_MAX {
            prop_assert!(LockName::parse(name.as_bytes()).is_ok(), "{}", name);
        }
        Ok(())
    });
    let fields = &document["components"]["schemas"]["AcquireRequest"]["properties"];
    for field in ["ttl", "wait", "min_hold", "max_hold", "lock_delay"] {
        generated(&fields[field]["pattern"], |text| {
            prop_assert!(duration::parse(&text).is_ok(), "{}", text);
            Ok(())
        });
    }
}

#[tokio::test]
async fn null_is_documented_and_means_that_a_field_is_left_out() {
    let document = document();
    let schema = &document["components"]["schemas"]["AcquireSeveralRequest"];
    let mut body = json!({"names": ["a"]});
    for (field, schema) in schema["properties"].as_object().expect("properties") {
        let types = schema["type"].as_array();
        let is_nullable = types.is_some_and(|types| types.contains(&json!("null")))
            || schema["oneOf"][1] == json!({"type": "null"});
        assert_eq!(is_nullable, field != "names", "{field}");
        if is_nullable {
            body[field] = Value::Null;
        }
    }
    let request = call("POST", "/locks").json(body.to_string());
    assert_eq!(Api::new().await.send(request).await.status, 201, "{body}");
}

/// Runs a check on random texts that match a pattern of the document.
fn generated(pattern: &Value, check: impl Fn(String) -> Result<(), TestCaseError>) {
    let pattern = pattern.as_str().expect("a pattern");
    let inner = pattern
        .strip_prefix('^')
        .and_then(|inner| inner.strip_suffix('$'));
    let strategy = string_regex(inner.expect("it matches whole texts")).expect("a pattern");
    TestRunner::default()
        .run(&strategy, check)
        .expect("what the pattern allows is taken");
}

/// Every response with a lease, a lock or a problem has the members that its schema requires, and no others.
#[tokio::test]
async fn answers_have_the_members_that_their_schemas_say() {
    let (api, document) = (Api::new().await, document());
    let schema = |name: &str| &document["components"]["schemas"][name];
    let grant = api.send(call("POST", "/locks/a")).await.json();
    let held = api.send(call("POST", "/locks/a")).await.json();
    let lock = api.send(call("GET", "/locks/a")).await.json();
    let own = members(&schema("Grant")["allOf"][1]);
    let of_holder = members(schema("Holder"));
    assert_eq!(keys(&grant), own.union(&of_holder).cloned().collect());
    assert_eq!(keys(&held["holders"][0]), of_holder);
    let mut of_lock = members(schema("Lock"));
    assert!(of_lock.remove("disagreeing_nodes"), "only a quorum has it");
    assert_eq!(keys(&lock), of_lock);
    assert!(keys(&held).is_subset(&members(schema("Problem"))));
    let several = api.send(call("POST", "/locks?names=b&names=c")).await;
    assert_eq!(keys(&several.json()), members(schema("Grants")));
    let blocked = api
        .send(call("POST", "/locks?names=b&names=d"))
        .await
        .json();
    let blocked_by = &blocked["blocked_by"][0];
    assert_eq!(keys(blocked_by), members(schema("BlockedBy")));
    assert!(keys(&blocked).is_subset(&members(schema("Problem"))));
    let mut stream = EventStream::of(api.open(call("GET", "/events")).await);
    api.token_of("/locks/e").await;
    let event = stream.expect("acquired").await;
    assert_eq!(keys(&event), members(schema("LockEvent")));
}

fn members(schema: &Value) -> BTreeSet<String> {
    keys(&schema["properties"])
}

fn keys(object: &Value) -> BTreeSet<String> {
    object
        .as_object()
        .unwrap_or_else(|| panic!("no object: {object}"))
        .keys()
        .cloned()
        .collect()
}

#[test]
fn the_reference_for_people_names_every_route_field_and_code() {
    let reference = include_str!("../../docs/reference/http-api.md");
    let document = document();
    for route in Route::ALL {
        assert!(reference.contains(route.template()), "{}", route.template());
    }
    for code in Code::ALL {
        let code = format!("`{}`", code.as_str());
        assert!(reference.contains(&code), "{code}");
    }
    let operations = document["paths"].as_object().expect("paths").values();
    let operations = operations.flat_map(|methods| methods.as_object().expect("methods").values());
    let parameters = operations.filter_map(|operation| operation["parameters"].as_array());
    for parameter in parameters.flatten() {
        let name = parameter["name"].as_str().expect("a name");
        assert!(reference.contains(name), "{name}");
    }
}
