//! The scenarios that every client runs.

use std::collections::HashMap;
use std::time::Duration;

use leasehold_client::{Acquire, Client, Error, Lease};
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::testbed::{Server, eventually};

/// Carries out the steps of a scenario.
struct Driver {
    server: Server,
    client: Client,
    leases: HashMap<String, Lease>,
    tasks: HashMap<String, JoinHandle<Result<Lease, Error>>>,
}

impl Driver {
    fn acquire(&self, step: &Value) -> Acquire {
        let names = step["names"].as_array().unwrap().iter();
        let names: Vec<_> = names.map(|name| name.as_str().unwrap()).collect();
        let millis = |field: &str| Duration::from_millis(step[field].as_u64().unwrap());
        let number = |field: &str| step[field].as_u64().map(|number| number as u32);
        let mut acquire = match &names[..] {
            [name] => self.client.lock(*name),
            names => self.client.locks(names.iter().copied()),
        };
        acquire = acquire.ttl(millis("ttl_ms")).wait(millis("wait_ms"));
        if step["mode"] == "shared" {
            acquire = acquire.shared();
        }
        if let Some(limit) = number("limit") {
            acquire = acquire.semaphore(limit);
        }
        if let Some(permits) = number("permits") {
            acquire = acquire.permits(permits);
        }
        if let Some(holder) = step["token_of"].as_str() {
            let count = number("hold_count").unwrap();
            let token = self.leases[holder].token();
            acquire = acquire.token(token).hold_count(count as u16);
        }
        acquire
    }

    async fn carry_out(&mut self, step: &Value) {
        let (kind, subject) = first_member(step);
        match kind {
            "acquire" => {
                let acquired = self.acquire(step).await;
                if let Some(lease) = expect(step, acquired) {
                    self.leases.insert(subject.to_owned(), lease);
                }
            }
            "begin" => {
                let task = tokio::spawn(self.acquire(step).into_future());
                self.tasks.insert(subject.to_owned(), task);
            }
            "finish" => {
                let lease = self.tasks.remove(subject).unwrap().await.unwrap().unwrap();
                self.leases.insert(subject.to_owned(), lease);
            }
            "release" => {
                let released = self.leases[subject].release().await;
                assert_ne!(expect(step, released), Some(false));
            }
            "held" => assert_eq!(self.leases[subject].is_held(), step["is"] == true),
            "until_lost" => {
                let lost = self.leases[subject].lost().await;
                assert_eq!(lost.problem().code, step["code"]);
                assert!(self.leases[subject].check().is_err());
            }
            "fencing_token_of" => {
                let other = step["is_larger_than_of"].as_str().unwrap();
                let token = |lease: &str| self.leases[lease].fencing_token();
                assert!(token(subject) > token(other));
            }
            "restart" => self.server.restart().await,
            "evict" => self.server.evict(subject).await,
            "lock" => assert_eq!(self.server.lock(subject).await["state"], step["state"]),
            "until_queued" => {
                eventually(async || {
                    self.server.lock(subject).await["queue_length"] == step["length"]
                })
                .await;
            }
            "until_renewed" => {
                let name = &self.leases[subject].names()[0];
                let end = async || self.server.lock(name).await["holders"][0]["expires_at"].clone();
                for _ in 0..step["times"].as_u64().unwrap() {
                    let first = end().await;
                    eventually(async || end().await != first).await;
                }
            }
            kind => panic!("unknown step {kind}"),
        }
    }
}

/// The kind of a step and what it is about.
fn first_member(step: &Value) -> (&str, &str) {
    const KINDS: [&str; 12] = [
        "acquire",
        "begin",
        "finish",
        "release",
        "held",
        "until_lost",
        "fencing_token_of",
        "restart",
        "evict",
        "lock",
        "until_queued",
        "until_renewed",
    ];
    let kind = KINDS.into_iter().find(|kind| step.get(kind).is_some());
    let kind = kind.unwrap_or("unknown");
    (kind, step[kind].as_str().unwrap_or_default())
}

fn expect<T>(step: &Value, outcome: Result<T, Error>) -> Option<T> {
    let Some(refused) = step.get("refused") else {
        return Some(outcome.unwrap());
    };
    let problem = outcome.err().expect("it is refused").problem().clone();
    assert_eq!(problem.status, refused["status"]);
    if let Some(code) = refused.get("code") {
        assert_eq!(problem.code, *code);
    }
    None
}

#[tokio::test]
async fn every_scenario_goes_as_it_should() {
    let text = include_str!("../../../scenarios.json");
    let scenarios: Vec<Value> = serde_json::from_str::<Value>(text)
        .unwrap()
        .as_array()
        .unwrap()
        .clone();
    for scenario in scenarios {
        // Shown if it fails.
        println!("{}", scenario["name"]);
        let server = Server::start().await;
        let client = server.client();
        let (leases, tasks) = (HashMap::new(), HashMap::new());
        let mut driver = Driver {
            server,
            client,
            leases,
            tasks,
        };
        for step in scenario["steps"].as_array().unwrap() {
            driver.carry_out(step).await;
        }
    }
}
