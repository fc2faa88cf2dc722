//! The store, as a server would use it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::statvfs::statvfs;
use nix::unistd::{AccessFlags, access};
use tokio::time::Instant;

use super::Diagnosis;
use crate::cli::Exit;
use crate::config::{Config, StoreUrl};
use crate::domain::{
    Acquired, Attempt, Claim, LockName, LockNames, QueueRequest, Refused, Token, Ttl, duration,
};
use crate::store::file::{Examination, examine, excessive_rights};
use crate::store::redis::{CONNECTION_REFUSED, RedisStore};
use crate::store::{self, Finding, LockStore, StoreError};

/// How often the latency is measured at least.
const SAMPLES: usize = 11;
/// From here on a request may still be executed after it was answered that its outcome is unknown.
const LATENCY_MAX: Duration = Duration::from_millis(50);
/// How long counting the locks may take.
const COUNT_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest TTL of the lock that is tried: after a loss, new grants wait for the longest one in use.
const TRIAL_TTL_MAX: Duration = Duration::from_secs(3);
const FREE_BYTES_MIN: u64 = 256 * 1024 * 1024;

pub(super) async fn check(config: &Config) -> Vec<Diagnosis> {
    match &config.store {
        StoreUrl::Memory => vec![Diagnosis::fine(
            "store",
            "memory: locks are lost when the server ends, and no other server shares them",
        )],
        StoreUrl::File(directory) => directory_findings(directory, config.memory.locks_max),
        StoreUrl::Redis(_) | StoreUrl::Sentinel(_) | StoreUrl::Cluster(_) | StoreUrl::Quorum(_) => {
            redis_findings(config).await
        }
    }
}

/// The directory is not opened as a server opens it: one that starts at this moment would find it in use.
fn directory_findings(directory: &Path, locks_max: usize) -> Vec<Diagnosis> {
    let shown = directory.display();
    let existing = directory.ancestors().find(|path| path.exists());
    let existing = match existing {
        Some(path) if !path.as_os_str().is_empty() => path,
        _ => Path::new("."),
    };
    if !existing.is_dir() {
        let text = format!("{} is no directory; choose another one", existing.display());
        return vec![Diagnosis::error("directory", text, Exit::Misconfigured)];
    }
    if let Err(errno) = access(existing, AccessFlags::W_OK | AccessFlags::X_OK) {
        let text = format!(
            "this user cannot write to {}: {}; run this as the user of the server, or give it the right",
            existing.display(),
            errno.desc()
        );
        return vec![Diagnosis::error("directory", text, Exit::Misconfigured)];
    }
    let directory_finding = match existing == directory {
        true => {
            format!("{shown} can be written to")
        }
        false => format!("{shown} is not there; the server makes it when it starts"),
    };
    let mut found = vec![Diagnosis::fine("directory", directory_finding)];
    if existing == directory {
        found.push(content_finding(&examine(directory, locks_max)));
        let excessive = excessive_rights(directory).into_iter();
        found.extend(excessive.map(|text| Diagnosis::warning("permissions", text)));
    }
    if let Ok(disk) = statvfs(existing) {
        let free = disk.blocks_available() * disk.fragment_size();
        let text = format!("{} MiB of its disk are free", free / (1024 * 1024));
        found.push(match free < FREE_BYTES_MIN {
            true => Diagnosis::warning("disk", format!("{text}; a full disk refuses claims")),
            false => Diagnosis::fine("disk", text),
        });
    }
    found
}

fn content_finding(found: &Examination) -> Diagnosis {
    let text = match found {
        Examination::Unused => "no server has used the directory yet".to_owned(),
        Examination::InUse => {
            "a server uses the directory; it has checked what is in it when it started".to_owned()
        }
        Examination::Sound(rows) => format!("a server can load what is there: {rows} rows"),
        Examination::TooLarge(bytes) => format!(
            "the file has {} MiB, which is too much to check it here; the server checks it when it starts",
            bytes / (1024 * 1024)
        ),
        Examination::Unusable(text) => {
            return Diagnosis::error("content", text, Exit::Misconfigured);
        }
    };
    Diagnosis::fine("content", text)
}

async fn redis_findings(config: &Config) -> Vec<Diagnosis> {
    let store = match store::open(config).await {
        Ok(store) => store,
        Err(error) => return vec![refused(&error)],
    };
    // Opening it was the first check. A Sentinel that is silent is reported after the second.
    store.refresh_health().await;
    let health = store.health();
    let shown = config.redis.with_user(&config.store);
    if let Some(trouble) = health.trouble {
        let is_at_one_address = matches!(config.store, StoreUrl::Redis(_));
        let text = match is_at_one_address && trouble.contains(CONNECTION_REFUSED) {
            true => {
                format!("{shown}: nothing listens there; start Redis, or correct the store's URL")
            }
            false => format!("{shown}: {trouble}"),
        };
        return vec![Diagnosis::error("store", text, Exit::Unreachable)];
    }
    let mut found = vec![Diagnosis::fine("store", format!("{shown} answers"))];
    found.extend(health.findings.into_iter().map(of_store));
    match trial(&store, config).await {
        Ok(diagnoses) => found.extend(diagnoses),
        Err(error) => found.push(refused(&error)),
    }
    store.close().await;
    found
}

