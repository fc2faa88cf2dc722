//! Which paths name a lock, and which lock.

use super::support::{Api, call, get, post};

#[tokio::test]
async fn a_slash_and_an_encoded_slash_are_the_same_lock() {
    let api = Api::new().await;
    let granted = api.send(post("/locks/orders%2F42")).await;
    assert_eq!(granted.json()["name"], "orders/42");
    assert_eq!(granted.header("location"), "/locks/orders/42");
    assert_eq!(
        api.send(get("/locks/orders/42")).await.json()["state"],
        "held"
    );
    assert_eq!(api.send(post("/locks/%6frders/42")).await.status, 423);
}

#[tokio::test]
async fn every_letter_of_the_alphabet_is_taken_plain_and_encoded() {
    let api = Api::new().await;
    let name = "AZaz09._~:@+,=-";
    let encoded: String = name.bytes().map(|byte| format!("%{byte:02X}")).collect();
    assert_eq!(
        api.send(post(&format!("/locks/{name}"))).await.json()["name"],
        name
    );
    assert_eq!(
        api.send(post(&format!("/locks/{encoded}"))).await.status,
        423
    );
}

/// As with `/locks/$NAME` and an empty variable.
#[tokio::test]
async fn an_empty_name_is_refused_as_such() {
    let api = Api::new().await;
    for method in ["POST", "PUT", "DELETE"] {
        let answer = api.send(call(method, "/locks/")).await;
        assert_eq!(answer.refusal(), (400, "invalid_name".to_owned()));
        assert!(answer.text().contains("is empty"), "{}", answer.text());
    }
}

#[tokio::test]
async fn no_lock_name_is_reserved() {
    let api = Api::new().await;
    for name in ["livez", "metrics", "locks", "docs/x", "n", "force"] {
        assert_eq!(
            api.send(post(&format!("/locks/{name}"))).await.status,
            201,
            "{name}"
        );
    }
}

#[tokio::test]
async fn a_bad_name_is_400_with_the_rule_that_it_breaks() {
    let api = Api::new().await;
    let too_long = format!("/locks/{}", "n".repeat(256));
    for (path, rule) in [
        ("/locks//a", "empty segment"),
        ("/locks/a/", "empty segment"),
        ("/locks/a//b", "empty segment"),
        ("/locks/%2F", "empty segment"),
        ("/locks/a%2F", "empty segment"),
        ("/locks/a/../b", "'.' or '..' segment"),
        ("/locks/..", "'.' or '..' segment"),
        ("/locks/%2e%2E/b", "'.' or '..' segment"),
        ("/locks/.", "'.' or '..' segment"),
        ("/locks/%00", "'\\0'"),
        ("/locks/a%0Ab", "'\\n'"),
        ("/locks/%FF", "not valid UTF-8"),
        ("/locks/a%252Fb", "'%'"),
        ("/locks/a%zz", "'%'"),
        ("/locks/100%", "'%'"),
        ("/locks/a%20b", "' '"),
        ("/locks/caf%C3%A9", "'é'"),
        ("/locks/a;b=1", "';'"),
        ("/locks/a%3Fb", "'?'"),
        ("/locks/{name}", "'{'"),
        (too_long.as_str(), "256 bytes"),
    ] {
        for method in ["GET", "POST", "PUT", "DELETE"] {
            let answer = api.send(call(method, path)).await;
            assert_eq!(
                answer.refusal(),
                (400, "invalid_name".to_owned()),
                "{method} {path}"
            );
            assert!(
                answer.detail().contains(rule),
                "{path}: {}",
                answer.detail()
            );
        }
        let head = api.send(call("HEAD", path)).await;
        assert_eq!((head.status, head.body.len()), (400, 0), "{path}");
    }
}
