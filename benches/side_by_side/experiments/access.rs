//! What it costs to decide who may do what: acquires with a key, with rules, with quotas and over TLS, each beside the same
//! without any of them in the same round. Connections are kept, so a handshake is not part of it.

use std::path::Path;

use leasehold::config::KeyHash;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use tempfile::TempDir;

use super::{Plan, ratios, redis_url};
use crate::machine::{Served, cpu_seconds, undisturbed};
use crate::redis_server::{RedisOptions, RedisServer};
use crate::report::Finding;
use crate::wrk::{Script, Wrk};

const NAME: &str = "access";
const CONNECTIONS: usize = 64;
const WARM_UP_SECONDS: f64 = 1.0;
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

#[derive(Default)]
struct Series {
    per_second: Vec<f64>,
    service_us: Vec<f64>,
}

pub(super) async fn run(plan: Plan) -> Vec<Finding> {
    let mut all: [Series; ALL.len()] = Default::default();
    for round in 1..=plan.rounds {
        for ((access, name, _), series) in ALL.iter().zip(&mut all) {
            eprintln!("  round {round}: {name}");
            let measure = async || measure(*access, plan.seconds).await;
            let [per_second, service_us] = undisturbed(measure).await;
            series.per_second.push(per_second);
            series.service_us.push(service_us);
        }
    }
    let [open, others @ ..] = &all;
    let mut findings = Vec::new();
    for ((_, name, target), series) in ALL[1..].iter().zip(others) {
        let kept = ratios(&series.per_second, &open.per_second);
        let finding = Finding::new(NAME, format!("acquires with {name}, over none"), "", kept);
        findings.push(match target {
            Some(least) => finding.at_least(*least),
            None => finding,
        });
        let more = ratios(&series.service_us, &open.service_us);
        let figure = format!("CPU of the process with {name}, over none");
        findings.push(Finding::new(NAME, figure, "", more));
    }
    for ((_, name, _), series) in ALL.iter().zip(all) {
        let figure = format!("acquires with {name}");
        findings.push(Finding::new(NAME, figure, "/s", series.per_second));
    }
    findings
}

/// Acquires per second, and the CPU time of the service for each in microseconds.
async fn measure(access: Access, seconds: f64) -> [f64; 2] {
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let directory = tempfile::tempdir().unwrap();
    let flags = flags(access, &directory);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let served = Served::leasehold(&redis_url(&redis), &flags);
    let key = match access {
        Access::Open | Access::Tls => "",
        Access::Key | Access::Rules | Access::Rates | Access::LocksMax => KEY,
    };
    let load =
        |seconds| Wrk::start(Script::Acquire, &served.url(), CONNECTIONS, seconds, key).finish();
    load(WARM_UP_SECONDS);
    let before = cpu_seconds(served.pid());
    let load = load(seconds);
    let service_seconds = cpu_seconds(served.pid()) - before;
    [load.per_second(), service_seconds / load.requests() * 1e6]
}

fn flags(access: Access, directory: &TempDir) -> Vec<String> {
    let file = |name: &str, contents: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, contents).unwrap();
        path.display().to_string()
    };
    match access {
        Access::Open => Vec::new(),
        Access::Key => vec!["--api-key-file".to_owned(), file("key", KEY)],
        Access::Rules => keys_file(directory.path(), ""),
        Access::Rates => [
            keys_file(directory.path(), RATE),
            vec![
                "--server-requests-per-second".to_owned(),
                "1000000".to_owned(),
            ],
        ]
        .concat(),
        Access::LocksMax => keys_file(directory.path(), "locks_max = 1000000"),
        Access::Tls => {
            let names = ["127.0.0.1".to_owned()];
            let CertifiedKey { cert, signing_key } = generate_simple_self_signed(names).unwrap();
            vec![
                "--server-tls-cert-file".to_owned(),
                file("certificate.pem", &cert.pem()),
                "--server-tls-key-file".to_owned(),
                file("key.pem", &signing_key.serialize_pem()),
            ]
        }
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
