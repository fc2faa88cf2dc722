//! A principal that sends many requests for its claims at the same moment. In whatever order they come to the store and
//! to the count, it keeps no more locks than its quota.

use std::time::Duration;

use futures_util::future::join_all;
use reqwest::Method;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use super::team::{ATTACKS, Held, LOCKS_MAX, OF_PRINCIPAL, Team, attacking_key};
use crate::config::KEY;
use crate::support::redis_server::{RedisOptions, RedisServer};

/// How many claims come at once to a process that has not met the end of the quota.
const BURST: usize = 60;
/// How many clients attack at a time, and how many requests each has in flight.
const ATTACKERS: usize = 8;
const AT_ONCE: usize = 3;
const NAMES: u128 = 100;
/// How many claims an attacker does not release at once.
const KEPT: usize = 3;
/// How long each attack lasts.
const ATTACK: Duration = Duration::from_millis(400);

impl Team {
    /// How many locks are held.
    async fn held(&self, prefix: &str) -> usize {
        let url = format!(
            "{}/locks?page_size=1000&prefix={prefix}",
            self.processes[0].url
        );
        let listed = self.client.get(url).bearer_auth(KEY).send().await.unwrap();
        let listed: serde_json::Value = listed.json().await.unwrap();
        let locks = listed["locks"].as_array().unwrap().iter();
        locks.filter(|lock| lock["state"] == "held").count()
    }

    /// Fails unless the principal keeps at most this many locks when its requests are over.
    async fn assert_keeps_at_most(&self, most: usize, prefix: &str, what: &str) {
        let mut held = 0;
        let settled = async {
            loop {
                held = self.held(prefix).await;
                if held <= most {
                    return;
                }
                sleep(Duration::from_millis(100)).await;
            }
        };
        // The leases last much longer.
        let is_settled = timeout(Duration::from_secs(20), settled).await.is_ok();
        assert!(is_settled, "{what}: it keeps {held} locks");
    }
}

