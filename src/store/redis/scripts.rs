//! The scripts, one for each verb, and how to read an answer item by item. `decode` knows what the items mean, and
//! `pool` sends the scripts.
//!
//! Every answer begins with the eight bytes that the request sent, so it can never be taken for the answer to another
//! request. Then comes a code, which the header of the script names. Most answers are lists; the fast paths pack theirs
//! into one string (`record`), because a list costs Redis as much as another command.

use std::sync::LazyLock;
use std::time::Duration;

use redis::Value;

use super::constants;
use super::record::Packed;

/// A script and the SHA-1 under which Redis caches it.
pub(super) struct Script {
    pub(super) source: String,
    pub(super) sha: String,
}

impl Script {
    fn new(source: &str) -> Self {
        let source = with_constants(source);
        let sha = redis::Script::new(&source).get_hash().to_owned();
        Self { source, sha }
    }
}

/// The source of one part of a script: a file, or several that are included together, in the order in which they depend
/// on each other.
macro_rules! part {
    (lock) => {
        concat!(
            part!("lease"),
            part!("clock_step"),
            part!("ending"),
            part!("holders"),
            part!("state")
        )
    };
    (queue) => {
        concat!(part!("ticket"), part!("queue"), part!("view"))
    };
    ($file:literal) => {
        include_str!(concat!("lua/", $file, ".lua"))
    };
}

/// A script consists of its own file, the files that it includes, and those that continue it where its fast path ends.
macro_rules! scripts {
    ($($name:ident: [$($part:tt)+],)+) => {
        $(
            pub(super) static $name: LazyLock<Script> =
                LazyLock::new(|| Script::new(concat!($(part!($part)),+)));
        )+

        #[cfg(test)]
        const SOURCES: &[&str] = &[$(concat!($(part!($part)),+)),+];
    };
}

scripts! {
    ACQUIRE: ["clock" "fence" "acquire" "acquire_reserved" "times" "acquire_options" lock queue "acquire_held" "acquire_replay" "acquire_conflicts" "acquire_wait" "acquire_grant"],
    SUSPEND: ["clock" "times" lock queue "suspend"],
    RENEW: ["clock" "renew" "times" "renew_options" lock queue "renew_general"],
    RELEASE: ["clock" "release" "times" lock queue "release_general"],
    WITHDRAW: ["clock" "times" lock queue "withdraw"],
    EVICT: ["clock" "times" lock queue "evict"],
    INSPECT: ["clock" "times" lock queue "inspect"],
    SCAN: ["clock" "took" "times" lock "scan"],
    PAGE: ["clock" "took" "times" lock queue "page"],
    SHIFT: ["clock" "took" "times" lock "shift"],
    SHIFT_HOLDERS: ["clock" "took" "times" lock "shift_holders"],
    RECOVERY: ["clock" "recovery"],
    ANNOUNCE: ["announce"],
}

/// A script with the values of its constants, and without its comments.
fn with_constants(source: &str) -> String {
    let mut script = String::with_capacity(source.len());
    for piece in pieces(source) {
        if piece.starts_with("--") {
            continue;
        }
        match constants::literal(piece) {
            Some(literal) => script.push_str(&literal),
            None => script.push_str(piece),
        }
    }
    script
}

/// The words, texts and comments of a script, and what is between them.
fn pieces(mut rest: &str) -> impl Iterator<Item = &str> {
    let is_of_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let length = if rest.starts_with("--") {
            rest.find('\n')
        } else if first == '\'' {
            // An escaped quote would end the text too early, so the scripts have none.
            rest[1..].find('\'').map(|end| end + 2)
        } else if is_of_word(first) {
            rest.find(|letter| !is_of_word(letter))
        } else {
            let first_len = first.len_utf8();
            let ends = |letter| is_of_word(letter) || "-'".contains(letter);
            rest[first_len..].find(ends).map(|end| end + first_len)
        };
        let (piece, after) = rest.split_at(length.unwrap_or(rest.len()));
        rest = after;
        Some(piece)
    })
}

/// How many bytes of the request the answer repeats.
const REQUEST_LEN: usize = size_of::<u64>();

/// An answer is not in the form that its script returns.
#[derive(Debug)]
pub(super) struct Malformed;

/// The answer of a script that does nothing after its deadline.
pub(super) enum InTime<T> {
    Done(T),
    /// The request arrived after its time limit, at this time in Redis.
    Late {
        redis_us: u64,
    },
}

impl<T> InTime<T> {
    /// The result of a script that has no deadline.
    pub(super) fn done(self) -> Result<T, Malformed> {
        match self {
            Self::Done(answer) => Ok(answer),
            Self::Late { .. } => Err(Malformed),
        }
    }
}

