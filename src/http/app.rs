//! The state that all handlers share: the service, the HTTP settings and the metrics. Apart from counters and the key
//! ring, nothing here changes after the start.

use std::sync::Arc;
use std::time::Duration;

use super::admission::Admission;
use super::audit::Audit;
use super::auth::Access;
use super::log::LogSample;
use super::metrics::HttpMetrics;
use super::metrics_page::MetricsPage;
use super::pages::IndexPages;
use crate::config::{Config, LogRequests, OperatorTransport, RequestRate, StoreUrl};
use crate::domain::{Bounds, LeaseQuota, LeasesOf};
use crate::limits::{Budget, LeaseCount, Refusals, RequestBucket};
use crate::server::ServerTls;
use crate::service::LockService;
use crate::telemetry::traces::Tracer;
use crate::telemetry::{self, Build, Metrics};

/// How many bytes of metrics may be in flight at the second address.
pub const ADMIN_ANSWER_BYTES_MAX: usize = 8 * 1024 * 1024;

/// The state that every handler gets. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct App {
    inner: Arc<AppShared>,
}

#[derive(Debug)]
struct AppShared {
    service: LockService,
    metrics_page: MetricsPage,
    http_metrics: HttpMetrics,
    settings: HttpSettings,
    index_pages: IndexPages,
    log_sample: LogSample,
    refusals: Refusals,
    admission: Admission,
    requests: Option<RequestBucket>,
    leases: Option<LeaseCount>,
    answer_bytes: Budget,
    admin_answer_bytes: Budget,
    body_bytes: Budget,
}

/// The HTTP settings.
#[derive(Clone, Debug)]
pub struct HttpSettings {
    /// Bounds of the values in a claim.
    pub bounds: Bounds,
    /// The longest request body.
    pub body_bytes_max: usize,
    /// How long a request body may take to arrive.
    pub body_timeout: Duration,
    /// How many bytes of large request bodies may be in flight.
    pub body_bytes_total_max: usize,
    /// How many bytes of large responses may be in flight.
    pub answer_bytes_max: usize,
    /// How many operations may be in flight, not counting renewals, releases and listings.
    pub operations_max: usize,
    /// How fast requests of all clients may come, without renewals and releases.
    pub requests: Option<RequestRate>,
    /// How many locks clients may hold together, over all processes.
    pub locks_max: Option<usize>,
    /// How many listings may be in flight.
    pub listings_max: usize,
    /// How many event streams may be open.
    pub event_streams_max: usize,
    /// How many renewals and releases may be in flight.
    pub renewals_max: usize,
    /// How long an operation waits for a slot.
    pub admission_timeout: Duration,
    /// Who may read and change locks.
    pub access: Access,
    /// Whether the metrics need no key even though locks do.
    pub is_metrics_open: bool,
    /// The TLS of the server, if it has any, for readiness.
    pub tls: Option<ServerTls>,
    /// Over which connections operators are served at the second address.
    pub operators: OperatorTransport,
    /// Who took which lock, and who was refused.
    pub audit: Audit,
    /// Which requests are logged.
    pub request_log: RequestLog,
    /// Which requests are traced.
    pub tracer: Tracer,
    /// `http` or `https`, for traces.
    pub scheme: &'static str,
    /// The kind of store, for `/version`: never its address.
    pub store: &'static str,
    /// The build information, for `/version`.
    pub build: Build,
}

/// Which requests are logged.
#[derive(Clone, Copy, Debug)]
pub struct RequestLog {
    /// Which requests are logged, by outcome.
    pub mode: LogRequests,
    /// Requests that take this long are logged whatever their outcome, unless request logging is off.
    pub slow: Duration,
}

