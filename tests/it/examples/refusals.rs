//! What the scripts do when the service refuses them.

use std::fs;

use super::Stage;
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
