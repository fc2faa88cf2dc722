//! `/terraform/{name}`: the lock of a state that Terraform keeps elsewhere, in the form that its `http` backend expects.
//!
//! The id that Terraform makes for each run is the token of the claim. Terraform shows it to others, and takes a status
//! other than 200 for a failure.

use std::slice;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::header::{ALLOW, HeaderValue, LOCATION};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::acquire::AnsweredClaim;
use super::grant::Format;
use super::{HeaderToken, RouteForm, lock_name, release};
use crate::domain::{
    Bounds, Claim, Conflict, ConflictKind, InvalidField, LockName, LockNames, Metadata, NotHeld,
    Owner, Refused, Released, Token, Ttl, Verb, text,
};
use crate::http::admission::Operation;
use crate::http::app::App;
use crate::http::audit::AuditedSender;
use crate::http::extract::{Fields, UnreadRequest};
use crate::http::problem::{Problem, conflict_sentence};
use crate::http::requester::Requester;
use crate::http::scope::QueueTime;
use crate::http::wire::json as json_response;
use crate::service::AcquireOutcome;

/// The fields of both operations, in the query string: the body belongs to Terraform. Both take both, because both may
/// have the same address.
pub(in crate::http) const TERRAFORM_FIELDS: [&str; 2] = ["ttl", "wait"];
/// The methods that the backend can be configured to use.
const METHODS: &str = "LOCK,UNLOCK,POST,DELETE";

/// What Terraform sends about the run that locks. It shows this to those that it refuses.
#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[schema(as = TerraformLockInfo)]
#[serde(rename_all = "PascalCase", default)]
pub(in crate::http) struct LockInfo {
    /// The id of the run, a UUID.
    #[serde(rename = "ID")]
    #[schema(required)]
    id: String,
    /// What the run does.
    operation: String,
    /// Free text.
    info: String,
    /// Who runs it, and where.
    who: String,
    /// The version of Terraform.
    version: String,
    /// When the run locked.
    // Terraform takes an answer with an empty time for a broken one, and shows nothing of it.
    #[serde(skip_serializing_if = "String::is_empty")]
    created: String,
    /// The path of the state, if it is a file.
    path: String,
}

/// `LOCK`, `POST`, `UNLOCK` and `DELETE /terraform/{name}`
pub(in crate::http) async fn terraform(
    State(app): State<App>,
    request: Request,
) -> Result<Response, Problem> {
    let is_lock = match request.method() {
        method if method.as_str() == "LOCK" || *method == Method::POST => true,
        method if method.as_str() == "UNLOCK" || *method == Method::DELETE => false,
        _ => {
            let mut response = Problem::method_not_allowed().into_response();
            let methods = HeaderValue::from_static(METHODS);
            response.headers_mut().insert(ALLOW, methods);
            return Ok(response);
        }
    };
    let name = lock_name(request.uri().path())?;
    let version = request.version();
    let (fields, body, requester) = UnreadRequest::of(request)?.query_and_body(&app).await?;
    let options = Options::of(fields)?;
    if !is_lock {
        return unlock(&app, requester, name, &body).await;
    }
    let format = Format {
        route_form: RouteForm::Single,
        media_type: "application/json",
        version,
    };
    lock(&app, requester, name, &body, options, &format).await
}

/// The fields of the query string. The bounds of a TTL are those of a lock: a quota may have become smaller since, and nobody
/// may be kept from unlocking for that.
struct Options {
    ttl: Option<Duration>,
    wait: Duration,
}

impl Options {
    fn of(mut fields: Fields) -> Result<Self, Problem> {
        let ttl = fields.duration("ttl")?;
        let wait = fields.duration("wait")?.unwrap_or_default();
        fields.finish(&TERRAFORM_FIELDS)?;
        Ok(Self { ttl, wait })
    }

    /// Terraform cannot renew, so a lease lasts as long as this service allows unless the address says otherwise.
    fn ttl_within(&self, bounds: &Bounds) -> Result<Ttl, InvalidField> {
        bounds.ttl(self.ttl.unwrap_or(bounds.ttl_max))
    }
}

