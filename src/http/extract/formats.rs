//! The formats of fields: URL-encoded text, as in forms and query strings, and JSON objects. Unlike browsers, the first
//! refuses invalid UTF-8 instead of replacing it. Duplicates are kept, and nested objects byte for byte.

use std::borrow::Cow;
use std::fmt;
use std::string::FromUtf8Error;

use percent_encoding::percent_decode;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::fields::{ENTRIES_MAX, Entries, FieldEntry, Value};

/// Appends the fields of a form.
///
/// # Errors
/// A name or a value is not UTF-8 after decoding.
pub(super) fn parse_form(form: &[u8], entries: &mut Entries) -> Result<(), FromUtf8Error> {
    for pair in form.split(|&byte| byte == b'&') {
        if pair.is_empty() {
            continue;
        }
        if !entries.has_room() {
            entries.skip_rest();
            break;
        }
        let mut halves = pair.splitn(2, |&byte| byte == b'=');
        let (name, value) = (halves.next(), halves.next());
        entries.push(FieldEntry {
            name: decoded(name.unwrap_or_default())?,
            value: Value::Text(decoded(value.unwrap_or_default())?),
        });
    }
    Ok(())
}

fn decoded(text: &[u8]) -> Result<String, FromUtf8Error> {
    if !text.iter().any(|byte| matches!(byte, b'+' | b'%')) {
        return String::from_utf8(text.to_vec());
    }
    let mut text = Cow::Borrowed(text);
    if text.contains(&b'+') {
        for byte in text.to_mut() {
            if *byte == b'+' {
                *byte = b' ';
            }
        }
    }
    String::from_utf8(percent_decode(&text).collect())
}

/// Appends the fields of a JSON object.
///
/// # Errors
/// The position where the text is not valid JSON.
pub(super) fn parse_json(body: &[u8], entries: &mut Entries) -> serde_json::Result<()> {
    let Object { members, has_more } = serde_json::from_slice(body)?;
    for (name, raw) in members {
        let value = Value::of(raw)?;
        entries.push(FieldEntry { name, value });
    }
    if has_more {
        entries.skip_rest();
    }
    Ok(())
}

impl Value {
    fn of(raw: Box<RawValue>) -> serde_json::Result<Self> {
        Ok(match raw.get().as_bytes().first() {
            Some(b'"') => Self::Quoted(serde_json::from_str(raw.get())?),
            Some(b'n') => Self::Null,
            _ => Self::Json(raw),
        })
    }
}

/// The first members in the order of the text. Not a map, which would drop duplicates.
struct Object {
    members: Vec<(String, Box<RawValue>)>,
    has_more: bool,
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Members)
    }
}

struct Members;

impl<'de> Visitor<'de> for Members {
    type Value = Object;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
        let mut members = Vec::new();
        while members.len() < ENTRIES_MAX {
            let Some(member) = map.next_entry()? else {
                let has_more = false;
                return Ok(Object { members, has_more });
            };
            members.push(member);
        }
        let mut has_more = false;
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
            has_more = true;
        }
        Ok(Object { members, has_more })
    }
}
