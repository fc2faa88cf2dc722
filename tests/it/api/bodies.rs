//! Bodies that are too large, too slow, of an unsupported type, or malformed.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures_util::{StreamExt as _, stream};
use insta::assert_snapshot;

use super::support::{Api, get, post};

#[tokio::test]
async fn a_body_that_is_neither_json_nor_a_form_is_415() {
    let api = Api::new().await;
    for content_type in [
        "text/plain",
        "application/xml",
        "application/octet-stream",
        "nonsense",
    ] {
        let request = post("/locks/a")
            .header("content-type", content_type)
            .body("ttl=5s");
        let refused = api.send(request).await.refusal();
        assert_eq!(
            refused,
            (415, "unsupported_media_type".to_owned()),
            "{content_type}"
        );
    }
    let multipart = post("/locks/a").header("content-type", "multipart/form-data; boundary=x");
    let answer = api.send(multipart.body("--x\r\n")).await;
    assert_eq!(answer.code(), "unsupported_media_type");
    assert!(
        answer.detail().contains("curl -d, not -F"),
        "{}",
        answer.detail()
    );
}

#[tokio::test]
async fn a_type_with_parameters_or_none_at_all_is_fine() {
    let api = Api::new().await;
    let form = "application/x-www-form-urlencoded;charset=UTF-8";
    for (name, content_type) in [("a", form), ("b", "APPLICATION/X-WWW-FORM-URLENCODED")] {
        let request = post(&format!("/locks/{name}")).header("content-type", content_type);
        assert_eq!(
            api.send(request.body("ttl=5s")).await.status,
            201,
            "{content_type}"
        );
    }
    assert_eq!(api.send(post("/locks/c").body("ttl=5s")).await.status, 201);
    let json = post("/locks/d")
        .header("content-type", "text/plain")
        .body(r#"{"ttl":"5s"}"#);
    assert_eq!(api.send(json).await.status, 201);
}

#[tokio::test]
async fn json_that_is_no_object_or_no_json_is_malformed() {
    let api = Api::new().await;
    let deep = format!("{{\"a\":{}", "[".repeat(60_000));
    for body in [
        "[]",
        "null",
        "\"ttl=5s\"",
        "7",
        "   ",
        "\u{feff}{}",
        "{",
        "{}x",
        "{} {}",
        "{\"ttl\":}",
        "{ttl:\"5s\"}",
        "{\"ttl\":\"5s\",}",
        "{'ttl':'5s'}",
        "{\"owner\":\"\\ud800\"}",
        "{\"owner\":\"a\nb\"}",
        deep.as_str(),
    ] {
        let refused = api
            .send(post("/locks/a").json(body.to_owned()))
            .await
            .refusal();
        assert_eq!(refused, (400, "malformed_body".to_owned()), "{body:.60}");
    }
    assert_snapshot!(
        "malformed_body",
        api.send(post("/locks/a").json("{\"ttl\":}")).await.shape()
    );
}

#[tokio::test]
async fn deep_json_is_harmless_everywhere() {
    let api = Api::new().await;
    let deep = format!("{}{}", "[".repeat(30_000), "]".repeat(30_000));
    for field in ["metadata", "ttl", "nonsense"] {
        let body = format!("{{\"{field}\":{deep}}}");
        assert_eq!(
            api.send(post("/locks/a").json(body)).await.status,
            400,
            "{field}"
        );
    }
}

#[tokio::test]
async fn invalid_utf_8_is_refused_everywhere() {
    let api = Api::new().await;
    for request in [
        post("/locks/a?owner=%FF"),
        post("/locks/a?%FF=x"),
        get("/locks?prefix=%C3%28"),
        post("/locks/a").form("owner=%FF"),
        post("/locks/a").form(&b"owner=\xff"[..]),
        post("/locks/a").json(&b"{\"owner\":\"\xff\"}"[..]),
        post("/locks/a").json(&b"{\"\xff\":\"\"}"[..]),
        post("/locks/a").json(&b"{\"metadata\":{\"a\":\"\xff\"}}"[..]),
    ] {
        assert_eq!(
            api.send(request).await.refusal(),
            (400, "malformed_body".to_owned())
        );
    }
}

#[tokio::test]
async fn a_body_that_is_too_large_is_413_with_or_without_a_content_length() {
    let api = Api::new().await;
    let fits = format!("{{\"owner\":\"{}\"}}", "o".repeat(65_536 - 12));
    assert_eq!(fits.len(), 65_536);
    assert_eq!(
        api.send(post("/locks/a").json(fits.clone())).await.code(),
        "invalid_field"
    );
    let announced = api.send(post("/locks/a").json(fits.clone() + " ")).await;
    assert_eq!(announced.refusal(), (413, "body_too_large".to_owned()));
    let chunks = stream::iter([fits, " ".to_owned()].map(Ok::<_, Infallible>));
    let chunked = api
        .send(post("/locks/a").json(Body::from_stream(chunks)))
        .await;
    assert_eq!(chunked.refusal(), (413, "body_too_large".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_arrive_is_408() {
    let api = Api::with(|settings| settings.body_timeout = Duration::from_secs(3)).await;
    let begun = tokio::time::Instant::now();
    let never = stream::pending::<Result<Bytes, Infallible>>();
    let answer = api
        .send(post("/locks/a").json(Body::from_stream(never)))
        .await;
    assert_eq!(answer.refusal(), (408, "body_timeout".to_owned()));
    assert_eq!(answer.header("connection"), "close");
    assert_eq!(begun.elapsed().as_secs(), 3);
}

/// A piece of a body, which is counted for as long as somebody has it.
struct Piece(#[expect(dead_code, reason = "it is held, not read")] Arc<()>);

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        b"&"
    }
}

/// A piece keeps the whole buffer that it was received into, so that many small ones would take many times what they count.
#[tokio::test]
async fn the_pieces_of_a_body_are_not_kept_while_others_come() {
    const PIECES: usize = 1_000;
    let (kept, api) = (Arc::new(()), Api::new().await);
    let pieces = stream::iter(0..PIECES).map({
        let kept = Arc::clone(&kept);
        move |_| {
            // Here, the stream, and the piece before this one.
            assert!(Arc::strong_count(&kept) <= 3);
            Ok::<_, Infallible>(Bytes::from_owner(Piece(Arc::clone(&kept))))
        }
    });
    let request = post("/locks/a").body(Body::from_stream(pieces));
    assert_eq!(api.send(request).await.status, 201);
    assert_eq!(Arc::strong_count(&kept), 1);
}

#[tokio::test]
async fn a_body_that_breaks_off_is_malformed() {
    let chunks = stream::iter([Ok("{\"ttl\":"), Err(std::io::Error::other("gone"))]);
    let answer = Api::new()
        .await
        .send(post("/locks/a").json(Body::from_stream(chunks)))
        .await;
    assert_eq!(answer.refusal(), (400, "malformed_body".to_owned()));
}

#[tokio::test]
async fn a_get_does_not_read_its_body() {
    let never = stream::pending::<Result<Bytes, Infallible>>();
    let answer = Api::new()
        .await
        .send(get("/locks/a").json(Body::from_stream(never)))
        .await;
    assert_eq!(answer.status, 200);
}
