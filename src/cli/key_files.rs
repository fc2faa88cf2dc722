//! Keys from files are read again while the service runs, so that a key can be replaced without a restart. What the keys
//! allow is decided in `http`.

use std::convert::Infallible;
use std::time::Duration;

use metrics::Counter;

use crate::config::Keys;
use crate::http::{KeyRing, Role};
use crate::telemetry::Metrics;

/// The keys with their roles, as `http` wants them.
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

/// How often files were found changed. They are there from the start, whether there are keys or not.
pub(super) struct RereadCounts {
    replaced: Counter,
    failed: Counter,
}

impl RereadCounts {
    pub(super) fn new(metrics: &Metrics) -> Self {
        let [replaced, failed] = ["ok", "error"].map(|result| {
            metrics.counter(
                "leasehold_key_rereads_total",
                "Files of keys that were found changed, by whether their keys could be used.",
                &[("result", result)],
            )
        });
        Self { replaced, failed }
    }
}

/// Puts into the ring what the files have, for as long as the service runs. Keys that cannot be used change nothing, so
/// that half a write locks nobody out.
///
/// Files are read rather than asked for their time: the mounted Secrets of Kubernetes are links that change as a whole,
/// and keys are short.
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
        // On a thread that may wait: files can be on a network.
        let reread = tokio::task::spawn_blocking(move || known.reread()).await;
        match reread.unwrap_or_else(|panic| Err(panic.to_string())) {
            Ok(reread) => {
                last_problem = None;
                if reread != keys {
                    ring.replace(roles(&reread));
                    keys = reread;
                    counts.replaced.increment(1);
                    tracing::info!("The API keys were read again, and have changed.");
                }
            }
            Err(problem) => {
                if last_problem.as_ref() != Some(&problem) {
                    counts.failed.increment(1);
                    tracing::warn!(
                        problem,
                        "The API keys cannot be read again; those before stay valid."
                    );
                }
                last_problem = Some(problem);
            }
        }
    }
}
