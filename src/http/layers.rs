//! What happens to every request, whatever its route: a request id, the writing of problems, figures, a log line.
//!
//! Nothing here knows what a handler does.

mod log;
mod request_id;

use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::header::{CACHE_CONTROL, CONNECTION, HeaderValue};
use axum::http::{Method, StatusCode, Uri, Version};
use axum::middleware::Next;
use axum::response::Response;
use tokio::time::Instant;

use super::app::App;
use super::problem::{Code, Problem};
use super::route::Route;
pub(super) use request_id::RequestId;

/// How long a request waited in a queue, on its way from the handler to the log: a long poll is not slow.
#[derive(Clone, Copy, Default)]
pub(super) struct Waited(pub(super) Duration);

impl Waited {
    /// Leaves it for the outermost layer, if there is anything to say.
    pub(super) fn tell(self, response: &mut Response) {
        if !self.0.is_zero() {
            response.extensions_mut().insert(self);
        }
    }
}

/// What is remembered of a request while it is answered. Its headers and its body are not: they may carry a token. Of
/// the URI, only the path may be shown.
struct Asked {
    method: Method,
    uri: Uri,
    version: Version,
    route: Option<Route>,
    request_id: RequestId,
}

/// What came of it.
struct Answered<'a> {
    status: StatusCode,
    problem: Option<&'a Problem>,
    took: Duration,
    waited: Duration,
}

/// The outermost layer: the one place where problems are written, counted and logged.
pub(super) async fn outermost(
    State(app): State<App>,
    mut request: Request,
    next: Next,
) -> Response {
    let started = Instant::now();
    let _in_flight = app.http_metrics().begin();
    let asked = Asked::of(&mut request);
    let mut response = next.run(request).await;
    let Waited(waited) = response.extensions_mut().remove().unwrap_or_default();
    let problem = response.extensions_mut().remove::<Problem>();
    if let Some(problem) = &problem {
        response = problem.render(asked.request_id.as_str());
    }
    finish(&asked, problem.as_ref(), &mut response);
    let answered = Answered {
        status: response.status(),
        problem: problem.as_ref(),
        took: started.elapsed(),
        waited,
    };
    app.http_metrics()
        .answered(&asked.method, asked.route, answered.status, answered.took);
    log::request(&app.settings().request_log, &asked, &answered);
    response
}

/// The headers that every answer has.
fn finish(asked: &Asked, problem: Option<&Problem>, response: &mut Response) {
    let headers = response.headers_mut();
    headers.insert(request_id::HEADER, asked.request_id.header());
    headers
        .entry(CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    // What is left of a body that did not come is not waited for (RFC 9110, 15.5.9), and a client of a process that
    // stops is to go to another one. HTTP/2 has no such header and no such need.
    let is_last = matches!(
        problem.map(Problem::code),
        Some(Code::BodyTimeout | Code::Draining)
    );
    if is_last && asked.version < Version::HTTP_2 {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
}

impl Asked {
    fn of(request: &mut Request) -> Self {
        let request_id = RequestId::of(request.headers());
        // Handlers that tell problems within their body find it where a client would have put it.
        let headers = request.headers_mut();
        headers.insert(request_id::HEADER, request_id.header());
        Self {
            method: request.method().clone(),
            uri: request.uri().clone(),
            version: request.version(),
            route: Route::of(request.uri().path()),
            request_id,
        }
    }
}
