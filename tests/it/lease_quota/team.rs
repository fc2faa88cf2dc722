//! Processes with one store, whose clients use up a quota.

use std::sync::atomic::{AtomicUsize, Ordering};

use leasehold::config::KeyHash;
use reqwest::{Client, Method, Response};
use tempfile::NamedTempFile;

use crate::config::{KEY, file};
use crate::process::Serving;
use crate::support::eventually;

/// How many locks a principal may hold.
pub(super) const LOCKS_MAX: usize = 5;

/// The fewest that all clients together may have.
pub(super) const LOCKS_MAX_OF_ALL: usize = 64;

/// How many principals attack, one after the other, and how many help them.
pub(super) const ATTACKS: usize = 8;

/// The key of a principal that attacks or helps.
pub(super) fn attacking_key(number: usize) -> String {
    format!("the-key-of-the-attacking-principal-{number}")
}

/// Principals with this quota of locks each.
fn keys_file() -> String {
    let attacking = (0..2 * ATTACKS).map(attacking_key);
    let keys = [KEY.to_owned()].into_iter().chain(attacking);
    let principals = keys.enumerate().map(|(number, key)| {
        let hash = KeyHash::of(key.as_bytes());
        format!(
            "[principals.team-{number}]\nkeys = [\"{hash}\"]\n\
             rules = [{{ prefix = \"\", verbs = [\"acquire\", \"list\", \"read\"] }}]\n\
             quota = {{ locks_max = {LOCKS_MAX} }}\n"
        )
    });
    principals.collect()
}

/// Which quota the locks of a team use up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tested {
    /// How many locks it permits.
    pub(super) locks_max: usize,
    /// Its name in a refusal.
    quota: &'static str,
    /// The label of its refusals.
    limit: &'static str,
}

pub(super) const OF_PRINCIPAL: Tested = Tested {
    locks_max: LOCKS_MAX,
    quota: "locks_max",
    limit: "locks_per_principal",
};

pub(super) const OF_ALL: Tested = Tested {
    locks_max: LOCKS_MAX_OF_ALL,
    quota: "server.locks_max",
    limit: "locks_held",
};

/// Processes with one store.
pub(super) struct Team {
    tested: Tested,
    pub(super) processes: Vec<Serving>,
    pub(super) client: Client,
    tries: AtomicUsize,
    _keys: NamedTempFile,
}

/// The name of a lock, and the token of its lease.
pub(super) type Held = (String, String);

impl Team {
    pub(super) fn on(store: &str, tested: Tested) -> Self {
        let keys = file(&keys_file());
        let path = keys.path().to_str().unwrap();
        let of_all = LOCKS_MAX_OF_ALL.to_string();
        let quota = match tested.quota {
            "locks_max" => &["--auth-keys-file", path, "--auth-metrics", "none"][..],
            _ => &["--server-locks-max", &of_all],
        };
        let arguments = [&["--store", store], quota].concat();
        let start = |_| tokio::task::block_in_place(|| Serving::start(&arguments));
        Self {
            tested,
            processes: (0..3).map(start).collect(),
            client: Client::new(),
            tries: AtomicUsize::new(0),
            _keys: keys,
        }
    }

    pub(super) async fn send(
        &self,
        process: usize,
        method: Method,
        path: &str,
        token: &str,
    ) -> Response {
        let url = format!("{}/locks/{path}", self.processes[process].url);
        let request = self.client.request(method, url).bearer_auth(KEY);
        let request = match token {
            "" => request,
            token => request.header("lock-token", token),
        };
        request.send().await.unwrap()
    }

    /// Acquires a lock. The error is the name of a lock that was beyond the quota.
    pub(super) async fn acquire(&self, process: usize, ttl: &str) -> Result<Held, String> {
        eventually("there is an answer", async || {
            self.try_to_acquire(process, ttl).await
        })
        .await
    }

    /// Each try is for another lock, because what was refused is given back in the background.
    async fn try_to_acquire(&self, process: usize, ttl: &str) -> Option<Result<Held, String>> {
        let number = self.tries.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}/{number}", self.tested.limit);
        let path = format!("{name}?ttl={ttl}");
        let answer = self.send(process, Method::POST, &path, "").await;
        let headers = answer.headers();
        match answer.status().as_u16() {
            201 => {
                let token = headers["lock-token"].to_str().unwrap().to_owned();
                Some(Ok((name, token)))
            }
            429 => {
                assert!(headers.contains_key("retry-after"));
                let problem: serde_json::Value = answer.json().await.unwrap();
                assert_eq!(problem["code"], "quota_exceeded", "{problem}");
                assert_eq!(problem["quota"], self.tested.quota, "{problem}");
                Some(Err(name))
            }
            503 => None,
            _ => panic!("{answer:?}"),
        }
    }

    /// Acquires locks until every process refuses more. Returns a lock that was refused.
    pub(super) async fn fill(&self, held: &mut Vec<Held>) -> String {
        let processes = self.processes.len();
        let mut refused_by = 0;
        eventually("the quota is used up", async || {
            match self.acquire(refused_by % processes, "60s").await {
                Ok(more) => {
                    held.push(more);
                    refused_by = 0;
                    None
                }
                Err(refused) => {
                    refused_by += 1;
                    let is_full = held.len() >= self.tested.locks_max;
                    (refused_by >= processes && is_full).then_some(refused)
                }
            }
        })
        .await
    }

    pub(super) async fn refused(&self, process: usize) -> f64 {
        let url = format!("{}/metrics", self.processes[process].url);
        let text = self.client.get(url).send().await.unwrap().text().await;
        let text = text.unwrap();
        let series = format!(
            "leasehold_refused_total{{limit=\"{}\"}} ",
            self.tested.limit
        );
        let line = text.lines().find_map(|line| line.strip_prefix(&series));
        line.expect(&series).parse().unwrap()
    }
}
