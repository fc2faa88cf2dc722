//! What the rules of a keys file permit: every verb, principal and prefix, however the name of a lock is written.

mod audited;
mod changes;
mod names;
mod quotas;

use leasehold::config::{KeyHash, KeysFile};
use leasehold::http::{Access, Failures, KeyRing, Role};

use super::support::{Answer, Api, Call, EventStream, call, delete, get, post};

/// Each principal has its own name as its key.
const FILE: &str = r#"
[principals.orders]
keys = ["KEY"]
rules = [{ prefix = "orders", verbs = ["acquire", "read", "list"] }]

[principals.reader]
keys = ["KEY"]
rules = [{ prefix = "orders", verbs = ["read"] }]

[principals.lister]
keys = ["KEY"]
rules = [
  { prefix = "orders/eu", verbs = ["list"] },
  { prefix = "pay", verbs = ["list"] },
]

[principals.evictor]
keys = ["KEY"]
rules = [{ prefix = "orders", verbs = ["evict"] }]

[principals.prometheus]
keys = ["KEY"]
rules = [{ verbs = ["metrics"] }]

[principals.root]
keys = ["KEY"]
rules = [{ prefix = "", verbs = ["admin"] }]

[principals.nobody]
keys = ["KEY"]
"#;

const PRINCIPALS: [&str; 7] = [
    "orders",
    "reader",
    "lister",
    "evictor",
    "prometheus",
    "root",
    "nobody",
];

/// The file with the hash of each principal's name for `KEY`.
fn with_hashes(text: &str) -> String {
    let mut hashed = String::new();
    let mut principal = "";
    for line in text.lines() {
        let name = line.strip_prefix("[principals.");
        principal = name.map_or(principal, |name| name.trim_end_matches(']'));
        let hash = KeyHash::of(key_of(principal).as_bytes()).to_string();
        hashed.push_str(&line.replace("KEY", &hash));
        hashed.push('\n');
    }
    hashed
}

fn keys_file(text: &str) -> KeysFile {
    let file = crate::config::file(&with_hashes(text));
    let read = KeysFile::read(file.path());
    read.unwrap_or_else(|error| panic!("{error}"))
}

fn ring(text: &str) -> KeyRing {
    let ring = KeyRing::new::<&str>([]);
    install(&ring, text);
    ring
}

fn install(ring: &KeyRing, text: &str) {
    let no_roles: [(Role, &str); 0] = [];
    ring.replace_all(no_roles, &keys_file(text).principals);
}

async fn api_with(ring: &KeyRing) -> Api {
    Api::with(|settings| settings.access = Access::Keys(ring.clone(), Failures::new(20))).await
}

async fn api() -> Api {
    api_with(&ring(FILE)).await
}

fn by(principal: &str, request: Call) -> Call {
    request.header("authorization", format!("Bearer {}", key_of(principal)))
}

/// A key that is as long as keys are.
fn key_of(principal: &str) -> String {
    format!("key-of-{principal:->16}")
}

/// Only its hash is in the file, so nobody has checked how long it is.
#[tokio::test]
async fn a_key_that_could_be_guessed_is_not_accepted() {
    let with_keys = |key: &str| {
        let hash = KeyHash::of(key.as_bytes()).to_string();
        let of_root = format!("[principals.root]\nkeys = [\"{hash}\"]");
        FILE.replace("[principals.root]\nkeys = [\"KEY\"]", &of_root)
    };
    for (key, status) in [("fifteen-letters", 401), ("sixteen--letters", 200)] {
        let api = api_with(&ring(&with_keys(key))).await;
        let request = get("/locks/a").header("authorization", format!("Bearer {key}"));
        assert_eq!(api.send(request).await.status, status, "{key}");
    }
}

/// The response to a request that the service permits is anything but 403.
#[track_caller]
fn assert_permitted(answer: &Answer, expected: bool, what: &str) {
    assert_eq!(answer.status != 403, expected, "{what}: {}", answer.text());
    if !expected {
        assert_eq!(answer.code(), "forbidden", "{what}");
    }
}

/// The lock, as the path of a request writes it, and whether the prefix `orders` covers it.
const WRITTEN: [(&str, bool); 9] = [
    ("orders", true),
    ("orders/42", true),
    ("orders%2F42", true),
    ("%6frders/42", true),
    ("orders/42/a/b", true),
    ("ordersx", false),
    ("orders-7/42", false),
    ("Orders/42", false),
    ("pay/orders/42", false),
];

