//! HTTP metrics. A request finds its series by three small indices: no hashing, no lock, no allocation.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::http::{Method, StatusCode};
use metrics::{Counter, Gauge, Histogram};

use super::problem::AccessRefusal;
use super::routes::Route;
use crate::telemetry::Metrics;

const REQUEST_DURATION: &str = "http_server_request_duration_seconds";

/// The buckets of the HTTP histogram: those of OpenTelemetry, with finer ones below, where most responses are.
pub const BUCKETS: (&str, &[f64]) = (
    REQUEST_DURATION,
    &[
        0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5,
        5.0, 7.5, 10.0, 30.0, 60.0,
    ],
);

/// The methods of the interface. All others share a label, and so do those that a route does not have: clients cannot
/// fill the registry with them.
const METHODS: [&str; 8] = [
    "POST", "PUT", "DELETE", "GET", "HEAD", "LOCK", "UNLOCK", "_OTHER",
];
/// Every status that a route responds with.
const STATUSES: [(u16, &str); 19] = [
    (200, "200"),
    (201, "201"),
    (204, "204"),
    (303, "303"),
    (400, "400"),
    (401, "401"),
    (403, "403"),
    (404, "404"),
    (405, "405"),
    (408, "408"),
    (409, "409"),
    (412, "412"),
    (413, "413"),
    (415, "415"),
    (423, "423"),
    (429, "429"),
    (500, "500"),
    (503, "503"),
    (0, "_OTHER"),
];
const ROUTES: usize = Route::ALL.len() + 1;

/// The HTTP metrics of all routes.
pub(super) struct HttpMetrics {
    registry: Arc<Metrics>,
    requests: Box<[OnceLock<Histogram>]>,
    in_flight: Gauge,
    panics: Counter,
    refused: [Counter; AccessRefusal::ALL.len()],
}

/// A request in flight; counted until this is dropped.
pub(super) struct InFlight(Gauge);

impl HttpMetrics {
    pub(super) fn new(registry: Arc<Metrics>) -> Self {
        let series = METHODS.len() * ROUTES * STATUSES.len();
        Self {
            requests: (0..series).map(|_| OnceLock::new()).collect(),
            in_flight: registry.gauge(
                "leasehold_http_requests_in_flight",
                "Requests in flight in this process.",
                &[],
            ),
            panics: registry.counter(
                "leasehold_panics_total",
                "Requests whose handler panicked; must stay 0.",
                &[],
            ),
            refused: AccessRefusal::ALL.map(|reason| {
                registry.counter(
                    "leasehold_access_refusals_total",
                    "Requests refused because of their sender or its request rate.",
                    &[("reason", reason.label())],
                )
            }),
            registry,
        }
    }

    /// Counts a request that was refused because of its sender.
    pub(super) fn refused(&self, reason: AccessRefusal) {
        self.refused[reason as usize].increment(1);
    }

    /// The counter of handler panics.
    pub(super) fn panics(&self) -> Counter {
        self.panics.clone()
    }

    pub(super) fn begin(&self) -> InFlight {
        self.in_flight.increment(1.0);
        InFlight(self.in_flight.clone())
    }

    /// Records a response.
    pub(super) fn record(
        &self,
        method: &Method,
        route: Option<Route>,
        status: StatusCode,
        took: Duration,
    ) {
        let name = method.as_str();
        let method = METHODS
            .iter()
            .position(|known| *known == name)
            .filter(|_| status != StatusCode::METHOD_NOT_ALLOWED)
            .unwrap_or(METHODS.len() - 1);
        let status = STATUSES
            .iter()
            .position(|(known, _)| *known == status.as_u16())
            .unwrap_or(STATUSES.len() - 1);
        let route_index = route.map_or(Route::ALL.len(), |route| route as usize);
        let index = (method * ROUTES + route_index) * STATUSES.len() + status;
        self.requests[index]
            .get_or_init(|| self.series(METHODS[method], route, STATUSES[status].1))
            .record(took.as_secs_f64());
    }

    fn series(
        &self,
        method: &'static str,
        route: Option<Route>,
        status: &'static str,
    ) -> Histogram {
        self.registry.histogram(
            REQUEST_DURATION,
            "Duration of requests until their response was ready to be sent, without their wait for a lock.",
            &[
                ("http_request_method", method),
                ("http_route", route.map_or("other", Route::template)),
                ("http_response_status_code", status),
            ],
        )
    }
}

impl std::fmt::Debug for HttpMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HttpMetrics")
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}
