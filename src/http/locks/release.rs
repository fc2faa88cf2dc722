//! `DELETE`: releases one lock or several by their token, or evicts the holders of one by force.

use std::slice;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;

use super::{HeaderToken, RouteForm, grant, lock_name, lock_names, names_missing};
use crate::domain::{
    Evicted, HoldCount, InvalidField, LockName, LockNames, NotHeld, Owner, Released, Token, Verb,
};
use crate::http::admission::Operation;
use crate::http::app::App;
use crate::http::audit::AuditedSender;
use crate::http::auth::{Principal, Role};
use crate::http::extract::{Fields, UnreadRequest};
use crate::http::log::SampledLine;
use crate::http::problem::Problem;
use crate::http::requester::Requester;
use crate::http::wire::{EvictedBody, HolderView, json};

/// The fields of a release.
pub(in crate::http) const RELEASE_FIELDS: [&str; 4] = ["hold_count", "token", "force", "reason"];
/// The fields of a release of several locks.
pub(in crate::http) const RELEASE_SEVERAL_FIELDS: [&str; 3] = ["names", "hold_count", "token"];

/// `DELETE /locks/{name}` and `DELETE /locks`
pub(in crate::http) async fn release(
    State(app): State<App>,
    request: Request,
) -> Result<Response, Problem> {
    let (route_form, in_path) = RouteForm::of(request.uri().path())?;
    let token = HeaderToken::of(request.headers());
    let (mut fields, requester) = UnreadRequest::of(request)?.fields(&app).await?;
    if fields.flag("force")?.unwrap_or(false) {
        let problem = "is allowed only for one lock at a time, at /locks/{name}";
        return match in_path {
            Some(name) => evict(&app, requester, name, token, fields).await,
            None => Err(Problem::field("force", problem)),
        };
    }
    if route_form == RouteForm::Single && fields.text("reason")?.is_some() {
        return Err(Problem::field("reason", "is allowed only with force=true"));
    }
    let names = lock_names(in_path, &mut fields)?;
    let token = token.or_field(&mut fields)?;
    let hold_count = fields.number("hold_count")?;
    let hold_count = hold_count.map(HoldCount::new).transpose()?;
    fields.finish(match route_form {
        RouteForm::Single => &RELEASE_FIELDS,
        RouteForm::Multi => &RELEASE_SEVERAL_FIELDS,
    })?;
    let names = names.ok_or_else(names_missing)?;
    app.permit(&requester, Verb::Acquire, &names)?;
    let token = token.ok_or_else(Problem::token_missing)?;
    let operation = Operation::Keep(names.len());
    let service = app.admit(operation, &requester).await?;
    let audited = app.settings().audit.sender(&requester);
    let note = AuditedSender::of_release(audited, names.clone());
    let released = service.release(names.clone(), token, hold_count, note);
    let released = released.await?;
    respond(route_form, &names, token, released)
}

/// `DELETE /locks/{name}` where nothing is released.
pub(in crate::http) async fn evict_only(
    State(app): State<App>,
    request: Request,
) -> Result<Response, Problem> {
    let name = lock_name(request.uri().path())?;
    let token = HeaderToken::of(request.headers());
    let (mut fields, requester) = UnreadRequest::of(request)?.fields(&app).await?;
    if !fields.flag("force")?.unwrap_or(false) {
        let problem = "has to be true at this address, which only evicts; release the lock where you acquired it";
        return Err(Problem::field("force", problem));
    }
    evict(&app, requester, name, token, fields).await
}

fn respond(
    route_form: RouteForm,
    names: &LockNames,
    token: Token,
    released: Vec<Released>,
) -> Result<Response, Problem> {
    let (mut held, mut leases, mut lost) = (Vec::new(), Vec::new(), Vec::new());
    for (name, released) in names.iter().cloned().zip(released) {
        match released {
            Released::Freed { .. } | Released::LeftQueue | Released::Repeated => {}
            Released::SteppedBack(lease) => {
                held.push(name);
                leases.push(lease);
            }
            Released::NotHolder(reason) => lost.push(NotHeld { name, reason }),
        }
    }
    if !lost.is_empty() {
        return Err(route_form.not_held(lost, "the others were released as requested"));
    }
    Ok(match leases.is_empty() {
        true => no_content(),
        false => grant::still_held(route_form, &held, token, &leases),
    })
}

/// Evicts all holders of the lock. A token is ignored, but must be valid if it is sent.
pub(super) async fn evict(
    app: &App,
    requester: Requester,
    name: LockName,
    token: HeaderToken,
    mut fields: Fields,
) -> Result<Response, Problem> {
    app.permit(&requester, Verb::Evict, slice::from_ref(&name))?;
    token.or_field(&mut fields)?;
    let reason = reason(&fields.text("reason")?.unwrap_or_default())?;
    if fields.number("hold_count")?.is_some() {
        let problem = "has no meaning with force=true; leave it out";
        return Err(Problem::field("hold_count", problem));
    }
    fields.finish(&RELEASE_FIELDS)?;
    let service = app.admit(Operation::Evict, &requester).await?;
    let eviction = EvictionRequest {
        app: app.clone(),
        requester,
        name: name.clone(),
        reason: reason.clone(),
    };
    let note = move |evicted: &Evicted| eviction.note(evicted);
    let evicted = service.evict(name.clone(), reason, note).await?;
    if !evicted.is_complete {
        return Err(Problem::eviction_unfinished(name, &evicted.holders));
    }
    let (evicted, evicted_total) = HolderView::listed(Some(&evicted.holders));
    let body = EvictedBody {
        evicted,
        evicted_total,
    };
    Ok(json(StatusCode::OK, "application/json", &body))
}

/// An eviction that is under way, and who asked for it.
struct EvictionRequest {
    app: App,
    requester: Requester,
    name: LockName,
    reason: String,
}

impl EvictionRequest {
    /// Writes the lines about it, unless nobody held the lock.
    fn note(&self, evicted: &Evicted) {
        if evicted.holders.total == 0 {
            return;
        }
        self.log(evicted);
        if let Some(sender) = self.app.settings().audit.sender(&self.requester) {
            sender.evicted(&self.name, evicted, &self.reason);
        }
    }

    /// Logs who took the lock away. Without keys, any client can cause any number of these lines.
    fn log(&self, evicted: &Evicted) {
        let requester = &self.requester;
        let principal = requester.principal.as_ref();
        let role = principal.and_then(Principal::role);
        let sampled = principal
            .is_none()
            .then(|| SampledLine::Eviction(requester.network()));
        let Some(number) = self.app.log_sample().number(sampled) else {
            return;
        };
        tracing::info!(
            request_id = requester.request_id.as_str(),
            peer = requester.address().map(tracing::field::display),
            principal = principal.filter(|_| role.is_none()).map(Principal::name),
            role = role.map(Role::label),
            lock.name = %self.name,
            outcome = "evicted",
            holders = evicted.holders.total,
            is_complete = evicted.is_complete,
            reason = self.reason,
            evictions = number.evictions,
            "The lock was taken from its holders."
        );
    }
}

/// A reason is free text with the restrictions of an owner, because it is shown and logged too.
fn reason(text: &str) -> Result<String, InvalidField> {
    match Owner::new(text) {
        Ok(reason) => Ok(reason.as_str().to_owned()),
        Err(InvalidField { problem, .. }) => Err(InvalidField {
            field: "reason",
            problem,
        }),
    }
}

fn no_content() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}
