//! Reads the answer of a script item by item. `decode` knows what the items mean.
//!
//! Every answer begins with the eight bytes that the request sent, so it can never be taken for the answer to another
//! request. Then comes a code, which the header of the script names. Most answers are lists; the fast paths pack theirs
//! into one string (`record`), because a list costs Redis as much as another command.

use std::time::Duration;

use redis::Value;

use super::record::Packed;

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

    /// A string of any bytes.
    pub(super) fn bytes(&mut self) -> Result<Vec<u8>, Malformed> {
        bytes_of(self.0.next().ok_or(Malformed)?)
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

    #[test]
    fn an_answer_belongs_to_one_request() {
        let answers = |request: u64| {
            let id = request.to_be_bytes().to_vec();
            let packed = Value::BulkString([&id[..], b"rest"].concat());
            let list = Value::Array(vec![Value::BulkString(id), Value::Int(1)]);
            [packed, list]
        };
        for (own, other) in answers(7).into_iter().zip(answers(8)) {
            assert!(Reply::to(7, own).is_some());
            assert!(Reply::to(7, other).is_none());
        }
    }
}
