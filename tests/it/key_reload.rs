//! A running service takes over what is new in its keys file: at intervals, by SIGHUP at once, and only if it is valid.

mod under_load;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use leasehold::config::KeyHash;
use nix::sys::signal::Signal;

use crate::process::Serving;

/// A key that is as long as keys are.
fn key_of(name: &str) -> String {
    format!("key-of-{name:->16}")
}

fn file_with(keys: &[&str], verb: &str) -> String {
    let hashes = keys
        .iter()
        .map(|key| format!("\"{}\"", KeyHash::of(key_of(key).as_bytes())));
    format!(
        "[principals.a]\nkeys = [{}]\nrules = [{{ prefix = \"\", verbs = [\"{verb}\"] }}]\n",
        hashes.collect::<Vec<_>>().join(", ")
    )
}

/// The directory of a Kubernetes secret: `keys.toml` leads through `..data` into a directory that is replaced.
fn publish(directory: &Path, version: &str, text: &str) {
    let files = directory.join(version);
    fs::create_dir(&files).unwrap();
    fs::write(files.join("keys.toml"), text).unwrap();
    symlink(version, directory.join("..new")).unwrap();
    fs::rename(directory.join("..new"), directory.join("..data")).unwrap();
}

async fn status(serving: &Serving, method: reqwest::Method, path: &str, key: &str) -> u16 {
    let url = format!("{}{path}", serving.url);
    let request = reqwest::Client::new().request(method, url);
    let answer = request.bearer_auth(key_of(key)).send().await;
    answer.unwrap().status().as_u16()
}

async fn list(serving: &Serving, key: &str) -> u16 {
    status(serving, reqwest::Method::GET, "/locks", key).await
}

#[tokio::test]
async fn a_swapped_secret_is_taken_over_without_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    publish(directory.path(), "..1", &file_with(&["old"], "list"));
    let path = directory.path().join("keys.toml");
    symlink("..data/keys.toml", &path).unwrap();
    let arguments = ["--auth-keys-file", path.to_str().unwrap()];
    let interval = ["--auth-reread-interval", "50ms"];
    let mut serving = Serving::start(&[&arguments[..], &interval].concat());
    assert_eq!(list(&serving, "old").await, 200);
    assert_eq!(list(&serving, "new").await, 401);

    publish(directory.path(), "..2", &file_with(&["old", "new"], "list"));
    serving.wait_for_line("API keys reloaded: they have changed");
    assert_eq!(
        (list(&serving, "old").await, list(&serving, "new").await),
        (200, 200)
    );

    // A file that cannot be used changes nothing.
    publish(
        directory.path(),
        "..3",
        "[principals.a]\nkeys = [\"new\"]\n",
    );
    let line = serving.wait_for_line("cannot reload the API keys; the previous keys stay valid");
    let problem = line["problem"].as_str().unwrap();
    assert!(
        problem.contains(":2: principals.a.keys: is not the hash"),
        "{problem}"
    );
    assert_eq!(
        (list(&serving, "old").await, list(&serving, "new").await),
        (200, 200)
    );
    let health = reqwest::get(format!("{}/readyz?verbose", serving.url))
        .await
        .unwrap();
    let health = health.text().await.unwrap();
    assert!(
        health.contains("\"name\":\"keys\",\"ok\":false"),
        "{health}"
    );
    assert!(!health.contains("principals"), "{health}");

    publish(directory.path(), "..4", &file_with(&["new"], "list"));
    serving.wait_for_line("API keys reloaded: they have changed");
    assert_eq!(
        (list(&serving, "old").await, list(&serving, "new").await),
        (401, 200)
    );
}

#[tokio::test]
async fn a_hang_up_rereads_the_keys_file_at_once_and_does_not_stop_the_service() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("keys.toml");
    fs::write(&path, file_with(&["key"], "list")).unwrap();
    let arguments = ["--auth-keys-file", path.to_str().unwrap()];
    let interval = ["--auth-reread-interval", "1h"];
    let mut serving = Serving::start(&[&arguments[..], &interval].concat());
    let acquire =
        async |serving: &Serving| status(serving, reqwest::Method::POST, "/locks/a", "key").await;
    assert_eq!(acquire(&serving).await, 403);
    fs::write(&path, file_with(&["key"], "acquire")).unwrap();
    serving.signal(Signal::SIGHUP);
    serving.wait_for_line("API keys reloaded: they have changed");
    assert_eq!(acquire(&serving).await, 201);
    serving.signal(Signal::SIGHUP);
    serving.wait_for_line("API keys reread: they have not changed");
    serving.signal(Signal::SIGTERM);
    assert!(serving.wait().success());
}

/// A server with a key in a file has something to reread, too, so SIGHUP does not stop it.
#[tokio::test]
async fn a_hang_up_rereads_a_key_of_its_own_file_at_once_and_does_not_stop_the_service() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("key");
    fs::write(&path, key_of("former")).unwrap();
    let arguments = ["--api-key-file", path.to_str().unwrap()];
    let interval = ["--auth-reread-interval", "1h"];
    let mut serving = Serving::start(&[&arguments[..], &interval].concat());
    fs::write(&path, key_of("latter")).unwrap();
    serving.signal(Signal::SIGHUP);
    serving.wait_for_line("API keys reloaded: they have changed");
    for (key, expected) in [("former", 401), ("latter", 201)] {
        let acquired = status(&serving, reqwest::Method::POST, "/locks/a", key).await;
        assert_eq!(acquired, expected, "{key}");
    }
}
