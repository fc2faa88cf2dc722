//! The log line of a request. It never contains the query string, a header or a body, which may contain a token.

use axum::http::StatusCode;

use super::{RequestFacts, ResponseFacts};
use crate::config::LogRequests;
use crate::domain::LockName;
use crate::http::app::App;
use crate::http::auth::Access;
use crate::http::locks::lock_name;
use crate::http::log_sample::{Frequent, LineNumber};
use crate::http::problem::{Code, Problem};
use crate::http::route::Route;

/// Writes the line, if the settings ask for it.
///
/// A 4xx is `info`, because the client has to fix it, and so is a 503 while draining; any other 503 is a warning, a 500
/// an error.
pub(super) fn request(app: &App, request: &RequestFacts, response: &ResponseFacts<'_>) {
    let settings = &app.settings().request_log;
    if settings.mode == LogRequests::Off {
        return;
    }
    // Time in the queue does not count: the client asked to wait.
    let is_slow = response.took.saturating_sub(response.waited) >= settings.slow;
    let is_failed = response.status.as_u16() >= 400;
    if !is_slow && !is_failed && settings.mode == LogRequests::Failed {
        return;
    }
    let is_only_slow = is_slow && !is_failed && settings.mode == LogRequests::Failed;
    let frequent = match is_only_slow {
        true => Some(Frequent::SlowRequest),
        false => frequent(app, request, response),
    };
    let Some(number) = app.log_sample().number(frequent) else {
        return;
    };
    let lock = (request.route == Some(Route::Lock))
        .then(|| lock_name(&request.path).ok())
        .flatten();
    let line = LogLine {
        request,
        response,
        lock,
        number,
    };
    let is_draining = response.problem.map(Problem::code) == Some(Code::Draining);
    if response.status == StatusCode::INTERNAL_SERVER_ERROR {
        line.error();
    } else if response.status.is_server_error() && !is_draining {
        line.warn();
    } else if is_failed {
        line.info("The request was refused.");
    } else if is_slow {
        line.info("The request was slow.");
    } else {
        line.info("The request was answered.");
    }
}

/// The kind of a line that can come in any number; none if such lines are always written. On a service with keys, bad
/// requests to open routes count as refusals without a key, because clients without one can send them.
fn frequent(app: &App, request: &RequestFacts, response: &ResponseFacts<'_>) -> Option<Frequent> {
    let (settings, peer) = (app.settings(), request.requester.ip());
    let asks_for_keys = matches!(settings.access, Access::Keys(..));
    let is_open = request.route.is_none_or(Route::shows_no_lock);
    if asks_for_keys && is_open && response.status.is_client_error() {
        return Some(Frequent::PeerRefusal(peer));
    }
    Frequent::of(response.problem?, peer, settings.request_log.mode)
}

struct LogLine<'a> {
    request: &'a RequestFacts,
    response: &'a ResponseFacts<'a>,
    lock: Option<LockName>,
    number: LineNumber,
}

/// A macro, because the level of a tracing event must be known at compile time; the fields are the same at every level.
macro_rules! event {
    ($level:ident, $line:expr, $sentence:expr) => {{
        let LogLine {
            request,
            response,
            lock,
            number,
        } = $line;
        let problem = response.problem;
        tracing::$level!(
            request_id = request.requester.request_id.as_str(),
            peer = request.requester.address().map(tracing::field::display),
            method = request.method.as_str(),
            route = request.route.map_or("other", Route::template),
            lock.name = lock.as_ref().map(tracing::field::display),
            outcome = outcome(response),
            status = response.status.as_u16(),
            duration_ms = response.took.as_micros() as f64 / 1_000.0,
            wait_ms =
                (!response.waited.is_zero()).then(|| response.waited.as_micros() as f64 / 1_000.0),
            peer_refusals = number.peer_refusals,
            client_errors = number.client_errors,
            store_failures = number.store_failures,
            slow_requests = number.slow_requests,
            cause = problem.and_then(|problem| problem.cause()),
            "{}",
            $sentence
        );
    }};
}

impl LogLine<'_> {
    fn info(&self, sentence: &str) {
        event!(info, self, sentence);
    }

    fn warn(&self) {
        event!(warn, self, "The request could not be answered.");
    }

    fn error(&self) {
        event!(error, self, "The request failed.");
    }
}

/// The code of the problem. A failed readiness probe is not a problem, but a correct response.
fn outcome(response: &ResponseFacts<'_>) -> &'static str {
    match response.problem {
        Some(problem) => problem.code().as_str(),
        None if response.status.is_server_error() => "unavailable",
        None => "ok",
    }
}
