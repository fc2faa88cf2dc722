//! `PUT`: renews one lease or several, or downgrades one from exclusive to shared.

use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::Response;

use super::grant::{GrantAnswer, GrantKind};
use super::{HeaderToken, RouteForm, acquire, lock_name, lock_names, names_missing};
use crate::domain::{LockNames, RenewOptions, Renewed, Token};
use crate::http::admission::Operation;
use crate::http::app::App;
use crate::http::extract::{Fields, UnreadRequest};
use crate::http::problem::Problem;

/// The fields of a renewal.
pub(in crate::http) const RENEW_FIELDS: [&str; 5] = ["ttl", "mode", "limit", "permits", "token"];
/// The fields of a renewal of several leases.
pub(in crate::http) const RENEW_SEVERAL_FIELDS: [&str; 6] = super::with_names(RENEW_FIELDS);

/// `PUT /locks/{name}`
pub(in crate::http) async fn renew(
    State(app): State<App>,
    request: Request,
) -> Result<Response, Problem> {
    let names = LockNames::from(lock_name(request.uri().path())?);
    let token = HeaderToken::of(request.headers());
    let (fields, requester) = UnreadRequest::of(request)?.fields(&app).await?;
    let (token, change) = renew_request(&app, token, fields, &RENEW_FIELDS)?;
    let token = token.ok_or_else(Problem::token_missing)?;
    let service = app.admit(Operation::Keep(1), &requester).await?;
    let renewed = service.renew(names.clone(), token, change).await?;
    respond(RouteForm::Single, &names, token, renewed)
}

/// `PUT /locks`
pub(in crate::http) async fn renew_several(
    State(app): State<App>,
    request: Request,
) -> Result<Response, Problem> {
    let token = HeaderToken::of(request.headers());
    let (mut fields, requester) = UnreadRequest::of(request)?.fields(&app).await?;
    let names = lock_names(&mut fields)?;
    let (token, change) = renew_request(&app, token, fields, &RENEW_SEVERAL_FIELDS)?;
    let names = names.ok_or_else(names_missing)?;
    let token = token.ok_or_else(Problem::token_missing)?;
    let operation = Operation::Keep(names.len());
    let service = app.admit(operation, &requester).await?;
    let renewed = service.renew(names.clone(), token, change).await?;
    respond(RouteForm::Multi, &names, token, renewed)
}

fn renew_request(
    app: &App,
    token: HeaderToken,
    mut fields: Fields,
    known: &[&'static str],
) -> Result<(Option<Token>, RenewOptions), Problem> {
    let token = token.or_field(&mut fields)?;
    let ttl = fields.duration("ttl")?;
    let ttl = ttl.map(|ttl| app.settings().bounds.ttl(ttl)).transpose()?;
    let mode = acquire::mode(&mut fields)?;
    fields.finish(known)?;
    let change = RenewOptions {
        ttl,
        mode,
        ..RenewOptions::default()
    };
    Ok((token, change))
}

fn respond(
    route_form: RouteForm,
    names: &LockNames,
    token: Token,
    renewed: Renewed,
) -> Result<Response, Problem> {
    let renewals = match renewed {
        Renewed::Extended(renewals) => renewals,
        Renewed::Mismatched(mismatch) => {
            return Err(route_form.adapt(Problem::mismatch(mismatch)));
        }
        Renewed::NotHolder(lost) => {
            return Err(route_form.not_held(lost, "nothing was renewed"));
        }
    };
    // Not `collect`: it would reuse the allocation of `renewals` and shrink it, which costs more than a new one.
    let mut leases = Vec::with_capacity(renewals.len());
    leases.extend(renewals.into_iter().map(|renewal| renewal.lease));
    let grant = GrantAnswer {
        route_form,
        names,
        token,
        leases: &leases,
        granted: GrantKind::Unchanged,
        waited: Duration::ZERO,
    };
    Ok(grant.plain())
}
