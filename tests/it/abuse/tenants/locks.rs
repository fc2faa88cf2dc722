//! A principal that holds as many locks as its quota permits, and asks for more of them without a pause.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use reqwest::{Client, Method, Response};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

use super::{ANY_RATE, CONNECTIONS, FLOODING, judge_pace, principals, send, use_quietly};
use crate::abuse::{Attacked, size};
use crate::config::file;
use crate::support::eventually;
use crate::support::redis_server::{RedisOptions, RedisServer};

/// The label of its refusals.
const LIMIT: &str = "locks_per_principal";

/// The URL of a lock, and the token of the lease on it.
type Held = (String, String);

/// A connection that asks for one lock after the other.
#[derive(Clone)]
struct Asking {
    url: String,
    asked: Arc<AtomicUsize>,
    client: Client,
}

impl Asking {
    /// The lease, or `None` if the quota was used up.
    async fn ask(&self) -> Option<Held> {
        let number = self.asked.fetch_add(1, Ordering::Relaxed);
        let url = format!("{}/locks/flooding/{number}", self.url);
        let answer = send(
            &self.client,
            Method::POST,
            &(url.clone() + "?ttl=30m"),
            FLOODING,
            "",
        )
        .await;
        match answer.status().as_u16() {
            201 => {
                let token = answer.headers()["lock-token"].to_str().unwrap();
                Some((url, token.to_owned()))
            }
            429 => {
                assert_over_quota(answer).await;
                None
            }
            status => panic!("{status}"),
        }
    }

    /// Asks until so many locks are held by all together.
    async fn fill(self, held: Arc<AtomicUsize>, locks_max: usize) -> Vec<Held> {
        let mut own = Vec::new();
        while held.load(Ordering::Relaxed) < locks_max {
            if let Some(lease) = self.ask().await {
                held.fetch_add(1, Ordering::Relaxed);
                own.push(lease);
            }
        }
        own
    }

    /// Asks for more until the end. Returns how often, which is refused each time.
    fn flood(self, is_over: &Arc<AtomicBool>) -> JoinHandle<u32> {
        let is_over = Arc::clone(is_over);
        tokio::spawn(async move {
            let mut refused = 0;
            while !is_over.load(Ordering::Relaxed) {
                assert_eq!(self.ask().await, None, "beyond the quota");
                refused += 1;
            }
            refused
        })
    }

    async fn change(&self, method: Method, (url, token): &Held) -> u16 {
        let answer = send(&self.client, method, url, FLOODING, token).await;
        answer.status().as_u16()
    }

    async fn release(self, held: Vec<Held>) {
        for lease in &held {
            assert_eq!(self.change(Method::DELETE, lease).await, 204);
        }
    }
}

async fn assert_over_quota(answer: Response) {
    assert!(answer.headers().contains_key("retry-after"));
    let problem: serde_json::Value = answer.json().await.unwrap();
    assert_eq!(problem["code"], "quota_exceeded", "{problem}");
    assert_eq!(problem["quota"], "locks_max", "{problem}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_principal_that_floods_the_store_is_refused_and_can_release_and_a_quiet_one_is_served() {
    let locks_max = size(30, 100_000);
    let keys = file(&principals(&format!(
        "quota = {{ {ANY_RATE}, locks_max = {locks_max} }}\n"
    )));
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let store = format!("redis://{}", redis.address());
    let arguments = [
        "--store",
        &store,
        "--auth-keys-file",
        keys.path().to_str().unwrap(),
    ];
    let attacked = Attacked::start(&[&arguments[..], &["--auth-metrics", "none"]].concat()).await;
    let url = attacked.serving.url.clone();
    let before = use_quietly(&url, size(1, 300)).await;

    let asked = Arc::default();
    let connections: Vec<_> = (0..CONNECTIONS)
        .map(|_| Asking {
            url: url.clone(),
            asked: Arc::clone(&asked),
            client: Client::new(),
        })
        .collect();
    let (held, began) = (Arc::new(AtomicUsize::new(0)), Instant::now());
    let filling = connections.iter().cloned();
    let filling: JoinSet<_> = filling
        .map(|asking| asking.fill(Arc::clone(&held), locks_max))
        .collect();
    let mut held = filling.join_all().await;
    assert_eq!(held.iter().map(Vec::len).sum::<usize>(), locks_max);
    println!("{locks_max} locks are held after {:?}", began.elapsed());

    let refused_before = attacked.refused(LIMIT).await;
    let is_over = Arc::default();
    let flooding = connections.iter().cloned();
    let floods: Vec<_> = flooding.map(|asking| asking.flood(&is_over)).collect();
    let mut during = Vec::new();
    while during.len() < size(5, 300) || attacked.refused(LIMIT).await < refused_before + 100.0 {
        during.extend(use_quietly(&url, 5).await);
    }
    // The quota refuses neither a renewal nor a release.
    let first = held[0].pop().unwrap();
    assert_eq!(connections[0].change(Method::PUT, &first).await, 200);
    is_over.store(true, Ordering::Relaxed);
    let mut refused = 0;
    for flood in floods {
        refused += flood.await.unwrap();
    }
    let counted = attacked.refused(LIMIT).await - refused_before;
    assert_eq!(counted, f64::from(refused));
    held[0].push(first);
    let releasing = connections.iter().cloned().zip(held);
    let releasing: JoinSet<_> = releasing
        .map(|(asking, held)| asking.release(held))
        .collect();
    releasing.join_all().await;
    eventually("there is room again", async || connections[0].ask().await).await;
    judge_pace(
        before,
        during,
        &format!("{locks_max} locks, and {refused} more that were refused"),
    );
}
