//! The fields of one request, taken out one by one with the type that the handler expects.

use std::borrow::Cow;
use std::time::Duration;

use serde_json::value::RawValue;

use crate::config::did_you_mean;
use crate::domain::duration;
use crate::http::problem::Problem;

/// How deep metadata may be nested. Responses nest it three levels deeper, and common parsers stop at 128.
const DEPTH_MAX: usize = 64;
/// How many characters of a wrong value the response repeats.
const ECHO_MAX: usize = 64;
/// How many fields of a request are read. No valid request has more, even if it repeats each field and has the maximum
/// number of names.
pub(super) const ENTRIES_MAX: usize = 200;

/// The fields of a request that no handler has taken out yet.
pub(in crate::http) struct Fields {
    entries: Entries,
}

/// The fields of a request, in the order of their arrival.
#[derive(Default)]
pub(super) struct Entries {
    read: Vec<FieldEntry>,
    has_more: bool,
}

impl Entries {
    pub(super) fn has_room(&self) -> bool {
        self.read.len() < ENTRIES_MAX
    }

    /// Adds a field if there is room. Otherwise the request will be refused, for one of the fields read or for having
    /// too many.
    pub(super) fn push(&mut self, entry: FieldEntry) {
        if self.has_room() {
            self.read.push(entry);
        } else {
            self.has_more = true;
        }
    }

    /// Records that there are more fields, which are not read.
    pub(super) fn skip_rest(&mut self) {
        self.has_more = true;
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.read.iter().any(|entry| entry.name == name)
    }
}

/// One field as the client sent it.
pub(super) struct FieldEntry {
    pub(super) name: String,
    pub(super) value: Value,
}

/// A value whose type is not known yet.
pub(super) enum Value {
    /// From a form or a query string.
    Text(String),
    /// A JSON string.
    Quoted(String),
    /// Any other JSON, byte for byte.
    Json(Box<RawValue>),
    /// JSON null, which is the same as leaving the field out.
    Null,
}

impl Value {
    fn as_str(&self) -> &str {
        match self {
            Self::Text(text) | Self::Quoted(text) => text,
            Self::Json(raw) => raw.get(),
            Self::Null => "null",
        }
    }
}

impl Fields {
    /// No fields.
    pub(in crate::http) fn none() -> Self {
        Self::new(Entries::default())
    }

    pub(super) fn new(entries: Entries) -> Self {
        Self { entries }
    }