#[tokio::test]
async fn a_verb_is_permitted_only_by_a_rule_for_the_name() {
    let api = api().await;
    for principal in PRINCIPALS {
        for (name, is_covered) in WRITTEN {
            let of_rule =
                |may: &[&str]| principal == "root" || is_covered && may.contains(&principal);
            let path = format!("/locks/{name}");
            let what = |verb: &str| format!("{principal} {verb} {name}");
            for (method, query, may) in [
                ("POST", "", &["orders"][..]),
                ("PUT", "", &["orders"]),
                ("DELETE", "", &["orders"]),
                ("GET", "", &["orders", "reader"]),
                ("HEAD", "", &["orders", "reader"]),
                ("DELETE", "?force=true", &["evictor"]),
            ] {
                let request = by(principal, call(method, &format!("{path}{query}")));
                let answer = api.send(request).await;
                let what = what(method);
                match method {
                    "HEAD" => assert_eq!(answer.status != 403, of_rule(may), "{what}"),
                    _ => assert_permitted(&answer, of_rule(may), &what),
                }
            }
            for (accept, method, may) in [
                ("text/event-stream", "POST", &["orders"][..]),
                ("text/event-stream", "GET", &["orders", "reader"]),
            ] {
                let stream = by(principal, call(method, &path).header("accept", accept));
                let status = api.open(stream).await.status().as_u16();
                assert_eq!(status != 403, of_rule(may), "{}", what("stream"));
            }
        }
    }
}

