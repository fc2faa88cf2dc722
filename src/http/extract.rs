//! Reads the fields of a request. The handlers interpret them.
//!
//! Fields come from a JSON body, a form body or the query string, with the same names. The body is read within its size and
//! time limits. All fields go into one list; handlers take out those that they know and refuse the rest.

mod fields;
mod formats;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, Uri};
use http_body_util::BodyExt as _;

use super::app::App;
use super::problem::Problem;
use super::requester::Requester;
use crate::limits::{BudgetPermit, Limit};
use fields::Entries;
pub(super) use fields::{Fields, echo};

/// Bodies up to this size are not counted: the limit on requests bounds them.
const LARGE_BYTES: usize = 16 * 1024;

const FORM: &str = "application/x-www-form-urlencoded";

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

    /// The fields of the query string, the body as it came, and who sent it: for requests whose body is not ours.
    ///
    /// # Errors
    /// The body cannot be read.
    pub(super) async fn query_and_body(
        self,
        app: &App,
    ) -> Result<(Fields, Bytes, Requester), Problem> {
        let body = read(self.body, self.query_bytes, &self.requester, app).await?;
        Ok((Fields::new(self.entries), body, self.requester))
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
        let body = read(body, query_bytes, &requester, app).await?;
        if !body.is_empty() {
            parse(announced, &body, &mut entries)?;
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

/// The type in `Content-Type`.
#[derive(Clone, Copy, Debug)]
enum Announced {
    Form,
    Json,
    Multipart,
    Other,
}

impl Announced {
    fn by(headers: &HeaderMap) -> Self {
        let Some(value) = headers.get(CONTENT_TYPE) else {
            return Self::Form;
        };
        // Fast path: nearly all forms send exactly this.
        if value == FORM {
            return Self::Form;
        }
        let value = value.to_str().unwrap_or_default().as_bytes();
        let essence = value.split(|&byte| byte == b';').next();
        let essence = essence.unwrap_or_default().trim_ascii();
        let is = |known: &str| essence.eq_ignore_ascii_case(known.as_bytes());
        if essence.is_empty() || is(FORM) {
            Self::Form
        } else if is("application/json") {
            Self::Json
        } else if is("multipart/form-data") {
            Self::Multipart
        } else {
            Self::Other
        }
    }
}

/// Reads the whole body. `kept_bytes` of the head stay in memory meanwhile. Without a body, it costs nothing: no timer,
/// no copy.
async fn read(
    body: Body,
    kept_bytes: usize,
    requester: &Requester,
    app: &App,
) -> Result<Bytes, Problem> {
    if body.is_end_stream() {
        return Ok(Bytes::new());
    }
    let settings = app.settings();
    let bytes_max = settings.body_bytes_max;
    // Refuse by Content-Length, before the client sends the body: this is the purpose of `Expect: 100-continue`.
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(too_large(app));
    }
    let length = body
        .size_hint()
        .upper()
        .and_then(|length| usize::try_from(length).ok());
    let length = length.unwrap_or(bytes_max) + kept_bytes;
    // Counted until the body has been read; after that, the limit on requests applies.
    let _taken = (length > LARGE_BYTES)
        .then(|| room(length, requester, app))
        .transpose()
        .map_err(|limit| {
            app.refusals().count(limit);
            Problem::over_limit(limit)
        })?;
    let collected = collect(body, app);
    let Ok(collected) = tokio::time::timeout(settings.body_timeout, collected).await else {
        app.refusals().count(Limit::BodyTimeout);
        return Err(Problem::body_timeout(settings.body_timeout));
    };
    collected
}

fn too_large(app: &App) -> Problem {
    app.refusals().count(Limit::BodySize);
    Problem::body_too_large(app.settings().body_bytes_max)
}

/// The whole body in one piece. Each part keeps the buffer that it was received into, which may be a thousand times as
/// large; so parts are copied, unless the first one is all there is.
async fn collect(mut body: Body, app: &App) -> Result<Bytes, Problem> {
    let bytes_max = app.settings().body_bytes_max;
    let mut whole = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|_| Problem::malformed("the body ended before it was complete"))?;
        // Trailers mean nothing here.
        let Ok(part) = frame.into_data() else {
            continue;
        };
        let length = whole.len() + part.len();
        if length > bytes_max {
            return Err(too_large(app));
        }
        if whole.is_empty() && body.is_end_stream() {
            return Ok(part);
        }
        if length > whole.capacity() {
            // It grows by doubling, but beyond what is counted there will be nothing.
            let room = length.max((2 * whole.capacity()).min(bytes_max));
            whole.reserve_exact(room - whole.len());
        }
        whole.extend_from_slice(&part);
    }
    Ok(whole.into())
}

/// Takes room for a large body, or returns the limit that is exceeded.
fn room(
    length: usize,
    requester: &Requester,
    app: &App,
) -> Result<(BudgetPermit, Option<BudgetPermit>), Limit> {
    let peer = requester.limits();
    let of_peer = peer
        .map(|peer| peer.body_bytes.take(length).ok_or(Limit::BodyBytesPerPeer))
        .transpose()?;
    let of_all = app.body_bytes().take(length).ok_or(Limit::BodyBytes)?;
    Ok((of_all, of_peer))
}

/// Appends the fields of a body.
///
/// A body that starts with `{` is JSON whatever its Content-Type: `curl -d` labels everything as a form.
fn parse(announced: Announced, body: &[u8], entries: &mut Entries) -> Result<(), Problem> {
    if body.trim_ascii_start().starts_with(b"{") {
        return formats::parse_json(body, entries)
            .map_err(|error| Problem::malformed(format!("the body is not valid JSON: {error}")));
    }
    match announced {
        Announced::Form => formats::parse_form(body, entries)
            .map_err(|_| Problem::malformed("the form is not valid UTF-8")),
        Announced::Json => Err(Problem::malformed("the body must be a JSON object: {…}")),
        Announced::Multipart => Err(Problem::unsupported_media_type(
            "multipart forms are not supported; send a URL-encoded form (curl -d, not -F) or JSON",
        )),
        Announced::Other => Err(Problem::unsupported_media_type(
            "send a JSON object as application/json, or a form as application/x-www-form-urlencoded",
        )),
    }
}
