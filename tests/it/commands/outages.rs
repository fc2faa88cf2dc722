//! What commands say while they wait for a lock, or for a service that is away.

use std::io::{BufRead as _, BufReader, Lines, Read as _, Write as _};
use std::iter;
use std::net::TcpListener;
use std::process::{Child, ChildStderr, Stdio};

use super::{acquired, output, printed};
use crate::process::{Serving, leasehold};
use crate::run::loss::Replacement;
use crate::run::{assert_code, client};
use crate::support::certificates::Authority;

const NOWHERE: &str = "http://127.0.0.1:1";

/// A command that goes on, with what it says.
struct Speaking {
    child: Child,
    lines: Lines<BufReader<ChildStderr>>,
}

impl Speaking {
    fn start(serving: &Serving, arguments: &[&str]) -> Self {
        let mut command = client(serving, arguments);
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        Self { child, lines }
    }

    fn line(&mut self) -> String {
        self.lines.next().unwrap().unwrap()
    }
}

impl Drop for Speaking {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_service_that_is_away_is_mentioned_before_the_command_gives_up() {
    for arguments in [
        &["get", "a"][..],
        &["acquire", "a", "-n"],
        &["run", "a", "-n", "--", "true"],
    ] {
        let asked = leasehold(&[arguments, &[]].concat())
            .env("LEASEHOLD_URL", NOWHERE)
            .output()
            .unwrap();
        assert_code(&asked, 69);
        let text = String::from_utf8(asked.stderr).unwrap();
        let tries = text.lines().filter(|line| line.contains("trying"));
        assert_eq!(tries.count(), 1, "{arguments:?}: {text}");
    }
    let quiet = leasehold(&["get", "a", "-q", "--url", NOWHERE]).output();
    let quiet = quiet.unwrap();
    assert_code(&quiet, 69);
    let text = String::from_utf8(quiet.stderr).unwrap();
    assert!(!text.contains("trying"), "{text}");
}

/// A service whose store is away, once it has given these answers. Returns its URL.
fn without_store(first: Vec<&'static str>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let away = "HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\n\r\n\
        {\"code\":\"store_unavailable\",\"detail\":\"the store is away\",\"outcome\":\"nothing_done\"}";
    // It goes on until the last test has ended: a command may ask once more than the test expects.
    std::thread::spawn(move || {
        let answers = first.into_iter().chain(iter::repeat(away));
        for (stream, answer) in listener.incoming().zip(answers) {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    url
}

#[track_caller]
fn assert_gives_up_with_the_wait(url: &str, wait: &str, problem: &str) {
    for arguments in [
        &["acquire", "a", "-w", wait][..],
        &["run", "a", "-w", wait, "--skip-ok", "--", "true"],
    ] {
        let mut command = leasehold(arguments);
        let given_up = command.env("LEASEHOLD_URL", url).output().unwrap();
        assert_code(&given_up, 69);
        let text = String::from_utf8(given_up.stderr).unwrap();
        let expected = format!("leasehold: the wait of {wait} is over: {problem}");
        assert!(text.contains(&expected), "{arguments:?}: {text}");
    }
}

#[test]
fn a_store_that_is_away_is_not_asked_for_longer_than_the_wait() {
    let url = without_store(vec![]);
    let problem = format!("{url} answered 503: the store is away");
    assert_gives_up_with_the_wait(&url, "300ms", &problem);
}

/// Without a wait, such a claim is tried for a minute, because it has a place in the queue.
#[test]
fn a_store_that_goes_away_during_a_wait_is_not_asked_for_longer() {
    let taken = "HTTP/1.1 423 Locked\r\nretry-after: 0\r\nconnection: close\r\n\r\n{\"code\":\"lock_held\"}";
    for arguments in [
        &["acquire", "a", "-w", "2s"][..],
        &["run", "a", "-w", "2s", "--skip-ok", "--", "true"],
    ] {
        let mut command = leasehold(arguments);
        let url = without_store(vec![taken]);
        let given_up = command.env("LEASEHOLD_URL", url).output().unwrap();
        assert_code(&given_up, 69);
        let text = String::from_utf8(given_up.stderr).unwrap();
        assert!(text.contains("the wait of 2s is over: "), "{text}");
    }
}

#[test]
fn a_service_that_is_away_is_not_tried_for_longer_than_the_wait() {
    let problem = format!("cannot connect to {NOWHERE}");
    assert_gives_up_with_the_wait(NOWHERE, "300ms", &problem);
}

#[test]
fn a_service_without_tls_is_not_tried_again_with_it() {
    let serving = Serving::start(&[]);
    let url = serving.url.replace("http:", "https:");
    for command in ["get", "acquire", "watch"] {
        let refused = output(&serving, &[command, "a", "--url", &url]);
        assert_code(&refused, 78);
        let text = String::from_utf8(refused.stderr).unwrap();
        assert!(text.contains("write http://"), "{text}");
        assert!(!text.contains("trying"), "{text}");
    }
}

#[test]
fn a_service_with_tls_is_not_tried_again_without_it() {
    let authority = Authority::new();
    let files = authority.files_for("localhost");
    let certificate = ["--server-tls-cert-file", &files.certificate];
    let key = ["--server-tls-key-file", &files.key];
    let serving = Serving::start(&[certificate, key].concat());
    let url = serving.url.replace("https:", "http:");
    for command in ["get", "acquire", "watch"] {
        let refused = output(&serving, &[command, "a", "--url", &url]);
        assert_code(&refused, 78);
        let text = String::from_utf8(refused.stderr).unwrap();
        assert!(text.contains("it speaks TLS; write https://"), "{text}");
        assert!(!text.contains("trying"), "{text}");
    }
}

#[test]
fn an_acquire_that_waits_says_so_once_also_off_a_terminal() {
    let serving = Serving::start(&[]);
    let token = acquired(&serving, "a");
    let mut waiting = Speaking::start(&serving, &["acquire", "a"]);
    let line = waiting.line();
    assert!(
        line.starts_with("leasehold: waiting for a, held by alice"),
        "{line}"
    );
    printed(&serving, &["release", "a", "--token", &token]);
    assert!(waiting.lines.next().is_none());
}

#[test]
fn a_watch_says_once_that_the_service_is_away() {
    let serving = Serving::start(&[]);
    let address = serving.address().to_string();
    let mut watching = Speaking::start(&serving, &["watch", "a", "--json"]);
    // The stream is open once the service has seen it.
    while !output(&serving, &["get", "a"]).status.success() {}
    drop(serving);
    let line = watching.line();
    assert!(line.contains("trying again"), "{line}");
    let replacement = Replacement::start(&address, &[]);
    drop(replacement);
    let _ = watching.child.kill();
    let rest: Vec<_> = watching.lines.by_ref().map_while(Result::ok).collect();
    assert!(rest.len() <= 1, "{rest:?}");
}
