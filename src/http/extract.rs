//! Reads the fields of a request. The handlers interpret them.
//!
//! Fields come from a JSON body, a form body or the query string, with the same names. They are read into one list;
//! handlers take out the fields that they know and refuse the rest.

mod body;
mod fields;
mod formats;

use axum::body::{Body, HttpBody as _};
use axum::extract::Request;
use axum::http::Uri;

use super::app::App;
use super::problem::Problem;
use super::requester::Requester;
use body::Announced;
use fields::Entries;
pub(super) use fields::{Fields, echo};

/// A request whose body has not been read yet. The head is dropped, because it may have 64 KiB and the body may be slow
/// to arrive.
pub(super) struct UnreadRequest {
    /// The fields of the query string.
    entries: Entries,
    query_bytes: usize,
    announced: Announced,
    body: Body,
    requester: Requester,
}

impl UnreadRequest {
    /// Takes what is needed to read the body from the head, and drops the rest.
    ///
    /// # Errors
    /// The query string cannot be read.
    pub(super) fn of(request: Request) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        Ok(Self {
            entries: query(&parts.uri)?,
            query_bytes: parts.uri.query().map_or(0, str::len),
            // Most releases have no body, so their Content-Type need not be parsed.
            announced: match body.is_end_stream() {
                true => Announced::Form,
                false => Announced::by(&parts.headers),
            },
            body,
            requester: Requester::take(parts.extensions),
        })
    }

    /// The fields of the request, and who sent it.
    ///
    /// # Errors
    /// The body cannot be read.
    pub(super) async fn fields(self, app: &App) -> Result<(Fields, Requester), Problem> {
        let Self {
            mut entries,
            query_bytes,
            announced,
            body,
            requester,
        } = self;
        let body = body::read(body, query_bytes, &requester, app).await?;
        if !body.is_empty() {
            body::parse(announced, &body, &mut entries)?;
        }
        Ok((Fields::new(entries), requester))
    }
}

/// The fields of the query string, for requests whose body is ignored.
///
/// # Errors
/// The query string cannot be read.
pub(super) fn query_fields(uri: &Uri) -> Result<Fields, Problem> {
    query(uri).map(Fields::new)
}

fn query(uri: &Uri) -> Result<Entries, Problem> {
    let mut entries = Entries::default();
    if let Some(query) = uri.query() {
        formats::parse_form(query.as_bytes(), &mut entries)
            .map_err(|_| Problem::malformed("the query string is not valid UTF-8"))?;
        if entries.has("token") {
            return Err(Problem::token_in_query());
        }
    }
    Ok(entries)
}
