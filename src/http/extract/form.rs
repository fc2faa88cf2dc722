//! URL-encoded fields: forms and query strings. Unlike browsers, it refuses invalid UTF-8 instead of replacing it.

use std::borrow::Cow;
use std::string::FromUtf8Error;

use percent_encoding::percent_decode;

use super::fields::{Entries, FieldEntry, Value};

/// Appends the fields of a form.
///
/// # Errors
/// A name or a value is not UTF-8 after decoding.
pub(super) fn parse(form: &[u8], entries: &mut Entries) -> Result<(), FromUtf8Error> {
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
