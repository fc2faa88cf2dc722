//! What clients can make the store write.

use std::os::unix::fs::MetadataExt as _;

use nix::sys::signal::Signal;
use reqwest::Client;
use serde_json::{Value, json};
use uuid::Uuid;

use super::serve;
use crate::support::{eventually, stores};

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

/// A claim that waits for many locks has a place in the queue of each, and its list of names once on the disk.
#[tokio::test]
async fn the_names_of_a_waiting_claim_are_written_once_for_all_of_its_places() {
    // One address has at most 16 requests in flight.
    const CLAIMS: usize = 12;
    let directory = stores::directory();
    let client = Client::new();
    let serving = serve(directory.path());
    let names: Vec<_> = (0..64)
        .map(|lock| format!("{}/{lock:02}", "n".repeat(252)))
        .collect();
    let url = format!("{}/locks", serving.url);
    let claim = |token: Uuid, wait: &str| {
        let body = json!({ "names": names, "ttl": "1h", "wait": wait });
        let request = client.post(&url).json(&body);
        request.header("Lock-Token", token.to_string()).send()
    };
    let holder = Uuid::new_v4();
    assert_eq!(claim(holder, "0s").await.unwrap().status(), 201);
    let file = directory.path().join("leases.redb");
    let bytes = || std::fs::metadata(&file).unwrap().blocks() * 512;
    let before = bytes();
    let waiting: Vec<_> = (0..CLAIMS)
        .map(|_| tokio::spawn(claim(Uuid::new_v4(), "55s")))
        .collect();
    eventually("all of them wait", async || {
        let lock = client.get(format!("{}/locks/{}", serving.url, names[0]));
        let lock: Value = lock.send().await.unwrap().json().await.unwrap();
        (lock["queue_length"] == CLAIMS).then_some(())
    })
    .await;
    let each = (bytes() - before) / (CLAIMS as u64 * 64);
    println!("{each} bytes of the file for each place");
    assert!(each < 3_000, "{each} bytes for each place");
    drop(waiting);
}
