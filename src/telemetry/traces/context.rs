//! What identifies a span, and how a caller says that a request belongs to its own: the headers `traceparent` and
//! `tracestate` of W3C Trace Context.

use std::fmt;
use std::num::{NonZeroU64, NonZeroU128};
use std::sync::Arc;

/// The length of the header in version 00. Later versions may only append to it.
const HEADER_BYTES: usize = 55;
/// The longest state that is kept. The specification asks for no more.
const STATE_BYTES_MAX: usize = 512;
/// The most entries that a state may have, and the longest key and value of one.
const STATE_ENTRIES_MAX: usize = 32;
const STATE_PART_BYTES_MAX: usize = 256;

/// Identifies a trace: all spans of all services that took part in one thing. Displayed as in the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceId(NonZeroU128);

/// Identifies a span in its trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanId(NonZeroU64);

/// Identifies a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanContext {
    /// The trace that the span is part of.
    pub trace_id: TraceId,
    /// The span in it.
    pub span_id: SpanId,
}

/// The span of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// The span that the request belongs to.
    pub span: SpanContext,
    /// Whether the caller records its span.
    pub is_sampled: bool,
}

/// What the systems that take part in a trace hand on with it, each in an entry of its own. Nothing here reads it. Cloning
/// is cheap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceState(Arc<str>);

impl TraceId {
    pub(super) fn random() -> Self {
        Self(NonZeroU128::new(fastrand::u128(..)).unwrap_or(NonZeroU128::MIN))
    }

    pub(super) fn to_bytes(self) -> [u8; 16] {
        self.0.get().to_be_bytes()
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:032x}", self.0)
    }
}

impl SpanId {
    pub(super) fn random() -> Self {
        Self(NonZeroU64::new(fastrand::u64(..)).unwrap_or(NonZeroU64::MIN))
    }

    pub(super) fn to_bytes(self) -> [u8; 8] {
        self.0.get().to_be_bytes()
    }
}