async fn lock(
    app: &App,
    requester: Requester,
    name: LockName,
    body: &Bytes,
    options: Options,
    format: &Format,
) -> Result<Response, Problem> {
    let ttl = options.ttl_within(&app.bounds(&requester))?;
    app.permit(&requester, Verb::Acquire, slice::from_ref(&name))?;
    let info = LockInfo::of(body)?;
    let token = Token::parse(&info.id)?;
    let text = serde_json::to_string(&info).expect("it has string keys");
    let claim = Claim {
        // A name that is too long is left out here: the name of a machine is no reason to refuse a lock.
        owner: requester.owner(Owner::new(&info.who).unwrap_or_default()),
        metadata: Some(Metadata::from_json_object(&text)?),
        ..Claim::plain(name.into(), token, ttl)
    };
    requester.permit_size(&claim)?;
    let answered = AnsweredClaim::of(app, requester, claim, options.wait).await?;
    let blocked_by = match &answered.answer.outcome {
        AcquireOutcome::Refused(Refused::Blocked(blocked_by)) => Some(blocked_by),
        AcquireOutcome::TimedOut(not_granted) => Some(&not_granted.blocked_by),
        AcquireOutcome::Granted(_)
        | AcquireOutcome::Refused(_)
        | AcquireOutcome::TooManyWaiters(_)
        | AcquireOutcome::Draining(_) => None,
    };
    if let Some(blocked_by) = blocked_by {
        let mut response = refused(&answered.claim, blocked_by);
        QueueTime(answered.answer.waited).attach_to(&mut response);
        return Ok(response);
    }
    let mut response = answered.response(format)?;
    *response.status_mut() = StatusCode::OK;
    response.headers_mut().remove(LOCATION);
    Ok(response)
}

/// The answer to a refused run: the lock info of the holder. Terraform prints only its id, so the id has the rest, too.
fn refused(claim: &Claim, blocked_by: &[Conflict]) -> Response {
    let conflict = blocked_by.first();
    let mut info = conflict
        .and_then(LockInfo::of_holder)
        .unwrap_or_else(|| LockInfo {
            path: claim.names[0].as_str().to_owned(),
            ..LockInfo::default()
        });
    let sentence = conflict.map_or_else(|| "held by another claim".to_owned(), conflict_sentence);
    info.id = match info.id.is_empty() {
        true => sentence,
        false => format!("{} {sentence}", info.id),
    };
    json_response(StatusCode::LOCKED, "application/json", &info)
}

/// Releases the claim of this run, or takes the lock away from its holder: that is what `terraform force-unlock` means,
/// which sends nothing.
async fn unlock(
    app: &App,
    requester: Requester,
    name: LockName,
    body: &Bytes,
) -> Result<Response, Problem> {
    if body.trim_ascii().is_empty() {
        let (token, fields) = (HeaderToken::of(&HeaderMap::new()), Fields::none());
        return release::evict(app, requester, name, token, fields).await;
    }
    app.permit(&requester, Verb::Acquire, slice::from_ref(&name))?;
    let info = LockInfo::of(body)?;
    let token = Token::parse(&info.id)?;
    let service = app.admit(Operation::Keep(1), &requester).await?;
    let names = LockNames::from(name.clone());
    let audited = app.settings().audit.sender(&requester);
    let note = AuditedSender::of_release(audited, names.clone());
    let released = service.release(names, token, None, note).await?;
    match released.into_iter().next() {
        Some(Released::NotHolder(reason)) => {
            Err(Problem::not_holder(NotHeld { name, reason }).of_one_lock())
        }
        _ => Ok(json_response(
            StatusCode::OK,
            "application/json",
            &json!({"ID": info.id}),
        )),
    }
}

impl LockInfo {
    /// What Terraform sent.
    fn of(body: &[u8]) -> Result<Self, Problem> {
        let object = body.trim_ascii_start().starts_with(b"{").then_some(body);
        object
            .and_then(|body| serde_json::from_slice(body).ok())
            .map(Self::printable)
            .ok_or_else(|| {
                Problem::malformed(
                    "the body must be the lock info of Terraform, like {\"ID\":\"<a UUID>\",\"Who\":\"me@here\"}",
                )
            })
    }

    /// What the holder sent, if Terraform holds the lock.
    fn of_holder(conflict: &Conflict) -> Option<Self> {
        let ConflictKind::Holders(holders) = &conflict.by else {
            return None;
        };
        let metadata = holders.listed.first()?.metadata.as_ref()?;
        let info = serde_json::from_str(metadata.as_json());
        info.ok().map(Self::printable)
    }

    /// The same without characters that could harm the terminal where Terraform prints them, and without a time that
    /// Terraform could not read. Nothing is refused: the name of a machine must not prevent locking.
    fn printable(self) -> Self {
        let shown = |text: String| text::printable(&text).into_owned();
        let is_of_time = |letter: char| letter.is_ascii_digit() || "-:.+TZ".contains(letter);
        Self {
            id: shown(self.id),
            operation: shown(self.operation),
            info: shown(self.info),
            who: shown(self.who),
            version: shown(self.version),
            created: Some(self.created)
                .filter(|created| created.chars().all(is_of_time))
                .unwrap_or_default(),
            path: shown(self.path),
        }
    }
}