fn refused(error: &StoreError) -> Diagnosis {
    let exit = match error.fault().is_lasting() {
        true => Exit::Misconfigured,
        false => Exit::Unreachable,
    };
    Diagnosis::error("store", error.detail(), exit)
}

fn of_store(finding: Finding) -> Diagnosis {
    match finding.is_fine {
        true => Diagnosis::fine(finding.topic, finding.detail),
        false => Diagnosis::warning(finding.topic, finding.detail),
    }
}

/// Does once what servers do all the time, which needs every right: with one lock, or with one in each part of a cluster, so
/// that every primary takes part.
async fn trial(store: &Arc<dyn LockStore>, config: &Config) -> Result<Vec<Diagnosis>, StoreError> {
    let token = Token::random();
    let beginning = format!("leasehold-doctor/{}", token.expose());
    let (names, tried) = match &config.store {
        StoreUrl::Cluster(_) => (
            RedisStore::lock_in_each_partition(&format!("{beginning}/")),
            "a lock in each part of the cluster",
        ),
        StoreUrl::Memory
        | StoreUrl::File(_)
        | StoreUrl::Redis(_)
        | StoreUrl::Sentinel(_)
        | StoreUrl::Quorum(_) => {
            let name = LockName::parse(beginning.as_bytes());
            let name = name.expect("a word and a UUID make a name");
            (vec![name], "a lock")
        }
    };
    let samples: Vec<_> = names
        .iter()
        .cycle()
        .take(names.len().max(SAMPLES))
        .cloned()
        .collect();
    let names = LockNames::several(names).expect("as many as a claim may have");
    let deadline = || Instant::now() + config.operation_timeout;
    let ttl = config.lease.default_ttl().get().min(TRIAL_TTL_MAX);
    let claim = Claim::plain(names.clone(), token, Ttl::from_store(ttl));
    let acquiring = store.acquire(&claim, Attempt::random(), None, deadline());
    let acquired = acquiring.await?;
    let rights = if let Acquired::Granted(_) = acquired {
        wait_behind(store, &claim, config).await?;
        let text = format!("{tried} could be acquired, waited for, read and released");
        Diagnosis::fine("rights", text)
    } else if let Acquired::Refused(Refused::Recovering { retry_in }) = acquired {
        let left = duration::format(Duration::from_secs(retry_in.as_secs() + 1));
        let text = format!("the data may have been lost, so new grants wait for another {left}");
        Diagnosis::warning("grants", text)
    } else {
        Diagnosis::warning("rights", "a lock that nobody uses could not be acquired")
    };
    let mut latencies = Vec::new();
    for name in &samples {
        let began = Instant::now();
        store.inspect(name, deadline()).await?;
        latencies.push(began.elapsed());
    }
    store.release(&names, token, None, deadline()).await?;
    // Counting is broken off in a store with very many locks.
    let _ = tokio::time::timeout(COUNT_TIMEOUT, store.sweep()).await;
    let locks = match store.health().held_locks {
        Some(count) => format!("{count} locks are held"),
        None => "there are too many locks to count them here".to_owned(),
    };
    Ok(vec![
        rights,
        latency(latencies),
        Diagnosis::fine("locks", locks),
    ])
}

/// Has another claim wait for the locks and leave the queue, which needs more rights.
async fn wait_behind(
    store: &Arc<dyn LockStore>,
    holding: &Claim,
    config: &Config,
) -> Result<(), StoreError> {
    let deadline = || Instant::now() + config.operation_timeout;
    let waiting = Claim::plain(holding.names.clone(), Token::random(), holding.ttl);
    let request = QueueRequest {
        ticket: None,
        age: Duration::ZERO,
        wait: config.operation_timeout,
        execute_within: config.operation_timeout,
        place_kept: Duration::ZERO,
        poll_interval: config.waiting.poll_interval,
        waiters_max: config.waiting.waiters_per_lock_max,
        wants_position: false,
        is_head: true,
        takes_over: false,
    };
    let enqueued = store.acquire(&waiting, Attempt::random(), Some(&request), deadline());
    enqueued.await?;
    let left = store.release(&waiting.names, waiting.token, None, deadline());
    left.await.map(drop)
}

fn latency(mut latencies: Vec<Duration>) -> Diagnosis {
    latencies.sort();
    let [fastest, median] = [latencies[0], latencies[latencies.len() / 2]];
    let millis = |latency: Duration| latency.as_secs_f64() * 1000.0;
    let text = format!(
        "an operation takes {:.1} ms, the fastest took {:.1} ms",
        millis(median),
        millis(fastest)
    );
    match fastest < LATENCY_MAX {
        true => Diagnosis::fine("latency", text),
        false => Diagnosis::warning(
            "latency",
            format!("{text}; run the server nearer to the store"),
        ),
    }
}
