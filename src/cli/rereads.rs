//! Which files are reread while the service runs, and the counters of that. How each is followed is in `key_files` and
//! `certificate_files`.

use std::convert::Infallible;
use std::io;

use metrics::Counter;

use super::{certificate_files, key_files};
use crate::config::{Auth, Config};
use crate::http::{Access, Audit};
use crate::server::ServerTls;
use crate::server::shutdown::ReloadSignals;
use crate::telemetry::Metrics;

/// Reloads the keys when their files change, if keys are configured.
pub(super) async fn follow_keys(
    config: &Config,
    access: &Access,
    metrics: &Metrics,
    audit: Audit,
    reloads: ReloadSignals,
) -> Infallible {
    let counts = RereadCounts::of_keys(metrics);
    let current = access.clone();
    metrics.sampled_gauge(
        "leasehold_key_files_outdated",
        "Whether the valid keys are older than their files, which cannot be used.",
        &[],
        move || f64::from(u8::from(current.keys_are_current() == Some(false))),
    );
    if let (Auth::Keys(keys), Access::Keys(ring, _)) = (&config.auth, access) {
        let interval = config.auth_config.reread_interval;
        key_files::follow(
            (**keys).clone(),
            ring.clone(),
            interval,
            counts,
            audit,
            reloads,
        )
        .await
    } else {
        std::future::pending().await
    }
}

/// Reloads the certificate when its files change, if there is one. The signals are received from here on.
pub(super) fn follow_certificate(
    config: &Config,
    tls: Option<ServerTls>,
    metrics: &Metrics,
) -> io::Result<impl Future<Output = Infallible> + use<>> {
    let counts = RereadCounts::of_certificate(metrics);
    let reloads = ReloadSignals::listen(config.reloads())?;
    let followed = config.certificate.clone().zip(tls);
    let interval = config.auth_config.reread_interval;
    Ok(async move {
        match followed {
            Some((known, tls)) => {
                certificate_files::follow(known, tls, interval, counts, reloads).await
            }
            None => std::future::pending().await,
        }
    })
}

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
            "Changes of the files of the TLS certificate and of the authorities of clients, by whether they could be used.",
        )
    }

    fn new(metrics: &Metrics, name: &'static str, help: &'static str) -> Self {
        let [replaced, failed] =
            ["ok", "error"].map(|result| metrics.counter(name, help, &[("result", result)]));
        Self { replaced, failed }
    }
}