/// An answer after its request id, or a list within one, read from the front.
pub(super) struct Reply(std::vec::IntoIter<Value>);

impl Reply {
    /// Accepts an answer if it belongs to `request`.
    pub(super) fn to(request: u64, value: Value) -> Option<Self> {
        let mut items = if let Value::BulkString(mut bytes) = value {
            if bytes.len() < REQUEST_LEN {
                return None;
            }
            let packed = bytes.split_off(REQUEST_LEN);
            vec![Value::BulkString(bytes), Value::BulkString(packed)].into_iter()
        } else if let Value::Array(items) = value {
            items.into_iter()
        } else {
            return None;
        };
        match items.next() {
            Some(Value::BulkString(bytes)) if bytes == request.to_be_bytes() => Some(Self(items)),
            _ => None,
        }
    }

    /// The string of a fast path. Other answers begin with a number.
    pub(super) fn packed(&mut self) -> Option<Packed> {
        match self.0.as_slice() {
            [Value::BulkString(bytes)] => Some(Packed::new(bytes.clone())),
            _ => None,
        }
    }

    pub(super) fn millis(&mut self) -> Result<Duration, Malformed> {
        self.number().map(Duration::from_millis)
    }

    /// A whole number, which Lua sends as an integer and a hash field holds as text.
    pub(super) fn number(&mut self) -> Result<u64, Malformed> {
        match self.0.next() {
            Some(Value::Int(number)) => u64::try_from(number).map_err(|_| Malformed),
            Some(Value::BulkString(bytes)) => std::str::from_utf8(&bytes)
                .ok()
                .and_then(|text| text.parse().ok())
                .ok_or(Malformed),
            _ => Err(Malformed),
        }
    }

    /// A text; empty for a missing field.
    pub(super) fn text(&mut self) -> Result<String, Malformed> {
        match self.0.next() {
            // A script sends a number that it computed as an integer.
            Some(Value::Int(number)) => Ok(number.to_string()),
            Some(Value::Nil) => Ok(String::new()),
            Some(value) => String::from_utf8(bytes_of(value)?).map_err(|_| Malformed),
            None => Err(Malformed),
        }
    }

    /// A number; none for an empty text.
    pub(super) fn optional(&mut self) -> Result<Option<u64>, Malformed> {
        match self.text()?.as_str() {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| Malformed),
        }
    }

    /// A list within the answer.
    pub(super) fn list(&mut self) -> Result<Self, Malformed> {
        match self.0.next() {
            Some(Value::Array(items)) => Ok(Self(items.into_iter())),
            _ => Err(Malformed),
        }
    }

    /// Whether all items have been read.
    pub(super) fn is_read(&self) -> bool {
        self.0.as_slice().is_empty()
    }

    /// The remaining items, unchanged.
    pub(super) fn keys(self) -> Result<Vec<Vec<u8>>, Malformed> {
        self.0.map(bytes_of).collect()
    }
}

fn bytes_of(value: Value) -> Result<Vec<u8>, Malformed> {
    if let Value::BulkString(bytes) = value {
        Ok(bytes)
    } else {
        Err(Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_constant_name(piece: &str) -> bool {
        let mut letters = piece.chars();
        let is_upper = |letter: char| letter.is_ascii_uppercase() || "_0123456789".contains(letter);
        letters.next().is_some_and(|it| it.is_ascii_uppercase()) && letters.all(is_upper)
    }

    fn used_constants() -> impl Iterator<Item = &'static str> {
        let pieces = SOURCES.iter().flat_map(|source| pieces(source));
        pieces.filter(|piece| is_constant_name(piece) && !["KEYS", "ARGV"].contains(piece))
    }

    #[test]
    fn the_scripts_use_exactly_the_constants_that_exist() {
        for name in used_constants() {
            assert!(constants::literal(name).is_some(), "{name} has no value");
        }
        for name in constants::names() {
            let is_used = used_constants().any(|used| used.trim_end_matches("_TEXT") == name);
            assert!(is_used, "no script uses {name}");
        }
    }

    #[test]
    fn a_constant_is_replaced_by_its_value_except_in_texts_and_longer_names() {
        let source = "local a = TOMBSTONE_MS_TEXT -- of TOMBSTONE_MS\nb(BUCKETS - 1, 'BUCKETS -- ', MY_BUCKETS)\n";
        assert_eq!(
            with_constants(source),
            "local a = '60000' \nb(1024 - 1, 'BUCKETS -- ', MY_BUCKETS)\n"
        );
        for source in SOURCES {
            assert_eq!(pieces(source).collect::<String>(), *source);
            assert!(!source.contains("\\'") && !source.contains('"'));
        }
    }
}
