//! The log line of a request. It never has the query string, a header or a body, because they may carry a token.

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
/// What the client can mend is no news for the operator, so a 4xx is `info`, and so is that a process stops which was told
/// to; any other 503 is a warning, a 500 an error.
pub(super) fn request(app: &App, asked: &RequestFacts, answered: &ResponseFacts<'_>) {
    let settings = &app.settings().request_log;
    if settings.mode == LogRequests::Off {
        return;
    }
    // Waiting is what the client asked for.
    let is_slow = answered.took.saturating_sub(answered.waited) >= settings.slow;
    let is_failed = answered.status.as_u16() >= 400;
    if !is_slow && !is_failed && settings.mode == LogRequests::Failed {
        return;
    }
    let is_only_slow = is_slow && !is_failed && settings.mode == LogRequests::Failed;
    let frequent = match is_only_slow {
        true => Some(Frequent::SlowRequest),
        false => frequent(app, asked, answered),
    };
    let Some(number) = app.log_sample().number(frequent) else {
        return;
    };
    let lock = (asked.route == Some(Route::Lock))
        .then(|| lock_name(&asked.path).ok())
        .flatten();
    let line = LogLine {
        asked,
        answered,
        lock,
        number,
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

/// Why there may be any number of such lines, if there may: where keys are asked for, also because those who have none ask
/// wrongly for what is open to all.
fn frequent(app: &App, asked: &RequestFacts, answered: &ResponseFacts<'_>) -> Option<Frequent> {
    let peer = asked.requester.ip();
    let of_problem = answered
        .problem
        .and_then(|problem| Frequent::of(problem, peer));
    let asks_for_keys = matches!(app.settings().access, Access::Keys(..));
    let is_open = asked.route.is_none_or(Route::shows_no_lock);
    let is_anybodys = asks_for_keys && is_open && answered.status.is_client_error();
    of_problem.or(is_anybodys.then_some(Frequent::PeerRefusal(peer)))
}

struct LogLine<'a> {
    asked: &'a RequestFacts,
    answered: &'a ResponseFacts<'a>,
    lock: Option<LockName>,
    number: LineNumber,
}

/// The same fields at every level: tracing fixes the level of an event when it is compiled.
macro_rules! event {
    ($level:ident, $line:expr, $sentence:expr) => {{
        let LogLine {
            asked,
            answered,
            lock,
            number,
        } = $line;
        let problem = answered.problem;
        tracing::$level!(
            request_id = asked.requester.request_id.as_str(),
            peer = asked.requester.address().map(tracing::field::display),
            method = asked.method.as_str(),
            route = asked.route.map_or("other", Route::template),
            lock.name = lock.as_ref().map(tracing::field::display),
            outcome = outcome(answered),
            status = answered.status.as_u16(),
            duration_ms = answered.took.as_micros() as f64 / 1_000.0,
            wait_ms =
                (!answered.waited.is_zero()).then(|| answered.waited.as_micros() as f64 / 1_000.0),
            peer_refusals = number.peer_refusals,
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

/// The code of a problem. A failed probe is none: it is the right answer to whether this process is ready.
fn outcome(answered: &ResponseFacts<'_>) -> &'static str {
    match answered.problem {
        Some(problem) => problem.code().as_str(),
        None if answered.status.is_server_error() => "unavailable",
        None => "ok",
    }
}
