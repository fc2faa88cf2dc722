//! Invalid values of fields, and their error messages.

use super::support::{Api, delete, post, put, refused};

const A: &str = "6f1c3b0e-8f0a-4f57-9c55-0d5d3f1f4a1b";

#[tokio::test]
async fn a_duration_without_a_unit_is_refused_and_the_message_shows_how_to_write_it() {
    let api = Api::new().await;
    for field in ["ttl", "wait", "min_hold", "max_hold", "lock_delay"] {
        let number = post("/locks/a").json(format!(r#"{{"{field}":30}}"#));
        refused(&api, number, "invalid_field", field, "30s").await;
        let digits = post("/locks/a").json(format!(r#"{{"{field}":"30"}}"#));
        refused(&api, digits, "invalid_field", field, "30s").await;
        refused(
            &api,
            post(&format!("/locks/a?{field}=30")),
            "invalid_field",
            field,
            "30s",
        )
        .await;
        for value in ["1.5s", "-1s", "10 s", "", "s", "1w", "soon"] {
            let request = post("/locks/a").json(format!(r#"{{"{field}":"{value}"}}"#));
            refused(&api, request, "invalid_field", field, "").await;
        }
        for value in ["true", "1e3", "-1", "[]", "{}"] {
            let request = post("/locks/a").json(format!(r#"{{"{field}":{value}}}"#));
            refused(&api, request, "invalid_field", field, "").await;
        }
    }
    refused(
        &api,
        put("/locks/a?ttl=30").token(A),
        "invalid_field",
        "ttl",
        "30s",
    )
    .await;
}

#[tokio::test]
async fn a_value_out_of_its_bounds_is_refused_and_the_message_has_the_bounds() {
    let api = Api::new().await;
    for (query, field, bounds) in [
        ("ttl=99ms", "ttl", "100ms to 1h"),
        ("ttl=0s", "ttl", "100ms to 1h"),
        ("ttl=61m", "ttl", "100ms to 1h"),
        ("ttl=99999999999999999999h", "ttl", "100ms to 1h"),
        ("min_hold=2h", "min_hold", "0s to 1h"),
        ("max_hold=31d", "max_hold", "100ms to 30d"),
        (
            "min_hold=6s&max_hold=5s",
            "min_hold",
            "longer than max_hold",
        ),
        ("max_hold=0s", "max_hold", "100ms to 30d"),
        ("lock_delay=61s", "lock_delay", "0s to 1m"),
        ("hold_count=0", "hold_count", "1 to 1000"),
        ("hold_count=1001", "hold_count", "1 to 1000"),
        ("hold_count=99999999999999999999", "hold_count", "1 to 1000"),
        ("owner=a%0Ab", "owner", "control character"),
        ("mode=shared&limit=0", "limit", "1 to 1000000"),
        ("mode=shared&limit=1000001", "limit", "1 to 1000000"),
        ("mode=shared&limit=4&permits=0", "permits", "1 to 4"),
        ("mode=shared&limit=4&permits=5", "permits", "1 to 4"),
        ("mode=shared&permits=2", "permits", "needs a limit"),
        ("limit=4", "limit", "only with mode=shared"),
        ("permits=1", "permits", "only with mode=shared"),
        ("mode=exclusive&limit=4", "limit", "only with mode=shared"),
        ("mode=semaphore", "mode", "exclusive or shared"),
        ("fair=yes", "fair", "true or false"),
    ] {
        let request = post(&format!("/locks/a?{query}"));
        refused(&api, request, "invalid_field", field, bounds).await;
    }
    let owner = post(&format!("/locks/a?owner={}", "o".repeat(257)));
    refused(&api, owner, "invalid_field", "owner", "at most 256").await;
    refused(
        &api,
        put("/locks/a?ttl=2h").token(A),
        "invalid_field",
        "ttl",
        "100ms to 1h",
    )
    .await;
    refused(
        &api,
        delete("/locks/a?hold_count=0").token(A),
        "invalid_field",
        "hold_count",
        "1 to",
    )
    .await;
}

/// Direction controls, line breaks and invisible characters can make a text look like another one wherever it is shown.
#[tokio::test]
async fn text_that_is_shown_to_others_has_nothing_that_changes_how_it_is_shown() {
    let api = Api::new().await;
    let letters = [
        0xad, 0x34f, 0x61c, 0x115f, 0x180e, 0x3164, 0xfe0f, 0xfeff, 0xffa0, 0xfff9, 0x1d173,
        0xe0001, 0xe0061, 0xe0100,
    ];
    for letter in letters
        .into_iter()
        .chain(0x200b..=0x200f)
        .chain(0x2028..=0x202e)
        .chain(0x2060..=0x206f)
    {
        let letter = char::from_u32(letter).expect("a character");
        let owner = format!("{{\"owner\":\"a{letter}b\"}}");
        refused(
            &api,
            post("/locks/a").json(owner),
            "invalid_field",
            "owner",
            "is shown",
        )
        .await;
        let reason = format!("{{\"force\":true,\"reason\":\"a{letter}b\"}}");
        refused(
            &api,
            delete("/locks/a").json(reason),
            "invalid_field",
            "reason",
            "is shown",
        )
        .await;
    }
    let owner = post("/locks/a").json("{\"owner\":\"bücher-7 עברית 東京 क्षि ด้วย 🔧\"}");
    assert_eq!(api.send(owner).await.status, 201);
}

#[tokio::test]
async fn a_value_of_the_wrong_type_is_refused() {
    let api = Api::new().await;
    for (body, field) in [
        (r#"{"owner":7}"#, "owner"),
        (r#"{"mode":true}"#, "mode"),
        (r#"{"mode":"EXCLUSIVE"}"#, "mode"),
        (r#"{"token":7}"#, "token"),
        (r#"{"fair":1}"#, "fair"),
        (r#"{"mode":"shared","limit":"four"}"#, "limit"),
        (r#"{"mode":"shared","limit":2.5}"#, "limit"),
        (r#"{"hold_count":2.0}"#, "hold_count"),
        (r#"{"hold_count":-1}"#, "hold_count"),
        (r#"{"hold_count":"two"}"#, "hold_count"),
        (r#"{"hold_count":""}"#, "hold_count"),
        (r#"{"hold_count":[1]}"#, "hold_count"),
        (r#"{"metadata":"{}"}"#, "metadata"),
        (r#"{"metadata":[1]}"#, "metadata"),
        (r#"{"metadata":{"a":"\ud800"}}"#, "metadata"),
        (r#"{"metadata":{"a":1e999}}"#, "metadata"),
    ] {
        refused(
            &api,
            post("/locks/a").json(body),
            "invalid_field",
            field,
            "",
        )
        .await;
    }
    refused(
        &api,
        post("/locks/a").form("metadata={}"),
        "invalid_field",
        "metadata",
        "JSON",
    )
    .await;
}

#[tokio::test]
async fn metadata_that_would_break_the_answers_about_a_lock_is_refused() {
    let api = Api::new().await;
    let nested = |depth: usize| {
        let (open, close) = (r#"{"a":"#.repeat(depth), "}".repeat(depth));
        post("/locks/a").json(format!(r#"{{"metadata":{open}1{close}}}"#))
    };
    refused(
        &api,
        nested(65),
        "invalid_field",
        "metadata",
        "deeper than 64",
    )
    .await;
    refused(&api, nested(500), "invalid_field", "metadata", "").await;
    let large = format!(r#"{{"metadata":{{"a":"{}"}}}}"#, "x".repeat(4_096));
    refused(
        &api,
        post("/locks/a").json(large),
        "invalid_field",
        "metadata",
        "at most 4096",
    )
    .await;
    assert_eq!(api.send(nested(64)).await.status, 201);
}
