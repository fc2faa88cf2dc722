//! The operations on locks: words to a claim, an outcome to an answer. What is refused, and how, is in `problem`.

mod grant;
mod list;
mod release;

use std::borrow::Cow;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, Uri};
use axum::response::Response;
use percent_encoding::percent_decode_str;

use super::app::App;
use super::extract::{self, Fields};
use super::problem::Problem;
use super::wire::{LockBody, json};
use crate::domain::{
    Acquired, Bounds, Claim, HoldCount, InvalidName, LockName, Metadata, Owner, Renewed, Token,
};
use crate::service::AcquireAnswer;
use grant::{GrantAnswer, Granted};
pub(super) use list::{LIST_FIELDS, PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX, list};
pub(super) use release::{RELEASE_FIELDS, release};

/// The header that carries the token both ways.
pub(super) const LOCK_TOKEN: HeaderName = HeaderName::from_static("lock-token");
/// The header that carries the fencing token.
pub(super) const FENCING_TOKEN: HeaderName = HeaderName::from_static("fencing-token");

/// The fields of an acquire.
pub(super) const ACQUIRE_FIELDS: [&str; 9] = [
    "ttl",
    "mode",
    "owner",
    "metadata",
    "token",
    "hold_count",
    "min_hold",
    "max_hold",
    "lock_delay",
];
/// The fields of a renewal.
pub(super) const RENEW_FIELDS: [&str; 2] = ["ttl", "token"];

/// `POST /locks/{name}`
pub(super) async fn acquire(State(app): State<App>, request: Request) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let name = lock_name(&parts.uri)?;
    let mut fields = extract::fields(&parts, body, app.settings()).await?;
    let token = presented_token(&parts.headers, &mut fields)?.unwrap_or_else(Token::random);
    let claim = Arc::new(claim(name, token, fields, &app.settings().bounds)?);
    let answer = app.service().acquire(Arc::clone(&claim)).await;
    let AcquireAnswer {
        outcome,
        undelivered,
    } = answer.map_err(|error| Problem::from(error).with_token(token))?;
    let (granted, lease) = match outcome {
        Acquired::Granted { lease, .. } => (Granted::New, lease),
        Acquired::Reentered(lease) => (Granted::Deeper, lease),
        Acquired::Replayed(lease) => (Granted::Again, lease),
        Acquired::Held(holders) => return Err(Problem::held(holders)),
        Acquired::Cooling { free_in } => return Err(Problem::cooling(free_in)),
        Acquired::Ended(how) => return Err(Problem::claim_ended(how)),
        Acquired::Recovering { retry_in } => return Err(Problem::recovering(retry_in, token)),
    };
    let grant = GrantAnswer::new(&claim.name, token, &lease, granted);
    Ok(grant.acquired(&parts.headers, undelivered))
}

/// `PUT /locks/{name}`
pub(super) async fn renew(State(app): State<App>, request: Request) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let name = lock_name(&parts.uri)?;
    let mut fields = extract::fields(&parts, body, app.settings()).await?;
    let token = presented_token(&parts.headers, &mut fields)?;
    let ttl = fields.duration("ttl")?;
    let ttl = ttl.map(|ttl| app.settings().bounds.ttl(ttl)).transpose()?;
    fields.finish(&RENEW_FIELDS)?;
    let token = token.ok_or_else(Problem::token_missing)?;
    match app.service().renew(name.clone(), token, ttl).await? {
        Renewed::Extended(renewal) => {
            Ok(GrantAnswer::new(&name, token, &renewal.lease, Granted::Still).plain())
        }
        Renewed::NotHolder(why) => Err(Problem::not_holder(why)),
    }
}

/// `GET /locks/{name}`
pub(super) async fn inspect(State(app): State<App>, request: Request) -> Result<Response, Problem> {
    let name = lock_name(request.uri())?;
    extract::query_fields(request.uri())?.finish(&[])?;
    let view = app.service().inspect(&name).await?;
    Ok(json(
        StatusCode::OK,
        "application/json",
        &LockBody::new(&view),
    ))
}

/// The name of the lock, decoded exactly once from the path as it was sent: axum's own decoding refuses what is not
/// UTF-8 in plain text, before a handler can say anything about it.
pub(super) fn lock_name(uri: &Uri) -> Result<LockName, InvalidName> {
    let encoded = uri.path().strip_prefix("/locks/").unwrap_or_default();
    let bytes: Cow<'_, [u8]> = percent_decode_str(encoded).into();
    LockName::parse(&bytes)
}

fn claim(
    name: LockName,
    token: Token,
    mut fields: Fields,
    bounds: &Bounds,
) -> Result<Claim, Problem> {
    let ttl = fields.duration("ttl")?.map(|ttl| bounds.ttl(ttl));
    let mode = fields.text("mode")?;
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
    fields.finish(&ACQUIRE_FIELDS)?;
    if mode.is_some_and(|mode| mode != "exclusive") {
        return Err(Problem::field(
            "mode",
            "this version only has \"exclusive\"",
        ));
    }
    Ok(Claim {
        name,
        token,
        ttl: ttl.transpose()?.unwrap_or_else(|| bounds.default_ttl()),
        hold_count: hold_count.transpose()?.unwrap_or(HoldCount::ONE),
        owner: owner.transpose()?.unwrap_or_default(),
        metadata: metadata.transpose()?,
        min_hold: min_hold.transpose()?,
        max_hold: max_hold.transpose()?,
        lock_delay: lock_delay.transpose()?,
    })
}

/// The token that the client presents, in the header or as a field; both must say the same.
fn presented_token(headers: &HeaderMap, fields: &mut Fields) -> Result<Option<Token>, Problem> {
    let field = fields.text("token")?;
    let mut presented = field.as_deref().map(Token::parse).transpose()?;
    for value in headers.get_all(LOCK_TOKEN) {
        // Bytes outside of ASCII are in no UUID; the empty text is refused with the same words.
        let token = Token::parse(value.to_str().unwrap_or_default().trim())?;
        if presented.is_some_and(|other| other != token) {
            let problem = "two different tokens are given; send one";
            return Err(Problem::field("token", problem));
        }
        presented = Some(token);
    }
    Ok(presented)
}
