//! Answers that are not from the service: there is another server between, or at its address.

use std::net::TcpStream;
use std::thread::JoinHandle;

use super::retries::{TOKEN, asked, serve};
use crate::process::leasehold;
use crate::run::assert_code;

const BETWEEN: &str = "and is no other server between?";
const WRONG_URL: &str = "is this the URL of a Leasehold service";
const DONE: &str = "HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n";
const HTML: &str = "<html>welcome</html>";

fn answer(status: &str, body: &str) -> &'static str {
    format!("HTTP/1.1 {status}\r\nconnection: close\r\n\r\n{body}").leak()
}

fn lease(name: &str, expires_in_ms: &str) -> String {
    format!(
        "{{\"name\":\"{name}\",\"token\":\"{TOKEN}\",\"fencing_token\":7,\"ttl_ms\":30000,\"waited_ms\":0,\"expires_at\":\"x\"{expires_in_ms}}}"
    )
}

/// Gives a command this answer, and checks that it exits with 69 and says this.
#[track_caller]
fn assert_unreachable(arguments: &[&str], answer: &'static str, part: &str) {
    let (url, serving) = serve(vec![Some(answer)]);
    let ended = asked(&url, arguments);
    assert_code(&ended, 69);
    assert!(ended.stdout.is_empty(), "{ended:?}");
    let text = String::from_utf8(ended.stderr).unwrap();
    assert!(text.contains(part), "{arguments:?} {answer}: {text}");
    assert_eq!(serving.join().unwrap().len(), 1);
}

#[test]
fn only_a_lease_of_the_lock_that_is_not_over_says_that_it_was_renewed() {
    let whole = lease("a", ",\"expires_in_ms\":30000");
    for body in [
        "",
        HTML,
        "{}",
        "{\"updated\":true}",
        &lease("a", ""),
        &lease("a", ",\"expires_in_ms\":0"),
        &lease("b", ",\"expires_in_ms\":30000"),
        &format!("{{\"locks\":[{whole},{whole}]}}"),
        &whole.replace(TOKEN, "11111111-1111-4111-8111-111111111111"),
    ] {
        assert_unreachable(&["renew", "a"], answer("200 OK", body), BETWEEN);
    }
    for status in ["202 Accepted", "204 No Content"] {
        assert_unreachable(&["renew", "a"], answer(status, &whole), BETWEEN);
    }
    let (url, serving) = serve(vec![Some(answer("200 OK", &whole))]);
    assert_code(&asked(&url, &["renew", "a"]), 0);
    serving.join().unwrap();
}

#[test]
fn only_an_answer_without_content_says_that_a_lock_was_released() {
    for (status, body) in [
        ("200 OK", HTML),
        ("200 OK", "{}"),
        ("200 OK", &lease("a", ",\"expires_in_ms\":30000")),
        ("202 Accepted", ""),
    ] {
        assert_unreachable(&["release", "a"], answer(status, body), BETWEEN);
    }
}

#[test]
fn a_lock_and_an_eviction_have_their_fields() {
    let other = "{\"name\":\"b\",\"state\":\"free\",\"holders\":[],\"holders_total\":0}";
    for body in ["{}", HTML, "{\"status\":\"ok\"}", other] {
        assert_unreachable(&["get", "a"], answer("200 OK", body), BETWEEN);
        assert_unreachable(&["evict", "a"], answer("200 OK", body), BETWEEN);
    }
    for command in ["get", "evict"] {
        assert_unreachable(&[command, "a"], DONE, BETWEEN);
    }
}

/// A page that names itself as the next one would be asked for without end.
#[test]
fn a_list_ends_with_an_answer_that_is_not_its_next_page() {
    for body in [
        "{}",
        "{\"locks\":[]}",
        "{\"locks\":[{\"name\":\"b\"}],\"next_page_token\":\"\"}",
    ] {
        assert_unreachable(&["ls", "a"], answer("200 OK", body), BETWEEN);
    }
    let page = answer(
        "200 OK",
        "{\"locks\":[{\"name\":\"a\"}],\"next_page_token\":\"again\"}",
    );
    let (url, serving) = serve(vec![Some(page); 2]);
    let ended = asked(&url, &["ls", "-q"]);
    assert_code(&ended, 69);
    assert_eq!(ended.stdout, b"a\n");
    assert_eq!(serving.join().unwrap().len(), 2);
}

