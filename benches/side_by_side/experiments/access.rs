//! What it costs to decide who may do what: acquires with a key, with rules, with quotas and over TLS, each beside the same
//! without any of them in the same round. Connections are kept, so a handshake is not part of it.

use std::path::Path;

use leasehold::config::KeyHash;

use super::added_cost::{self, Case, Cost};
use super::{Plan, redis_url};
use crate::encryption::Encryption;
use crate::machine::Served;
use crate::redis_server::{RedisOptions, RedisServer};
use crate::report::Finding;

const NAME: &str = "access";
const CONNECTIONS: usize = 64;
const KEY: &str = "5d7e0c9a1b6f4e3d8c2a7f5b9e1d4c6a";
/// One of many principals, whose key comes last.
const PRINCIPALS: usize = 100;
const RULES: &str =
    r#"rules = [{ prefix = "payments", verbs = ["read"] }, { prefix = "", verbs = ["acquire"] }]"#;
/// More than any machine here can do, so that all is counted and nothing is refused.
const RATE: &str = "requests_per_second = 1000000";

#[derive(Clone, Copy)]
enum Access {
    Open,
    Key,
    Rules,
    /// Of a principal, and of all clients together.
    Rates,
    /// The locks of a principal, which are counted in the store: one more operation for each acquire.
    LocksMax,
    Tls,
}

/// Each with its name, and how much of the throughput has to stay.
const ALL: [(Access, &str, Option<f64>); 6] = [
    (Access::Open, "nothing", None),
    (Access::Key, "one key", Some(0.95)),
    (Access::Rules, "a keys file with rules", Some(0.95)),
    (Access::Rates, "rules and quotas of requests", Some(0.90)),
    (Access::LocksMax, "rules and a quota of locks", None),
    (Access::Tls, "TLS", Some(0.85)),
];

pub(super) async fn run(plan: Plan) -> Vec<Finding> {
    let cases = ALL.map(|(_, name, least)| Case {
        name,
        over: 0,
        least,
    });
    added_cost::of(NAME, plan, &cases, async |index| {
        measure(ALL[index].0, plan.seconds).await
    })
    .await
}

async fn measure(access: Access, seconds: f64) -> Cost {
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let directory = tempfile::tempdir().unwrap();
    let flags = flags(access, directory.path());
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let served = Served::leasehold(&redis_url(&redis), &flags);
    let key = match access {
        Access::Open | Access::Tls => "",
        Access::Key | Access::Rules | Access::Rates | Access::LocksMax => KEY,
    };
    Cost::by_wrk(&served, CONNECTIONS, key, seconds)
}

fn flags(access: Access, directory: &Path) -> Vec<String> {
    let file = |name: &str, contents: &str| {
        let path = directory.join(name);
        std::fs::write(&path, contents).unwrap();
        path.display().to_string()
    };
    match access {
        Access::Open => Vec::new(),
        Access::Key => vec!["--api-key-file".to_owned(), file("key", KEY)],
        Access::Rules => keys_file(directory, ""),
        Access::Rates => [
            keys_file(directory, RATE),
            vec![
                "--server-requests-per-second".to_owned(),
                "1000000".to_owned(),
            ],
        ]
        .concat(),
        Access::LocksMax => keys_file(directory, "locks_max = 1000000"),
        Access::Tls => Encryption::with_ecdsa(directory).flags(),
    }
}

/// The flags of a service with many principals, the last of which has the key and this quota.
fn keys_file(directory: &Path, quota: &str) -> Vec<String> {
    let mut text = String::new();
    for number in 1..=PRINCIPALS {
        let key = match number {
            PRINCIPALS => KEY.to_owned(),
            _ => format!("{KEY}{number}"),
        };
        let hash = KeyHash::of(key.as_bytes());
        text += &format!("[principals.team-{number}]\nkeys = [\"{hash}\"]\n{RULES}\n");
    }
    text += &format!("[principals.team-{PRINCIPALS}.quota]\n{quota}\n");
    let path = directory.join("keys.toml");
    std::fs::write(&path, text).unwrap();
    vec!["--auth-keys-file".to_owned(), path.display().to_string()]
}
