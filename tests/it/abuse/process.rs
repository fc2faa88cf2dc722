//! What the system gives a process, and the manifests that say how much.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::io::AsyncWriteExt as _;

use super::{Attacked, MIB, ask, connect};
use crate::process::Serving;
use crate::support::http2::Http2;
use crate::support::redis_server::{RedisOptions, RedisServer};

/// All connections are taken, and there are still descriptors for Redis, which is asked for the first time.
#[tokio::test]
async fn connections_leave_file_descriptors_for_redis() {
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let store = format!("redis://{}", redis.address());
    let mut limited = shell();
    limited.args(["-c", "ulimit -n 200 && exec \"$0\" \"$@\""]);
    limited.arg(env!("CARGO_BIN_EXE_leasehold"));
    let mut serving = Serving::start_as(limited, &["--store", &store, "--log-requests", "off"]);
    let lowered = serving
        .lines_so_far
        .iter()
        .find(|line| line["connections_max"].is_u64());
    let lowered = lowered.expect("a warning that the limit is lowered");
    assert_eq!(lowered["level"], "WARN");
    let most = lowered["connections_max"].as_u64().unwrap();
    assert!((50..200).contains(&most), "{most}");
    let address = serving.address();
    let mut taken = Vec::new();
    for _ in 0..200 {
        taken.push(connect(address).await);
    }
    for number in 0..20 {
        let (status, body) = ask(address, "POST", &format!("/locks/{number}"), "")
            .await
            .unwrap();
        assert_eq!(status, 201, "{body}");
    }
    serving.signal(Signal::SIGTERM);
    assert_eq!(serving.wait().code(), Some(0));
}

/// The knobs of the tests are none of the service's.
fn shell() -> Command {
    let mut shell = Command::new("sh");
    shell.env_remove("LEASEHOLD_ABUSE");
    shell
}

/// The soft limit is only what a shell gives; the process takes what it needs.
#[test]
fn the_soft_limit_of_open_files_is_raised() {
    let mut limited = shell();
    limited.args(["-c", "ulimit -S -n 100 && exec \"$0\" \"$@\""]);
    limited.arg(env!("CARGO_BIN_EXE_leasehold"));
    let serving = Serving::start_as(limited, &["--server-connections-max", "500"]);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", serving.pid())).unwrap();
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"))
        .unwrap();
    let soft: usize = line.split_whitespace().nth(3).unwrap().parse().unwrap();
    assert!(soft >= 564, "{line}");
    assert!(
        !serving
            .lines_so_far
            .iter()
            .any(|line| line["connections_max"].is_u64())
    );
}

/// As many connections of HTTP/2 as these peers may have, each of which makes the service remember something of a hundred
/// frames.
async fn pinning(address: SocketAddr, from: &[u8]) -> Vec<Http2> {
    let mut clients = Vec::new();
    for from in from {
        for _ in 0..500 {
            let peer = crate::limits::peer(*from);
            let Ok(stream) = crate::limits::connect_from(peer, address).await else {
                break;
            };
            let Ok(mut client) = Http2::over(stream, 65_535).await else {
                break;
            };
            if client.ask_to_remember("/livez").await.is_err() || client.next().await.is_err() {
                break;
            }
            for _ in 0..100 {
                if client.ask_to_remember("/livez").await.is_err() {
                    break;
                }
                while client.next().await.is_ok_and(|frame| !frame.ends_stream()) {}
            }
            clients.push(client);
        }
    }
    clients
}

/// Resident memory under the worst that the manifest's settings permit is below its limit.
#[tokio::test]
async fn the_settings_of_the_manifest_fit_into_its_memory() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/k8s/base/");
    let settings = std::fs::read_to_string(format!("{root}leasehold.env")).unwrap();
    let manifest = std::fs::read_to_string(format!("{root}deployment.yaml")).unwrap();
    let limit = manifest
        .split("limits:")
        .nth(1)
        .and_then(|rest| rest.split("memory: ").nth(1));
    let limit = limit.and_then(|rest| rest.split("Mi").next()).unwrap();
    let limit = limit.parse::<usize>().unwrap() * MIB;
    let of_server = settings
        .lines()
        .filter(|line| line.starts_with("LEASEHOLD_SERVER_"));
    let of_server =
        of_server.filter(|line| !line.contains("_LISTEN=") && !line.contains("_DRAIN_"));
    let flags: Vec<String> = of_server
        .flat_map(|line| {
            let (name, value) = line.split_once('=').unwrap();
            let flag = name.strip_prefix("LEASEHOLD_").unwrap().to_lowercase();
            [format!("--{}", flag.replace('_', "-")), value.to_owned()]
        })
        .collect();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let attacked = Attacked::start(&flags).await;
    let bystander = attacked.bystander().await;
    let clients = pinning(attacked.address, &[1, 2]).await;
    assert!(clients.len() > 10, "{} of HTTP/2", clients.len());
    let mut taken = Vec::new();
    let mut most = attacked.memory();
    println!(
        "{} MiB with {} connections of HTTP/2",
        most / MIB,
        clients.len()
    );
    // Two peers take their shares, and each of their connections begins a head that is as long as may be.
    for from in [1, 2] {
        for number in 0..5_000 {
            let Ok(mut stream) =
                crate::limits::connect_from(crate::limits::peer(from), attacked.address).await
            else {
                break;
            };
            let head = format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(60_000));
            let sent =
                tokio::time::timeout(Duration::from_secs(1), stream.write_all(head.as_bytes()))
                    .await;
            if !matches!(sent, Ok(Ok(()))) && number > 100 {
                break;
            }
            taken.push(stream);
            if number % 100 == 0 {
                most = most.max(attacked.memory());
            }
        }
    }
    most = most.max(attacked.memory());
    assert!(taken.len() > 500, "{} connections", taken.len());
    let mut unread = Http2::open(attacked.address, 0).await;
    if let Ok(client) = &mut unread {
        for _ in 0..100 {
            let _ = client.ask("GET", "/metrics").await;
        }
    }
    most = most.max(attacked.memory());
    bystander.noticed_nothing().await;
    drop((taken, clients, unread));
    attacked.gives_memory_back().await;
    assert!(most < limit, "{} MiB of {}", most / MIB, limit / MIB);
}
