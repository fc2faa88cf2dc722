//! `POST`: acquiring one lock or several, waiting for them if the client asks for it.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{Extensions, Version};
use axum::response::Response;

use super::claim::{self, AcquireRequest};
use super::grant::{GrantAnswer, GrantKind};
use super::{EVENT_STREAM, HeaderToken, RouteForm, hold, lock_name, lock_names, preferred};
use crate::domain::{Claim, Lease, Token};
use crate::http::admission::Operation;
use crate::http::app::App;
use crate::http::extract::UnreadRequest;
use crate::http::layers::Waited;
use crate::http::problem::Problem;
use crate::service::{AcquireAnswer, AcquireOutcome};

/// The fields of an acquire.
pub(in crate::http) const ACQUIRE_FIELDS: [&str; 13] = [
    "ttl",
    "wait",
    "mode",
    "limit",
    "permits",
    "owner",
    "metadata",
    "token",
    "hold_count",
    "min_hold",
    "max_hold",
    "lock_delay",
    "fair",
];
/// The fields of an acquire of several locks.
pub(in crate::http) const ACQUIRE_SEVERAL_FIELDS: [&str; 14] = super::with_names(ACQUIRE_FIELDS);

/// `POST /locks/{name}`
pub(in crate::http) async fn acquire(
    State(app): State<App>,
    request: Request,
) -> Result<Response, Problem> {
    let name = lock_name(request.uri().path())?;
    let format = Format::of(RouteForm::Single, &request);
    let token = HeaderToken::of(request.headers());
    let (mut fields, extensions) = UnreadRequest::of(request)?.fields(&app).await?;
    let token = token.or_field(&mut fields)?.unwrap_or_else(Token::random);
    let names = Some(name.into());
    let bounds = &app.settings().bounds;
    let asked = claim::acquire_request(names, token, fields, &ACQUIRE_FIELDS, bounds)?;
    if format.form == EVENT_STREAM {
        // On the heap: other requests need not have room for a stream.
        return Box::pin(hold::hold(&app, extensions, asked)).await;
    }
    respond(&app, format, asked, extensions).await
}

/// `POST /locks`
pub(in crate::http) async fn acquire_several(
    State(app): State<App>,
    request: Request,
) -> Result<Response, Problem> {
    let format = Format::of(RouteForm::Multi, &request);
    let token = HeaderToken::of(request.headers());
    let (mut fields, extensions) = UnreadRequest::of(request)?.fields(&app).await?;
    let token = token.or_field(&mut fields)?.unwrap_or_else(Token::random);
    let names = lock_names(&mut fields)?;
    let bounds = &app.settings().bounds;
    let asked = claim::acquire_request(names, token, fields, &ACQUIRE_SEVERAL_FIELDS, bounds)?;
    if format.form == EVENT_STREAM {
        // A plain lease would run out, because who asks for a stream does not renew.
        let problem = "cannot be held by a stream, which holds one lock, at /locks/{name}; leave out Accept: \
                       text/event-stream, and renew";
        return Err(Problem::field("names", problem));
    }
    respond(&app, format, asked, extensions).await
}

/// How an answer is written.
struct Format {
    form: &'static str,
    named: RouteForm,
    version: Version,
}

impl Format {
    fn of(named: RouteForm, request: &Request) -> Self {
        Self {
            form: preferred(
                request.headers(),
                &["application/json", "text/plain", EVENT_STREAM],
            ),
            named,
            version: request.version(),
        }
    }
}

async fn respond(
    app: &App,
    format: Format,
    asked: AcquireRequest,
    extensions: Extensions,
) -> Result<Response, Problem> {
    let Format {
        form,
        named,
        version,
    } = format;
    let operation = Operation::Claim(asked.claim.names.len());
    let service = app.admit(operation, &extensions).await?;
    drop(extensions);
    let claim = Arc::new(asked.claim);
    let was_draining = app.is_draining();
    let wait = asked.wait.unwrap_or_default();
    let answer = service.acquire(Arc::clone(&claim), wait).await;
    let AcquireAnswer {
        outcome,
        waited,
        undelivered,
    } = answer.map_err(|error| Problem::from(error).with_token(claim.token))?;
    let (granted, leases) = granted(outcome, &claim, waited, was_draining)
        .map_err(|refusal| named.fit(refusal).after(waited))?;
    let grant = GrantAnswer {
        named,
        names: &claim.names,
        token: claim.token,
        leases: &leases,
        granted,
        waited,
    };
    let mut response = grant.acquired(form, undelivered, version);
    Waited(waited).tell(&mut response);
    Ok(response)
}

/// The leases that the claim has now, or why it has none.
pub(super) fn granted(
    outcome: AcquireOutcome,
    claim: &Claim,
    waited: Duration,
    was_draining: bool,
) -> Result<(GrantKind, Vec<Lease>), Problem> {
    let token = claim.token;
    Err(match outcome {
        AcquireOutcome::Granted(leases) => return Ok((GrantKind::New, leases)),
        AcquireOutcome::Reentered(leases) => return Ok((GrantKind::Reentered, leases)),
        AcquireOutcome::Replayed(leases) => return Ok((GrantKind::Replayed, leases)),
        AcquireOutcome::Blocked(blocked_by) => Problem::blocked(blocked_by),
        AcquireOutcome::Contradicts(contradiction) => Problem::mismatch(contradiction),
        AcquireOutcome::TooManyWaiters(crowd) => Problem::too_many_waiters(crowd),
        AcquireOutcome::TimedOut(unserved) => Problem::timed_out(unserved, token, waited),
        AcquireOutcome::Draining(unserved) => Problem::draining(unserved, token, was_draining),
        AcquireOutcome::Ended(lost) => Problem::claim_ended(lost),
        AcquireOutcome::Recovering { retry_in } => Problem::recovering(retry_in, token),
    })
}
