//! The log line of a request. It never contains the query string, a header or a body, which may contain a token.

use axum::http::StatusCode;

use super::{RequestFacts, ResponseFacts};
use crate::config::LogRequests;
use crate::domain::LockName;
use crate::http::app::App;
use crate::http::auth::Access;
use crate::http::locks::lock_name;
use crate::http::problem::{Code, Problem};
use crate::http::route::Route;

/// How many failures per peer and minute are logged one by one, if clients without a key can cause them. Of the further
/// ones, only those are logged whose count is a power of two; the line has the count.
const LOGGED_EACH: u32 = 5;

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
    let peer_refusals = match needs_no_key(app, request, response) {
        true => Some(app.peer_refusals().count(request.requester.ip()).count),
        false => None,
    };
    if peer_refusals.is_some_and(|count| count > LOGGED_EACH && !count.is_power_of_two()) {
        return;
    }
    let lock = (request.route == Some(Route::Lock))
        .then(|| lock_name(&request.path).ok())
        .flatten();
    let line = LogLine {
        request,
        response,
        lock,
        peer_refusals,
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
        line.info("The request was response.");
    }
}

/// Whether clients without a key can cause this failure, and so could fill the log. On a service with keys, this
/// includes bad requests to the open routes.
fn needs_no_key(app: &App, request: &RequestFacts, response: &ResponseFacts<'_>) -> bool {
    if let Some(reason) = response.problem.and_then(Problem::access_refusal) {
        return reason.needs_no_key();
    }
    // Limits are checked before the key.
    let code = response.problem.map(Problem::code);
    if matches!(code, Some(Code::RateLimited | Code::Overloaded)) {
        return true;
    }
    let has_keys = matches!(app.settings().access, Access::Keys(..));
    let is_open = request.route.is_none_or(Route::shows_no_lock);
    has_keys && is_open && response.status.is_client_error()
}

struct LogLine<'a> {
    request: &'a RequestFacts,
    response: &'a ResponseFacts<'a>,
    lock: Option<LockName>,
    peer_refusals: Option<u32>,
}

/// A macro, because the level of a tracing event must be known at compile time; the fields are the same at every level.
macro_rules! event {
    ($level:ident, $line:expr, $sentence:expr) => {{
        let LogLine {
            request,
            response,
            lock,
            peer_refusals,
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
            peer_refusals,
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
        event!(warn, self, "The request could not be response.");
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
