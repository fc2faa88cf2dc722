//! What the system gives a process, and the manifests that say how much.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::permitted::of_manifest;
use super::{Attacked, MIB, ask, connect};
use crate::process::Serving;
use crate::support::http2::{FRAME_BYTES_MAX, Http2};
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

/// Heads longer than a frame, of which a connection may send a few.
const LONG_HEADS: usize = 8;

/// As many connections of HTTP/2 as these peers may have, each of which makes the service remember something of a hundred
/// heads. Some of them are as long as may be.
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
            let first = client.ask_to_remember("/livez", FRAME_BYTES_MAX).await;
            if first.is_err() || client.next().await.is_err() {
                break;
            }
            for number in 0..100 {
                let bytes = match number < LONG_HEADS {
                    true => 64_000,
                    false => FRAME_BYTES_MAX,
                };
                if client.ask_to_remember("/livez", bytes).await.is_err() {
                    break;
                }
                while client.next().await.is_ok_and(|frame| !frame.ends_stream()) {}
            }
            clients.push(client);
        }
    }
    clients
}

/// Two peers open so many connections each, some more than their shares, and each connection begins a head that is as long
/// as may be.
async fn long_heads(
    address: SocketAddr,
    of_each: usize,
    mut meanwhile: impl FnMut(),
) -> Vec<TcpStream> {
    let mut taken = Vec::new();
    for number in 0..2 * of_each {
        let from = crate::limits::peer(if number < of_each { 1 } else { 2 });
        let Ok(mut stream) = crate::limits::connect_from(from, address).await else {
            continue;
        };
        // A head of eight long fields takes more than one of a single field.
        let fields = format!("X: {}\r\n", "x".repeat(8_000)).repeat(8);
        let head = format!("GET / HTTP/1.1\r\n{fields}");
        let sent = stream.write_all(head.as_bytes());
        let sent = tokio::time::timeout(Duration::from_secs(1), sent).await;
        if matches!(sent, Ok(Ok(()))) {
            taken.push(stream);
        }
        if number % 100 == 0 {
            meanwhile();
        }
    }
    taken
}

/// Resident memory under the worst that the manifest's settings permit is below its limit, on both addresses. The second has
/// no HTTP/2.
#[tokio::test]
async fn the_settings_of_the_manifest_fit_into_its_memory() {
    let limit = of_manifest();
    // A busy machine takes longer to begin all heads than each of them may take.
    let besides = [
        "--server-header-read-timeout",
        "60s",
        "--server-admin-listen",
        "127.0.0.1:0",
    ];
    let attacked = Attacked::start(&besides).await;
    let bystander = attacked.bystander().await;
    let admin = attacked.serving.admin_url.strip_prefix("http://").unwrap();
    let admin: SocketAddr = admin.parse().unwrap();
    let clients = pinning(attacked.address, &[1, 2]).await;
    let count = clients.len();
    assert!(count > 10, "{count} of HTTP/2");
    println!(
        "{} MiB with {count} connections of HTTP/2",
        attacked.memory() / MIB
    );
    let mut most = attacked.memory();
    let mut taken = Vec::new();
    for (address, of_each) in [(attacked.address, 1_020), (admin, 70)] {
        let measure = || most = most.max(attacked.memory());
        taken.push(long_heads(address, of_each, measure).await);
    }
    // What was sent is read by and by.
    for _ in 0..20 {
        most = most.max(attacked.memory());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let open = attacked.metric("leasehold_open_connections").await;
    println!("{open} connections");
    assert!(taken[0].len() > 500, "{} connections", taken[0].len());
    let mut unread = Http2::open(attacked.address, 0).await;
    if let Ok(client) = &mut unread {
        for _ in 0..100 {
            let _ = client.ask("GET", "/metrics").await;
        }
    }
    most = most.max(attacked.memory());
    println!("{} MiB of {}", most / MIB, limit / MIB);
    bystander.noticed_nothing().await;
    drop((taken, clients, unread));
    attacked.judge_memory().await;
    assert!(most < limit, "{} MiB of {}", most / MIB, limit / MIB);
}
