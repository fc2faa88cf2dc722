//! `GET /locks/{name}`: the state of a lock, once or as a stream.

use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::response::Response;

use super::{EVENT_STREAM, lock_name, preferred};
use crate::http::admission::Operation;
use crate::http::app::App;
use crate::http::events;
use crate::http::extract;
use crate::http::problem::Problem;
use crate::http::requester::Requester;
use crate::http::wire::{LockBody, json};

/// `GET /locks/{name}`
pub(in crate::http) async fn inspect(
    State(app): State<App>,
    request: Request,
) -> Result<Response, Problem> {
    let name = lock_name(request.uri().path())?;
    extract::query_fields(request.uri())?.finish(&[])?;
    let offers = ["application/json", EVENT_STREAM];
    let is_watch = preferred(request.headers(), &offers) == EVENT_STREAM;
    if is_watch && request.method() != Method::HEAD {
        return events::of_lock(&app, name, request).await;
    }
    let requester = Requester::of(request);
    let service = app.admit(Operation::Inspect(&name), &requester).await?;
    let view = service.inspect(&name).await?;
    Ok(json(
        StatusCode::OK,
        "application/json",
        &LockBody::new(&view),
    ))
}
