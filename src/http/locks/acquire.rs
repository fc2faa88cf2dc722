//! `POST`: acquires one lock or several, and waits for them if the client asks for that.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::Response;

use super::grant::{self, Format};
use super::{EVENT_STREAM, HeaderToken, RouteForm, hold, lock_names, preferred};
use crate::domain::{
    Bounds, Claim, GrantKind, Granted, HoldCount, LockNames, Metadata, Mode, Owner, Share, Token,
    Verb,
};
use crate::http::admission::Operation;
use crate::http::app::App;
use crate::http::audit::AuditedSender;
use crate::http::extract::{Fields, UnreadRequest};
use crate::http::problem::Problem;
use crate::http::requester::Requester;
use crate::http::scope::QueueTime;
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

/// `POST /locks/{name}` and `POST /locks`
pub(in crate::http) async fn acquire(
    State(app): State<App>,
    request: Request,
) -> Result<Response, Problem> {
    let (route_form, in_path) = RouteForm::of(request.uri().path())?;
    let format = Format {
        route_form,
        media_type: preferred(
            request.headers(),
            &["application/json", "text/plain", EVENT_STREAM],
        ),
        version: request.version(),
    };
    let token = HeaderToken::of(request.headers());
    let (mut fields, requester) = UnreadRequest::of(request)?.fields(&app).await?;
    let of_client = token.or_field(&mut fields)?;
    let token = of_client.unwrap_or_else(Token::random);
    let names = lock_names(in_path, &mut fields)?;
    let known: &[_] = match route_form {
        RouteForm::Single => &ACQUIRE_FIELDS,
        RouteForm::Multi => &ACQUIRE_SEVERAL_FIELDS,
    };
    let mut acquire_request =
        acquire_request(names, token, fields, known, &app.bounds(&requester))?;
    let claim = &mut acquire_request.claim;
    app.permit(&requester, Verb::Acquire, &claim.names)?;
    requester.permit_size(claim)?;
    claim.owner = requester.owner(mem::take(&mut claim.owner));
    claim.has_new_token = of_client.is_none();
    if format.media_type == EVENT_STREAM {
        return match route_form {
            // Boxed, so that the futures of other requests need no space for a stream.
            RouteForm::Single => Box::pin(hold::hold(&app, requester, acquire_request)).await,
            RouteForm::Multi => Err(no_stream_of_several()),
        };
    }
    let wait = acquire_request.wait.unwrap_or_default();
    let answered = AnsweredClaim::of(&app, requester, acquire_request.claim, wait).await?;
    answered.response(&format)
}

/// A claim that the service has answered.
pub(super) struct AnsweredClaim {
    pub(super) claim: Arc<Claim>,
    pub(super) answer: AcquireAnswer,
    audited: Option<AuditedSender>,
    was_draining: bool,
}

impl AnsweredClaim {
    /// Sends a claim that its principal may make to the service.
    pub(super) async fn of(
        app: &App,
        requester: Requester,
        claim: Claim,
        wait: Duration,
    ) -> Result<Self, Problem> {
        let operation = Operation::Acquire {
            claim: &claim,
            waits: !wait.is_zero(),
        };
        let service = app.admit(operation, &requester).await?;
        let audited = app.settings().audit.sender(&requester);
        let principal = requester.principal.clone();
        drop(requester);
        let claim = Arc::new(claim);
        let was_draining = service.is_draining();
        let answer = service.acquire(Arc::clone(&claim), wait).await;
        if let Some(principal) = principal
            && let Err(problem) = app.permit_still(&principal, &claim.names, audited.as_ref())
        {
            if let Ok(answer) = answer {
                answer.revoke();
            }
            return Err(problem);
        }
        let answer = answer.map_err(|failure| Problem::of_acquire(failure, claim.token))?;
        Ok(Self {
            claim,
            answer,
            audited,
            was_draining,
        })
    }

    /// The response with the grant, or the problem if there is none.
    pub(super) fn response(self, format: &Format) -> Result<Response, Problem> {
        let claim = self.claim;
        let AcquireAnswer {
            outcome,
            waited,
            unclaimed,
        } = self.answer;
        let granted = granted(outcome, &claim, waited, self.was_draining)
            .map_err(|refusal| format.route_form.adapt(refusal).after(waited))?;
        let unclaimed = match self.audited.filter(|_| granted.kind == GrantKind::New) {
            Some(sender) => sender.granted(&claim.names, &granted, unclaimed),
            None => unclaimed,
        };
        let mut response = grant::acquired(format, &claim, &granted, waited, unclaimed);
        QueueTime(waited).attach_to(&mut response);
        Ok(response)
    }
}

