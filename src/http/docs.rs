//! `/openapi.json` and `/docs`: the document, and Swagger UI embedded in the binary. No page here refers to another
//! host.
//!
//! All responses share the bytes of their file: with a copy for each, a client that reads nothing could fill the
//! memory.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, HeaderValue, LOCATION};
use axum::response::Response;
use utoipa_swagger_ui::Config;

use super::layers::SharedBytes;
use super::problem::Problem;
use super::{index, openapi};

/// Rendered once, since the document never changes while the process runs.
static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| openapi::json().into());

/// Without the validator badge, which would send the document to a server of the Swagger project.
static CONFIG: LazyLock<Arc<Config<'static>>> = LazyLock::new(|| {
    let config = Config::new(["/openapi.json"])
        .validator_url("none")
        .deep_linking(true)
        .try_it_out_enabled(true);
    Arc::new(config)
});

/// `GET /openapi.json`
pub(super) async fn openapi() -> Response {
    let mut response = shared(DOCUMENT.clone());
    let content_type = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

/// `GET /docs`: redirects to `/docs/`, because the page uses relative links.
pub(super) async fn redirect() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SEE_OTHER;
    let location = HeaderValue::from_static("/docs/");
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
        Cow::Borrowed(bytes) => shared(Bytes::from_static(bytes)),
        // The one generated file, of less than a kilobyte.
        Cow::Owned(bytes) => Response::new(Body::from(bytes)),
    };
    let headers = response.headers_mut();
    if content_type.as_bytes().starts_with(b"text/html") {
        index::confine(headers, index::OWN_SCRIPTS);
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

/// A response whose bytes are shared with all others.
fn shared(bytes: Bytes) -> Response {
    let mut response = Response::new(Body::from(bytes));
    response.extensions_mut().insert(SharedBytes);
    response
}
