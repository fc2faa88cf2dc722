//! Liveness, readiness and metrics. None of them asks the store: a slow store must not make a probe slow, and a store
//! that is down must not make every process in front of it restart.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::app::App;
use super::auth::KeysState;
use super::extract;
use super::problem::Problem;
use super::requester::Requester;
use super::wire::json;
use crate::domain::duration;
use crate::store::StoreHealth;

/// The result of a probe.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Health {
    status: Status,
    /// The single checks; only with `verbose`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Vec<Check>)]
    checks: Option<Vec<Check>>,
}

/// Whether to send requests to this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = HealthStatus)]
#[serde(rename_all = "snake_case")]
pub(super) enum Status {
    /// Send requests.
    Ok,
    /// Send requests elsewhere.
    Unavailable,
}

/// One check of a probe.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Check {
    /// The name of the check.
    name: &'static str,
    /// Whether the check passed.
    ok: bool,
    /// The finding, and what to do if the check failed.
    detail: String,
}

/// `GET /livez`
pub(super) async fn livez() -> Response {
    let health = Health {
        status: Status::Ok,
        checks: None,
    };
    json(StatusCode::OK, "application/json", &health)
}

/// `GET /readyz`, `GET /healthz`
///
/// A store that is down for a moment leaves the process ready: all replicas use the same store, and taking all of them
/// out of service would turn responses that say "try again" into no responses.
pub(super) async fn readyz(State(app): State<App>, request: Request) -> Result<Response, Problem> {
    let mut fields = extract::query_fields(request.uri())?;
    // `?verbose` alone means yes, as in Kubernetes.
    let is_verbose = match fields.text("verbose")?.as_deref() {
        None | Some("false") => false,
        Some("" | "true") => true,
        Some(_) => return Err(Problem::field("verbose", "must be true or false")),
    };
    fields.finish(&["verbose"])?;
    let (is_draining, store) = (app.service().is_draining(), app.service().store_health());
    let is_ready = !is_draining && store.contacted && store.refused.is_none();
    let (code, status) = match is_ready {
        true => (StatusCode::OK, Status::Ok),
        false => (StatusCode::SERVICE_UNAVAILABLE, Status::Unavailable),
    };
    let checks = is_verbose.then(|| checks(&app, is_draining, store));
    Ok(json(code, "application/json", &Health { status, checks }))
}

/// `GET /metrics`
pub(super) async fn metrics(State(app): State<App>, request: Request) -> Result<Response, Problem> {
    if !app.settings().is_metrics_open {
        let requester = Requester::of(request);
        app.permit_metrics(&requester)?;
    }
    let mut response = Response::new(Body::from(app.metrics_page().text().await));
    let content_type = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    Ok(response)
}

fn checks(app: &App, is_draining: bool, store: StoreHealth) -> Vec<Check> {
    let draining = if is_draining {
        "the process is shutting down"
    } else {
        "the process accepts requests"
    };
    let store_state = match (store.contacted, store.up, &store.trouble) {
        (_, true, _) => "the last operation succeeded".to_owned(),
        (true, false, None) => "the last operation failed".to_owned(),
        (false, false, None) => "no operation has succeeded yet".to_owned(),
        (true, false, Some(trouble)) => format!("the last operation failed: {trouble}"),
        (false, false, Some(trouble)) => format!("no operation has succeeded yet: {trouble}"),
    };
    let mut checks = vec![
        check("draining", !is_draining, draining),
        check("store", store.up, store_state),
    ];
    if let Some(refused) = store.refused {
        checks.push(check("store_configuration", false, refused));
    }
    if let Some(left) = store.recovering_for {
        let left = duration::format(left);
        let detail = format!(
            "new grants wait {left}, because the store was unavailable or may have lost data"
        );
        checks.push(check("recovering", false, detail));
    }
    if let Some(pool) = store.pool {
        let detail = format!("{} of {} connections are open", pool.open, pool.max);
        checks.push(check("pool", pool.open > 0, detail));
    }
    if let Some(are_current) = app.settings().access.keys_are_current() {
        let detail = match are_current {
            true => "the valid keys are the configured ones",
            // Probes need no key, so the reason, which names principals, is only in the log.
            false => {
                "a file of keys cannot be used, so the previous keys stay valid; the log says why"
            }
        };
        checks.push(check("keys", are_current, detail));
    }
    if let Some(keys) = app.settings().access.issuer_keys() {
        let (state, stale_after) = (keys.current_state(), keys.stale_after());
        let detail = match (state, stale_after) {
            (KeysState::Current, _) => "the keys of the issuer of tokens are known".to_owned(),
            (KeysState::Outdated, Some(left)) => format!(
                "the keys of the issuer of tokens cannot be read; those of before are used for {}; the log says why",
                duration::format(left)
            ),
            (KeysState::Outdated | KeysState::Unknown, _) => {
                "the keys of the issuer of tokens are not known, so tokens are refused; the log says why".to_owned()
            }
        };
        checks.push(check("jwks", state == KeysState::Current, detail));
    }
    if let Some(tls) = &app.settings().tls {
        let (is_current, detail) = match tls.is_outdated() {
            false => (
                true,
                "the certificate and the authorities of clients are those of the files",
            ),
            true => (
                false,
                "the files of the certificate or of the authorities of clients cannot be used, so the previous ones stay in use; \
                 the log says why",
            ),
        };
        checks.push(check("tls", is_current, detail));
    }
    let findings = store.findings.into_iter();
    checks.extend(findings.map(|found| check(found.topic, found.is_fine, found.detail)));
    checks
}

fn check(name: &'static str, ok: bool, detail: impl Into<String>) -> Check {
    Check {
        name,
        ok,
        detail: detail.into(),
    }
}
