//! Rereads keys from their files while the service runs, so that a key can be replaced without a restart. What each key
//! allows is decided in `http`.

use std::convert::Infallible;
use std::time::Duration;

use metrics::Counter;

use crate::config::Keys;
use crate::http::{KeyRing, Role};
use crate::telemetry::Metrics;

/// The keys with their roles, as `http` expects them.
pub(super) fn roles(keys: &Keys) -> impl Iterator<Item = (Role, &str)> {
    let keys = [
        (Role::Client, Some(&keys.api)),
        (Role::Client, keys.api_next.as_ref()),
        (Role::Admin, keys.admin.as_ref()),
        (Role::Reader, keys.read.as_ref()),
    ];
    keys.into_iter()
        .filter_map(|(role, key)| Some((role, key?.secret.expose())))
}

/// Counters of rereads after a change. They are exported from the start, with or without keys.
pub(super) struct RereadCounts {
    replaced: Counter,
    failed: Counter,
}

impl RereadCounts {
    pub(super) fn new(metrics: &Metrics) -> Self {
        let [replaced, failed] = ["ok", "error"].map(|result| {
            metrics.counter(
                "leasehold_key_rereads_total",
                "Changes of key files, by whether the new keys could be used.",
                &[("result", result)],
            )
        });
        Self { replaced, failed }
    }
}

/// Keeps the key ring equal to the files, for as long as the service runs. Keys that cannot be used change nothing, so
/// that a half-written file locks out no client.
///
/// It rereads the contents instead of checking modification times: Kubernetes mounts Secrets as symbolic links that it
/// swaps, and keys are short.
pub(super) async fn follow(
    mut keys: Keys,
    ring: KeyRing,
    interval: Duration,
    counts: RereadCounts,
) -> Infallible {
    if !keys.are_from_files() {
        return std::future::pending().await;
    }
    let mut last_problem = None;
    loop {
        tokio::time::sleep(interval).await;
        let known = keys.clone();
        // On a blocking thread: the files may be on a network file system.
        let reread = tokio::task::spawn_blocking(move || known.reread()).await;
        match reread.unwrap_or_else(|panic| Err(panic.to_string())) {
            Ok(reread) => {
                last_problem = None;
                if reread != keys {
                    ring.replace(roles(&reread));
                    keys = reread;
                    counts.replaced.increment(1);
                    tracing::info!("API keys reloaded: they have changed");
                }
            }
            Err(problem) => {
                if last_problem.as_ref() != Some(&problem) {
                    counts.failed.increment(1);
                    tracing::warn!(
                        problem,
                        "cannot reload the API keys; the previous keys stay valid"
                    );
                }
                last_problem = Some(problem);
            }
        }
    }
}