/// The requests that the server got, the last of which may be missing.
fn requests(url: &str, serving: JoinHandle<Vec<String>>) -> Vec<String> {
    // Instead of the missing one, so that the server ends.
    drop(TcpStream::connect(url.trim_start_matches("http://")));
    serving.join().unwrap()
}

/// The header of a request with the token of its claim.
fn token(request: &str) -> &str {
    let mut lines = request.lines();
    lines.find(|line| line.starts_with("lock-token: ")).unwrap()
}

#[test]
fn a_claim_that_another_server_answers_is_released_also_if_it_does_not_wait() {
    for answer in [
        answer("201 Created", ""),
        answer("201 Created", HTML),
        answer("201 Created", &lease("b", ",\"expires_in_ms\":30000")),
        answer("202 Accepted", "{}"),
        DONE,
        answer("302 Found", ""),
        answer("404 Not Found", HTML),
    ] {
        for arguments in [
            &["acquire", "a", "-n"][..],
            &["run", "a", "-n", "--", "true"],
        ] {
            let (url, serving) = serve(vec![Some(answer), Some(DONE)]);
            let ended = asked(&url, arguments);
            assert_code(&ended, 69);
            let text = String::from_utf8(ended.stderr).unwrap();
            assert!(text.contains(WRONG_URL), "{text}");
            assert_eq!(text.contains(BETWEEN), answer.starts_with("HTTP/1.1 2"));
            let requests = requests(&url, serving);
            assert!(requests[0].starts_with("POST /locks/a "), "{requests:?}");
            assert!(requests[1].starts_with("DELETE /locks/a "), "{requests:?}");
            assert_eq!(token(&requests[0]), token(&requests[1]));
        }
    }
}

#[test]
fn a_lock_is_neither_taken_nor_lost_because_another_server_says_so() {
    let (url, serving) = serve(vec![Some(answer("423 Locked", HTML)), Some(DONE)]);
    let ended = asked(&url, &["run", "a", "-n", "--skip-ok", "--", "true"]);
    assert_code(&ended, 69);
    let text = String::from_utf8(ended.stderr).unwrap();
    assert!(text.contains(WRONG_URL), "{text}");
    requests(&url, serving);
    let lost = answer("412 Precondition Failed", HTML);
    assert_unreachable(&["renew", "a"], lost, WRONG_URL);
    assert_unreachable(&["release", "a"], lost, WRONG_URL);
}

#[test]
fn a_version_without_a_version_is_not_one_of_the_service() {
    for answer in [
        answer("200 OK", "{}"),
        answer("202 Accepted", "{\"version\":\"1\"}"),
        answer("200 OK", HTML),
        DONE,
    ] {
        let (url, serving) = serve(vec![Some(answer)]);
        let examined = leasehold(&["doctor", "--url", &url]).output().unwrap();
        assert_code(&examined, 69);
        let text = String::from_utf8(examined.stdout).unwrap();
        assert!(text.contains(WRONG_URL), "{text}");
        serving.join().unwrap();
    }
}

#[test]
fn only_a_probe_that_says_so_is_healthy() {
    for answer in [answer("200 OK", HTML), answer("200 OK", "{}"), DONE] {
        let (url, serving) = serve(vec![Some(answer)]);
        let url = format!("{url}/readyz");
        let unhealthy = leasehold(&["healthcheck", "--url", &url]).output().unwrap();
        assert_code(&unhealthy, 1);
        assert!(unhealthy.stdout.is_empty(), "{unhealthy:?}");
        let text = String::from_utf8(unhealthy.stderr).unwrap();
        assert!(text.contains(WRONG_URL), "{text}");
        serving.join().unwrap();
    }
}

#[test]
fn events_that_are_no_stream_end_a_watch() {
    for content_type in ["text/html", "application/json", "text/event-streams"] {
        let status = format!("200 OK\r\ncontent-type: {content_type}");
        assert_unreachable(&["watch", "a"], answer(&status, "{}"), WRONG_URL);
    }
    assert_unreachable(&["watch", "a"], answer("200 OK", ""), WRONG_URL);
}
