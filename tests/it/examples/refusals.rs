//! What the scripts do when the service refuses them.

use std::fs;

use super::{Run, Stage};
use crate::process::Serving;

#[tokio::test]
async fn a_wrong_key_is_not_a_busy_lock_and_the_url_may_end_with_a_slash() {
    let directory = tempfile::tempdir().unwrap();
    let key = directory.path().join("key");
    fs::write(&key, "0123456789abcdef0123456789abcdef").unwrap();
    let serving = Serving::start(&["--api-key-file", key.to_str().unwrap()]);
    let stage = Stage::new(&format!("{}/", serving.url));
    for (script, arguments) in [
        ("run-once.sh", &["a", "1m", "true"][..]),
        ("semaphore.sh", &["a", "2", "true"]),
        ("leader-election.sh", &["a", "true"]),
    ] {
        let status = stage.run(script, 30, arguments).end().await;
        assert_eq!(status.code(), Some(78), "{script}");
    }
}

#[tokio::test]
async fn a_key_file_comes_before_the_variable_and_may_be_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let [key, of_client] = ["key", "token"].map(|name| directory.path().join(name));
    fs::write(&key, "0123456789abcdef0123456789abcdef").unwrap();
    let serving = Serving::start(&["--api-key-file", key.to_str().unwrap()]);
    let stage = Stage::new(&serving.url);
    let variables = [
        ("LEASEHOLD_API_KEY_FILE", of_client.to_str().unwrap()),
        ("LEASEHOLD_API_KEY", "wrong-key-0123456789"),
    ];
    // The file is away when the lock is released, and the key of before is good.
    let remove = format!("rm {}", of_client.display());
    for (script, arguments) in [
        ("semaphore.sh", &["a", "1", "sh", "-c", &remove][..]),
        ("semaphore.sh", &["a", "1", "true"]),
        ("leader-election.sh", &["b", "true"]),
    ] {
        fs::write(&of_client, "0123456789abcdef0123456789abcdef\n").unwrap();
        let mut command = stage.command(script, 30, arguments);
        let mut run = Run(command.envs(variables).spawn().unwrap());
        let status = run.end().await;
        assert_eq!(status.code(), Some(0), "{script}");
    }
}
