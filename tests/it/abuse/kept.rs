//! What the embedded store keeps for whoever asks for much: so much as `memory.locks_max` allows, and no more.

use serde_json::{Value, json};

use super::{Attacked, MIB, ask};
use crate::waiters::http1::{Connection, Request};

const NAMES: usize = 64;
const LOCKS_MAX: usize = 10_000;
/// A claim on all names with the longest text counts so much.
const COUNTS: usize = NAMES + 16;

/// Names are short here: what counts one takes less than 1 KiB, and what is remembered of a claim that ended on one lock, too.
/// The rest is for connections and the allocator, in a build that is not optimised.
const MOST: usize = LOCKS_MAX * 2 * 1024 + 4 * MIB;

async fn attacked(arguments: &[&str]) -> Attacked {
    // One more, for the bystander's lock.
    let locks_max = (LOCKS_MAX + 1).to_string();
    let limit = ["--memory-locks-max", &locks_max];
    Attacked::start(&[&limit, arguments].concat()).await
}

fn names(of: &str) -> Vec<String> {
    (0..NAMES).map(|number| format!("{of}/{number}")).collect()
}

/// A claim on many locks that says as much of itself as a claim may.
fn wordy(field: &str, value: &str) -> String {
    let metadata = json!({"m": "x".repeat(4_000)});
    json!({
        "names": names("all"), "ttl": "10m", "owner": "o".repeat(256), "metadata": metadata, field: value,
    })
    .to_string()
}

fn several<'a>(method: &'static str, token: Option<&'a str>, body: &'a str) -> Request<'a> {
    Request {
        method,
        path: "/locks",
        token,
        body,
    }
}

impl Attacked {
    /// By how much more memory there is than before.
    fn assert_little(&self, before: usize) {
        let grown = self.memory().saturating_sub(before);
        assert!(grown < MOST, "{} MiB of {}", grown / MIB, MOST / MIB);
    }

    /// What has no room is refused, and that is counted.
    async fn is_full(&self) {
        let before = self.refused("locks").await;
        let (status, problem) = ask(self.address, "POST", "/locks/late", "").await.unwrap();
        assert_eq!(status, 503, "{problem}");
        let problem: Value = serde_json::from_str(&problem).unwrap();
        assert_eq!(problem["code"], "store_full");
        assert_eq!(problem["outcome"], "nothing_done");
        assert_eq!(self.refused("locks").await, before + 1.0);
        let (_, health) = ask(self.address, "GET", "/readyz?verbose", "")
            .await
            .unwrap();
        let health: Value = serde_json::from_str(&health).unwrap();
        let checks = health["checks"].as_array().unwrap();
        let room = checks.iter().find(|check| check["name"] == "room");
        assert_eq!(room.unwrap()["ok"], false, "{health}");
    }
}

/// 1,500 of them once took 446 MiB, for 7 MB that were sent.
#[tokio::test]
async fn claims_on_many_shared_locks_take_no_more_memory_than_they_may() {
    const CLAIMS: usize = 400;
    let attacked = attacked(&[]).await;
    let bystander = attacked.holding_bystander().await;
    let before = attacked.memory();
    let mut client = Connection::open(attacked.address).await.unwrap();
    let claim = wordy("mode", "shared");
    // What is released makes room for as much, and no more.
    for _ in 0..2 {
        let mut tokens = Vec::new();
        for _ in 0..CLAIMS {
            let answer = client.ask(several("POST", None, &claim)).await.unwrap();
            match answer.status {
                201 => tokens.push(answer.json()["token"].as_str().unwrap().to_owned()),
                status => assert_eq!(status, 503),
            }
        }
        attacked.assert_little(before);
        assert_eq!(tokens.len(), LOCKS_MAX / COUNTS);
        attacked.is_full().await;
        let release = json!({"names": names("all")}).to_string();
        for token in &tokens {
            let release = several("DELETE", Some(token), &release);
            assert_eq!(client.ask(release).await.unwrap().status, 204);
        }
    }
    attacked.assert_little(before);
    bystander.noticed_nothing().await;
    attacked.judge_memory().await;
}

