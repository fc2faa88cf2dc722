//! The log line of a request, and which of many alike are written. A line never contains the query string, a header or a
//! body, which may contain a token.

use std::net::IpAddr;

use axum::http::StatusCode;

use super::app::App;
use super::auth::Access;
use super::extract::echo;
use super::locks::lock_name;
use super::peers::{PeerCounts, TotalCount};
use super::problem::{Code, Problem};
use super::routes::Route;
use super::scope::{RequestFacts, ResponseFacts};
use crate::config::LogRequests;
use crate::domain::LockName;

/// The lines of one kind that are written within a minute. After them, a line is written each time its number is a power
/// of two. It carries that number, which shows how many lines were left out.
const LOGGED_EACH: u32 = 5;
/// The lines about all peers together that are written within a minute: an attacker may have thousands of addresses.
/// After them as above.
const LOGGED_OF_PEERS: u32 = 1_000;

/// Writes the line, if the settings ask for it.
///
/// A 4xx is `info`, because the client has to fix it, and so is a 503 while draining; any other 503 is a warning, a 500
/// an error. A 423 has a line only where every request has one: refusing a lock that is held is no failure.
pub(super) fn request(app: &App, request: &RequestFacts, response: &ResponseFacts<'_>) {
    let settings = &app.settings().request_log;
    if settings.mode == LogRequests::Off {
        return;
    }
    // Time in the queue does not count: the client asked to wait.
    let is_slow = response.took.saturating_sub(response.waited) >= settings.slow;
    let is_failed = response.status.as_u16() >= 400
        && (settings.mode == LogRequests::All || response.status != StatusCode::LOCKED);
    if !is_slow && !is_failed && settings.mode == LogRequests::Failed {
        return;
    }
    let is_only_slow = is_slow && !is_failed && settings.mode == LogRequests::Failed;
    let sampled = match is_only_slow {
        true => Some(SampledLine::SlowRequest),
        false => sampled(app, request, response),
    };
    let Some(number) = app.log_sample().number(sampled) else {
        return;
    };
    let lock = matches!(request.route, Some(Route::Lock | Route::Terraform))
        .then(|| lock_name(&request.path).ok())
        .flatten();
    let path = (request.route.is_none()).then(|| without_secrets(&request.path));
    let line = LogLine {
        request,
        response,
        lock,
        path,
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
fn sampled(app: &App, request: &RequestFacts, response: &ResponseFacts<'_>) -> Option<SampledLine> {
    let (settings, peer) = (app.settings(), request.requester.network());
    let asks_for_keys = matches!(settings.access, Access::Keys(..));
    let is_open = request.route.is_none_or(Route::shows_no_lock);
    if asks_for_keys && is_open && response.status.is_client_error() {
        return Some(SampledLine::PeerRefusal(peer));
    }
    match response.problem {
        Some(problem) => SampledLine::of(problem, peer, settings.request_log.mode),
        // Only a probe fails without a problem.
        None => (response.status.is_server_error()).then_some(SampledLine::FailedProbe),
    }
}

struct LogLine<'a> {
    request: &'a RequestFacts,
    response: &'a ResponseFacts<'a>,
    lock: Option<LockName>,
    /// Of a request that has no route.
    path: Option<String>,
    number: LineNumber,
}

/// A macro, because the level of a tracing event must be known at compile time; the fields are the same at every level.
macro_rules! event {
    ($level:ident, $line:expr, $sentence:expr) => {{
        let LogLine {
            request,
            response,
            lock,
            path,
            number,
        } = $line;
        let problem = response.problem;
        tracing::$level!(
            request_id = request.requester.request_id.as_str(),
            trace_id = response.trace_id.map(tracing::field::display),
            peer = request.requester.address().map(tracing::field::display),
            method = &*echo(request.method.as_str()),
            route = request.route.map_or("other", Route::template),
            path = path.as_deref(),
            lock.name = lock.as_ref().map(tracing::field::display),
            outcome = outcome(response),
            status = response.status.as_u16(),
            duration_ms = response.took.as_micros() as f64 / 1_000.0,
            wait_ms =
                (!response.waited.is_zero()).then(|| response.waited.as_micros() as f64 / 1_000.0),
            peer_refusals = number.peer_refusals,
            client_errors = number.client_errors,
            store_failures = number.store_failures,
            failed_probes = number.failed_probes,
            slow_requests = number.slow_requests,
            lines_of_peers = number.lines_of_peers,
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

/// The beginning of a path that has no route, with `*` for each segment that may contain a token: one with as many
/// hexadecimal digits as a UUID, or with percent-encoding.
pub(super) fn without_secrets(path: &str) -> String {
    let segments = path.split('/').map(|segment| {
        let digits = segment.bytes().filter(u8::is_ascii_hexdigit).count();
        match digits >= 32 || segment.contains('%') {
            true => "*",
            false => segment,
        }
    });
    echo(&segments.collect::<Vec<_>>().join("/")).into_owned()
}

/// The code of the problem. A failed readiness probe is not a problem, but a correct response.
pub(super) fn outcome(response: &ResponseFacts<'_>) -> &'static str {
    match response.problem {
        Some(problem) => problem.code().as_str(),
        None if response.status.is_server_error() => "unavailable",
        None if response.status == StatusCode::LOCKED => Code::LockHeld.as_str(),
        None => "ok",
    }
}

/// A kind of line that can come in any number.
#[derive(Clone, Copy, Debug)]
pub(super) enum SampledLine {
    /// Refusals that any client can cause, with or without a key.
    PeerRefusal(IpAddr),
    /// Other refusals of what a client asks for, such as a field that is wrong.
    ClientError(IpAddr),
    /// Evictions by clients without a key, on a service that has none.
    Eviction(IpAddr),
    /// While the store is unavailable, all requests fail.
    StoreFailure,
    /// While this process is not ready, all probes fail, and every client may probe. They are counted apart, because only
    /// the lines of other requests have the cause.
    FailedProbe,
    /// While the store is slow, all requests are slow.
    SlowRequest,
}

impl SampledLine {
    /// The kind of a line about this problem of this peer; none if such lines are always written, as those about client
    /// errors are where every request has a line.
    pub(super) fn of(problem: &Problem, peer: IpAddr, mode: LogRequests) -> Option<Self> {
        let code = problem.code();
        // Most limits are checked before keys. A quota is of a key, but a program that runs wild exceeds it as often.
        let is_over_limit = matches!(
            code,
            Code::RateLimited | Code::QuotaExceeded | Code::Overloaded
        );
        if is_over_limit || problem.access_refusal().is_some() {
            return Some(Self::PeerRefusal(peer));
        }
        if matches!(
            code,
            Code::StoreUnavailable | Code::StoreFull | Code::Recovering
        ) {
            return Some(Self::StoreFailure);
        }
        let is_client_error = code.facts().status.is_client_error();
        (is_client_error && mode == LogRequests::Failed).then_some(Self::ClientError(peer))
    }
}

/// The number of lines of each kind, written or not.
#[derive(Debug, Default)]
pub(super) struct LogSample {
    peer_refusals: PeerCounts,
    client_errors: PeerCounts,
    evictions: PeerCounts,
    store_failures: TotalCount,
    failed_probes: TotalCount,
    slow_requests: TotalCount,
    lines_of_peers: TotalCount,
}

/// The number of a line among those of its kind within the minute, as fields of the line.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LineNumber {
    pub(super) peer_refusals: Option<u32>,
    pub(super) client_errors: Option<u32>,
    pub(super) evictions: Option<u32>,
    pub(super) store_failures: Option<u32>,
    failed_probes: Option<u32>,
    pub(super) slow_requests: Option<u32>,
    /// Only beyond [`LOGGED_OF_PEERS`].
    lines_of_peers: Option<u32>,
}

impl LogSample {
    /// Counts a line. Returns its number, or none if the line is left out.
    pub(super) fn number(&self, sampled: Option<SampledLine>) -> Option<LineNumber> {
        let mut number = LineNumber::default();
        let (field, count) = match sampled {
            None => return Some(number),
            Some(SampledLine::PeerRefusal(peer)) => (
                &mut number.peer_refusals,
                self.peer_refusals.count(peer).count,
            ),
            Some(SampledLine::ClientError(peer)) => (
                &mut number.client_errors,
                self.client_errors.count(peer).count,
            ),
            Some(SampledLine::Eviction(peer)) => {
                (&mut number.evictions, self.evictions.count(peer).count)
            }
            Some(SampledLine::StoreFailure) => {
                (&mut number.store_failures, self.store_failures.count())
            }
            Some(SampledLine::FailedProbe) => {
                (&mut number.failed_probes, self.failed_probes.count())
            }
            Some(SampledLine::SlowRequest) => {
                (&mut number.slow_requests, self.slow_requests.count())
            }
        };
        *field = Some(count);
        if count > LOGGED_EACH && !count.is_power_of_two() {
            return None;
        }
        if matches!(
            sampled,
            Some(SampledLine::StoreFailure | SampledLine::FailedProbe | SampledLine::SlowRequest)
        ) {
            return Some(number);
        }
        let lines = self.lines_of_peers.count();
        number.lines_of_peers = (lines > LOGGED_OF_PEERS).then_some(lines);
        (lines <= LOGGED_OF_PEERS || lines.is_power_of_two()).then_some(number)
    }
}
