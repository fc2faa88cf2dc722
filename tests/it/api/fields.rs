//! Fields: where they may be sent, and how unknown or contradictory ones are refused.

use super::support::{Api, call, delete, get, post, put, refused};

const A: &str = "6f1c3b0e-8f0a-4f57-9c55-0d5d3f1f4a1b";
const B: &str = "0b0d1d6e-0a58-4f0b-8a0f-2b1f6f1f9a77";

#[tokio::test]
async fn a_field_means_the_same_in_json_in_a_form_and_in_the_query_string() {
    let api = Api::new().await;
    for (name, request) in [
        (
            "json",
            post("/locks/json").json(r#"{"ttl":"45s","owner":"a b","hold_count":3}"#),
        ),
        (
            "form",
            post("/locks/form").form("ttl=45s&owner=a+b&hold_count=3"),
        ),
        (
            "query",
            post("/locks/query?ttl=45s&owner=a%20b&hold_count=3"),
        ),
        (
            "both",
            post("/locks/both?ttl=45s").form("owner=a+b&hold_count=3"),
        ),
        (
            "digits",
            post("/locks/digits").json(r#"{"ttl":"45s","owner":"a b","hold_count":"3"}"#),
        ),
        (
            "blank",
            post("/locks/blank").json(" \n{\"ttl\":\"45s\",\"owner\":\"a b\",\"hold_count\":3}\n"),
        ),
        // What curl -d '{…}' sends: JSON with the Content-Type of a form.
        (
            "curl",
            post("/locks/curl").form(r#"{"ttl":"45s","owner":"a b","hold_count":3}"#),
        ),
        (
            "escape",
            post("/locks/escape").json(r#"{"tt\u006c":"45s","owner":"a\u0020b","hold_count":3}"#),
        ),
    ] {
        let grant = api.send(request).await;
        assert_eq!(grant.status, 201, "{name}: {}", grant.text());
        let grant = grant.json();
        assert_eq!(
            (&grant["ttl_ms"], &grant["owner"]),
            (&45_000.into(), &"a b".into()),
            "{name}"
        );
        assert_eq!(grant["hold_count"], 3, "{name}");
    }
}

#[tokio::test]
async fn no_body_an_empty_one_and_null_mean_the_defaults() {
    let api = Api::new().await;
    for (name, request) in [
        ("a", post("/locks/a")),
        ("b", post("/locks/b").json("")),
        ("c", post("/locks/c").json("{}")),
        ("d", post("/locks/d").form("")),
        ("e", post("/locks/e?")),
        (
            "f",
            post("/locks/f").json(r#"{"ttl":null,"metadata":null,"token":null,"hold_count":null}"#),
        ),
    ] {
        let grant = api.send(request).await;
        assert_eq!(grant.status, 201, "{name}: {}", grant.text());
        assert_eq!(grant.json()["ttl_ms"], 30_000, "{name}");
    }
}

#[tokio::test]
async fn a_field_may_be_repeated_with_the_same_value_only() {
    let api = Api::new().await;
    let fine = [
        post("/locks/a?ttl=5s").form("ttl=5s"),
        post("/locks/b?ttl=5s&ttl=5s"),
        post("/locks/c?hold_count=1").json(r#"{"hold_count":1}"#),
        post("/locks/d")
            .token(A)
            .json(format!(r#"{{"token":"{}"}}"#, A.to_uppercase())),
    ];
    for request in fine {
        assert_eq!(api.send(request).await.status, 201);
    }
    let contradictions = [
        (post("/locks/e?ttl=5s").form("ttl=6s"), "ttl"),
        (post("/locks/e?ttl=5s&ttl=6s"), "ttl"),
        (post("/locks/e").json(r#"{"ttl":"5s","ttl":"6s"}"#), "ttl"),
        (
            post("/locks/e").token(A).form(format!("token={B}")),
            "token",
        ),
        (post("/locks/e").token(A).token(B), "token"),
    ];
    for (request, field) in contradictions {
        refused(&api, request, "invalid_field", field, "different").await;
    }
}

#[tokio::test]
async fn a_field_that_does_not_exist_is_refused_with_the_one_that_was_meant() {
    let api = Api::new().await;
    for (request, field, meant) in [
        (post("/locks/a?tll=5s"), "tll", "did you mean \"ttl\""),
        (
            post("/locks/a").form("TTL=5s"),
            "TTL",
            "did you mean \"ttl\"",
        ),
        (
            post("/locks/a").json(r#"{"ttl_ms":5000}"#),
            "ttl_ms",
            "did you mean \"ttl\"",
        ),
        (
            post("/locks/a").json(r#"{"holdcount":2}"#),
            "holdcount",
            "did you mean \"hold_count\"",
        ),
        (
            post("/locks/a").json(r#"{"onwer":null}"#),
            "onwer",
            "did you mean \"owner\"",
        ),
        (
            post("/locks/a?colour=red"),
            "colour",
            "the fields are: ttl, wait, mode, limit, permits, owner",
        ),
        (
            put("/locks/a?owner=me").token(A),
            "owner",
            "the fields are: ttl, mode, limit, permits, token",
        ),
        (
            delete("/locks/a?ttl=5s").token(A),
            "ttl",
            "the fields are: hold_count",
        ),
        (
            delete("/locks/a?forced=true"),
            "forced",
            "did you mean \"force\"",
        ),
        (get("/locks/a?ttl=5s"), "ttl", "has no fields"),
        (get("/locks?prefx=a"), "prefx", "did you mean \"prefix\""),
        (
            get("/locks?names=a"),
            "names",
            "the fields are: prefix, page_size, page_token",
        ),
        (post("/locks/a?names=b"), "names", "several locks at /locks"),
        (get("/readyz?verbos"), "verbos", "did you mean \"verbose\""),
        (post("/locks/a?=5s"), "", "unknown field \"\""),
    ] {
        refused(&api, request, "unknown_field", field, meant).await;
    }
    let answer = api.send(post("/locks/a?tll=5s")).await;
    insta::assert_snapshot!("unknown_field", answer.shape());
}

#[tokio::test]
async fn a_misspelt_field_for_waiting_or_sharing_gets_a_suggestion() {
    let api = Api::new().await;
    for (request, field, meant) in [
        (post("/locks/a?wiat=5s"), "wiat", "did you mean \"wait\""),
        (
            post("/locks/a?wait_ms=5"),
            "wait_ms",
            "did you mean \"wait\"",
        ),
        (
            post("/locks/a?permit=2"),
            "permit",
            "did you mean \"permits\"",
        ),
        (
            post("/locks/a?limits=2"),
            "limits",
            "did you mean \"limit\"",
        ),
        (
            post("/locks").form("nmaes=a"),
            "nmaes",
            "did you mean \"names\"",
        ),
        (get("/events?prefx=a"), "prefx", "did you mean \"prefix\""),
    ] {
        refused(&api, request, "unknown_field", field, meant).await;
    }
}

#[tokio::test]
async fn a_number_that_is_too_large_is_not_quoted_as_another_one() {
    let api = Api::new().await;
    let digits = "9".repeat(30);
    for (request, field) in [
        (post(&format!("/locks/a?ttl={digits}s")), "ttl"),
        (
            post(&format!("/locks/a?mode=shared&limit={digits}")),
            "limit",
        ),
        (
            post(&format!("/locks/a?mode=shared&limit=4&permits={digits}")),
            "permits",
        ),
        (post(&format!("/locks/a?hold_count={digits}")), "hold_count"),
    ] {
        refused(&api, request, "invalid_field", field, ": this is out of").await;
    }
}

#[tokio::test]
async fn a_token_is_a_uuid_and_never_in_the_query_string() {
    let api = Api::new().await;
    let (nil, max) = (
        "00000000-0000-0000-0000-000000000000",
        "ffffffff-ffff-ffff-ffff-ffffffffffff",
    );
    for token in ["lease-1", "", "6f1c3b0e", nil, max] {
        for method in ["POST", "PUT", "DELETE"] {
            refused(
                &api,
                call(method, "/locks/a").token(token),
                "invalid_field",
                "token",
                "UUID",
            )
            .await;
            let form = call(method, "/locks/a").form(format!("token={token}"));
            refused(&api, form, "invalid_field", "token", "UUID").await;
        }
    }
    let not_text = post("/locks/a").header("lock-token", b"\xff\xfe");
    refused(&api, not_text, "invalid_field", "token", "UUID").await;
    for method in ["GET", "POST", "PUT", "DELETE"] {
        for query in [format!("token={A}"), format!("ttl=5s&%74oken={A}")] {
            let answer = api.send(call(method, &format!("/locks/a?{query}"))).await;
            assert_eq!(answer.refusal(), (400, "token_in_query".to_owned()));
            assert!(!answer.text().contains(A), "{}", answer.text());
        }
    }
}

#[tokio::test]
async fn renewing_and_releasing_need_the_token() {
    let api = Api::new().await;
    api.token_of("/locks/a").await;
    for request in [
        put("/locks/a"),
        delete("/locks/a"),
        delete("/locks/a?force=false"),
    ] {
        assert_eq!(
            api.send(request).await.refusal(),
            (400, "token_missing".to_owned())
        );
    }
    insta::assert_snapshot!("token_missing", api.send(put("/locks/a")).await.shape());
}

#[tokio::test]
async fn an_eviction_takes_only_what_belongs_to_it() {
    let api = Api::new().await;
    let long = format!("/locks/a?force=true&reason={}", "r".repeat(257));
    for (request, field, words) in [
        (delete("/locks/a?reason=x").token(A), "reason", "force=true"),
        (delete("/locks/a?force=yes"), "force", "true or false"),
        (
            delete("/locks/a?force=true&hold_count=1"),
            "hold_count",
            "force=true",
        ),
        (
            delete("/locks/a?force=true&reason=a%07b"),
            "reason",
            "control character",
        ),
        (delete(&long), "reason", "at most 256"),
        (delete("/locks/a?force=true").token("a"), "token", "a UUID"),
    ] {
        refused(&api, request, "invalid_field", field, words).await;
    }
}

/// The rest of the body is not even parsed: it is not valid UTF-8.
#[tokio::test]
async fn of_thousands_of_unknown_fields_the_first_is_refused_and_the_rest_is_not_read() {
    let api = Api::new().await;
    let many = "a=1&".repeat(15_000);
    let members = "\"a\":1,".repeat(8_000);
    for request in [
        post(&format!("/locks/a?{many}b=%FF")),
        post("/locks/a").form(format!("{many}b=%FF")),
        post("/locks/a").json(format!("{{{members}\"b\":2}}")),
        put(&format!("/locks/a?{many}b=%FF")).token(A),
        delete(&format!("/locks/a?{many}b=%FF")).token(A),
        get(&format!("/locks/a?{many}b=%FF")),
        get(&format!("/events?{many}b=%FF")),
    ] {
        let refused = api.send(request).await;
        assert_eq!(refused.refusal(), (400, "unknown_field".to_owned()));
        assert_eq!(refused.json()["field"], "a");
        assert!(refused.text().len() < 1_024, "{}", refused.text());
    }
}

#[tokio::test]
async fn more_fields_than_any_request_needs_are_refused_though_all_are_known() {
    let api = Api::new().await;
    for (count, status) in [(200, 201), (201, 400)] {
        let form = vec!["ttl=10s"; count].join("&");
        let members = vec![r#""ttl":"10s""#; count].join(",");
        for request in [
            post(&format!("/locks/query-{count}?{form}")),
            post(&format!("/locks/form-{count}")).form(form.clone()),
            post(&format!("/locks/json-{count}")).json(format!("{{{members}}}")),
        ] {
            let answer = api.send(request).await;
            assert_eq!(answer.status, status, "{}", answer.text());
            assert_eq!(
                answer.text().contains("more than 200 fields"),
                status == 400
            );
        }
    }
}

/// Each of these characters is escaped with six.
#[tokio::test]
async fn a_name_among_several_is_not_repeated_at_its_full_length() {
    let api = Api::new().await;
    let name = "\u{7f}".repeat(10_000);
    let request = post("/locks").json(serde_json::json!({ "names": [name] }).to_string());
    let refused = api.send(request).await;
    assert_eq!(refused.refusal(), (400, "invalid_name".to_owned()));
    assert!(
        refused.text().len() < 2_048,
        "{} bytes",
        refused.text().len()
    );
}
