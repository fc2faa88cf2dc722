//! `/version`: the build. `/openapi.json` and `/docs`: the document, and Swagger UI embedded in the binary. Also the
//! policy of pages for people: they load nothing from another host. `/` is in `index`, `/ui` in `ui`.
//!
//! All responses with a file share its bytes: with a copy for each, a client that reads nothing could fill the memory.

mod index;
mod ui;

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, LOCATION,
    REFERRER_POLICY,
};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_swagger_ui::Config;

use super::app::App;
use super::openapi;
use super::problem::Problem;
use super::wire::json;
pub(super) use index::{Index, IndexPages, index};
pub(super) use ui::ui;

/// A page that is only text: it loads nothing and sends nothing.
pub(super) const TEXT_ONLY: &str =
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// A page with scripts: only our own scripts run, and they connect only to us. `data:` is for icons in the style sheet.
pub(super) const OWN_SCRIPTS: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Rendered once, since the document never changes while the process runs.
static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| openapi::json().into());

/// Without the validator badge, which would send the document to a server of the Swagger project.
static CONFIG: LazyLock<Arc<Config<'static>>> = LazyLock::new(|| {
    // Relative to the page, so that a proxy may serve both below another path.
    let config = Config::new(["../openapi.json"])
        .validator_url("none")
        .deep_linking(true)
        .try_it_out_enabled(true);
    Arc::new(config)
});

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

/// `GET /openapi.json`
pub(super) async fn openapi() -> Response {
    let mut response = Response::new(Body::from(DOCUMENT.clone()));
    let content_type = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

/// `GET /docs`: redirects to `/docs/`, to which the links of the page are relative, also below another path of a proxy.
pub(super) async fn redirect() -> Response {
    see_other("docs/")
}

fn see_other(location: &'static str) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SEE_OTHER;
    let location = HeaderValue::from_static(location);
    response.headers_mut().insert(LOCATION, location);
    response
}

/// `GET /docs/…`
pub(super) async fn asset(request: Request) -> Result<Response, Problem> {
    let path = request.uri().path();
    let path = path.strip_prefix("/docs/").unwrap_or_default();
    // Any failure of the bundle means that there is no such file.
    let found = utoipa_swagger_ui::serve(path, Arc::clone(&CONFIG));
    let file = found.ok().flatten().ok_or_else(Problem::not_found)?;
    let content_type =
        HeaderValue::try_from(file.content_type).expect("media types are printable ASCII");
    let mut response = match file.bytes {
        Cow::Borrowed(bytes) => Response::new(Body::from(bytes)),
        // The one generated file, of less than a kilobyte.
        Cow::Owned(bytes) => Response::new(Body::from(bytes)),
    };
    let headers = response.headers_mut();
    if content_type.as_bytes().starts_with(b"text/html") {
        confine(headers, OWN_SCRIPTS);
    }
    headers.insert(CONTENT_TYPE, content_type);
    if file.gzpipped {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    headers.insert(
        CACHE_CONTROL,
        HeaderValue::from_static("public, max-age=3600"),
    );
    Ok(response)
}

/// Adds the policy to the headers of a page, and `no-referrer`, because our URLs contain lock names.
pub(super) fn confine(headers: &mut HeaderMap, policy: &'static str) {
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
}
