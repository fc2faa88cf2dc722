//! Counters of files that were reread while the service runs. What is read, and when, is decided by those who count here.

use metrics::Counter;

use crate::telemetry::Metrics;

/// Counters of rereads after a change, by their result. They are exported from the start, whether or not there are files.
pub(super) struct RereadCounts {
    pub(super) replaced: Counter,
    pub(super) failed: Counter,
}

impl RereadCounts {
    pub(super) fn of_keys(metrics: &Metrics) -> Self {
        Self::new(
            metrics,
            "leasehold_key_rereads_total",
            "Changes of key files, by whether the new keys could be used.",
        )
    }

    pub(super) fn of_certificate(metrics: &Metrics) -> Self {
        Self::new(
            metrics,
            "leasehold_tls_rereads_total",
            "Changes of certificate files, by whether the new certificate could be used.",
        )
    }

    fn new(metrics: &Metrics, name: &'static str, help: &'static str) -> Self {
        let [replaced, failed] =
            ["ok", "error"].map(|result| metrics.counter(name, help, &[("result", result)]));
        Self { replaced, failed }
    }
}
