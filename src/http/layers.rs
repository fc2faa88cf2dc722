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
use super::problem::Problem;
use super::route::Route;
use request_id::RequestId;

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
}

/// The outermost layer: the one place where problems are written, counted and logged.
pub(super) async fn outermost(State(app): State<App>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let _in_flight = app.http_metrics().begin();
    let asked = Asked::of(&request);
    let mut response = next.run(request).await;
    let problem = response.extensions_mut().remove::<Problem>();
    if let Some(problem) = &problem {
        response = problem.render(asked.request_id.as_str());
    }
    finish(&asked, &mut response);
    let answered = Answered {
        status: response.status(),
        problem: problem.as_ref(),
        took: started.elapsed(),
    };
    app.http_metrics()
        .answered(&asked.method, asked.route, answered.status, answered.took);
    log::request(&app.settings().request_log, &asked, &answered);
    response
}

/// The headers that every answer has.
fn finish(asked: &Asked, response: &mut Response) {
    let status = response.status();
    let headers = response.headers_mut();
    headers.insert(request_id::HEADER, asked.request_id.header());
    headers
        .entry(CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    // What is left of the body is not waited for (RFC 9110, 15.5.9). HTTP/2 has no such header and no such need.
    if status == StatusCode::REQUEST_TIMEOUT && asked.version < Version::HTTP_2 {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
}

impl Asked {
    fn of(request: &Request) -> Self {
        Self {
            method: request.method().clone(),
            uri: request.uri().clone(),
            version: request.version(),
            route: Route::of(request.uri().path()),
            request_id: RequestId::of(request.headers()),
        }
    }
}