impl TraceParent {
    /// Parses the header, like `00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01`. One that is malformed means
    /// nothing, as the specification asks: the request is then one without a caller that traces.
    #[must_use]
    pub fn parse(header: &[u8]) -> Option<Self> {
        let (known, later) = header.split_at_checked(HEADER_BYTES)?;
        let mut parts = known.split(|byte| *byte == b'-');
        let mut part = |digits| parts.next().filter(|part| part.len() == digits);
        let (version, trace_id, span_id, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
        let is_complete = match hexadecimal(version)? {
            0 => later.is_empty(),
            0xff => false,
            _ => later.is_empty() || later.starts_with(b"-"),
        };
        let span = SpanContext {
            trace_id: TraceId(NonZeroU128::new(hexadecimal(trace_id)?)?),
            span_id: SpanId(NonZeroU64::new(u64::try_from(hexadecimal(span_id)?).ok()?)?),
        };
        let is_sampled = hexadecimal(flags)? & 1 == 1;
        is_complete.then_some(Self { span, is_sampled })
    }
}

impl TraceState {
    /// Parses the header, which may have several values, like `rojo=00f067aa0ba902b7,congo=t61rcWkgMzE`. It is kept as it
    /// is, or not at all: what is malformed means nothing, and what is longer than 512 bytes has no room.
    #[must_use]
    pub fn parse<'a>(values: impl IntoIterator<Item = &'a [u8]>) -> Option<Self> {
        let mut state = String::new();
        for value in values {
            if !state.is_empty() {
                state.push(',');
            }
            let room = STATE_BYTES_MAX.checked_sub(state.len())?;
            let value = std::str::from_utf8(value).ok()?;
            state.push_str(Some(value).filter(|value| value.len() <= room)?);
        }
        let entries = state
            .split(',')
            .map(|entry| entry.trim_matches([' ', '\t']));
        let mut keys = Vec::new();
        for entry in entries.filter(|entry| !entry.is_empty()) {
            let (key, value) = entry.split_once('=')?;
            if !is_key(key) || !is_value(value) || keys.contains(&key) {
                return None;
            }
            keys.push(key);
        }
        let is_kept = (1..=STATE_ENTRIES_MAX).contains(&keys.len());
        is_kept.then(|| Self(state.into()))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Whether it is a key of an entry. Level 2 of the specification allows all that level 1 does.
fn is_key(key: &str) -> bool {
    let is_first = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let mut bytes = key.bytes();
    key.len() <= STATE_PART_BYTES_MAX
        && bytes.next().is_some_and(is_first)
        && bytes.all(|byte| is_first(byte) || b"_-*/@".contains(&byte))
}

/// Whether it is the value of an entry: printable, and without what separates entries.
fn is_value(value: &str) -> bool {
    let is_in_value = |byte| matches!(byte, b' '..=b'~') && !b",=".contains(&byte);
    (1..=STATE_PART_BYTES_MAX).contains(&value.len()) && value.bytes().all(is_in_value)
}

/// The number with these digits; the specification has no upper-case ones.
fn hexadecimal(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |number: u128, digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_header_has_the_ids_and_whether_the_caller_records() {
        let parent = TraceParent::parse(HEADER.as_bytes()).expect("valid");
        let trace_id = parent.span.trace_id;
        assert_eq!(trace_id.to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(trace_id.to_bytes()[..2], [0x4b, 0xf9]);
        assert_eq!(
            parent.span.span_id.to_bytes(),
            0x00f0_67aa_0ba9_02b7_u64.to_be_bytes()
        );
        assert!(parent.is_sampled);
        for (flags, is_sampled) in [("00", false), ("02", false), ("03", true), ("ff", true)] {
            let header = format!("{}{flags}", &HEADER[..53]);
            let parent = TraceParent::parse(header.as_bytes()).expect("valid");
            assert_eq!(parent.is_sampled, is_sampled, "{header}");
        }
    }

    #[test]
    fn a_later_version_may_have_more() {
        let later = HEADER.replacen("00", "01", 1);
        for header in [later.clone(), format!("{later}-x")] {
            assert!(TraceParent::parse(header.as_bytes()).is_some(), "{header}");
        }
        assert_eq!(TraceParent::parse(format!("{later}x").as_bytes()), None);
    }

    #[test]
    fn what_is_malformed_means_nothing() {
        for header in [
            "",
            "00",
            &HEADER[..54],
            &format!("{HEADER}-x"),
            &HEADER.replacen("00", "ff", 1),
            &HEADER.replacen("00", "0x", 1),
            &HEADER.to_uppercase(),
            &HEADER.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            &HEADER.replace("00f067aa0ba902b7", &"0".repeat(16)),
            &HEADER.replace("-01", "_01"),
            &HEADER.replace("-01", "-0g"),
            &HEADER.replace('-', "ü"),
        ] {
            assert_eq!(TraceParent::parse(header.as_bytes()), None, "{header}");
        }
    }

    fn parsed(values: &[&str]) -> Option<String> {
        let state = TraceState::parse(values.iter().map(|value| value.as_bytes()))?;
        Some(state.as_str().to_owned())
    }

    #[test]
    fn a_state_is_kept_as_it_is() {
        let long = format!("a={},b={}", "x".repeat(256), "y".repeat(251));
        assert_eq!(long.len(), STATE_BYTES_MAX);
        let entries: Vec<_> = (0..32).map(|number| format!("{number}=x")).collect();
        for state in [
            "rojo=00f067aa0ba902b7",
            "rojo=1,congo=t61rcWkgMzE",
            "a= b~!\"c , \t b=2,, c=3,",
            "fw529a3039@dt=FfLTEw;1,1a/b*c_d-e=:",
            &long,
            &entries.join(","),
        ] {
            assert_eq!(parsed(&[state]).as_deref(), Some(state));
        }
        assert_eq!(parsed(&["a=1", "b=2,c=3"]).as_deref(), Some("a=1,b=2,c=3"));
    }

    #[test]
    fn a_state_that_is_malformed_or_too_long_is_dropped() {
        let long = format!("a={},b={}", "x".repeat(256), "y".repeat(252));
        let entries: Vec<_> = (0..33).map(|number| format!("{number}=x")).collect();
        let value = format!("a={}", "x".repeat(257));
        let key = format!("{}=x", "a".repeat(257));
        for state in [
            "",
            " ",
            ",",
            "a",
            "a=",
            "=1",
            "a=1,b",
            "a=1=2",
            "A=1",
            "a b=1",
            "_a=1",
            "@a=1",
            "a =1",
            "a=1,a=2",
            "a=\u{7f}",
            "a=b\tc",
            "a=ü",
            &long,
            &value,
            &key,
            &entries.join(","),
        ] {
            assert_eq!(parsed(&[state]), None, "{state}");
        }
        let halves = [&long[..258], &long[259..]];
        assert!(halves.iter().all(|half| parsed(&[half]).is_some()));
        assert_eq!(parsed(&halves), None);
        assert_eq!(parsed(&[]), None);
        assert_eq!(TraceState::parse([&b"a=\xff"[..]]), None);
    }

    #[test]
    fn no_id_is_zero() {
        assert_ne!(TraceId::random().to_bytes(), [0; 16]);
        assert_ne!(SpanId::random().to_bytes(), [0; 8]);
    }
}
