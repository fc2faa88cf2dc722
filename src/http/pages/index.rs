//! `GET /`: a page for people and links for programs. Both are made once; a response adds only the address that its
//! client used, because the commands on the page have it.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_TYPE, HOST, HeaderValue};
use axum::response::Response;
use http_body::{Frame, SizeHint};
use serde::Serialize;
use utoipa::ToSchema;

use super::{TEXT_ONLY, confine};
use crate::http::app::App;
use crate::http::negotiate::preferred;
use crate::http::routes::Route;

/// The page, with `{version}` and `{address}` in the places of these.
const PAGE: &str = include_str!("index.html");
/// The address on the page if the request names none that can be shown.
const ADDRESS: &str = "localhost:7625";
/// The longest address that is shown: that of a host name of DNS with a port.
const ADDRESS_BYTES_MAX: usize = 260;

/// Links to the other routes.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct Index {
    /// The name of the service.
    service: &'static str,
    /// The version of the release.
    version: &'static str,
    /// All locks; append a name for one lock.
    locks: &'static str,
    /// Lock events, as a stream.
    events: &'static str,
    /// The locks, on a page for people.
    ui: &'static str,
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

/// Both forms of the index, which all responses share.
#[derive(Debug)]
pub(in crate::http) struct IndexPages {
    json: Bytes,
    /// The parts of the page, between which the address belongs.
    html: Arc<[Bytes]>,
}

impl IndexPages {
    pub(in crate::http) fn new(version: &'static str) -> Self {
        let index = Index {
            service: "leasehold",
            version,
            locks: Route::Locks.template(),
            events: Route::Events.template(),
            ui: Route::Ui.template(),
            docs: Route::Docs.template(),
            openapi: Route::OpenApi.template(),
            problems: Route::Problems.template(),
            livez: Route::Livez.template(),
            readyz: Route::Readyz.template(),
            healthz: Route::Healthz.template(),
            build: Route::Version.template(),
            metrics: Route::Metrics.template(),
        };
        let json = serde_json::to_string(&index).expect("the index has string keys") + "\n";
        let html = PAGE.replace("{version}", version);
        let parts = html.split("{address}");
        Self {
            json: json.into(),
            html: parts
                .map(|part| Bytes::copy_from_slice(part.as_bytes()))
                .collect(),
        }
    }
}

/// `GET /`
pub(in crate::http) async fn index(State(app): State<App>, request: Request) -> Response {
    let pages = app.index_pages();
    let offers = ["application/json", "text/html"];
    if preferred(request.headers(), &offers) != "text/html" {
        let mut response = Response::new(Body::from(pages.json.clone()));
        let content_type = HeaderValue::from_static("application/json");
        response.headers_mut().insert(CONTENT_TYPE, content_type);
        return response;
    }
    let mut response = Response::new(Body::new(PageBody {
        parts: Arc::clone(&pages.html),
        address: address(&request),
        next: 0,
    }));
    let headers = response.headers_mut();
    confine(headers, TEXT_ONLY);
    let content_type = HeaderValue::from_static("text/html; charset=utf-8");
    headers.insert(CONTENT_TYPE, content_type);
    response
}

/// The address that the client used. People copy it into a shell, so an address with anything but the characters of
/// hosts and ports is not shown; none of these has a meaning in HTML or to a shell.
fn address(request: &Request) -> Bytes {
    let of_uri = request
        .uri()
        .authority()
        .map(|authority| authority.as_str());
    let of_header = || request.headers().get(HOST)?.to_str().ok();
    let address = of_uri.or_else(of_header).unwrap_or_default();
    let is_of_address = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:".contains(&byte);
    let is_shown = (1..=ADDRESS_BYTES_MAX).contains(&address.len())
        && !address.starts_with('-')
        && address.bytes().all(is_of_address);
    match is_shown {
        true => Bytes::copy_from_slice(address.as_bytes()),
        false => Bytes::from_static(ADDRESS.as_bytes()),
    }
}

/// The parts of the page, with the address between any two of them.
struct PageBody {
    parts: Arc<[Bytes]>,
    address: Bytes,
    /// The frames sent so far: parts and addresses in turn.
    next: usize,
}

impl http_body::Body for PageBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.is_end_stream() {
            return Poll::Ready(None);
        }
        let bytes = match self.next.is_multiple_of(2) {
            true => self.parts[self.next / 2].clone(),
            false => self.address.clone(),
        };
        self.next += 1;
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.next + 1 >= 2 * self.parts.len()
    }

    fn size_hint(&self) -> SizeHint {
        let parts: usize = self.parts.iter().map(Bytes::len).sum();
        let addresses = (self.parts.len() - 1) * self.address.len();
        SizeHint::with_exact((parts + addresses) as u64)
    }
}
