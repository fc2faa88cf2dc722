//! The operations on locks: they turn fields into a claim, and an outcome into a response. Refusals are in `problem`.
//!
//! A request names one lock in its path or several in the field `names`; both share the code here.

mod acquire;
mod grant;
mod hold;
mod read;
mod release;
mod renew;
mod terraform;

use std::borrow::Cow;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;

use super::extract::Fields;
use super::negotiate::preferred;
use super::problem::Problem;
use super::routes::Route;
use crate::domain::{InvalidName, LockName, LockNames, NotHeld, Token};
pub(super) use acquire::{ACQUIRE_FIELDS, ACQUIRE_SEVERAL_FIELDS, acquire};
pub(super) use read::{
    LIST_FIELDS, PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX, checked_prefix, inspect, list, state,
};
pub(super) use release::{RELEASE_FIELDS, RELEASE_SEVERAL_FIELDS, evict_only, release};
pub(super) use renew::{RENEW_FIELDS, RENEW_SEVERAL_FIELDS, renew};
pub(super) use terraform::{LockInfo, TERRAFORM_FIELDS, terraform};

/// The header that carries the token both ways.
pub(super) const LOCK_TOKEN: HeaderName = HeaderName::from_static("lock-token");
/// The header that carries the fencing token.
pub(super) const FENCING_TOKEN: HeaderName = HeaderName::from_static("fencing-token");
/// The media type of server-sent events.
pub(super) const EVENT_STREAM: &str = "text/event-stream";

/// How a request names its locks, which determines the form of the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RouteForm {
    /// One lock, in the path.
    Single,
    /// One or several, in the field `names`.
    Multi,
}

impl RouteForm {
    /// The form of a path, and the lock that it names.
    fn of(path: &str) -> Result<(Self, Option<LockName>), InvalidName> {
        if path == Route::Locks.template() {
            return Ok((Self::Multi, None));
        }
        Ok((Self::Single, Some(lock_name(path)?)))
    }

    /// The problem, without lock names if the request names its only lock in the path, and with them otherwise.
    fn adapt(self, problem: Problem) -> Problem {
        match self {
            Self::Single => problem.of_one_lock(),
            Self::Multi => problem.of_several_locks(),
        }
    }

    /// The problem of a token that does not hold these locks. `others` says what was done about the other ones.
    fn not_held(self, mut lost: Vec<NotHeld>, others: &'static str) -> Problem {
        match (self, lost.pop()) {
            (Self::Single, Some(lost)) => Problem::not_holder(lost).of_one_lock(),
            (Self::Single | Self::Multi, last) => {
                lost.extend(last);
                Problem::lost(lost, others)
            }
        }
    }
}

/// The name of the lock, decoded exactly once from the raw path: axum's own decoding refuses invalid UTF-8 with a plain
/// text response, before any handler runs.
pub(super) fn lock_name(path: &str) -> Result<LockName, InvalidName> {
    let below = |root| path.strip_prefix(root);
    let encoded = below("/locks/").or_else(|| below("/terraform/"));
    let encoded = encoded.unwrap_or_default();
    if !encoded.contains('%') {
        return LockName::parse(encoded.as_bytes());
    }
    let bytes: Cow<'_, [u8]> = percent_decode_str(encoded).into();
    LockName::parse(&bytes)
}

/// A change of a lock with an empty name, for example from an empty variable.
pub(super) async fn nameless() -> Problem {
    InvalidName::Empty.into()
}

/// The names of the locks: the one in the path, or those in the field `names`, if it is present.
fn lock_names(
    in_path: Option<LockName>,
    fields: &mut Fields,
) -> Result<Option<LockNames>, Problem> {
    if let Some(name) = in_path {
        return Ok(Some(name.into()));
    }
    let Some(texts) = fields.texts("names")? else {
        return Ok(None);
    };
    if texts.len() > LockNames::COUNT_MAX {
        let count_max = LockNames::COUNT_MAX;
        let problem = format!("more than {count_max} names are out of range; use 1 to {count_max}");
        return Err(Problem::field("names", problem));
    }
    let names = texts.iter().map(|text| {
        LockName::parse(text.as_bytes())
            .map_err(|invalid| Problem::invalid_name_among(text, &invalid))
    });
    Ok(Some(LockNames::several(
        names.collect::<Result<_, Problem>>()?,
    )?))
}

fn names_missing() -> Problem {
    Problem::field("names", "is required; list the locks, like [\"a\",\"b\"]")
}

/// The fields of an operation on several locks: `names`, and the fields of the operation on one.
const fn with_names<const ONE: usize, const SEVERAL: usize>(
    of_one: [&'static str; ONE],
) -> [&'static str; SEVERAL] {
    let mut all = ["names"; SEVERAL];
    let mut index = 0;
    while index < ONE {
        all[index + 1] = of_one[index];
        index += 1;
    }
    all
}

/// The token in the header, parsed before the body is read and combined with the field `token` afterwards.
struct HeaderToken(Result<Option<Token>, Problem>);

impl HeaderToken {
    fn of(headers: &HeaderMap) -> Self {
        let values = headers.get_all(LOCK_TOKEN).iter();
        Self(values.into_iter().try_fold(None, |earlier, value| {
            // A value with non-ASCII bytes is not a UUID; it becomes the empty text, which is refused with the same
            // message.
            let token = Token::parse(value.to_str().unwrap_or_default().trim_ascii())?;
            same_token(earlier, token).map(Some)
        }))
    }

    /// The token that the client sent, in the header or as a field; if it sent both, they must be equal.
    fn or_field(self, fields: &mut Fields) -> Result<Option<Token>, Problem> {
        let field = fields.text("token")?;
        let field = field.as_deref().map(Token::parse).transpose()?;
        match self.0? {
            Some(token) => same_token(field, token).map(Some),
            None => Ok(field),
        }
    }
}

fn same_token(earlier: Option<Token>, token: Token) -> Result<Token, Problem> {
    if earlier.is_some_and(|earlier| earlier != token) {
        let problem = "two different tokens are given; send one";
        return Err(Problem::field("token", problem));
    }
    Ok(token)
}

/// The token as a header value, marked as sensitive, so that header logs and HTTP/2 header compression leave it out.
pub(super) fn secret(token: Token) -> HeaderValue {
    let mut buffer = uuid::Uuid::encode_buffer();
    let text = token.expose().hyphenated().encode_lower(&mut buffer);
    let mut value = HeaderValue::from_str(text).expect("a UUID is printable ASCII");
    value.set_sensitive(true);
    value
}
