//! The processing that every request shares: request id, span, rendering of problems, metrics, log line.
//!
//! Nothing here knows what a handler does.

mod large;

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
use super::auth::{RateLimit, ServedAddress};
use super::log;
use super::problem::{self, Code, Problem};
use super::requester::{REQUEST_ID, Requester};
use super::routes::{Route, Routes};
use super::traces::RequestSpan;
use crate::limits::Limit;
use crate::telemetry::traces::TraceId;

/// How long a request waited in a queue, passed from the handler to the log: a request that waits for a lock is not
/// slow.
#[derive(Clone, Copy, Default)]
pub(super) struct QueueTime(pub(super) Duration);

impl QueueTime {
    /// Adds itself to the response for the outermost layer, unless it is zero.
    pub(super) fn attach_to(self, response: &mut Response) {
        if !self.0.is_zero() {
            response.extensions_mut().insert(self);
        }
    }
}

/// What is kept of a request until its response is ready. Not its headers, body or query string, which may contain a
/// token. The rest is copied, because a slice of the head would keep the whole read buffer alive.
pub(super) struct RequestFacts {
    /// Which address it came to.
    pub(super) address: ServedAddress,
    pub(super) method: Method,
    pub(super) path: Box<str>,
    pub(super) version: Version,
    pub(super) route: Option<Route>,
    pub(super) requester: Requester,
}

/// The response, for metrics, log and span.
pub(super) struct ResponseFacts<'a> {
    pub(super) status: StatusCode,
    pub(super) problem: Option<&'a Problem>,
    pub(super) took: Duration,
    pub(super) waited: Duration,
    pub(super) trace_id: Option<TraceId>,
}

/// The routes inside the shared processing; the only place where problems are rendered, counted and logged. Cloning is
/// cheap.
///
/// It is a service of its own rather than a layer of the router, because the router would wrap each route in a copy of
/// the layer and clone that, box by box, for each request.
#[derive(Clone)]
pub struct RequestScope {
    app: App,
    address: ServedAddress,
    routes: CatchPanic<Routes, PanicHandler>,
}

impl RequestScope {
    pub(super) fn new(app: App, address: ServedAddress, routes: Routes) -> Self {
        let handler = PanicHandler {
            panics: app.http_metrics().panics(),
        };
        Self {
            routes: CatchPanic::custom(routes, handler),
            address,
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
        let request_facts = RequestFacts::of(&mut request, self.address);
        let span = RequestSpan::begin(&app, &request, &request_facts, started);
        let refusal = match request_facts.requester.over_limit() {
            Some(limit) => Some(Problem::over_limit(limit)),
            None => app
                .settings()
                .access
                .screen(self.address, &request, request_facts.route)
                .and_then(|()| {
                    large::expect(&app, &request_facts)
                        .map_err(|limit| over(&app, &request_facts, limit))
                })
                .err(),
        };
        if let Some(problem) = refusal {
            let response = problem.into_response();
            let response = finished(&app, &request_facts, span, started, response);
            return Box::pin(ready(Ok(response)));
        }
        let in_flight = app.http_metrics().begin();
        let scope = span.scope();
        // Not an async block: a future that is moved into one and awaited there is stored twice.
        let answer = self.routes.call(request).map_ok(move |response| {
            let _in_flight = in_flight;
            let response = response.map(Body::new);
            finished(&app, &request_facts, span, started, response)
        });
        match scope {
            Some(scope) => Box::pin(scope.around(answer)),
            None => Box::pin(answer),
        }
    }
}

impl std::fmt::Debug for RequestScope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequestScope").finish_non_exhaustive()
    }
}

/// Turns the panic of a handler into a problem, and counts it.
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

/// Renders the problem if the response is one, and records metrics, log and span.
fn finished(
    app: &App,
    request_facts: &RequestFacts,
    span: RequestSpan,
    started: Instant,
    mut response: Response,
) -> Response {
    let QueueTime(waited) = response.extensions_mut().remove().unwrap_or_default();
    let rate_limit = response.extensions_mut().remove::<RateLimit>();
    let mut problem = response.extensions_mut().remove::<Problem>();
    if let Some(problem) = &problem {
        if let Some(reason) = problem.access_refusal() {
            app.http_metrics().refused(reason);
        }
        response = rendered(problem, request_facts, &mut response);
    }
    if let Err(limit) = large::admit(app, request_facts, &mut response) {
        let refusal = over(app, request_facts, limit);
        response = rendered(&refusal, request_facts, &mut response);
        problem = Some(refusal);
    }
    finish(request_facts, problem.as_ref(), &mut response);
    if let Some(rate_limit) = rate_limit {
        rate_limit.write(response.headers_mut());
    }
    let response_facts = ResponseFacts {
        status: response.status(),
        problem: problem.as_ref(),
        took: started.elapsed(),
        waited,
        trace_id: span.trace_id(),
    };
    app.http_metrics().record(
        &request_facts.method,
        request_facts.route,
        response_facts.status,
        response_facts.took.saturating_sub(waited),
    );
    log::request(app, request_facts, &response_facts);
    span.finish(&response_facts);
    response
}

fn over(app: &App, request_facts: &RequestFacts, limit: Limit) -> Problem {
    app.refusals().count(limit);
    match request_facts.method.is_safe() {
        true => Problem::over_limit(limit).nothing_done(),
        false => Problem::over_limit(limit),
    }
}

/// The response for a problem.
fn rendered(problem: &Problem, request_facts: &RequestFacts, response: &mut Response) -> Response {
    // Keep the router's Allow header, but not its Content-Length, which is that of the empty body. What is refused before
    // its method counts says nothing about methods.
    let allow = response.headers_mut().remove(ALLOW);
    let allow = allow.filter(|_| problem.code() == Code::MethodNotAllowed);
    let id = request_facts.requester.request_id.as_str();
    let mut rendered = match &allow {
        Some(allow) => problem.clone().allowing(allow).render(id),
        None => problem.render(id),
    };
    let headers = rendered.headers_mut();
    headers.extend(allow.map(|allow| (ALLOW, allow)));
    if request_facts.method == Method::HEAD {
        let length = rendered.body().size_hint().lower();
        rendered.headers_mut().insert(CONTENT_LENGTH, length.into());
        *rendered.body_mut() = Body::empty();
    }
    rendered
}

/// Adds the headers that every response has.
fn finish(request_facts: &RequestFacts, problem: Option<&Problem>, response: &mut Response) {
    let headers = response.headers_mut();
    headers.insert(REQUEST_ID, request_facts.requester.request_id.header());
    // Otherwise browsers may sniff the content, which clients control in part, and treat it as a page or a script.
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers
        .entry(CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    // After a body timeout, the rest of the body is not awaited (RFC 9110, 15.5.9); while draining, the client should
    // connect to another process. HTTP/2 has no such header and does not need it.
    let is_last = matches!(
        problem.map(Problem::code),
        Some(Code::BodyTimeout | Code::Draining)
    );
    if is_last && request_facts.version < Version::HTTP_2 {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
}

impl RequestFacts {
    fn of(request: &mut Request, address: ServedAddress) -> Self {
        let requester = Requester::enter(request);
        let path = request.uri().path();
        Self {
            address,
            method: request.method().clone(),
            route: Route::of(path),
            path: path.into(),
            version: request.version(),
            requester,
        }
    }
}
