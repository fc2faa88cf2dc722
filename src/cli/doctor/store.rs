//! The store, as a server would use it.

use std::path::Path;
use std::sync::Arc;

use nix::sys::statvfs::statvfs;
use nix::unistd::{AccessFlags, access};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::{Diagnosis, trial};
use crate::cli::Exit;
use crate::config::{Config, StoreUrl};
use crate::domain::{ClaimDigest, LockEvent, LockName};
use crate::store::file::{Examination, examine, excessive_rights};
use crate::store::redis::{CONNECTION_REFUSED, explained};
use crate::store::{self, Finding, Listener, StoreError};

const FREE_BYTES_MIN: u64 = 256 * 1024 * 1024;

const NO_MESSAGES: &str = "no messages could be received within operation_timeout, so waiters notice a free lock up to a \
                           second late, and events are not delivered";

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
        // As a server that is started with it.
        Err(error) => {
            let text = error.detail();
            return vec![Diagnosis::error("store", text, Exit::Misconfigured)];
        }
    };
    // Only a store with a listener subscribes to channels.
    let subscriptions = Arc::new(Subscriptions::default());
    store.set_listener(Arc::clone(&subscriptions) as Arc<dyn Listener>);
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
    let subscribing = timeout(config.operation_timeout, subscriptions.all(&config.store));
    let subscribed = subscribing.await;
    if subscribed.is_ok() {
        // Finds out whether events are wanted. While they may be, claims are not granted in the shortest way.
        store.refresh_health().await;
    }
    let tried = trial::of(&store, config).await;
    let mut found = vec![Diagnosis::fine("store", format!("{shown} answers"))];
    let findings = store.health().findings;
    // What keeps a store from subscribing, such as a missing right, is mostly among them.
    let is_explained = findings.iter().any(|finding| !finding.is_fine);
    found.extend(findings.into_iter().map(of_store));
    if subscribed.is_err() && !is_explained {
        found.push(Diagnosis::warning("messages", NO_MESSAGES));
    }
    match tried {
        Ok(diagnoses) => found.extend(diagnoses),
        Err(error) => found.push(refused(&error)),
    }
    store.close().await;
    found
}

/// Has a permit for each store that has subscribed. Nobody here wants messages.
#[derive(Debug)]
struct Subscriptions(Semaphore);

impl Default for Subscriptions {
    fn default() -> Self {
        Self(Semaphore::new(0))
    }
}

impl Subscriptions {
    /// Waits until the store receives messages; a quorum's nodes, until each does.
    async fn all(&self, store: &StoreUrl) {
        let stores = match store {
            StoreUrl::Quorum(address) => address.nodes.len() as u32,
            StoreUrl::Memory
            | StoreUrl::File(_)
            | StoreUrl::Redis(_)
            | StoreUrl::Sentinel(_)
            | StoreUrl::Cluster(_) => 1,
        };
        // It is never closed.
        let _ = self.0.acquire_many(stores).await;
    }
}

impl Listener for Subscriptions {
    fn reserved(&self, _: &LockName) {}
    fn dequeued(&self, _: &LockName, _: ClaimDigest) {}
    fn evicted(&self, _: &LockName) {}
    fn released(&self, _: &LockName, _: ClaimDigest) {}
    fn event(&self, _: LockEvent) {}
    /// The first thing that a store does once it is subscribed.
    fn messages_lost(&self) {
        self.0.add_permits(1);
    }
    fn events_lost(&self) {}
}

fn refused(error: &StoreError) -> Diagnosis {
    let exit = match error.fault().is_lasting() {
        true => Exit::Misconfigured,
        false => Exit::Unreachable,
    };
    Diagnosis::error("store", explained(error), exit)
}

fn of_store(finding: Finding) -> Diagnosis {
    match finding.is_fine {
        true => Diagnosis::fine(finding.topic, finding.detail),
        false => Diagnosis::warning(finding.topic, finding.detail),
    }
}
