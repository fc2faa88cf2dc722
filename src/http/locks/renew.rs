//! `PUT`: renews one lease or several, or downgrades one from exclusive to shared.

use axum::extract::{Request, State};
use axum::response::Response;

use super::{HeaderToken, RouteForm, acquire, grant, lock_names, names_missing};
use crate::domain::{RenewOptions, Renewed, Verb};
use crate::http::admission::Operation;
use crate::http::app::App;
use crate::http::extract::UnreadRequest;
use crate::http::problem::Problem;

/// The fields of a renewal.
pub(in crate::http) const RENEW_FIELDS: [&str; 5] = ["ttl", "mode", "limit", "permits", "token"];
/// The fields of a renewal of several leases.
pub(in crate::http) const RENEW_SEVERAL_FIELDS: [&str; 6] = super::with_names(RENEW_FIELDS);

/// `PUT /locks/{name}` and `PUT /locks`
pub(in crate::http) async fn renew(
    State(app): State<App>,
    request: Request,
) -> Result<Response, Problem> {
    let (route_form, in_path) = RouteForm::of(request.uri().path())?;
    let token = HeaderToken::of(request.headers());
    let (mut fields, requester) = UnreadRequest::of(request)?.fields(&app).await?;
    let names = lock_names(in_path, &mut fields)?;
    let token = token.or_field(&mut fields)?;
    let ttl = fields.duration("ttl")?;
    let ttl = ttl.map(|ttl| app.renewal_ttl(&requester, ttl));
    let ttl = ttl.transpose()?;
    let mode = acquire::mode(&mut fields)?;
    fields.finish(match route_form {
        RouteForm::Single => &RENEW_FIELDS,
        RouteForm::Multi => &RENEW_SEVERAL_FIELDS,
    })?;
    let names = names.ok_or_else(names_missing)?;
    if let Some(mode) = mode {
        app.settings().bounds.limit(mode, names.len())?;
    }
    app.permit(&requester, Verb::Acquire, &names)?;
    let token = token.ok_or_else(Problem::token_missing)?;
    let options = RenewOptions {
        ttl,
        mode,
        ..RenewOptions::default()
    };
    let operation = Operation::Keep(names.len());
    let service = app.admit(operation, &requester).await?;
    match service.renew(names.clone(), token, options).await? {
        Renewed::Extended(renewals) => {
            // Not `collect`: it would reuse the allocation of `renewals` and shrink it, which costs more than a new one.
            let mut leases = Vec::with_capacity(renewals.len());
            leases.extend(renewals.into_iter().map(|renewal| renewal.lease));
            Ok(grant::still_held(route_form, &names, token, &leases))
        }
        Renewed::Mismatched(mismatch) => Err(route_form.adapt(Problem::mismatch(mismatch))),
        Renewed::NotHolder(lost) => Err(route_form.not_held(lost, "nothing was renewed")),
    }
}
