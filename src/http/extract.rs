//! Words in: the fields of a request, wherever they came from. What a field means is the handlers' affair.
//!
//! Fields come from a JSON body, a form body or the query string, with the same names. They are read into one list;
//! handlers take out what they know and refuse the rest.

mod body;
mod fields;
mod form;
mod json;

use axum::body::{Body, HttpBody as _};
use axum::extract::Request;
use axum::http::{Extensions, Uri};

use super::app::App;
use super::problem::Problem;
use body::Announced;
use fields::Entries;
pub(super) use fields::{Fields, echo};

/// A request whose body was not read yet. Its head is gone: it may have 64 KiB, and the body may be slow to come.
pub(super) struct UnreadRequest {
    /// Those of the query string.
    entries: Entries,
    query_bytes: usize,
    announced: Announced,
    body: Body,
    extensions: Extensions,
}

impl UnreadRequest {
    /// Takes from the head what the reading of the body needs, and lets go of the rest.
    ///
    /// # Errors
    /// The query string cannot be read.
    pub(super) fn of(request: Request) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        Ok(Self {
            entries: query(&parts.uri)?,
            query_bytes: parts.uri.query().map_or(0, str::len),
            // Most releases have no body, and so nothing that would have to be announced.
            announced: match body.is_end_stream() {
                true => Announced::Form,
                false => Announced::by(&parts.headers),
            },
            body,
            extensions: parts.extensions,
        })
    }

    /// The fields of the request, and its extensions.
    ///
    /// # Errors
    /// The body cannot be read.
    pub(super) async fn fields(self, app: &App) -> Result<(Fields, Extensions), Problem> {
        let Self {
            mut entries,
            query_bytes,
            announced,
            body,
            extensions,
        } = self;
        let body = body::read(body, query_bytes, &extensions, app).await?;
        if !body.is_empty() {
            body::parse(announced, &body, &mut entries)?;
        }
        Ok((Fields::new(entries), extensions))
    }
}

/// Lets go of a request that has been looked at, but for what its connection and the layers know of it: a head may have
/// 64 KiB, and answers may be long in coming.
pub(super) fn let_go(request: Request) -> Extensions {
    request.into_parts().0.extensions
}

/// The fields of a request whose body, if it has one, means nothing.
///
/// # Errors
/// The query string cannot be read.
pub(super) fn query_fields(uri: &Uri) -> Result<Fields, Problem> {
    query(uri).map(Fields::new)
}

fn query(uri: &Uri) -> Result<Entries, Problem> {
    let mut entries = Entries::default();
    if let Some(query) = uri.query() {
        form::parse(query.as_bytes(), &mut entries)
            .map_err(|_| Problem::malformed("the query string is not valid UTF-8"))?;
        if entries.has("token") {
            return Err(Problem::token_in_query());
        }
    }
    Ok(entries)
}
