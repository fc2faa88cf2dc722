//! Random requests: the response is never a 5xx, and every refusal is a problem.

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, Method, Request, Uri};
use proptest::prelude::*;
use tower::ServiceExt;

use super::support::{Answer, Api};

const PATHS: [&str; 14] = [
    "/locks/a",
    "/locks/a/b",
    "/locks/",
    "/locks",
    "/locks/%FF",
    "/locks/..",
    "/locks/%2F",
    "/",
    "/readyz",
    "/problems/x",
    "/docs/x",
    "/metrics",
    "*",
    "/%",
];
const HEADERS: [&str; 9] = [
    "accept",
    "content-type",
    "lock-token",
    "authorization",
    "x-request-id",
    "content-length",
    "range",
    "expect",
    "if-match",
];

fn path() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(&PATHS[..]).prop_map(str::to_owned),
        "/locks/[ -~]{0,40}",
        "/[!-~]{0,30}",
        prop::collection::vec(any::<u8>(), 0..12).prop_map(|bytes| {
            let encoded: String = bytes.iter().map(|byte| format!("%{byte:02X}")).collect();
            format!("/locks/{encoded}")
        }),
    ]
}

fn query() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        "\\?(ttl|wait|mode|limit|permits|fair|names|owner|hold_count|force|reason|verbose|page_token|prefix)=[!-~]{0,12}",
        "\\?[!-~]{0,30}",
        "\\?(%[0-9A-F]{2}){0,8}",
    ]
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(Vec::new()),
        prop::collection::vec(any::<u8>(), 0..64),
        "\\{\"(ttl|wait|names|limit|owner|metadata|hold_count|token|x)\":[ -~]{0,20}\\}"
            .prop_map(String::into_bytes),
        "(ttl|names|owner|force|hold_count)=[ -~]{0,20}".prop_map(String::into_bytes),
    ]
}

fn headers() -> impl Strategy<Value = Vec<(&'static str, Vec<u8>)>> {
    let value = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..40),
        "(application/json|text/plain|\\*/\\*|bearer [a-z]{0,5}|[!-~]{0,36})(;q=[0-9.]{0,3})?"
            .prop_map(String::into_bytes),
    ];
    prop::collection::vec((prop::sample::select(&HEADERS[..]), value), 0..4)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_that_is_sent_makes_it_fail(
        method in "GET|HEAD|POST|PUT|DELETE|PATCH|OPTIONS|TRACE|CONNECT|[A-Z]{1,8}",
        path in path(),
        query in query(),
        headers in headers(),
        body in body(),
    ) {
        let Ok(uri) = format!("{path}{query}").parse::<Uri>() else {
            // hyper refuses it before it reaches the router.
            return Ok(());
        };
        let mut request = Request::new(Body::from(body));
        *request.uri_mut() = uri;
        *request.method_mut() = Method::from_bytes(method.as_bytes()).expect("a method");
        for (name, value) in headers {
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                request.headers_mut().append(HeaderName::from_static(name), value);
            }
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.expect("a runtime").block_on(async {
            let answer = Api::new().await.router.oneshot(request).await.expect("an answer");
            let answer = Answer::of(answer).await;
            assert!(answer.status < 500, "{}: {}", answer.status, answer.text());
            if answer.status >= 400 && method != "HEAD" {
                answer.code();
            }
        });
    }
}
