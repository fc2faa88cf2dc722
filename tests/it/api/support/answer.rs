//! A complete response, and its text without what differs from run to run.

use std::fmt::Write;

use axum::body::Body;
use axum::http::{HeaderMap, Response};
use http_body_util::BodyExt;
use serde_json::Value;
use uuid::Uuid;

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) async fn of(response: Response<Body>) -> Self {
        let (parts, body) = response.into_parts();
        let body = body.collect().await.expect("the body is complete");
        Self {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body: body.to_bytes().to_vec(),
        }
    }

    #[track_caller]
    pub(crate) fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name);
        let value = value.unwrap_or_else(|| panic!("no {name} in {:?}", self.headers));
        value.to_str().expect("printable")
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("answers are UTF-8")
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// The code of a problem; checks the members that all problems have.
    #[track_caller]
    pub(crate) fn code(&self) -> String {
        let body = self.json();
        let code = body["code"].as_str().expect("a code").to_owned();
        assert_eq!(self.header("content-type"), "application/problem+json");
        assert_eq!(body["status"], self.status);
        assert_eq!(body["type"], format!("/problems/{code}"));
        assert_eq!(body["instance"], self.header("x-request-id"));
        for sentence in ["title", "detail"] {
            assert!(
                !body[sentence].as_str().unwrap_or_default().is_empty(),
                "{body}"
            );
        }
        code
    }

    /// The status and the code, for comparison in a table.
    #[track_caller]
    pub(crate) fn refusal(&self) -> (u16, String) {
        (self.status, self.code())
    }

    #[track_caller]
    pub(crate) fn detail(&self) -> String {
        self.json()["detail"].as_str().expect("a detail").to_owned()
    }

    /// Status, headers and body, for a snapshot.
    pub(crate) fn shape(&self) -> String {
        let mut text = format!("{}\n", self.status);
        let mut names: Vec<_> = self.headers.keys().map(|name| name.as_str()).collect();
        names.sort_unstable();
        for name in names {
            let value = match name {
                "lock-token" => uuid_named("token", self.header(name)),
                "x-request-id" => uuid_named("request id", self.header(name)),
                "fencing-token" => "[fencing token]",
                "content-length" => continue,
                name => self.header(name),
            };
            writeln!(text, "{name}: {value}").expect("memory");
        }
        match serde_json::from_slice::<Value>(&self.body) {
            Ok(mut body) => {
                name_what_varies(&mut body);
                writeln!(text, "\n{body:#}").expect("memory");
            }
            Err(_) => write!(text, "\n{}", self.text()).expect("memory"),
        }
        text
    }
}

#[track_caller]
fn uuid_named<'a>(name: &'a str, value: &str) -> &'a str {
    Uuid::try_parse(value).unwrap_or_else(|_| panic!("{name} {value:?} is not a UUID"));
    match name {
        "token" => "[token]",
        _ => "[request id]",
    }
}

fn name_what_varies(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(name_what_varies),
        Value::Object(members) => {
            for (name, member) in members {
                match name.as_str() {
                    "token" => *member = uuid_named("token", text(member)).into(),
                    "instance" => *member = uuid_named("request id", text(member)).into(),
                    "detail" => *member = without_time_left(text(member)).into(),
                    "acquired_at" | "expires_at" | "waiting_since" => {
                        *member = moment(text(member)).into()
                    }
                    "fencing_token" | "expires_in_ms" | "retry_after_ms" | "free_in_ms"
                        if member.is_u64() =>
                    {
                        *member = format!("[{name}]").into();
                    }
                    _ => name_what_varies(member),
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn text(value: &Value) -> &str {
    value.as_str().expect("text")
}

/// The detail of a refusal, which says how long the lock is held.
fn without_time_left(detail: &str) -> String {
    let parts = detail.split_once(" for ");
    match parts.and_then(|(before, rest)| Some((before, rest.split_once(" more")?.1))) {
        Some((before, after)) => format!("{before} for [time left] more{after}"),
        None => detail.to_owned(),
    }
}

/// RFC 3339, UTC, exactly three fractional digits.
fn moment(text: &str) -> &'static str {
    humantime::parse_rfc3339(text).expect("a time of RFC 3339");
    assert_eq!(text.len(), "2026-01-01T00:00:00.000Z".len(), "{text}");
    "[time]"
}
