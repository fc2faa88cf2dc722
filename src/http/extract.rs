//! Words in: the fields of a request, wherever they came from. What a field means is the handlers' affair.
//!
//! Fields come from a JSON body, a form body or the query string, with the same names. They are read into one list;
//! handlers take out what they know and refuse the rest.

mod body;
mod fields;
mod form;
mod json;

pub(super) use fields::Fields;

use axum::body::Body;
use axum::http::Uri;
use axum::http::request::Parts;

use super::app::App;
use super::problem::Problem;
use fields::Entry;

/// The fields of a request that may have a body.
///
/// # Errors
/// The body or the query string cannot be read.
pub(super) async fn fields(parts: &Parts, body: Body, app: &App) -> Result<Fields, Problem> {
    let mut entries = query(&parts.uri)?;
    let body = body::read(body, &parts.extensions, app).await?;
    if !body.is_empty() {
        body::parse(&parts.headers, &body, &mut entries)?;
    }
    Ok(Fields::new(entries))
}

/// The fields of a request whose body, if it has one, means nothing.
///
/// # Errors
/// The query string cannot be read.
pub(super) fn query_fields(uri: &Uri) -> Result<Fields, Problem> {
    query(uri).map(Fields::new)
}

fn query(uri: &Uri) -> Result<Vec<Entry>, Problem> {
    let mut entries = Vec::new();
    if let Some(query) = uri.query() {
        form::parse(query.as_bytes(), &mut entries)
            .map_err(|_| Problem::malformed("the query string is not valid UTF-8"))?;
        if entries.iter().any(|entry| entry.name == "token") {
            return Err(Problem::token_in_query());
        }
    }
    Ok(entries)
}
