//! The main use case: many clients change one resource under a lock, some of them too slowly, and no change is lost.

use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use reqwest::StatusCode;
use serde_json::Value;

use crate::process::Serving;
use crate::support::redis_server::{RedisOptions, RedisServer};

const CLIENTS: usize = 200;
const CHANGES_EACH: usize = 3;
/// Once in this many grants, a client pauses past the end of its lease and then continues as if it still held the lock.
const SLEEPERS: u32 = 20;

/// A file with a number in it. It remembers the largest fencing token that it has seen, and refuses smaller ones, for
/// reads too: a change must not be based on a read under an old token.
struct CounterFile {
    path: PathBuf,
    largest: Mutex<u64>,
    refused: AtomicU32,
}

impl CounterFile {
    fn read(&self, fence: u64) -> Option<u64> {
        let _guard = self.admit(fence)?;
        Some(fs::read_to_string(&self.path).unwrap().parse().unwrap())
    }

    fn write(&self, fence: u64, number: u64) -> Option<()> {
        let _guard = self.admit(fence)?;
        fs::write(&self.path, number.to_string()).unwrap();
        Some(())
    }

    fn admit(&self, fence: u64) -> Option<std::sync::MutexGuard<'_, u64>> {
        let mut largest = self.largest.lock().unwrap();
        if fence < *largest {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        *largest = fence;
        Some(largest)
    }
}

struct Job {
    client: reqwest::Client,
    url: String,
    file: CounterFile,
    grants: AtomicU32,
}

impl Job {
    /// Retries until the lock is granted. Returns the token and the fencing token.
    async fn lock(&self, ttl: &str) -> (String, u64) {
        // The client proposes the token, so that a retry after an unknown outcome is for the same claim.
        let mut token = uuid::Uuid::new_v4().to_string();
        loop {
            let request = self.client.post(&self.url).header("Lock-Token", &token);
            let answer = request.body(format!("ttl={ttl}")).send().await.unwrap();
            let status = answer.status();
            let body: Value = answer.json().await.unwrap();
            match status {
                StatusCode::CREATED | StatusCode::OK => {
                    return (token, body["fencing_token"].as_u64().unwrap());
                }
                // Jitter: otherwise 200 clients would retry together. A store with a slow disk leads to 503.
                StatusCode::LOCKED | StatusCode::SERVICE_UNAVAILABLE => {
                    tokio::time::sleep(Duration::from_millis(5 + random() % 60)).await;
                }
                // The lease expired before it was delivered.
                StatusCode::CONFLICT => token = uuid::Uuid::new_v4().to_string(),
                other => panic!("{other}: {body}"),
            }
        }
    }

    /// Retries the release until the outcome is known.
    async fn unlock(&self, token: &str) -> StatusCode {
        loop {
            let request = self.client.delete(&self.url).header("Lock-Token", token);
            let status = request.send().await.unwrap().status();
            if status != StatusCode::SERVICE_UNAVAILABLE {
                return status;
            }
        }
    }

    /// One change: read, add one, write. `None` if the resource refused, because the lease had ended.
    async fn change(&self) -> Option<()> {
        let is_sleeper = self.grants.fetch_add(1, Ordering::Relaxed) % SLEEPERS == SLEEPERS - 1;
        let (token, fence) = self.lock(if is_sleeper { "100ms" } else { "10s" }).await;
        let number = self.file.read(fence)?;
        if is_sleeper {
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
        self.file.write(fence, number + 1)?;
        let released = self.unlock(&token).await;
        let expected = if is_sleeper {
            StatusCode::PRECONDITION_FAILED
        } else {
            StatusCode::NO_CONTENT
        };
        assert_eq!(released, expected);
        Some(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_clients_lose_no_update_of_a_shared_counter() {
    let redis = RedisServer::start(RedisOptions::default()).await;
    let serving = Serving::start(&["--store", &format!("redis://{}", redis.address())]);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("counter");
    fs::write(&path, "0").unwrap();
    let job = Job {
        client: reqwest::Client::builder().no_proxy().build().unwrap(),
        url: format!("{}/locks/counter", serving.url),
        file: CounterFile {
            path: path.clone(),
            largest: Mutex::new(0),
            refused: AtomicU32::new(0),
        },
        grants: AtomicU32::new(0),
    };
    let clients = (0..CLIENTS).map(|_| async {
        for _ in 0..CHANGES_EACH {
            // A refused change is repeated under a new lease.
            while job.change().await.is_none() {}
        }
    });
    futures_util::future::join_all(clients).await;
    let counted: usize = fs::read_to_string(&path).unwrap().parse().unwrap();
    assert_eq!(counted, CLIENTS * CHANGES_EACH, "an update was lost");
    let refused = job.file.refused.load(Ordering::Relaxed);
    let grants = job.grants.load(Ordering::Relaxed);
    println!(
        "{CLIENTS} clients, {grants} grants, {counted} changes, {refused} refused by the resource, 0 lost"
    );
    assert!(
        refused > 0,
        "no sleeper was ever refused: the test did not try what it is about"
    );
}

fn random() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().0
}
