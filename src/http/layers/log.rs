//! The log line of a request. It never has the query string, a header or a body, because they may carry a token.

use axum::http::StatusCode;

use super::{Answered, Asked};
use crate::config::LogRequests;
use crate::domain::LockName;
use crate::http::app::RequestLog;
use crate::http::locks::lock_name;
use crate::http::problem::{Code, Problem};
use crate::http::route::Route;

/// Writes the line, if the settings ask for it.
///
/// What the client can mend is no news for the operator, so a 4xx is `info`, and so is that a process stops which was told
/// to; any other 503 is a warning, a 500 an error.
pub(super) fn request(settings: &RequestLog, asked: &Asked, answered: &Answered<'_>) {
    if settings.mode == LogRequests::Off || answered.problem.is_some_and(Problem::is_unlogged) {
        return;
    }
    // Waiting is what the client asked for.
    let is_slow = answered.took.saturating_sub(answered.waited) >= settings.slow;
    let is_failed = answered.status.as_u16() >= 400;
    if !is_slow && !is_failed && settings.mode == LogRequests::Failed {
        return;
    }
    let lock = (asked.route == Some(Route::Lock))
        .then(|| lock_name(&asked.path).ok())
        .flatten();
    let line = Line {
        asked,
        answered,
        lock,
    };
    let is_draining = answered.problem.map(Problem::code) == Some(Code::Draining);
    if answered.status == StatusCode::INTERNAL_SERVER_ERROR {
        line.error();
    } else if answered.status.is_server_error() && !is_draining {
        line.warn();
    } else if is_failed {
        line.info("The request was refused.");
    } else if is_slow {
        line.info("The request was slow.");
    } else {
        line.info("The request was answered.");
    }
}

struct Line<'a> {
    asked: &'a Asked,
    answered: &'a Answered<'a>,
    lock: Option<LockName>,
}

/// The same fields at every level: tracing fixes the level of an event when it is compiled.
macro_rules! event {
    ($level:ident, $line:expr, $sentence:expr) => {{
        let Line {
            asked,
            answered,
            lock,
        } = $line;
        let problem = answered.problem;
        tracing::$level!(
            request_id = asked.request_id.as_str(),
            peer = asked.peer.map(tracing::field::display),
            method = asked.method.as_str(),
            route = asked.route.map_or("other", Route::template),
            lock.name = lock.as_ref().map(tracing::field::display),
            outcome = outcome(answered),
            status = answered.status.as_u16(),
            duration_ms = answered.took.as_micros() as f64 / 1_000.0,
            wait_ms =
                (!answered.waited.is_zero()).then(|| answered.waited.as_micros() as f64 / 1_000.0),
            cause = problem.and_then(|problem| problem.cause()),
            "{}",
            $sentence
        );
    }};
}

impl Line<'_> {
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

/// The code of a problem. A failed probe is none: it is the right answer to whether this process is ready.
fn outcome(answered: &Answered<'_>) -> &'static str {
    match answered.problem {
        Some(problem) => problem.code().as_str(),
        None if answered.status.is_server_error() => "unavailable",
        None => "ok",
    }
}
