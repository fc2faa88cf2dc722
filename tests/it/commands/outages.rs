//! What commands say while they wait for a lock, or for a service that is away.

use std::io::{BufRead as _, BufReader, Lines};
use std::process::{Child, ChildStderr, Stdio};

use super::{acquired, output, printed};
use crate::process::{Serving, leasehold};
use crate::run::loss::Replacement;
use crate::run::{assert_code, client};

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