    /// A text.
    pub(in crate::http) fn text(&mut self, name: &'static str) -> Result<Option<String>, Problem> {
        match self.take(name)? {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Text(text) | Value::Quoted(text)) => Ok(Some(text)),
            Some(Value::Json(_)) => Err(Problem::field(name, "must be a string")),
        }
    }

    /// Several texts: an array of strings in JSON, a repeated field elsewhere. A text with a comma is allowed only in
    /// JSON, because elsewhere it is most likely meant as a list.
    pub(in crate::http) fn texts(
        &mut self,
        name: &'static str,
    ) -> Result<Option<Vec<String>>, Problem> {
        let (mut repeated, mut array) = (Vec::new(), None);
        let taken = self.entries.read.extract_if(.., |entry| entry.name == name);
        for FieldEntry { value, .. } in taken {
            match value {
                Value::Null => {}
                Value::Text(text) if text.contains(',') => {
                    let problem = format!(
                        "{:?} is one text; repeat the field ({name}=a&{name}=b), or send JSON if a comma belongs to it",
                        echo(&text)
                    );
                    return Err(Problem::field(name, problem));
                }
                Value::Text(text) => repeated.push(text),
                Value::Quoted(_) => {
                    return Err(Problem::field(name, "must be an array of strings in JSON"));
                }
                Value::Json(raw) => {
                    let texts: Vec<String> = serde_json::from_str(raw.get())
                        .map_err(|_| Problem::field(name, "must be an array of strings in JSON"))?;
                    if array.replace(texts).is_some() {
                        return Err(Problem::field(name, "is given twice"));
                    }
                }
            }
        }
        match (array, repeated.is_empty()) {
            (Some(_), false) => Err(Problem::field(name, "is given in the body and elsewhere")),
            (Some(array), true) => Ok(Some(array)),
            (None, is_missing) => Ok((!is_missing).then_some(repeated)),
        }
    }

    /// A duration with its unit.
    pub(in crate::http) fn duration(
        &mut self,
        name: &'static str,
    ) -> Result<Option<Duration>, Problem> {
        let Some(value) = self.take(name)? else {
            return Ok(None);
        };
        // A JSON number has no unit and is refused with the same message as a string without one.
        duration::parse(&echo(value.as_str()))
            .map(Some)
            .map_err(|invalid| Problem::field(name, invalid.to_string()))
    }

    /// A whole number, as a JSON number or as digits. Numbers that are too large saturate and fail a later bounds
    /// check.
    pub(in crate::http) fn number(&mut self, name: &'static str) -> Result<Option<u64>, Problem> {
        let Some(value) = self.take(name)? else {
            return Ok(None);
        };
        let digits = value.as_str();
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            let problem = format!("{:?} is not a whole number", echo(digits));
            return Err(Problem::field(name, problem));
        }
        Ok(Some(digits.parse().unwrap_or(u64::MAX)))
    }

    /// `true` or `false`.
    pub(in crate::http) fn flag(&mut self, name: &'static str) -> Result<Option<bool>, Problem> {
        match self.take(name)?.as_ref().map(Value::as_str) {
            None => Ok(None),
            Some("true") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(_) => Err(Problem::field(name, "must be true or false")),
        }
    }

    /// The text of a JSON object, which only a JSON body can carry.
    pub(in crate::http) fn json_object(
        &mut self,
        name: &'static str,
    ) -> Result<Option<Box<RawValue>>, Problem> {
        let raw = match self.take(name)? {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::Json(raw)) if raw.get().starts_with('{') => raw,
            Some(Value::Json(_) | Value::Text(_) | Value::Quoted(_)) => {
                let problem = "must be a JSON object, and the body must be JSON";
                return Err(Problem::field(name, problem));
            }
        };
        // Parsed once in full, because it becomes part of later responses about the lock and must not break them.
        let value = serde_json::from_str(raw.get())
            .map_err(|error| Problem::field(name, format!("cannot be read: {error}")))?;
        if depth(&value) > DEPTH_MAX {
            let problem = format!("is nested deeper than {DEPTH_MAX} levels");
            return Err(Problem::field(name, problem));
        }
        Ok(Some(raw))
    }

    /// Refuses fields that the handler has not taken out: a misspelt `ttl` must not silently become the default.
    ///
    /// # Errors
    /// The unknown field, and the one of `known` that was probably meant.
    pub(in crate::http) fn finish(self, known: &[&'static str]) -> Result<(), Problem> {
        let Entries { read, has_more } = self.entries;
        let Some(FieldEntry { name, .. }) = read.into_iter().next() else {
            return match has_more {
                true => Err(Problem::too_many_fields(ENTRIES_MAX)),
                false => Ok(()),
            };
        };
        let name = echo(&name).into_owned();
        let suggestion = did_you_mean(&name, known.iter().copied());
        // Only operations that change one lock take a token, so this is not a listing or a watch.
        let detail = if name == "names" && known.contains(&"token") {
            "this path is for one lock; acquire, renew and release several locks at /locks"
                .to_owned()
        } else if let Some(suggestion) = suggestion {
            format!("unknown field {name:?}; did you mean {suggestion:?}?")
        } else if known.is_empty() {
            format!("unknown field {name:?}; this operation has no fields")
        } else {
            format!(
                "unknown field {name:?}; the fields are: {}",
                known.join(", ")
            )
        };
        Err(Problem::unknown_field(name, suggestion, detail))
    }

    /// Takes out a field, wherever the client sent it. Sending the same value twice is allowed.
    fn take(&mut self, name: &'static str) -> Result<Option<Value>, Problem> {
        let mut found: Option<Value> = None;
        let taken = self.entries.read.extract_if(.., |entry| entry.name == name);
        for FieldEntry { value, .. } in taken {
            match &found {
                _ if matches!(value, Value::Null) => {}
                None => found = Some(value),
                Some(earlier) if earlier.as_str() == value.as_str() => {}
                Some(_) => {
                    return Err(Problem::field(name, "is given twice with different values"));
                }
            }
        }
        Ok(found)
    }
}

fn depth(value: &serde_json::Value) -> usize {
    match value {
        serde_json::Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        serde_json::Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
        serde_json::Value::Null
        | serde_json::Value::Bool(_)
        | serde_json::Value::Number(_)
        | serde_json::Value::String(_) => 0,
    }
}

/// The beginning of a text from the client, short enough to be repeated in the response.
pub(in crate::http) fn echo(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(ECHO_MAX) {
        None => Cow::Borrowed(text),
        Some((end, _)) => Cow::Owned(format!("{}…", &text[..end])),
    }
}
