//! What happens to every request, whatever its route: a request id, the writing of problems, figures, a log line.
//!
//! Nothing here knows what a handler does.

mod large;
mod log;
mod request_id;
mod requester;

use std::any::Any;
use std::convert::Infallible;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody as _};
use axum::extract::Request;
use axum::http::header::{
    ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, HeaderValue, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{Method, StatusCode, Version};
use axum::response::{IntoResponse as _, Response};
use futures_util::future::{BoxFuture, TryFutureExt as _, ready};
use metrics::Counter;
use tokio::time::Instant;
use tower::Service;
use tower_http::catch_panic::{CatchPanic, ResponseForPanic};

use super::app::App;
use super::problem::{self, Code, Problem};
use super::route::Route;
use super::routes::Routes;
use crate::limits::Limit;
use crate::server::OverLimit;
pub(super) use request_id::RequestId;
pub(super) use requester::Requester;

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

/// What is remembered of a request while it is answered. Its headers, its body and its query string are not: they may carry
/// a token. What is remembered is copied, because a part of the head would keep the whole buffer that it was read into.
struct RequestFacts {
    method: Method,
    path: Box<str>,
    version: Version,
    route: Option<Route>,
    requester: Requester,
}

/// What came of it.
struct ResponseFacts<'a> {
    status: StatusCode,
    problem: Option<&'a Problem>,
    took: Duration,
    waited: Duration,
}

/// The routes and what is around them all: the one place where problems are written, counted and logged. Cloning is cheap.
///
/// It is a service of its own rather than a layer of the router, which would put a copy around each route and copy that
/// again, box by box, for each request.
#[derive(Clone)]
pub struct RequestScope {
    app: App,
    routes: CatchPanic<Routes, PanicHandler>,
}

impl RequestScope {
    pub(super) fn new(app: App, routes: Routes) -> Self {
        let net = PanicHandler {
            panics: app.http_metrics().panics(),
        };
        Self {
            routes: CatchPanic::custom(routes, net),
            app,
        }
    }
}

impl Service<Request> for RequestScope {
    type Response = Response;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // A router is always ready.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        let started = Instant::now();
        let app = self.app.clone();
        let asked = RequestFacts::of(&mut request);
        let refusal = match request.extensions().get() {
            Some(OverLimit(limit)) => Some(Problem::over_limit(*limit)),
            None => app
                .settings()
                .access
                .screen(&request, asked.route)
                .and_then(|()| large::expect(&app, &asked).map_err(|limit| over(&app, limit)))
                .err(),
        };
        if let Some(problem) = refusal {
            let response = finished(&app, &asked, started, problem.into_response());
            return Box::pin(ready(Ok(response)));
        }
        let in_flight = app.http_metrics().begin();
        // Not an async block: what is moved into one and awaited there takes its room twice.
        let answer = self.routes.call(request).map_ok(move |response| {
            let _in_flight = in_flight;
            finished(&app, &asked, started, response.map(Body::new))
        });
        Box::pin(answer)
    }
}

impl std::fmt::Debug for RequestScope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Front").finish_non_exhaustive()
    }
}

/// The net under the handlers: a panic is a problem like any other, and is counted.
#[derive(Clone)]
struct PanicHandler {
    panics: Counter,
}

impl ResponseForPanic for PanicHandler {
    type ResponseBody = Body;

    fn response_for_panic(&mut self, panic: Box<dyn Any + Send>) -> Response {
        self.panics.increment(1);
        problem::of_panic(panic.as_ref())
    }
}

/// Writes the problem if the answer is one, and tells figures and log.
fn finished(app: &App, asked: &RequestFacts, started: Instant, mut response: Response) -> Response {
    let Waited(waited) = response.extensions_mut().remove().unwrap_or_default();
    let mut problem = response.extensions_mut().remove::<Problem>();
    if let Some(problem) = &problem {
        if let Some(reason) = problem.access_refusal() {
            app.http_metrics().refused(reason);
        }
        response = rendered(problem, asked, &mut response);
    }
    let peer = asked.requester.peer.as_ref();
    if let Err(limit) = large::admit(app, peer, &mut response) {
        let refusal = over(app, limit);
        response = rendered(&refusal, asked, &mut response);
        problem = Some(refusal);
    }
    finish(asked, problem.as_ref(), &mut response);
    let answered = ResponseFacts {
        status: response.status(),
        problem: problem.as_ref(),
        took: started.elapsed(),
        waited,
    };
    app.http_metrics()
        .record(&asked.method, asked.route, answered.status, answered.took);
    log::request(app, asked, &answered);
    response
}

fn over(app: &App, limit: Limit) -> Problem {
    app.refusals().count(limit);
    Problem::over_limit(limit)
}

/// The answer that says what went wrong.
fn rendered(problem: &Problem, asked: &RequestFacts, response: &mut Response) -> Response {
    // Of what the router has added, the length is that of no body, but the methods that there are have to be told.
    let allow = response.headers_mut().remove(ALLOW);
    let mut rendered = problem.render(asked.requester.request_id.as_str());
    let headers = rendered.headers_mut();
    headers.extend(allow.map(|allow| (ALLOW, allow)));
    if asked.method == Method::HEAD {
        let length = rendered.body().size_hint().lower();
        rendered.headers_mut().insert(CONTENT_LENGTH, length.into());
        *rendered.body_mut() = Body::empty();
    }
    rendered
}

/// The headers that every answer has.
fn finish(asked: &RequestFacts, problem: Option<&Problem>, response: &mut Response) {
    let headers = response.headers_mut();
    headers.insert(request_id::HEADER, asked.requester.request_id.header());
    // Without it, browsers may take an answer for a page or a script because of what a client wrote into it.
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
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

impl RequestFacts {
    fn of(request: &mut Request) -> Self {
        let requester = Requester::of(request);
        let path = request.uri().path();
        Self {
            method: request.method().clone(),
            route: Route::of(path),
            path: path.into(),
            version: request.version(),
            requester,
        }
    }
}
