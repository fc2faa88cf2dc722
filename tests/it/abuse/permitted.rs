//! The limits of the binary under attack: those of the Kubernetes manifests, unless a test has its own. And the memory that
//! they permit, by the sum on the page on sizing.

use leasehold::config::{Config, Sources, StoreUrl, keys};

use super::MIB;

const SETTINGS: &str = include_str!("../../../k8s/base/leasehold.env");
const DEPLOYMENT: &str = include_str!("../../../k8s/base/deployment.yaml");
const TLS_COMPONENT: &str = include_str!("../../../k8s/components/tls/kustomization.yaml");
const SIZING: &str = include_str!("../../../docs/performance/README.md");

const KIB: usize = 1024;
const OF_CONNECTION: usize = 105 * KIB;
const OF_HTTP2_CONNECTION: usize = 24 * MIB / 10;
const OF_REQUEST: usize = 8 * KIB;
/// The shares of a client in the limits.
const OF_CLIENT: usize = 3 * KIB / 2;
/// A thread beyond the first ones, whose heads are in what connections take.
const OF_FURTHER_THREAD: usize = 30 * MIB;
const FIRST_THREADS: usize = 4;
/// With TLS, each connection more than without.
const OF_ENCRYPTION: usize = 40 * KIB;
const OF_SPAN: usize = KIB;
const OF_ADMIN_LISTEN: usize = 24 * MIB;
const OF_LISTINGS: usize = 16 * MIB;
/// What counts 1 in `memory.locks_max`.
const OF_LOCK: usize = 3 * KIB;
/// No attack needs more in a store in memory, and no default permits so little memory.
const LOCKS_MAX: &str = "10000";

/// The flags with which the binary is attacked: the limits of the manifests, and instead of some of them those of a test.
pub(super) fn flags(own: &[&str]) -> Vec<String> {
    let of_server = SETTINGS
        .lines()
        .filter_map(|line| line.strip_prefix("LEASEHOLD_SERVER_")?.split_once('='));
    let limits = of_server
        .filter(|(name, _)| *name != "ADMIN_LISTEN" && !name.starts_with("DRAIN_"))
        .map(|(name, value)| (flag_of(&format!("server.{}", name.to_lowercase())), value));
    let locks_max = (flag_of("memory.locks_max"), LOCKS_MAX);
    let mut flags: Vec<String> = limits
        .chain([locks_max])
        .filter(|(flag, _)| !own.contains(&flag.as_str()))
        .flat_map(|(flag, value)| [flag, value.to_owned()])
        .collect();
    flags.extend(own.iter().map(ToString::to_string));
    flags
}

fn flag_of(key: &str) -> String {
    format!("--{}", key.replace(['.', '_'], "-"))
}

/// The configuration that these flags make.
fn config(flags: &[String]) -> Config {
    let flags = flags.chunks_exact(2).map(|pair| {
        let key = keys::all().iter().find(|key| flag_of(&key.name) == pair[0]);
        (key.expect("a setting").name.clone(), pair[1].clone())
    });
    let sources = Sources {
        flags: flags.collect(),
        ..Sources::default()
    };
    Config::load(&sources).unwrap().0
}

/// How much memory a process with these flags may have at worst, besides what it has at rest.
pub(super) fn memory(flags: &[String]) -> usize {
    let config = config(flags);
    let server = config.server;
    // A proxy can name another client in each request.
    let clients = match server.forwarded_for {
        true => server.requests_max,
        false => server.connections_max,
    };
    let threads = server.worker_threads.unwrap_or(FIRST_THREADS);
    let of_store = match config.store {
        StoreUrl::Memory | StoreUrl::File(_) => config.memory.locks_max * OF_LOCK,
        StoreUrl::Redis(_) | StoreUrl::Sentinel(_) | StoreUrl::Cluster(_) | StoreUrl::Quorum(_) => {
            OF_LISTINGS
        }
    };
    server.connections_max * OF_CONNECTION
        + server.http2_connections_max * OF_HTTP2_CONNECTION
        + server.requests_max * OF_REQUEST
        + clients * OF_CLIENT
        + threads.saturating_sub(FIRST_THREADS) * OF_FURTHER_THREAD
        + config.traces.map_or(0, |traces| traces.spans_max * OF_SPAN)
        + server.admin_listen.map_or(0, |_| OF_ADMIN_LISTEN)
        + server.answer_bytes_max
        + server.body_bytes_total_max
        + of_store
}

/// The memory limit of the manifests.
pub(super) fn of_manifest() -> usize {
    let limits = DEPLOYMENT.split("limits:").nth(1);
    let memory = limits.and_then(|rest| rest.split("memory: ").nth(1)?.split("Mi").next());
    memory.unwrap().parse::<usize>().unwrap() * MIB
}

/// The memory limit of the component with TLS.
fn of_tls_component() -> usize {
    let memory = TLS_COMPONENT.split("value: ").find_map(|rest| {
        let (number, _) = rest.split_once("Mi")?;
        number.parse::<usize>().ok()
    });
    memory.unwrap() * MIB
}

/// Limits, manifests and the page agree.
#[test]
fn the_limits_of_the_manifests_permit_no_more_memory_than_they_have() {
    for term in [
        "105 KiB for each of `server.connections_max`",
        "2.4 MiB for each of `server.http2_connections_max`",
        "8 KiB for each of `server.requests_max`",
        "24 MiB with `server.admin_listen`, 31 with TLS",
        "16 KiB with `server.tls_client_ca_file`",
        "40 KiB more for each of `server.connections_max` with TLS",
        "1.5 KiB for each of `server.connections_max`, or of `server.requests_max` with `server.forwarded_for`",
        "30 MiB for each of `server.worker_threads` beyond four",
        "1 KiB for each of `traces.spans_max`",
        "- 10 MiB, and with Redis 16 MiB for the names of listings",
        "anything that counts 1 in `memory.locks_max` takes at most 3 KiB",
    ] {
        assert!(SIZING.contains(term), "{term}");
    }
    let flags = flags(&[
        "--store",
        "redis://redis:6379",
        "--server-admin-listen",
        "127.0.0.1:7626",
        "--server-trusted-proxies",
        "10.0.0.0/16",
        "--server-forwarded-for",
        "true",
        "--traces-endpoint",
        "http://collector:4318",
    ]);
    let server = config(&flags).server;
    assert!(server.worker_threads.is_some(), "nodes may have many cores");
    let permitted = 10 * MIB + memory(&flags);
    let encrypted = permitted + server.connections_max * OF_ENCRYPTION + 7 * MIB;
    for (permitted, limit) in [(permitted, of_manifest()), (encrypted, of_tls_component())] {
        assert!(
            permitted <= limit,
            "{} MiB of {}",
            permitted / MIB,
            limit / MIB
        );
    }
}
