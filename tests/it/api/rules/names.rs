//! Names that are none, by principals. How a valid name may be written is in `rules.rs`.

use super::{api, by};
use crate::api::support::call;

#[tokio::test]
async fn a_name_that_is_no_name_is_refused_whoever_asks() {
    let api = api().await;
    for name in [
        "orders%252F42",
        "orders/%2e%2e/pay",
        "%7borders%7d/42",
        "%C3%B6rders",
        "orders%00",
    ] {
        for (principal, method) in [("orders", "POST"), ("reader", "GET"), ("root", "DELETE")] {
            let path = format!("/locks/{name}");
            let answer = api.send(by(principal, call(method, &path))).await;
            assert_eq!(answer.code(), "invalid_name", "{principal} {method} {name}");
        }
    }
}
