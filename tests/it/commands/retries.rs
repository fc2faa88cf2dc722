//! Which requests are repeated when their answer is lost. The service is one that breaks connections.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Output;
use std::thread::JoinHandle;

use crate::process::leasehold;
use crate::run::assert_code;

pub(super) const TOKEN: &str = "6f1c3b0e-8f0a-4f57-9c55-0d5d3f1f4a1b";

/// Reads a request and hangs up on the first connections, and gives this answer on the next one, if there is one. The
/// requests come back.
pub(super) fn serve(answers: Vec<Option<&'static str>>) -> (String, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving = std::thread::spawn(move || {
        let answer = |(mut stream, _): (TcpStream, _), answer: Option<&str>| {
            let mut request = [0; 4096];
            let length = stream.read(&mut request).unwrap();
            stream
                .write_all(answer.unwrap_or_default().as_bytes())
                .unwrap();
            String::from_utf8_lossy(&request[..length]).into_owned()
        };
        let answers = answers.into_iter();
        answers
            .map(|text| answer(listener.accept().unwrap(), text))
            .collect()
    });
    (url, serving)
}

pub(super) fn asked(url: &str, arguments: &[&str]) -> Output {
    let mut command = leasehold(arguments);
    command
        .env("LEASEHOLD_URL", url)
        .env("LEASEHOLD_LOCK_TOKEN", TOKEN);
    command.output().unwrap()
}

#[track_caller]
fn assert_unclear(eviction: Output) {
    assert_code(&eviction, 69);
    let text = String::from_utf8(eviction.stderr).unwrap();
    let words = "whether anybody was evicted is unknown";
    assert!(text.contains(words), "{text}");
}

#[test]
fn a_release_whose_answer_is_lost_is_repeated_with_its_token() {
    let done = "HTTP/1.1 204 No Content\r\n\r\n";
    let (url, serving) = serve(vec![None, Some(done)]);
    assert_code(&asked(&url, &["release", "a"]), 0);
    for request in serving.join().unwrap() {
        assert!(request.starts_with("DELETE /locks/a "), "{request}");
        assert!(request.contains(TOKEN), "{request}");
    }
}

#[test]
fn an_eviction_whose_answer_is_lost_is_not_repeated() {
    let (url, serving) = serve(vec![None]);
    let unclear = asked(&url, &["evict", "a"]);
    assert_unclear(unclear);
    assert_eq!(serving.join().unwrap().len(), 1);
}

#[test]
fn an_eviction_that_was_never_sent_has_evicted_nobody() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let refused = asked(&url, &["evict", "a"]);
    assert_code(&refused, 69);
    let text = String::from_utf8(refused.stderr).unwrap();
    assert!(text.contains("cannot connect"), "{text}");
    assert!(!text.contains("unknown"), "{text}");
}

/// A connection that stays open after a refusal is not used for the repetition: it may break after the eviction.
#[test]
fn an_eviction_that_is_repeated_is_sent_once_more_at_most() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving = std::thread::spawn(move || {
        let (mut first, _) = listener.accept().unwrap();
        let read = |stream: &mut TcpStream| stream.read(&mut [0; 4096]).unwrap();
        assert_ne!(read(&mut first), 0);
        let busy = "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\n\
            content-length: 50\r\n\r\n{\"code\":\"rate_limited\",\"outcome\":\"nothing_done\"}  ";
        first.write_all(busy.as_bytes()).unwrap();
        let read_from_first = read(&mut first);
        drop(first);
        let (mut second, _) = listener.accept().unwrap();
        [read_from_first, read(&mut second)]
    });
    let unclear = asked(&url, &["evict", "a"]);
    assert_unclear(unclear);
    let [on_first, on_second] = serving.join().unwrap();
    assert!(
        on_first == 0 && on_second > 0,
        "{on_first} and {on_second} bytes"
    );
}

#[test]
fn an_eviction_that_was_not_executed_is_repeated() {
    let busy = "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\ncontent-length: 50\r\n\
        connection: close\r\n\r\n{\"code\":\"rate_limited\",\"outcome\":\"nothing_done\"}  ";
    let done = "HTTP/1.1 200 OK\r\ncontent-length: 33\r\n\r\n{\"evicted\":[],\"evicted_total\":0} ";
    let (url, serving) = serve(vec![Some(busy), Some(done)]);
    let evicted = asked(&url, &["evict", "a"]);
    assert_code(&evicted, 0);
    assert_eq!(evicted.stdout, b"nobody held a\n");
    assert_eq!(serving.join().unwrap().len(), 2);
}

/// A problem may quote what others have written.
#[test]
fn a_refusal_is_shown_without_what_controls_a_terminal() {
    let refusal = "HTTP/1.1 412 Precondition Failed\r\nConnection: close\r\n\r\n\
        {\"code\":\"lease_lost\",\"detail\":\"by eve\\u001b[2J\\n\\u009b\u{7f}\u{202e}\u{200b}\",\"reason\":\"x\\u0007\"}";
    let (url, serving) = serve(vec![Some(refusal)]);
    let refused = asked(&url, &["renew", "a"]);
    serving.join().unwrap();
    assert_code(&refused, 76);
    let text = String::from_utf8(refused.stderr).unwrap();
    let shown =
        "412: by eve\u{fffd}[2J\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}; reason: x\u{fffd}\n";
    assert!(text.ends_with(shown), "{text:?}");
}

#[test]
fn an_answer_that_breaks_off_is_asked_for_again() {
    let cut = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n{\"locks\":";
    let whole = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 33\r\n\r\n{\"locks\":[],\"next_page_token\":\"\"}";
    let (url, serving) = serve(vec![Some(cut), Some(whole)]);
    assert_code(&asked(&url, &["ls"]), 0);
    assert_eq!(serving.join().unwrap().len(), 2);
}

/// Behind a gateway, it may have been executed.
#[test]
fn what_an_eviction_did_is_unknown_if_the_answer_is_not_from_the_service() {
    for answer in [
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n{",
        "HTTP/1.1 502 Bad Gateway\r\ncontent-length: 5\r\n\r\nhello",
    ] {
        let (url, serving) = serve(vec![Some(answer)]);
        let unclear = asked(&url, &["evict", "a"]);
        assert_unclear(unclear);
        assert_eq!(serving.join().unwrap().len(), 1);
    }
}
