//! `DELETE /locks/{name}`: letting go of a lock by its token, or taking it away by force.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;

use super::grant::{GrantAnswer, Granted};
use super::{lock_name, presented_token};
use crate::domain::{HoldCount, InvalidField, LockName, Owner, Released};
use crate::http::app::App;
use crate::http::extract::{self, Fields};
use crate::http::problem::Problem;
use crate::http::wire::{Evicted, HolderView, json};

/// The fields of a release.
pub(in crate::http) const RELEASE_FIELDS: [&str; 4] = ["hold_count", "token", "force", "reason"];

/// `DELETE /locks/{name}`
pub(in crate::http) async fn release(
    State(app): State<App>,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let name = lock_name(&parts.uri)?;
    let mut fields = extract::fields(&parts, body, app.settings()).await?;
    if fields.flag("force")?.unwrap_or(false) {
        return evict(&app, name, fields).await;
    }
    let token = presented_token(&parts.headers, &mut fields)?;
    let hold_count = fields.number("hold_count")?;
    let hold_count = hold_count.map(HoldCount::new).transpose()?;
    if fields.text("reason")?.is_some() {
        return Err(Problem::field("reason", "goes with force=true only"));
    }
    fields.finish(&RELEASE_FIELDS)?;
    let token = token.ok_or_else(Problem::token_missing)?;
    match app
        .service()
        .release(name.clone(), token, hold_count)
        .await?
    {
        Released::Freed { .. } | Released::Repeated => Ok(no_content()),
        Released::SteppedBack(lease) => {
            Ok(GrantAnswer::new(&name, token, &lease, Granted::Still).plain())
        }
        Released::NotHolder(why) => Err(Problem::not_holder(why)),
    }
}

/// Takes the lock away from whoever holds it. The token is nobody's business here, so one that is sent is not read.
async fn evict(app: &App, name: LockName, mut fields: Fields) -> Result<Response, Problem> {
    fields.text("token")?;
    let reason = reason(&fields.text("reason")?.unwrap_or_default())?;
    if fields.number("hold_count")?.is_some() {
        let problem = "means nothing with force=true; leave it out";
        return Err(Problem::field("hold_count", problem));
    }
    fields.finish(&RELEASE_FIELDS)?;
    let holders = app.service().evict(name.clone(), reason.clone()).await?;
    tracing::info!(
        lock.name = %name,
        outcome = "evicted",
        holders = holders.len(),
        reason,
        "The lock was taken from its holders."
    );
    let evicted = HolderView::all(&holders);
    Ok(json(
        StatusCode::OK,
        "application/json",
        &Evicted { evicted },
    ))
}

/// A reason is free text under the rules of an owner, for the same reasons: it is shown and logged.
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
