//! The fields of one request, taken out one by one with the type that the handler expects.

use std::borrow::Cow;
use std::time::Duration;

use serde_json::value::RawValue;

use crate::domain::duration;
use crate::http::problem::Problem;

/// How deep metadata may be nested. Answers put it three levels deeper, and common parsers stop at 128.
const DEPTH_MAX: usize = 64;
/// How much of a wrong value is repeated in the answer, in letters.
const ECHO_MAX: usize = 64;
/// How many fields are read of a request. All that there are, each given twice and with as many names as there may be, are
/// fewer.
pub(super) const ENTRIES_MAX: usize = 200;

/// What a request says, until it has all been taken out.
pub(in crate::http) struct Fields {
    entries: Entries,
}

/// The fields of a request as they come.
#[derive(Default)]
pub(super) struct Entries {
    read: Vec<FieldEntry>,
    has_more: bool,
}

impl Entries {
    pub(super) fn has_room(&self) -> bool {
        self.read.len() < ENTRIES_MAX
    }

    /// Adds a field if there is room. If not, the request will be refused, for one that was read or for having too many.
    pub(super) fn push(&mut self, entry: FieldEntry) {
        if self.has_room() {
            self.read.push(entry);
        } else {
            self.has_more = true;
        }
    }

    /// There are more fields, which nobody need read.
    pub(super) fn skip_rest(&mut self) {
        self.has_more = true;
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.read.iter().any(|entry| entry.name == name)
    }
}

/// One field as it was given.
pub(super) struct FieldEntry {
    pub(super) name: String,
    pub(super) value: Value,
}

/// A value, as far as it is known before anybody asks for a type.
pub(super) enum Value {
    /// From a form or a query string.
    Text(String),
    /// A string of JSON.
    Quoted(String),
    /// Any other JSON, byte for byte.
    Json(Box<RawValue>),
    /// JSON's null, which means the same as leaving the field out.
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
    pub(super) fn new(entries: Entries) -> Self {
        Self { entries }
    }

    /// Any text.
    pub(in crate::http) fn text(&mut self, name: &'static str) -> Result<Option<String>, Problem> {
        match self.take(name)? {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Text(text) | Value::Quoted(text)) => Ok(Some(text)),
            Some(Value::Json(_)) => Err(Problem::field(name, "must be a string")),
        }
    }

    /// Several texts: an array of strings in JSON; elsewhere the field is repeated, because there is no letter that
    /// could stand between the texts and not in them.
    pub(in crate::http) fn texts(
        &mut self,
        name: &'static str,
    ) -> Result<Option<Vec<String>>, Problem> {
        let (mut repeated, mut array) = (Vec::new(), None);
        let taken = self.entries.read.extract_if(.., |entry| entry.name == name);
        for FieldEntry { value, .. } in taken {
            match value {
                Value::Null => {}
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
        // Numbers of JSON have no unit, and are refused with the same words as a string without one.
        duration::parse(&echo(value.as_str()))
            .map(Some)
            .map_err(|invalid| Problem::field(name, invalid.to_string()))
    }

    /// A whole number, written as a number or as digits. Numbers that are too large saturate and fail at a bound.
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
        // It is read once in full, because others will have to read it: it must not break the answers about the lock.
        let value = serde_json::from_str(raw.get())
            .map_err(|error| Problem::field(name, format!("cannot be read: {error}")))?;
        if depth(&value) > DEPTH_MAX {
            let problem = format!("is nested deeper than {DEPTH_MAX} levels");
            return Err(Problem::field(name, problem));
        }
        Ok(Some(raw))
    }

    /// Refuses what nobody has taken out: a misspelt `ttl` must never be a default.
    ///
    /// # Errors
    /// Names the field, and the one among `known` that was probably meant.
    pub(in crate::http) fn finish(self, known: &[&'static str]) -> Result<(), Problem> {
        let Entries { read, has_more } = self.entries;
        let Some(FieldEntry { name, .. }) = read.into_iter().next() else {
            return match has_more {
                true => Err(Problem::too_many_fields(ENTRIES_MAX)),
                false => Ok(()),
            };
        };
        let name = echo(&name).into_owned();
        let suggestion = suggestion(&name, known);
        // What changes one lock takes a token; a listing and a watch are of no single lock.
        let detail = if name == "names" && known.contains(&"token") {
            "several locks at once are acquired, renewed and released at /locks, not here"
                .to_owned()
        } else if let Some(suggestion) = suggestion {
            format!("there is no field {name:?}; did you mean {suggestion:?}?")
        } else if known.is_empty() {
            format!("there is no field {name:?}; this operation takes none")
        } else {
            format!(
                "there is no field {name:?}; there are: {}",
                known.join(", ")
            )
        };
        Err(Problem::unknown_field(name, suggestion, detail))
    }

    /// Takes out a field, wherever it was given. Saying the same twice is fine.
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

/// The known field that differs by a slip of the finger, by case, or by a unit at its end (`ttl_ms`).
fn suggestion(name: &str, known: &[&'static str]) -> Option<&'static str> {
    let name = name.to_ascii_lowercase();
    let distance = |known: &str| strsim::damerau_levenshtein(&name, known);
    known
        .iter()
        .copied()
        .filter(|known| name.starts_with(known) || distance(known) <= (known.len() / 3).max(1))
        .min_by_key(|known| distance(known))
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

/// The beginning of what a client sent, short enough to be sent back.
pub(in crate::http) fn echo(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(ECHO_MAX) {
        None => Cow::Borrowed(text),
        Some((end, _)) => Cow::Owned(format!("{}…", &text[..end])),
    }
}
