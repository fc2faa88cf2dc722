//! `GET`: the state of a lock, once or as a stream, and the locks that are held or waited for, page by page.

use std::slice;

use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode};
use axum::response::Response;

use super::{EVENT_STREAM, lock_name, preferred};
use crate::domain::{LockName, Verb};
use crate::http::admission::Operation;
use crate::http::app::App;
use crate::http::problem::Problem;
use crate::http::requester::Requester;
use crate::http::wire::{LockBody, LockPage, StateView, json};
use crate::http::{events, extract};
use crate::store::ListQuery;

/// The header with the state of a lock, which a HEAD request shows too.
const LOCK_STATE: HeaderName = HeaderName::from_static("lock-state");
/// The fields of a listing.
pub(in crate::http) const LIST_FIELDS: [&str; 3] = ["prefix", "page_size", "page_token"];
/// The page size unless the client sets one.
pub(in crate::http) const PAGE_SIZE_DEFAULT: u16 = 100;
/// The largest page size. Larger values are capped, not refused: the client follows page tokens anyway.
pub(in crate::http) const PAGE_SIZE_MAX: u16 = 1_000;

/// `GET /locks/{name}`
pub(in crate::http) async fn inspect(
    State(app): State<App>,
    request: Request,
) -> Result<Response, Problem> {
    let offers = ["application/json", EVENT_STREAM];
    let is_watch = preferred(request.headers(), &offers) == EVENT_STREAM;
    if is_watch && request.method() != Method::HEAD {
        let name = named(&request)?;
        return events::of_lock(&app, name, request).await;
    }
    state(State(app), request).await
}

/// `GET /locks/{name}` where there are no streams
pub(in crate::http) async fn state(
    State(app): State<App>,
    request: Request,
) -> Result<Response, Problem> {
    let name = named(&request)?;
    let requester = Requester::of(request);
    app.permit(&requester, Verb::Read, slice::from_ref(&name))?;
    let service = app.admit(Operation::Inspect(&name), &requester).await?;
    let view = service.inspect(&name).await.map_err(Problem::of_read)?;
    let mut response = json(StatusCode::OK, "application/json", &LockBody::new(&view));
    let state = HeaderValue::from_static(StateView::of(&view.state).as_str());
    response.headers_mut().insert(LOCK_STATE, state);
    Ok(response)
}

/// The lock of a request without fields.
fn named(request: &Request) -> Result<LockName, Problem> {
    let name = lock_name(request.uri().path())?;
    extract::query_fields(request.uri())?.finish(&[])?;
    Ok(name)
}

/// `GET /locks`
pub(in crate::http) async fn list(
    State(app): State<App>,
    request: Request,
) -> Result<Response, Problem> {
    let mut fields = extract::query_fields(request.uri())?;
    let prefix = fields.text("prefix")?.unwrap_or_default();
    let page_size = fields.number("page_size")?;
    let page_token = fields.text("page_token")?.unwrap_or_default();
    fields.finish(&LIST_FIELDS)?;
    if page_size == Some(0) {
        let problem = format!("0 is out of range; use 1 to {PAGE_SIZE_MAX}");
        return Err(Problem::field("page_size", problem));
    }
    let (after, snapshot) = continued(&page_token)?;
    let prefix = checked_prefix(prefix)?;
    let requester = Requester::of(request);
    let query = ListQuery {
        within: app.listed(&requester, &prefix)?,
        prefix,
        after,
        snapshot,
        page_size: page_size.map_or(PAGE_SIZE_DEFAULT, capped).into(),
    };
    let service = app.admit(Operation::List, &requester).await?;
    let listing = service.list(&query).await.map_err(Problem::of_read)?;
    let page = LockPage {
        locks: listing.locks.iter().map(LockBody::new).collect(),
        next_page_token: listing
            .next_after
            .as_ref()
            .map(|name| page_token_after(name, listing.snapshot))
            .unwrap_or_default(),
    };
    Ok(json(StatusCode::OK, "application/json", &page))
}

fn capped(page_size: u64) -> u16 {
    u16::try_from(page_size).map_or(PAGE_SIZE_MAX, |page_size| page_size.min(PAGE_SIZE_MAX))
}

/// Refuses a prefix that no name can begin with: an empty page would hide the mistake.
pub(in crate::http) fn checked_prefix(prefix: String) -> Result<String, Problem> {
    let may_match = prefix.is_empty()
        || LockName::parse(prefix.as_bytes()).is_ok()
        // `orders/` and `..` are not names, but names can begin with them.
        || LockName::parse(format!("{prefix}x").as_bytes()).is_ok();
    if may_match {
        return Ok(prefix);
    }
    Err(Problem::field("prefix", "no lock name can begin like this"))
}

/// The page token is the last name of the page before, and the snapshot that the store continues with. It is in
/// hexadecimal, so that clients treat it as opaque.
fn page_token_after(name: &LockName, snapshot: Option<u64>) -> String {
    let bytes = name.as_str().bytes();
    let mut token: String = bytes.map(|byte| format!("{byte:02x}")).collect();
    if let Some(snapshot) = snapshot {
        token += &format!(".{snapshot:016x}");
    }
    token
}

/// The name and the snapshot in a page token.
fn continued(page_token: &str) -> Result<(Option<LockName>, Option<u64>), Problem> {
    if page_token.is_empty() {
        return Ok((None, None));
    }
    let (name, snapshot) = match page_token.split_once('.') {
        Some((name, snapshot)) => (name, u64::from_str_radix(snapshot, 16).map(Some)),
        None => (page_token, Ok(None)),
    };
    let name = bytes_of(name).and_then(|bytes| LockName::parse(&bytes).ok());
    match (name, snapshot) {
        (Some(name), Ok(snapshot)) => Ok((Some(name), snapshot)),
        _ => Err(Problem::field(
            "page_token",
            "is not from an earlier listing; start again without one",
        )),
    }
}

fn bytes_of(hexadecimal: &str) -> Option<Vec<u8>> {
    let digits = hexadecimal.as_bytes();
    if !digits.len().is_multiple_of(2) || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.chunks(2).map(byte).collect()
}