/// A token is known before its grant, and its lease must not become final before it is counted.
async fn assert_keeps_nothing_of_a_burst(second: Method, query: &str) {
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let team = Team::on(&format!("redis://{}", redis.address()), OF_PRINCIPAL);
    for _ in 0..LOCKS_MAX {
        team.acquire(0, "600s").await.unwrap();
    }
    let claims = (0..BURST).map(async |number| {
        let token = Uuid::new_v4().to_string();
        let path = format!("burst/{number}?ttl=600s");
        let granting = team.send(1, Method::POST, &path, &token);
        let path = format!("burst/{number}{query}");
        let repeating = async {
            loop {
                drop(team.send(2, second.clone(), &path, &token).await);
            }
        };
        tokio::select! {
            _ = granting => {}
            () = repeating => unreachable!("it goes on"),
        }
    });
    join_all(claims).await;
    let what = format!("{second} {query}");
    team.assert_keeps_at_most(0, "burst/", &what).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_back_makes_nothing_final_that_is_not_counted() {
    assert_keeps_nothing_of_a_burst(Method::DELETE, "?hold_count=1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_makes_nothing_final_that_is_not_counted() {
    assert_keeps_nothing_of_a_burst(Method::PUT, "?ttl=600s").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_makes_nothing_final_that_is_not_counted() {
    assert_keeps_nothing_of_a_burst(Method::POST, "?ttl=600s").await;
}

/// One client of the attack.
struct Attacker<'a> {
    team: &'a Team,
    prefix: String,
    key: String,
    /// The key of another principal that sends some of the requests, with the same tokens.
    helping_key: Option<String>,
    kept: Vec<Held>,
    used: Vec<Held>,
}

impl Attacker<'_> {
    async fn attack(mut self, until: Instant) -> Vec<Held> {
        while Instant::now() < until {
            self.step().await;
        }
        self.used
    }

    async fn step(&mut self) {
        // Helped for long, a principal may keep more: what only the other one renews is counted for that one.
        let is_new = self.helping_key.is_some() || self.kept.is_empty() || chance(4) > 0;
        let claim = match is_new {
            true => (
                format!("{}{}", self.prefix, chance(NAMES)),
                Uuid::new_v4().to_string(),
            ),
            false => self.kept[chance(self.kept.len() as u128) as usize].clone(),
        };
        let other = format!("{}{}", self.prefix, chance(NAMES));
        let requests = (0..AT_ONCE).map(|_| self.request(&claim, &other));
        join_all(requests).await;
        self.used.push((other, claim.1.clone()));
        self.used.push(claim.clone());
        if is_new {
            self.kept.push(claim);
        }
        if self.kept.len() > KEPT {
            let (name, token) = self
                .kept
                .swap_remove(chance(self.kept.len() as u128) as usize);
            drop(self.team.send(0, Method::DELETE, &name, &token).await);
        }
    }

    /// A request of any kind, whose client may be gone before it is answered.
    async fn request(&self, (name, token): &Held, other: &str) {
        let process = chance(2) as usize;
        let several = format!("?names={name}&names={other}");
        let (method, path) = match chance(10) {
            0 | 1 => (Method::POST, format!("/{name}?ttl=600s")),
            2 => (Method::POST, format!("/{name}?ttl=600s&wait=1s")),
            3 => (Method::POST, format!("{several}&ttl=600s&wait=1s")),
            4 => (Method::POST, format!("/{name}?ttl=600s&hold_count=2")),
            5 => (Method::PUT, format!("/{name}?ttl=600s")),
            6 => (Method::PUT, format!("/{name}?ttl=100ms")),
            7 => (Method::PUT, format!("{several}&ttl=600s")),
            8 => (Method::DELETE, format!("/{name}?hold_count=1")),
            _ => (Method::DELETE, format!("/{name}")),
        };
        let url = format!("{}/locks{path}", self.team.processes[process].url);
        let key = match &self.helping_key {
            Some(helping) if chance(4) == 0 => helping,
            Some(_) | None => &self.key,
        };
        let request = self.team.client.request(method, url).bearer_auth(key);
        let sending = request.header("lock-token", token).send();
        let answered_within = match chance(3) {
            0 => Duration::from_millis(chance(20) as u64),
            _ => Duration::from_secs(30),
        };
        timeout(answered_within, sending).await.ok();
    }
}

/// A number below this one.
fn chance(below: u128) -> u128 {
    Uuid::new_v4().as_u128() % below
}

/// Fails unless these attackers together keep at most this many locks when each attack is over. Each is by principals of
/// its own: what two requests have counted may stay counted for a while, and would leave the next attack no room.
async fn assert_withstands(is_helped: bool, locks_max: usize) {
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let team = Team::on(&format!("redis://{}", redis.address()), OF_PRINCIPAL);
    for round in 0..ATTACKS {
        let attacks = (0..ATTACKERS).map(|_| {
            let attacker = Attacker {
                team: &team,
                prefix: format!("attack-{round}/"),
                key: attacking_key(round),
                helping_key: is_helped.then(|| attacking_key(ATTACKS + round)),
                kept: Vec::new(),
                used: Vec::new(),
            };
            attacker.attack(Instant::now() + ATTACK)
        });
        let used = join_all(attacks).await.concat();
        let prefix = format!("attack-{round}/");
        team.assert_keeps_at_most(locks_max, &prefix, "the attack")
            .await;
        // What it has released makes room again.
        for (name, token) in &used {
            drop(team.send(0, Method::DELETE, name, token).await);
        }
        team.assert_keeps_at_most(0, &prefix, "what it has released")
            .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_principal_that_tries_everything_at_once_keeps_no_more_than_its_quota() {
    assert_withstands(false, LOCKS_MAX).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_principals_with_the_same_tokens_keep_no_more_than_their_quotas_together() {
    assert_withstands(true, 2 * LOCKS_MAX).await;
}
