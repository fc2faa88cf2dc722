//! Problems: paths and methods that do not exist, and the page of every code.

use leasehold::http::{Code, Route};

use super::support::{Api, call, get};

#[tokio::test]
async fn a_path_that_does_not_exist_is_404() {
    let api = Api::new().await;
    for path in [
        "/lock",
        "/lock/a",
        "//locks/a",
        "/LOCKS/a",
        "/%FF",
        "/livez/",
        "/problems/",
        "/problems/a/b",
        "/.",
    ] {
        let answer = api.send(get(path)).await;
        assert_eq!(answer.refusal(), (404, "not_found".to_owned()), "{path}");
    }
    insta::assert_snapshot!("not_found", api.send(get("/nothing")).await.shape());
}

#[tokio::test]
async fn a_method_that_does_not_exist_is_405_and_lists_those_that_do() {
    let api = Api::new().await;
    let methods = [
        "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "LOCK",
        "PURGE",
    ];
    let all = [
        "/",
        "/locks",
        "/locks/",
        "/locks/a",
        "/events",
        "/livez",
        "/readyz",
        "/healthz",
        "/version",
        "/metrics",
        "/openapi.json",
        "/docs",
        "/docs/",
        "/docs/x.js",
        "/ui",
        "/ui/ui.js",
        "/problems",
        "/problems/lock_held",
    ];
    for path in all {
        let allowed: &[&str] = match path {
            "/locks" | "/locks/" | "/locks/a" => &["GET", "HEAD", "POST", "PUT", "DELETE"],
            _ => &["GET", "HEAD"],
        };
        for method in methods.iter().filter(|method| !allowed.contains(method)) {
            let answer = api.send(call(method, path)).await;
            assert_eq!(
                answer.refusal(),
                (405, "method_not_allowed".to_owned()),
                "{method} {path}"
            );
            let mut listed: Vec<_> = answer.header("allow").split(',').map(str::trim).collect();
            let mut expected = allowed.to_vec();
            listed.sort_unstable();
            expected.sort_unstable();
            assert_eq!(listed, expected, "{method} {path}");
        }
    }
    insta::assert_snapshot!(
        "method_not_allowed",
        api.send(call("PATCH", "/locks/a")).await.shape()
    );
}

#[tokio::test]
async fn every_problem_has_a_page_that_its_type_leads_to() {
    let api = Api::new().await;
    let list = api.send(get(Route::Problems.template())).await.json();
    let list = list["problems"].as_array().expect("a list").clone();
    assert_eq!(list.len(), Code::ALL.len());
    for (code, listed) in Code::ALL.iter().zip(list) {
        assert_eq!(listed["code"], code.as_str());
        let path = listed["type"].as_str().expect("a path");
        let page = api.send(get(path)).await;
        assert_eq!((page.status, page.json()), (200, listed.clone()), "{path}");
        let text = api.send(get(path).header("accept", "text/plain")).await;
        assert!(
            text.text()
                .contains(listed["what_to_do"].as_str().expect("text"))
        );
    }
    let unknown = api.send(get("/problems/unheard_of")).await;
    assert_eq!(unknown.refusal(), (404, "not_found".to_owned()));
    insta::assert_snapshot!(
        "problem_page",
        api.send(get("/problems/lock_held")).await.shape()
    );
    let html = get("/problems/unauthorized").header("accept", "text/html");
    insta::assert_snapshot!("problem_page_html", api.send(html).await.shape());
}

#[tokio::test]
async fn the_request_id_of_the_client_is_repeated_if_it_is_fit_to_be() {
    let api = Api::new().await;
    let echoed = api
        .send(get("/nothing").header("x-request-id", "job 7/α".replace('α', "a")))
        .await;
    assert_eq!(echoed.header("x-request-id"), "job 7/a");
    assert_eq!(echoed.code(), "not_found");
    let long = "x".repeat(129);
    for unfit in [&b""[..], b"caf\xc3\xa9", b"a\tb", long.as_bytes()] {
        let answer = api.send(get("/livez").header("x-request-id", unfit)).await;
        let made = uuid::Uuid::try_parse(answer.header("x-request-id")).expect("a UUID");
        assert_eq!(made.get_version_num(), 7);
    }
}

#[tokio::test]
async fn no_answer_may_be_stored() {
    let api = Api::new().await;
    for path in [
        "/locks/a",
        "/locks",
        "/livez",
        "/nothing",
        "/openapi.json",
        "/problems",
    ] {
        assert_eq!(
            api.send(get(path)).await.header("cache-control"),
            "no-store",
            "{path}"
        );
    }
}
