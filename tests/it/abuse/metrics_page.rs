//! How long clients can make the page of metrics.

use super::{Attacked, ask};

/// The methods that clients may make up, or that few routes have.
const METHODS: [&str; 9] = [
    "GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "LOCK", "BREW",
];

/// Each series costs every page that follows 24 lines.
#[tokio::test]
async fn methods_that_no_route_has_make_few_series() {
    let attacked = Attacked::start(&[]).await;
    for method in METHODS {
        for path in ["/livez", "/version", "/problems", "/openapi.json", "/locks"] {
            ask(attacked.address, method, path, "").await.unwrap();
        }
    }
    let (_, page) = ask(attacked.address, "GET", "/metrics", "").await.unwrap();
    let is_count = |line: &&str| line.starts_with("http_server_request_duration_seconds_count");
    let refused = page
        .lines()
        .filter(is_count)
        .filter(|line| line.contains(r#"http_response_status_code="405""#));
    // One for each of the routes.
    assert!(
        refused.clone().count() <= 5,
        "{:?}",
        refused.collect::<Vec<_>>()
    );
}