impl HttpSettings {
    /// Takes the HTTP settings from the configuration.
    #[must_use]
    pub fn new(config: &Config, access: Access) -> Self {
        let server = &config.server;
        Self {
            bounds: config.lease.clone(),
            body_bytes_max: server.body_bytes_max,
            body_timeout: server.body_timeout,
            body_bytes_total_max: server.body_bytes_total_max,
            answer_bytes_max: server.answer_bytes_max,
            operations_max: server.operations_max,
            requests: server.requests,
            locks_max: server.locks_max,
            listings_max: server.listings_max,
            event_streams_max: server.event_streams_max,
            renewals_max: server.renewals_max,
            admission_timeout: config.operation_timeout,
            access,
            is_metrics_open: config.auth_config.is_metrics_open,
            tls: None,
            operators: config.operator_transport(),
            audit: Audit::default(),
            request_log: RequestLog {
                mode: config.log.requests,
                slow: config.log.slow,
            },
            tracer: Tracer::default(),
            scheme: match config.certificate {
                Some(_) => "https",
                None => "http",
            },
            store: match config.store {
                StoreUrl::Memory => "memory",
                StoreUrl::File(_) => "file",
                StoreUrl::Redis(_) | StoreUrl::Sentinel(_) | StoreUrl::Cluster(_) => "redis",
                StoreUrl::Quorum(_) => "quorum",
            },
            build: telemetry::BUILD,
        }
    }
}

impl App {
    /// Builds the shared state.
    #[must_use]
    pub fn new(service: LockService, metrics: Arc<Metrics>, settings: HttpSettings) -> Self {
        let http_metrics = HttpMetrics::new(Arc::clone(&metrics));
        let admission = Admission::new(&settings);
        Self {
            inner: Arc::new(AppShared {
                refusals: Refusals::new(&metrics),
                admission,
                requests: settings.requests.map(RequestBucket::new),
                leases: settings.locks_max.map(|leases_max| {
                    let of = LeasesOf::All;
                    LeaseCount::new(LeaseQuota { of, leases_max })
                }),
                answer_bytes: Budget::new(settings.answer_bytes_max),
                admin_answer_bytes: Budget::new(ADMIN_ANSWER_BYTES_MAX),
                body_bytes: Budget::new(settings.body_bytes_total_max),
                index_pages: IndexPages::new(settings.build.version),
                service,
                metrics_page: MetricsPage::new(metrics),
                http_metrics,
                settings,
                log_sample: LogSample::default(),
            }),
        }
    }

    pub(super) fn service(&self) -> &LockService {
        &self.inner.service
    }

    pub(super) fn index_pages(&self) -> &IndexPages {
        &self.inner.index_pages
    }

    pub(super) fn metrics_page(&self) -> &MetricsPage {
        &self.inner.metrics_page
    }

    pub(super) fn http_metrics(&self) -> &HttpMetrics {
        &self.inner.http_metrics
    }

    pub(super) fn settings(&self) -> &HttpSettings {
        &self.inner.settings
    }

    pub(super) fn log_sample(&self) -> &LogSample {
        &self.inner.log_sample
    }

    pub(super) fn refusals(&self) -> &Refusals {
        &self.inner.refusals
    }

    /// The requests of all clients that may begin; `None` if they are not limited.
    pub(super) fn requests(&self) -> Option<&RequestBucket> {
        self.inner.requests.as_ref()
    }

    /// The count of the leases of all clients; `None` if they are not limited.
    pub(super) fn leases(&self) -> Option<&LeaseCount> {
        self.inner.leases.as_ref()
    }

    pub(super) fn admission(&self) -> &Admission {
        &self.inner.admission
    }

    /// The bytes of large request bodies in flight.
    pub(super) fn body_bytes(&self) -> &Budget {
        &self.inner.body_bytes
    }

    /// The bytes of large responses in flight.
    pub(super) fn answer_bytes(&self) -> &Budget {
        &self.inner.answer_bytes
    }

    /// The same of the metrics at the second address.
    pub(super) fn admin_answer_bytes(&self) -> &Budget {
        &self.inner.admin_answer_bytes
    }
}
