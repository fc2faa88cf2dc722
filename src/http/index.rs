//! `/` and `/version`: links to the other routes, and the build; and what pages for people may load.

use axum::extract::State;
use axum::http::header::{CONTENT_SECURITY_POLICY, HeaderValue, REFERRER_POLICY};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::app::App;
use super::routes::Route;
use super::wire::json;

/// Links to the other routes.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Index {
    /// The name of the service.
    service: &'static str,
    /// The version of the release.
    version: &'static str,
    /// All locks; append a name for one lock.
    locks: &'static str,
    /// Lock events, as a stream.
    events: &'static str,
    /// Interactive documentation.
    docs: &'static str,
    /// The OpenAPI document.
    openapi: &'static str,
    /// What each problem means; append a code for one problem.
    problems: &'static str,
    /// Whether the process runs.
    livez: &'static str,
    /// Whether the process can serve.
    readyz: &'static str,
    /// The same.
    healthz: &'static str,
    /// The build.
    build: &'static str,
    /// Metrics for Prometheus.
    metrics: &'static str,
}

/// The build.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Version {
    /// The version of the release.
    version: &'static str,
    /// The revision of the source.
    revision: &'static str,
    /// The compiler.
    rustc: &'static str,
    /// The kind of store.
    store: &'static str,
}

/// `GET /`
pub(super) async fn index(State(app): State<App>) -> Response {
    let index = Index {
        service: "leasehold",
        version: app.settings().build.version,
        locks: Route::Locks.template(),
        events: Route::Events.template(),
        docs: Route::Docs.template(),
        openapi: Route::OpenApi.template(),
        problems: Route::Problems.template(),
        livez: Route::Livez.template(),
        readyz: Route::Readyz.template(),
        healthz: Route::Healthz.template(),
        build: Route::Version.template(),
        metrics: Route::Metrics.template(),
    };
    json(StatusCode::OK, "application/json", &index)
}

/// `GET /version`
pub(super) async fn version(State(app): State<App>) -> Response {
    let settings = app.settings();
    let version = Version {
        version: settings.build.version,
        revision: settings.build.revision,
        rustc: settings.build.rustc,
        store: settings.store,
    };
    json(StatusCode::OK, "application/json", &version)
}

/// A page that is only text: it loads nothing and sends nothing.
pub(super) const TEXT_ONLY: &str =
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// A page with scripts: only our own scripts run, and they connect only to us. `data:` is for icons in the style sheet.
pub(super) const OWN_SCRIPTS: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Adds the policy to the headers of a page, and `no-referrer`, because our URLs contain lock names.
pub(super) fn confine(headers: &mut HeaderMap, policy: &'static str) {
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
}
