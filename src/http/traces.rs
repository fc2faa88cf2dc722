//! The span of a request, by the semantic conventions of OpenTelemetry for HTTP servers. Like a line of the log it never
//! contains the query string or a body, which may contain a token; of the headers only those that this file reads.
//!
//! It ends when the response is ready to be sent, so that of a stream has no part in its events.

use std::borrow::Cow;

use axum::extract::Request;
use axum::http::header::HOST;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Version};
use tokio::time::Instant;

use super::app::App;
use super::extract::echo;
use super::locks::lock_name;
use super::log;
use super::routes::Route;
use super::scope::{RequestFacts, ResponseFacts};
use crate::server::PeerAddress;
use crate::telemetry::traces::{OpenSpan, SpanKind, SpanScope, TraceId, TraceParent, TraceState};

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// The methods that the conventions know.
const METHODS: [&str; 9] = [
    "GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "CONNECT", "TRACE",
];

/// The longest name of a host. A longer text is not one, and would take memory until the span is sent.
const HOST_BYTES_MAX: usize = 255;

/// The span of a request, if it is traced. Dropped without a response, it ends as one whose client has gone.
pub(super) struct RequestSpan(Option<Box<TracedRequest>>);

struct TracedRequest {
    /// None if the caller has a trace that it does not record, or once it has ended.
    span: Option<OpenSpan>,
    trace_id: TraceId,
}

impl RequestSpan {
    /// Begins the span of a request that came at this time. Probes and scrapes have none: there are many, all alike.
    pub(super) fn begin(
        app: &App,
        request: &Request,
        facts: &RequestFacts,
        began: Instant,
    ) -> Self {
        let tracer = &app.settings().tracer;
        let is_traceable = |route: Option<Route>| {
            !matches!(
                route,
                Some(Route::Livez | Route::Readyz | Route::Healthz | Route::Metrics)
            )
        };
        if !tracer.is_on() || !is_traceable(facts.route) {
            return Self(None);
        }
        let parent = parent(request.headers());
        let mut span = tracer.begin(parent, SpanKind::Server, began);
        if let Some(span) = &mut span {
            // Without a parent it would be the state of no trace.
            if let Some(state) = parent.and_then(|_| state(request.headers())) {
                span.keep_state(state);
            }
            describe(span, app, request, facts);
        }
        let of_caller = parent.map(|parent| parent.span.trace_id);
        let trace_id = span.as_ref().map(OpenSpan::trace_id).or(of_caller);
        Self(trace_id.map(|trace_id| Box::new(TracedRequest { span, trace_id })))
    }

    /// What runs within the request; none if it is not traced.
    pub(super) fn scope(&self) -> Option<SpanScope> {
        Some(self.0.as_ref()?.span.as_ref()?.scope())
    }

    /// The trace of the request or of its caller, for the log.
    pub(super) fn trace_id(&self) -> Option<TraceId> {
        Some(self.0.as_ref()?.trace_id)
    }

    /// Ends the span with the response.
    pub(super) fn finish(mut self, response: &ResponseFacts<'_>) {
        let traced = self.0.as_mut();
        let Some(mut span) = traced.and_then(|traced| traced.span.take()) else {
            return;
        };
        span.describe(|span| {
            let outcome = log::outcome(response);
            span.number("http.response.status_code", response.status.as_u16());
            span.text("leasehold.outcome", outcome);
            // A 4xx is an error of the client, not of the server.
            if response.status.is_server_error() {
                span.text("error.type", outcome);
                span.fail();
            }
        });
    }
}

impl Drop for RequestSpan {
    fn drop(&mut self) {
        let span = self.0.as_mut().and_then(|traced| traced.span.as_mut());
        if let Some(span) = span {
            span.describe(|span| span.text("error.type", "client_disconnected"));
        }
    }
}

/// The span of the caller, if there is exactly one.
fn parent(headers: &HeaderMap) -> Option<TraceParent> {
    let mut values = headers.get_all(TRACEPARENT).iter();
    let only = values.next().filter(|_| values.next().is_none())?;
    TraceParent::parse(only.as_bytes())
}

/// The state of the trace of the caller.
fn state(headers: &HeaderMap) -> Option<TraceState> {
    let values = headers.get_all(TRACESTATE);
    TraceState::parse(values.into_iter().map(HeaderValue::as_bytes))
}

fn describe(span: &mut OpenSpan, app: &App, request: &Request, facts: &RequestFacts) {
    let known = METHODS.into_iter().find(|known| facts.method == *known);
    let route = facts.route.map(Route::template);
    let lock = matches!(facts.route, Some(Route::Lock | Route::Terraform))
        .then(|| lock_name(&facts.path).ok())
        .flatten();
    span.describe(|span| {
        span.name(name(known, route));
        span.text("http.request.method", known.unwrap_or("_OTHER"));
        if known.is_none() {
            let method = original(&facts.method);
            span.text("http.request.method_original", method);
        }
        span.text("url.scheme", app.settings().scheme);
        span.text("url.path", path(facts, lock.is_some()));
        if let Some(route) = route {
            span.text("http.route", route);
        }
        if let Some(lock) = lock {
            span.text("leasehold.lock.name", lock.as_str().to_owned());
        }
        let id = facts.requester.request_id.as_str();
        span.text("leasehold.request.id", id.to_owned());
        span.text("network.protocol.version", version(facts.version));
        match facts.requester.address() {
            Some(PeerAddress::Tcp(address)) => {
                let client = address.ip().to_canonical().to_string();
                span.text("client.address", client);
                span.number("client.port", address.port());
            }
            Some(PeerAddress::Forwarded(ip)) => span.text("client.address", ip.to_string()),
            Some(PeerAddress::Unix { .. }) | None => {}
        }
        if let Some(server) = server(request) {
            span.text("server.address", server.host().to_owned());
            if let Some(port) = server.port_u16() {
                span.number("server.port", port);
            }
        }
    });
}

/// Of few values, because back ends group spans by it.
fn name(method: Option<&'static str>, route: Option<&'static str>) -> Cow<'static, str> {
    let method = method.unwrap_or("HTTP");
    match route {
        Some(route) => format!("{method} {route}").into(),
        None => method.into(),
    }
}

fn original(method: &Method) -> String {
    echo(method.as_str()).into_owned()
}

/// The path of a lock, which has its name; of all others the template, or without one what the log may show.
fn path(facts: &RequestFacts, is_of_lock: bool) -> Cow<'static, str> {
    match facts.route {
        Some(_) if is_of_lock => String::from(&*facts.path).into(),
        Some(route) => route.template().into(),
        None => log::without_secrets(&facts.path).into(),
    }
}

fn version(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "1.0",
        Version::HTTP_2 => "2",
        _ => "1.1",
    }
}

/// The host and the port that the client has asked, as it names them; none if that is no name of a host. Clients without
/// a key choose it, too.
fn server(request: &Request) -> Option<Authority> {
    let authority = match request.uri().authority() {
        Some(authority) => authority.clone(),
        None => {
            let host = request.headers().get(HOST)?.to_str().ok()?;
            host.parse().ok()?
        }
    };
    (authority.host().len() <= HOST_BYTES_MAX).then_some(authority)
}