#[tokio::test]
async fn a_claim_on_several_locks_needs_a_rule_for_each() {
    let api = api().await;
    for (principal, names, is_permitted) in [
        ("orders", r#"["orders/1","orders/2"]"#, true),
        ("orders", r#"["orders/1","pay/2"]"#, false),
        ("orders", r#"["pay/2","orders/1"]"#, false),
        ("orders", r#"["orders/1","ordersx"]"#, false),
        ("root", r#"["orders/1","pay/2"]"#, true),
        ("reader", r#"["orders/1","orders/2"]"#, false),
    ] {
        let body = format!(r#"{{"names":{names}}}"#);
        for method in ["POST", "PUT", "DELETE"] {
            let request = by(principal, call(method, "/locks").json(body.clone()));
            let answer = api.send(request).await;
            assert_permitted(
                &answer,
                is_permitted,
                &format!("{principal} {method} {names}"),
            );
        }
        // Nothing was done about the permitted locks of a refused claim.
        if !is_permitted {
            let lock = api.send(by("root", get("/locks/orders/1"))).await.json();
            assert_ne!(lock["holders"][0]["owner"], principal);
        }
    }
}

#[tokio::test]
async fn the_locks_of_terraform_need_the_same_rules() {
    let info = r#"{"ID":"5b0c5bd0-5e12-4d5e-9d1b-0f3f3b1f6a01","Who":"me"}"#;
    for (principal, name, is_permitted) in [
        ("orders", "orders/state", true),
        ("orders", "orders%2Fstate", true),
        ("orders", "ordersx", false),
        ("reader", "orders/state", false),
        ("root", "pay/state", true),
    ] {
        let api = api().await;
        let path = format!("/terraform/{name}");
        for method in ["LOCK", "POST", "UNLOCK", "DELETE"] {
            let request = by(principal, call(method, &path).json(info));
            let answer = api.send(request).await;
            assert_permitted(
                &answer,
                is_permitted,
                &format!("{principal} {method} {name}"),
            );
        }
        // Without a body, Terraform takes the lock away.
        let forced = api.send(by(principal, call("UNLOCK", &path))).await;
        assert_permitted(&forced, principal == "root", principal);
    }
}

#[tokio::test]
async fn lists_have_only_the_locks_that_may_be_listed() {
    let api = api().await;
    for name in [
        "orders",
        "orders/eu",
        "orders/eu/1",
        "orders/eu/2",
        "orders/eux",
        "orders/us/1",
        "pay/1",
        "q",
    ] {
        let held = api.send(by("root", post(&format!("/locks/{name}")))).await;
        assert_eq!(held.status, 201, "{name}");
    }
    for (principal, query, expected) in [
        (
            "lister",
            "",
            &["orders/eu", "orders/eu/1", "orders/eu/2", "pay/1"][..],
        ),
        (
            "lister",
            "prefix=orders",
            &["orders/eu", "orders/eu/1", "orders/eu/2"],
        ),
        (
            "lister",
            "prefix=orders/eu/",
            &["orders/eu/1", "orders/eu/2"],
        ),
        ("lister", "prefix=p", &["pay/1"]),
        ("orders", "prefix=orders/us", &["orders/us/1"]),
    ] {
        for page_size in [1, 2, 100] {
            let names = listed(&api, principal, query, page_size).await;
            assert_eq!(names, expected, "{principal} {query} {page_size}");
        }
    }
    assert_eq!(listed(&api, "root", "", 3).await.len(), 8);
    for (principal, query) in [
        ("lister", "?prefix=orders/us"),
        ("lister", "?prefix=q"),
        ("orders", "?prefix=ordersx"),
        ("reader", ""),
        ("nobody", ""),
        ("evictor", ""),
    ] {
        for path in ["/locks", "/locks/", "/events"] {
            let answer = api
                .send(by(principal, get(&format!("{path}{query}"))))
                .await;
            assert_permitted(&answer, false, &format!("{principal} {path}{query}"));
        }
    }
}

/// The names of all pages. No page token shows more than the names do.
async fn listed(api: &Api, principal: &str, query: &str, page_size: usize) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let mut token = String::new();
    loop {
        let path = format!("/locks?{query}&page_size={page_size}&page_token={token}");
        let page = api.send(by(principal, get(&path))).await;
        assert_eq!(page.status, 200, "{}", page.text());
        let page = page.json();
        let locks = page["locks"].as_array().unwrap();
        names.extend(
            locks
                .iter()
                .map(|lock| lock["name"].as_str().unwrap().to_owned()),
        );
        token = page["next_page_token"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let Some(last) = names.last().filter(|_| !token.is_empty()) else {
            return names;
        };
        let hexadecimal: String = last.bytes().map(|byte| format!("{byte:02x}")).collect();
        assert!(token.starts_with(&hexadecimal), "{token} after {last}");
    }
}

#[tokio::test]
async fn events_are_only_about_locks_that_may_be_listed() {
    let api = api().await;
    let stream = api.open(by("lister", get("/events"))).await;
    assert_eq!(stream.status(), 200);
    let mut stream = EventStream::of(stream);
    for name in ["q", "orders/us", "orders/eu/1"] {
        let held = api.send(by("root", post(&format!("/locks/{name}")))).await;
        assert_eq!(held.status, 201);
    }
    assert_eq!(stream.expect("acquired").await["name"], "orders/eu/1");
}

#[tokio::test]
async fn metrics_need_their_verb() {
    let api = api().await;
    for principal in PRINCIPALS {
        let answer = api.send(by(principal, get("/metrics"))).await;
        let may = ["root", "prometheus"].contains(&principal);
        assert_permitted(&answer, may, principal);
    }
    let metrics = api.send(by("root", get("/metrics"))).await;
    let line = "leasehold_access_refusals_total{reason=\"rule\"} 5";
    assert!(metrics.text().contains(line), "{line}");
}

#[tokio::test]
async fn a_refusal_names_the_missing_rule_and_no_other_principal() {
    let api = api().await;
    for (request, detail) in [
        (
            by("reader", post("/locks/orders/1")),
            "the principal reader has no rule with the verb acquire",
        ),
        (
            by("orders", post("/locks/pay%2F1")),
            "the principal orders has no rule with the verb acquire on pay/1",
        ),
        (
            by("orders", delete("/locks/orders/1?force=true")),
            "the principal orders has no rule with the verb evict on orders/1",
        ),
        (
            by("lister", get("/locks?prefix=q")),
            "the principal lister has no rule with the verb list on names that begin with q",
        ),
    ] {
        let answer = api.send(request).await;
        assert_eq!(answer.refusal(), (403, "forbidden".to_owned()));
        assert_eq!(answer.detail(), detail);
    }
}

#[tokio::test]
async fn the_owner_can_be_the_principal_whatever_the_request_says() {
    let api = api_with(&ring(
        r#"
[principals.billing]
keys = ["KEY"]
bind_owner = true
rules = [{ prefix = "", verbs = ["acquire", "read"] }]
"#,
    ))
    .await;
    for (name, body) in [("a", "owner=root"), ("b", "ttl=9s")] {
        let request = by("billing", post(&format!("/locks/{name}")).form(body));
        let granted = api.send(request).await;
        assert_eq!(granted.json()["owner"], "billing");
    }
}
