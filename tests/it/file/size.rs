//! What clients can make the store write.

use std::os::unix::fs::MetadataExt as _;

use nix::sys::signal::Signal;
use reqwest::Client;
use serde_json::{Value, json};
use uuid::Uuid;

use super::serve;
use crate::support::stores;

/// A claim on many locks has its metadata once on the disk, and for as long as it holds one of them.
#[tokio::test]
async fn the_metadata_of_a_claim_are_written_once_for_all_of_its_locks() {
    const CLAIMS: usize = 20;
    let directory = stores::directory();
    let (client, token) = (Client::new(), Uuid::new_v4());
    let serving = serve(directory.path());
    let metadata = json!({ "m": "m".repeat(4_000) });
    for number in 0..CLAIMS {
        let names: Vec<_> = (0..64).map(|lock| format!("{number}/{lock}")).collect();
        let body = json!({ "names": names, "ttl": "1h", "metadata": metadata });
        let request = client.post(format!("{}/locks", serving.url)).json(&body);
        let request = request.header("Lock-Token", token.to_string());
        assert_eq!(request.send().await.unwrap().status(), 201);
    }
    for lock in 0..63 {
        let request = client.delete(format!("{}/locks/0/{lock}", serving.url));
        let request = request.header("Lock-Token", token.to_string());
        assert_eq!(request.send().await.unwrap().status(), 204);
    }
    serving.signal(Signal::SIGKILL);
    drop(serving);
    let file = directory.path().join("leases.redb");
    let bytes = std::fs::metadata(file).unwrap().blocks() * 512;
    let each = bytes / (CLAIMS as u64 * 64);
    assert!(each < 2_000, "{each} bytes for each lease");
    let serving = serve(directory.path());
    for lock in ["0/63", "1/0", "19/63"] {
        let answer = client.get(format!("{}/locks/{lock}", serving.url)).send();
        let state: Value = answer.await.unwrap().json().await.unwrap();
        assert_eq!(state["holders"][0]["metadata"], metadata, "{state}");
    }
}