/// Not a plain lease instead: a client that asks for a stream does not renew, so the lease would expire.
fn no_stream_of_several() -> Problem {
    let problem = "a stream holds only one lock, at /locks/{name}; to hold several, send the request without Accept: \
                   text/event-stream, and renew";
    Problem::field("names", problem)
}

/// The leases of the claim, or the problem if it has none.
pub(super) fn granted(
    outcome: AcquireOutcome,
    claim: &Claim,
    waited: Duration,
    was_draining: bool,
) -> Result<Granted, Problem> {
    let token = claim.token;
    Err(match outcome {
        AcquireOutcome::Granted(granted) => return Ok(granted),
        AcquireOutcome::Refused(refused) => Problem::refused(refused, token),
        AcquireOutcome::TooManyWaiters(full) => Problem::too_many_waiters(full),
        AcquireOutcome::TimedOut(not_granted) => Problem::timed_out(not_granted, token, waited),
        AcquireOutcome::Draining(not_granted) => {
            Problem::draining(not_granted, token, was_draining)
        }
    })
}

/// The parsed request of an acquire.
pub(super) struct AcquireRequest {
    pub(super) claim: Claim,
    /// `None` if the request has no `wait`.
    pub(super) wait: Option<Duration>,
}

/// Takes out the fields in `known`, and refuses others. It reports a misspelt field before a missing one.
pub(super) fn acquire_request(
    names: Option<LockNames>,
    token: Token,
    mut fields: Fields,
    known: &[&'static str],
    bounds: &Bounds,
) -> Result<AcquireRequest, Problem> {
    let ttl = fields.duration("ttl")?.map(|ttl| bounds.ttl(ttl));
    let wait = fields.duration("wait")?;
    let mode = mode(&mut fields)?;
    let fair = fields.flag("fair")?;
    let owner = fields.text("owner")?.map(|owner| Owner::new(&owner));
    let metadata = fields.json_object("metadata")?;
    let metadata = metadata.map(|metadata| Metadata::from_json_object(metadata.get()));
    let hold_count = fields.number("hold_count")?.map(HoldCount::new);
    let min_hold = fields
        .duration("min_hold")?
        .map(|held| bounds.min_hold(held));
    let max_hold = fields
        .duration("max_hold")?
        .map(|held| bounds.max_hold(held));
    let lock_delay = fields.duration("lock_delay")?;
    let lock_delay = lock_delay.map(|delay| bounds.lock_delay(delay));
    fields.finish(known)?;
    let (min_hold, max_hold) = (min_hold.transpose()?, max_hold.transpose()?);
    if let (Some(min_hold), Some(max_hold)) = (min_hold, max_hold)
        && min_hold > max_hold
    {
        let problem = "is longer than max_hold; make it shorter, or max_hold longer";
        return Err(Problem::field("min_hold", problem));
    }
    let (names, mode) = (
        names.ok_or_else(super::names_missing)?,
        mode.unwrap_or_default(),
    );
    bounds.limit(mode, names.len())?;
    let claim = Claim {
        names,
        token,
        mode,
        fair: fair.unwrap_or(true),
        ttl: ttl.transpose()?.unwrap_or_else(|| bounds.default_ttl()),
        hold_count: hold_count.transpose()?.unwrap_or(HoldCount::ONE),
        owner: owner.transpose()?.unwrap_or_default(),
        metadata: metadata.transpose()?,
        min_hold,
        max_hold,
        lock_delay: lock_delay.transpose()?,
        takes_over: false,
        has_new_token: false,
    };
    Ok(AcquireRequest { claim, wait })
}

/// `mode`, with `limit` and `permits`; `None` if the request has no `mode`.
pub(super) fn mode(fields: &mut Fields) -> Result<Option<Mode>, Problem> {
    let mode = fields.text("mode")?;
    let limit = fields.number("limit")?;
    let permits = fields.number("permits")?;
    match mode.as_deref() {
        Some("shared") => Ok(Some(Mode::Shared(Share::new(limit, permits.unwrap_or(1))?))),
        None | Some("exclusive") => {
            let of_shared = [("limit", limit), ("permits", permits)];
            if let Some((field, _)) = of_shared.iter().find(|(_, value)| value.is_some()) {
                return Err(Problem::field(field, "is allowed only with mode=shared"));
            }
            Ok(mode.map(|_| Mode::Exclusive))
        }
        Some(_) => Err(Problem::field("mode", "must be exclusive or shared")),
    }
}