/// Any number of them once held one lock.
#[tokio::test]
async fn one_lock_has_no_more_holders_than_may_be_kept() {
    let attacked = attacked(&[]).await;
    let bystander = attacked.holding_bystander().await;
    let before = attacked.memory();
    let mut client = Connection::open(attacked.address).await.unwrap();
    let read = Request {
        method: "POST",
        path: "/locks/read",
        token: None,
        body: "mode=shared&ttl=10m",
    };
    let mut granted = 0;
    for _ in 0..LOCKS_MAX + 100 {
        match client.ask(read).await.unwrap().status {
            201 => granted += 1,
            status => assert_eq!(status, 503),
        }
    }
    attacked.assert_little(before);
    assert_eq!(granted, LOCKS_MAX);
    attacked.is_full().await;
    bystander.noticed_nothing().await;
    attacked.judge_memory().await;
}

/// A million locks once took 700 MB. What the client and the allocator need besides is not the locks'.
#[tokio::test]
async fn a_held_lock_takes_at_most_250_bytes() {
    const CLAIMS: usize = 2_000;
    /// What the allocator takes for the threads that serve the client, in a build that is not optimised.
    const BESIDES: usize = 3 * MIB;
    let locks_max = (NAMES * CLAIMS).to_string();
    let attacked = Attacked::start(&["--memory-locks-max", &locks_max]).await;
    let mut client = Connection::open(attacked.address).await.unwrap();
    let before = attacked.memory();
    for number in 0..CLAIMS {
        let claim = json!({"names": names(&format!("lock-{number:06}")), "ttl": "10m"}).to_string();
        let answer = client.ask(several("POST", None, &claim)).await.unwrap();
        assert_eq!(answer.status, 201, "{}", answer.json());
    }
    let grown = attacked.memory().saturating_sub(before);
    let each = grown.saturating_sub(BESIDES) / (NAMES * CLAIMS);
    assert!(each <= 250, "{each} bytes");
}

/// What counts is who holds; the room for those who held is given back.
#[tokio::test]
async fn locks_that_many_held_take_no_more_memory_than_others() {
    const ROUNDS: usize = 12;
    const READERS: usize = 120;
    let attacked = attacked(&[]).await;
    let bystander = attacked.bystander().await;
    let before = attacked.memory();
    let mut client = Connection::open(attacked.address).await.unwrap();
    for round in 0..ROUNDS {
        let names = names(&round.to_string());
        let claim = json!({"names": names, "ttl": "10m", "mode": "shared"}).to_string();
        let mut tokens = Vec::new();
        for _ in 0..READERS {
            let answer = client.ask(several("POST", None, &claim)).await.unwrap();
            assert_eq!(answer.status, 201);
            tokens.push(answer.json()["token"].as_str().unwrap().to_owned());
        }
        let release = json!({"names": names}).to_string();
        for token in &tokens[1..] {
            let release = several("DELETE", Some(token), &release);
            assert_eq!(client.ask(release).await.unwrap().status, 204);
        }
    }
    attacked.assert_little(before);
    bystander.noticed_nothing().await;
    attacked.judge_memory().await;
}

/// A place that is kept after its wait is over is not among the waiters any more. Any number of them were once kept.
#[tokio::test]
async fn places_of_those_who_do_not_wait_any_more_take_no_more_memory_than_they_may() {
    const CLAIMS: usize = 1_500;
    const CONNECTIONS: usize = 10;
    let attacked = attacked(&["--waiting-place-kept", "10m"]).await;
    let bystander = attacked.holding_bystander().await;
    let before = attacked.memory();
    let mut client = Connection::open(attacked.address).await.unwrap();
    let held = json!({"names": names("all"), "ttl": "10m"}).to_string();
    let held = client.ask(several("POST", None, &held)).await;
    assert_eq!(held.unwrap().status, 201);
    let claim = wordy("wait", "1ms");
    let mut attackers = Vec::new();
    for _ in 0..CONNECTIONS {
        let (claim, address) = (claim.clone(), attacked.address);
        attackers.push(tokio::spawn(async move {
            let mut client = Connection::open(address).await.unwrap();
            for _ in 0..CLAIMS / CONNECTIONS {
                let status = client
                    .ask(several("POST", None, &claim))
                    .await
                    .unwrap()
                    .status;
                assert!([423, 503].contains(&status), "{status}");
            }
        }));
    }
    for attacker in attackers {
        attacker.await.unwrap();
    }
    attacked.assert_little(before);
    let refused = attacked.refused("locks").await;
    let kept = (LOCKS_MAX - NAMES) / COUNTS;
    assert_eq!(refused, (CLAIMS - kept) as f64);
    bystander.noticed_nothing().await;
    attacked.judge_memory().await;
}
