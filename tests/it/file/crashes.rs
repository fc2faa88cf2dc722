//! The binary is killed under load and started again, several times: nothing that it reported is lost, and no lock has
//! two holders.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::signal::Signal;
use reqwest::{Client, RequestBuilder};
use serde_json::Value;
use uuid::Uuid;

use super::serve;
use crate::process::Serving;
use crate::support::stores;

const ROUNDS: usize = 6;
const CLIENTS: usize = 16;
const LOCKS: usize = 6;
/// How many grants a round has before the process is killed.
const GRANTS: usize = 300;

/// What the clients know of the locks.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// The holder of each lock: reported, and its release not begun.
    held: BTreeMap<usize, (Uuid, u64)>,
    /// The last release of each lock that was reported.
    released: BTreeMap<usize, Uuid>,
    /// The largest fencing token of each lock that was reported.
    fences: BTreeMap<usize, u64>,
    grants: usize,
}

#[tokio::test]
async fn killed_under_load_it_loses_nothing_that_it_reported() {
    let directory = stores::directory();
    let known = Arc::new(Mutex::new(Known::default()));
    for _ in 0..ROUNDS {
        let mut serving = serve(directory.path());
        check(&serving.url, &known).await;
        kill_under_load(&mut serving, &known).await;
    }
    check(&serve(directory.path()).url, &known).await;
}

/// Kills a process when its clients have got some more grants, and waits for its end.
pub(super) async fn kill_under_load(serving: &mut Serving, known: &Arc<Mutex<Known>>) {
    let enough = known.lock().unwrap().grants + GRANTS;
    let load = (0..CLIENTS)
        .map(|number| tokio::spawn(run(serving.url.clone(), number, Arc::clone(known))));
    let load: Vec<_> = load.collect();
    while known.lock().unwrap().grants < enough {
        assert!(
            !load.iter().all(|client| client.is_finished()),
            "no client goes on"
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    serving.signal(Signal::SIGKILL);
    serving.wait();
    for client in load {
        client.await.unwrap();
    }
}

/// Acquires and releases until the process is gone.
async fn run(url: String, number: usize, known: Arc<Mutex<Known>>) {
    let client = Client::new();
    for cycle in number.. {
        let (lock, token) = (cycle % LOCKS, Uuid::new_v4());
        let path = format!("{url}/locks/{lock}");
        let fence_before = known.lock().unwrap().fences.get(&lock).copied();
        let request = client.post(format!("{path}?ttl=1h&wait=200ms"));
        let grant = match answer_of(request, token).await {
            Some((200 | 201, grant)) => grant,
            Some((423, _)) => continue,
            Some(other) => panic!("{other:?}"),
            None => return,
        };
        let fence: u64 = grant["fencing_token"].as_u64().unwrap();
        {
            let mut known = known.lock().unwrap();
            assert!(
                Some(fence) > fence_before,
                "lock {lock}: {fence} after {fence_before:?}"
            );
            let holder = known.held.insert(lock, (token, fence));
            assert_eq!(holder, None, "lock {lock} is granted to {token}, too");
            let last = known.fences.entry(lock).or_default();
            *last = fence.max(*last);
            known.grants += 1;
        }
        match answer_of(client.put(&path), token).await {
            Some((200, _)) => {}
            Some(other) => panic!("{other:?}"),
            None => return,
        }
        // Whether a release whose answer is lost has been done is unknown.
        known.lock().unwrap().held.remove(&lock);
        match answer_of(client.delete(&path), token).await {
            Some((204, _)) => {}
            Some(other) => panic!("{other:?}"),
            None => return,
        }
        known.lock().unwrap().released.insert(lock, token);
    }
}

/// Repeats a request while the outcome is unknown, as on a disk that is slow. None when the process is gone.
async fn answer_of(request: RequestBuilder, token: Uuid) -> Option<(u16, Value)> {
    let request = request.header("Lock-Token", token.to_string());
    loop {
        let request = request.try_clone().unwrap();
        let answer = request.send().await.ok()?;
        let status = answer.status().as_u16();
        let body = answer.bytes().await.ok()?;
        if status != 503 {
            return Some((status, serde_json::from_slice(&body).unwrap_or_default()));
        }
    }
}

/// Compares the store after a restart with what was reported. Then every lock is released, so that the next round begins
/// without holders that nobody knows.
pub(super) async fn check(url: &str, known: &Mutex<Known>) {
    let client = Client::new();
    let (held, released) = {
        let mut known = known.lock().unwrap();
        (
            std::mem::take(&mut known.held),
            std::mem::take(&mut known.released),
        )
    };
    for (lock, (token, fence)) in held {
        let path = format!("{url}/locks/{lock}");
        let renewed = client.put(&path).header("Lock-Token", token.to_string());
        let renewed = renewed.send().await.unwrap();
        assert_eq!(
            renewed.status(),
            200,
            "lock {lock}: the lease of {token} is lost"
        );
        let lease: Value = renewed.json().await.unwrap();
        assert_eq!(lease["fencing_token"].as_u64(), Some(fence));
        let rival = client.post(&path).send().await.unwrap();
        assert_eq!(rival.status(), 423, "lock {lock} has a second holder");
    }
    for (lock, token) in released {
        let path = format!("{url}/locks/{lock}");
        let again = client.put(&path).header("Lock-Token", token.to_string());
        let answer: Value = again.send().await.unwrap().json().await.unwrap();
        assert_eq!(answer["code"], "lease_released", "lock {lock}: {answer}");
    }
    for lock in 0..LOCKS {
        let path = format!("{url}/locks/{lock}?force=true&reason=next");
        assert_eq!(client.delete(path).send().await.unwrap().status(), 200);
    }
}
