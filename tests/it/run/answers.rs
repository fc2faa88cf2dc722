//! Answers that arrive late, say little, or are not from the service.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Method, Response, Uri};
use serde_json::Value;

use super::{assert_code, run, state};
use crate::process::Serving;

/// What becomes of the answers of the service.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// Renewals say that hardly anything of the lease is left.
    LittleLeft,
    /// Renewals are answered with this status.
    RefusedRenewal(u16),
    /// The first renewal is answered by somebody else, with this status.
    ForeignRenewal(u16),
    /// A run within the run is answered by somebody else, with this status, when it re-enters.
    ForeignReentry(u16),
    /// The first grant arrives when its lease is over.
    LateGrant,
    /// Releases are answered by somebody else, with this body.
    ForeignRelease(&'static str),
}

/// A server before the service, for as long as the runtime of the test.
async fn front(serving: &Serving, fault: Fault) -> String {
    let service = serving.url.clone();
    let is_first = Arc::new(AtomicBool::new(true));
    let app = Router::new().fallback(
        async move |method: Method, uri: Uri, headers: HeaderMap, body: Bytes| {
            if let (Fault::ForeignRelease(body), &Method::DELETE) = (fault, &method) {
                return Response::new(Body::from(body));
            }
            if let (Fault::RefusedRenewal(status), &Method::PUT) = (fault, &method) {
                let mut response =
                    Response::new(Body::from("{\"code\":\"x\",\"detail\":\"not yours\"}"));
                *response.status_mut() = status.try_into().unwrap();
                return response;
            }
            if let (Fault::ForeignReentry(status), &Method::POST) = (fault, &method)
                && body.windows(10).any(|part| part == b"hold_count")
            {
                let mut response = Response::new(Body::from("<html>welcome</html>"));
                *response.status_mut() = status.try_into().unwrap();
                return response;
            }
            if let (Fault::ForeignRenewal(status), &Method::PUT) = (fault, &method)
                && is_first.swap(false, SeqCst)
            {
                let mut response = Response::new(Body::from("<html>welcome</html>"));
                *response.status_mut() = status.try_into().unwrap();
                return response;
            }
            let request = reqwest::Client::new().request(method.clone(), format!("{service}{uri}"));
            let answer = request.headers(headers).body(body).send().await.unwrap();
            let status = answer.status();
            let mut body = answer.bytes().await.unwrap();
            if fault == Fault::LittleLeft && method == Method::PUT {
                let mut grant: Value = serde_json::from_slice(&body).unwrap();
                grant["expires_in_ms"] = 50.into();
                body = grant.to_string().into();
            }
            if fault == Fault::LateGrant && method == Method::POST && is_first.swap(false, SeqCst) {
                while !is_free(&service).await {}
            }
            let mut response = Response::new(Body::from(body));
            *response.status_mut() = status;
            response
        },
    );
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    #[expect(clippy::disallowed_methods, reason = "its only client is well-behaved")]
    tokio::spawn(async move { axum::serve(listener, app).await });
    format!("http://{address}")
}

/// Each question takes a moment, so this may be asked again and again.
async fn is_free(service: &str) -> bool {
    let state = reqwest::get(format!("{service}/locks/a")).await.unwrap();
    state.text().await.unwrap().contains("\"free\"")
}

async fn output_over(fault: Fault, arguments: &[&str]) -> (Serving, std::process::Output) {
    let serving = Serving::start(&[]);
    let url = front(&serving, fault).await;
    let mut command = run(&serving, arguments);
    command.env("LEASEHOLD_URL", url);
    let output = tokio::task::spawn_blocking(move || command.output().unwrap());
    let output = output.await.unwrap();
    (serving, output)
}

fn stderr(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test]
async fn a_renewal_with_hardly_any_time_left_loses_the_lease_with_a_sentence() {
    let arguments = ["-t", "1s", "a", "--", "sleep", "60"];
    let (_serving, output) = output_over(Fault::LittleLeft, &arguments).await;
    assert_code(&output, 76);
    let text = stderr(&output);
    assert!(
        text.contains("the lock is lost: it could not be renewed in time"),
        "{text}"
    );
}

#[tokio::test]
async fn a_renewal_that_contradicts_the_lock_or_the_claim_loses_the_lease_at_once() {
    for status in [409, 412] {
        let arguments = ["-t", "2s", "a", "--", "sleep", "60"];
        let (_serving, output) = output_over(Fault::RefusedRenewal(status), &arguments).await;
        assert_code(&output, 76);
        let text = stderr(&output);
        assert!(text.contains("the lock is lost: not yours"), "{text}");
    }
}

#[tokio::test]
async fn a_renewal_that_another_server_answers_says_nothing_about_the_lease() {
    for (status, what) in [
        (200, "200 OK is not how the service answers"),
        (409, "409 Conflict"),
        (412, "412 Precondition Failed"),
    ] {
        let arguments = ["-t", "2s", "a", "--", "sleep", "3"];
        let (_serving, output) = output_over(Fault::ForeignRenewal(status), &arguments).await;
        assert_code(&output, 0);
        let text = stderr(&output);
        assert!(text.contains(&format!("trying again: {what}")), "{text}");
    }
}

/// The command of the outer run shows the lock after a run within it.
const NESTED: &str = concat!(
    env!("CARGO_BIN_EXE_leasehold"),
    " run -n a -- true; code=$?; curl -s $LEASEHOLD_URL/locks/a; exit $code"
);

#[tokio::test]
async fn a_nested_run_that_another_server_answers_fails_and_leaves_the_lock_to_the_outer_one() {
    for fault in [
        Fault::ForeignRenewal(200),
        Fault::ForeignRenewal(412),
        Fault::ForeignReentry(201),
        Fault::ForeignReentry(423),
    ] {
        let arguments = ["a", "--", "sh", "-c", NESTED];
        let (_serving, output) = output_over(fault, &arguments).await;
        assert_code(&output, 69);
        let lock: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(lock["state"], "held", "{output:?}");
    }
}

#[tokio::test]
async fn a_grant_that_arrives_when_its_lease_is_over_is_asked_for_again() {
    let arguments = ["-w", "20s", "-t", "500ms", "a", "--", "echo", "ran"];
    let (serving, output) = output_over(Fault::LateGrant, &arguments).await;
    assert_code(&output, 0);
    assert_eq!(output.stdout, b"ran\n");
    assert_eq!(state(&serving, "a").await["state"], "free");
}

#[tokio::test]
async fn a_release_that_another_server_answers_is_not_taken_for_one() {
    for body in ["<html>welcome</html>", "", "null"] {
        let fault = Fault::ForeignRelease(body);
        let (serving, output) = output_over(fault, &["a", "--", "true"]).await;
        assert_code(&output, 0);
        let text = stderr(&output);
        assert!(text.contains("cannot release the lock"), "{body:?} {text}");
        assert_eq!(state(&serving, "a").await["state"], "held");
    }
}
