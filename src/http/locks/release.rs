//! `DELETE`: releases one lock or several by their token, or evicts the holders of one by force.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;

use super::grant::{GrantAnswer, GrantKind};
use super::{HeaderToken, RouteForm, lock_name, lock_names, names_missing};
use crate::domain::{
    Evicted, HoldCount, InvalidField, Lease, LockName, LockNames, NotHeld, Owner, Released, Token,
};
use crate::http::admission::Operation;
use crate::http::app::App;
use crate::http::auth::Role;
use crate::http::extract::{Fields, UnreadRequest};
use crate::http::log::Frequent;
use crate::http::problem::Problem;
use crate::http::requester::Requester;
use crate::http::wire::{EvictedBody, HolderView, json};

/// The fields of a release.
pub(in crate::http) const RELEASE_FIELDS: [&str; 4] = ["hold_count", "token", "force", "reason"];
/// The fields of a release of several locks.
pub(in crate::http) const RELEASE_SEVERAL_FIELDS: [&str; 3] = ["names", "hold_count", "token"];

/// `DELETE /locks/{name}`
pub(in crate::http) async fn release(
    State(app): State<App>,
    request: Request,
) -> Result<Response, Problem> {
    let name = lock_name(request.uri().path())?;
    let token = HeaderToken::of(request.headers());
    let (mut fields, requester) = UnreadRequest::of(request)?.fields(&app).await?;
    if fields.flag("force")?.unwrap_or(false) {
        return evict(&app, requester, name, token, fields).await;
    }
    if fields.text("reason")?.is_some() {
        return Err(Problem::field("reason", "is allowed only with force=true"));
    }
    let (token, hold_count) = release_request(token, fields, &RELEASE_FIELDS)?;
    let token = token.ok_or_else(Problem::token_missing)?;
    let names = LockNames::from(name);
    let service = app.admit(Operation::Keep(1), &requester).await?;
    let released = service.release(names.clone(), token, hold_count).await?;
    respond(RouteForm::Single, &names, token, released)
}

/// `DELETE /locks`
pub(in crate::http) async fn release_several(
    State(app): State<App>,
    request: Request,
) -> Result<Response, Problem> {
    let token = HeaderToken::of(request.headers());
    let (mut fields, requester) = UnreadRequest::of(request)?.fields(&app).await?;
    if fields.flag("force")?.unwrap_or(false) {
        let problem = "is allowed only for one lock at a time, at /locks/{name}";
        return Err(Problem::field("force", problem));
    }
    let names = lock_names(&mut fields)?;
    let (token, hold_count) = release_request(token, fields, &RELEASE_SEVERAL_FIELDS)?;
    let names = names.ok_or_else(names_missing)?;
    let token = token.ok_or_else(Problem::token_missing)?;
    let operation = Operation::Keep(names.len());
    let service = app.admit(operation, &requester).await?;
    let released = service.release(names.clone(), token, hold_count).await?;
    respond(RouteForm::Multi, &names, token, released)
}

fn release_request(
    token: HeaderToken,
    mut fields: Fields,
    known: &[&'static str],
) -> Result<(Option<Token>, Option<HoldCount>), Problem> {
    let token = token.or_field(&mut fields)?;
    let hold_count = fields.number("hold_count")?;
    let hold_count = hold_count.map(HoldCount::new).transpose()?;
    fields.finish(known)?;
    Ok((token, hold_count))
}

fn respond(
    route_form: RouteForm,
    names: &LockNames,
    token: Token,
    released: Vec<Released>,
) -> Result<Response, Problem> {
    let (mut held, mut lost): ((Vec<LockName>, Vec<Lease>), Vec<NotHeld>) = Default::default();
    for (name, released) in names.iter().cloned().zip(released) {
        match released {
            Released::Freed { .. } | Released::LeftQueue | Released::Repeated => {}
            Released::SteppedBack(lease) => {
                held.0.push(name);
                held.1.push(lease);
            }
            Released::NotHolder(how) => lost.push(NotHeld { name, reason: how }),
        }
    }
    if !lost.is_empty() {
        return Err(route_form.not_held(lost, "the others were released as requested"));
    }
    let (names, leases) = held;
    if leases.is_empty() {
        return Ok(no_content());
    }
    let grant = GrantAnswer {
        route_form,
        names: &names,
        token,
        leases: &leases,
        granted: GrantKind::Unchanged,
        waited: Duration::ZERO,
    };
    Ok(grant.plain())
}

/// Evicts all holders of the lock. A token is ignored, but must be valid if it is sent.
async fn evict(
    app: &App,
    requester: Requester,
    name: LockName,
    token: HeaderToken,
    mut fields: Fields,
) -> Result<Response, Problem> {
    let role = app.settings().access.permit_eviction(&requester)?;
    token.or_field(&mut fields)?;
    let reason = reason(&fields.text("reason")?.unwrap_or_default())?;
    if fields.number("hold_count")?.is_some() {
        let problem = "has no meaning with force=true; leave it out";
        return Err(Problem::field("hold_count", problem));
    }
    fields.finish(&RELEASE_FIELDS)?;
    let service = app.admit(Operation::Evict, &requester).await?;
    let evicted = service.evict(name.clone(), reason.clone()).await?;
    if evicted.holders.total > 0 {
        log_eviction(app, &requester, role, &name, &evicted, &reason);
    }
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

/// Logs who took the lock away. Without keys, any client can cause any number of these lines.
fn log_eviction(
    app: &App,
    requester: &Requester,
    role: Option<Role>,
    name: &LockName,
    evicted: &Evicted,
    reason: &str,
) {
    let frequent = role.is_none().then(|| Frequent::Eviction(requester.ip()));
    let Some(number) = app.log_sample().number(frequent) else {
        return;
    };
    tracing::info!(
        request_id = requester.request_id.as_str(),
        peer = requester.address().map(tracing::field::display),
        role = role.map(Role::label),
        lock.name = %name,
        outcome = "evicted",
        holders = evicted.holders.total,
        is_complete = evicted.is_complete,
        reason,
        evictions = number.evictions,
        "The lock was taken from its holders."
    );
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
