//! What the commands do when a quota is used up.

use std::fs;
use std::process::{Command, Output};

use leasehold::config::KeyHash;
use tempfile::TempDir;

use super::retries::{asked, serve};
use crate::process::Serving;
use crate::run::{assert_code, client};

const KEY: &str = "a-key-of-a-principal-with-a-quota";

/// A service whose one principal may hold one lock.
struct OneLock {
    serving: Serving,
    _directory: TempDir,
}

impl OneLock {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys.toml");
        let hash = KeyHash::of(KEY.as_bytes());
        let text = format!(
            "[principals.team]\nkeys = [\"{hash}\"]\nrules = [{{ prefix = \"\", verbs = [\"acquire\"] }}]\n\
             quota = {{ locks_max = 1 }}\n"
        );
        fs::write(&path, text).unwrap();
        Self {
            serving: Serving::start(&["--auth-keys-file", path.to_str().unwrap()]),
            _directory: directory,
        }
    }

    fn client(&self, arguments: &[&str]) -> Command {
        let mut command = client(&self.serving, arguments);
        command.env("LEASEHOLD_API_KEY", KEY);
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.client(arguments).output().unwrap()
    }
}

#[track_caller]
fn assert_names_the_quota(refused: &Output) {
    assert_code(refused, 75);
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(text.contains("(quota: locks_max)"), "{text}");
    assert!(!text.contains("is taken"), "{text}");
}

#[test]
fn a_quota_that_is_used_up_exits_75_and_is_named() {
    let service = OneLock::start();
    assert_code(&service.run(&["acquire", "a", "-t", "1h"]), 0);
    for wait in ["--nonblock", "--wait=10ms"] {
        assert_names_the_quota(&service.run(&["acquire", "b", wait]));
        // No other run does the work instead of this one.
        let skipping = ["run", "b", wait, "--skip-ok", "--", "true"];
        assert_names_the_quota(&service.run(&skipping));
    }
}

#[test]
fn a_command_that_may_wait_is_granted_the_lock_when_there_is_room() {
    let service = OneLock::start();
    assert_code(&service.run(&["acquire", "a", "-t", "500ms"]), 0);
    assert_code(&service.run(&["acquire", "b", "-q"]), 0);
}

/// What the service asks for is longer than the command may take.
#[test]
fn a_command_that_does_not_wait_asks_once_however_late_the_quota_has_room() {
    let refusal = "HTTP/1.1 429 Too Many Requests\r\nretry-after: 5\r\nconnection: close\r\n\r\n\
        {\"code\":\"quota_exceeded\",\"quota\":\"locks_max\",\"outcome\":\"nothing_done\"}";
    let (url, serving) = serve(vec![Some(refusal)]);
    assert_names_the_quota(&asked(&url, &["acquire", "a", "-n"]));
    let requests = serving.join().unwrap();
    assert_eq!(requests.len(), 1);
    assert!(requests[0].starts_with("POST /locks/a "), "{requests:?}");
}
