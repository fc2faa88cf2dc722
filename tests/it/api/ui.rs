//! The page at `/ui`: what it loads, what its script asks for, and what the script must never use.

use std::process::Command;

use leasehold::http::openapi;
use serde_json::Value;

use super::support::{Api, get, post};

async fn text_of(path: &str, content_type: &str) -> String {
    let answer = Api::new().await.send(get(path)).await;
    assert_eq!(answer.status, 200, "{path}");
    assert_eq!(answer.header("content-type"), content_type);
    assert_eq!(answer.header("cache-control"), "no-store");
    answer.text().to_owned()
}

async fn script() -> String {
    text_of("/ui/ui.js", "text/javascript; charset=utf-8").await
}

#[tokio::test]
async fn the_page_loads_its_own_files_alone_and_has_no_script_or_style_within() {
    let page = text_of("/ui", "text/html; charset=utf-8").await;
    text_of("/ui/ui.css", "text/css; charset=utf-8").await;
    script().await;
    let tags: Vec<_> = page.split('<').collect();
    let scripts = tags.iter().filter(|tag| tag.starts_with("script"));
    assert_eq!(
        scripts.collect::<Vec<_>>(),
        [&"script defer src=\"ui/ui.js\">"]
    );
    let loaded = tags
        .iter()
        .filter_map(|tag| tag.split_once("href=\""))
        .filter_map(|(_, rest)| rest.split('"').next());
    assert_eq!(loaded.collect::<Vec<_>>(), ["data:,", "ui/ui.css"]);
    for refused in ["//", "<style", " style=", " on", "action="] {
        let tag = tags.iter().find(|tag| {
            let tag = format!("<{}", tag.split('>').next().unwrap_or_default());
            tag.contains(refused)
        });
        assert_eq!(tag, None, "{refused}");
    }
}

#[tokio::test]
async fn nothing_else_is_below_the_page() {
    let api = Api::new().await;
    for path in ["/ui/ui.html", "/ui/x", "/ui/../locks"] {
        assert_eq!(api.send(get(path)).await.status, 404, "{path}");
    }
}

/// The links of the page are relative to `/ui`, also where a proxy serves it below another path.
#[tokio::test]
async fn a_slash_at_the_end_leads_to_the_page() {
    let api = Api::new().await;
    for api in [&api, &api.for_operators()] {
        let answer = api.send(get("/ui/")).await;
        assert_eq!((answer.status, answer.header("location")), (303, "../ui"));
    }
}

/// Every request goes through `ask`, whose first arguments are the method and the path of the document.
#[tokio::test]
async fn every_request_of_the_script_is_in_the_document() {
    let script = script().await;
    assert_eq!(script.matches("fetch(").count(), 1);
    let document: Value = serde_json::from_str(&openapi::json()).expect("JSON");
    let mut requests: Vec<_> = Vec::new();
    for call in script
        .split("ask(")
        .skip(1)
        .filter(|call| !call.starts_with("method, path"))
    {
        let mut texts = call.split('"');
        let (Some(""), Some(method), Some(", "), Some(path)) =
            (texts.next(), texts.next(), texts.next(), texts.next())
        else {
            panic!("a request that is not written out: {}", &call[..40]);
        };
        let operation = &document["paths"][path][method.to_lowercase()];
        assert!(operation.is_object(), "{method} {path}");
        requests.push(format!("{method} {path}"));
    }
    requests.sort_unstable();
    requests.dedup();
    let expected = [
        "DELETE /locks/{name}",
        "GET /locks",
        "GET /locks/{name}",
        "GET /readyz",
        "GET /version",
    ];
    assert_eq!(requests, expected);
}

/// Names, owners and metadata are text from clients, and the key must not outlive the page.
#[tokio::test]
async fn the_script_makes_no_markup_of_text_and_stores_nothing() {
    let script = script().await;
    for refused in [
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "DOMParser",
        "eval(",
        "Function(",
        "setAttribute",
        "localStorage",
        "sessionStorage",
        "indexedDB",
        "cookie",
        "location",
        "history",
        "//cdn",
        "http://",
        "https://",
        "import",
    ] {
        assert!(!script.contains(refused), "{refused}");
    }
}

/// A browser would keep the last of two entries with one name, and round numbers.
#[tokio::test]
async fn metadata_is_shown_as_it_was_sent_with_visible_characters() {
    let api = Api::new().await;
    let sent = "{ \"a\" : [{}, 1.50, 12345678901234567890], \"metadata\": {\"b\": \"} \\\" \"}, \"a\":\"\u{202e}\" }";
    let granted = api.send(post("/locks/a").json(format!("{{\"metadata\":{sent}}}")));
    assert_eq!(granted.await.status, 201);
    let state = api.send(get("/locks/a")).await;
    let printed = Command::new("node")
        .args(["-e", include_str!("ui/holder_row.js"), "--"])
        .args([&script().await, state.text()])
        .output()
        .expect("node is installed");
    let [shown, problem] = [&printed.stdout, &printed.stderr].map(|it| String::from_utf8_lossy(it));
    assert!(printed.status.success(), "{problem}");
    let expected = r#"{"a":[{},1.50,12345678901234567890],"metadata":{"b":"} \" "},"a":"\u202e"}"#;
    assert_eq!(shown, expected);
}

/// A script that asks for a part that the page does not have would stop.
#[tokio::test]
async fn the_page_has_every_part_that_the_script_asks_for() {
    let (page, script) = (
        text_of("/ui", "text/html; charset=utf-8").await,
        script().await,
    );
    let mut count = 0;
    for before in ["part(\"", "onSubmit(\""] {
        for rest in script.split(before).skip(1) {
            let id = rest.split('"').next().unwrap_or_default();
            assert!(page.contains(&format!(" id=\"{id}\"")), "{id}");
            count += 1;
        }
    }
    assert!(count > 20, "{count}");
}
