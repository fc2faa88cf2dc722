//! The files that are reread while the service runs, and the counters for that. `key_files`, `issuer_keys` and
//! `certificate_files` reread them.

use std::convert::Infallible;
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use metrics::{Counter, Gauge};

use super::{certificate_files, issuer_keys, key_files};
use crate::config::{Auth, Config};
use crate::http::{Access, Audit, IssuerKeys, KeysState};
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

/// Reads the keys of the issuer of tokens again and again, if tokens are accepted. The signals are received from here on.
pub(super) fn follow_issuer(
    config: &Config,
    access: &Access,
    metrics: &Metrics,
    audit: Audit,
) -> io::Result<impl Future<Output = Infallible> + use<>> {
    let counts = RereadCounts::of_issuer(metrics);
    let (counted, aged, current) = (access.clone(), access.clone(), access.clone());
    metrics.sampled_gauge(
        "leasehold_jwks_keys",
        "Keys of the issuer of tokens that are used; 0 if they are not known or too old.",
        &[],
        move || {
            let keys = counted.issuer_keys().map_or(0, IssuerKeys::count);
            f64::from(u32::try_from(keys).unwrap_or(u32::MAX))
        },
    );
    metrics.sampled_gauge(
        "leasehold_jwks_age_seconds",
        "Time since the keys of the issuer of tokens were read the last time.",
        &[],
        move || {
            let age = aged.issuer_keys().and_then(IssuerKeys::age);
            age.unwrap_or_default().as_secs_f64()
        },
    );
    metrics.sampled_gauge(
        "leasehold_jwks_outdated",
        "Whether the keys of the issuer of tokens could not be read the last time, or have not been read yet.",
        &[],
        move || {
            let state = current.issuer_keys().map(IssuerKeys::current_state);
            f64::from(u8::from(
                state.is_some_and(|state| state != KeysState::Current),
            ))
        },
    );
    let reloads = ReloadSignals::listen(config.reloads())?;
    let (jwt, access) = (config.jwt.clone(), access.clone());
    let interval = config.auth_config.reread_interval;
    Ok(async move {
        match (jwt, access.issuer_keys()) {
            (Some(jwt), Some(keys)) => {
                issuer_keys::follow(jwt, keys, interval, counts, audit, reloads).await
            }
            _ => std::future::pending().await,
        }
    })
}

/// Reloads the certificate when its files change, if there is one. The signals are received from here on.
pub(super) fn follow_certificate(
    config: &Config,
    tls: Option<ServerTls>,
    metrics: &Metrics,
) -> io::Result<impl Future<Output = Infallible> + use<>> {
    let counts = RereadCounts::of_certificate(metrics);
    let current = tls.clone();
    metrics.sampled_gauge(
        "leasehold_tls_files_outdated",
        "Whether the TLS certificate and the authorities of clients in use are older than their files, which cannot be used.",
        &[],
        move || f64::from(u8::from(current.as_ref().is_some_and(ServerTls::is_outdated))),
    );
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

/// Counts rereads after a change by their result, and says when what is in use was read. Exported from the start, whether
/// or not there are files.
pub(super) struct RereadCounts {
    replaced: Counter,
    failed: Counter,
    replaced_at: Gauge,
}

impl RereadCounts {
    pub(super) fn of_keys(metrics: &Metrics) -> Self {
        let counts = Self::new(
            metrics,
            "leasehold_key_rereads_total",
            "Changes of key files, by whether the new keys could be used.",
            "keys",
        );
        counts.in_use_since_now();
        counts
    }

    /// The keys of the issuer are not known yet.
    pub(super) fn of_issuer(metrics: &Metrics) -> Self {
        Self::new(
            metrics,
            "leasehold_jwks_rereads_total",
            "Changes of the keys of the issuer of tokens, and of the reason why they cannot be read.",
            "jwks",
        )
    }

    pub(super) fn of_certificate(metrics: &Metrics) -> Self {
        let counts = Self::new(
            metrics,
            "leasehold_tls_rereads_total",
            "Changes of the files of the TLS certificate and of the authorities of clients, by whether they could be used.",
            "tls",
        );
        counts.in_use_since_now();
        counts
    }

    /// What was read is in use from now on.
    pub(super) fn replaced(&self) {
        self.replaced.increment(1);
        self.in_use_since_now();
    }

    /// What was read cannot be used.
    pub(super) fn failed(&self) {
        self.failed.increment(1);
    }

    fn new(
        metrics: &Metrics,
        name: &'static str,
        help: &'static str,
        source: &'static str,
    ) -> Self {
        let [replaced, failed] =
            ["ok", "error"].map(|result| metrics.counter(name, help, &[("result", result)]));
        let replaced_at = metrics.gauge(
            "leasehold_config_reload_success_timestamp_seconds",
            "When what is in use was read: at the start, or after its last change; 0 if it is not known yet.",
            &[("source", source)],
        );
        Self {
            replaced,
            failed,
            replaced_at,
        }
    }

    fn in_use_since_now(&self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        self.replaced_at.set(now.unwrap_or_default().as_secs_f64());
    }
}
