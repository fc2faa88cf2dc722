//! Durations in human notation: `500ms`, `30s`, `1m30s`, `2h`. A number without a unit is refused, never guessed.

use std::time::Duration;

use thiserror::Error;

/// Parses a duration: one or more whole numbers, each with a unit out of `ms`, `s`, `m`, `h`, `d`.
///
/// # Errors
/// States what is wrong and how to write a duration.
pub fn parse(text: &str) -> Result<Duration, InvalidDuration> {
    if text.is_empty() {
        return Err(InvalidDuration::Empty);
    }
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(InvalidDuration::NoUnit(text.to_owned()));
    }
    let mut total_ms: u64 = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let (part_ms, remainder) =
            part(rest).ok_or_else(|| InvalidDuration::Unreadable(text.to_owned()))?;
        total_ms = total_ms.saturating_add(part_ms);
        rest = remainder;
    }
    Ok(Duration::from_millis(total_ms))
}

/// Whether this is the value that [`parse`] returns for every duration too long to represent.
#[must_use]
pub fn is_saturated(duration: Duration) -> bool {
    duration >= Duration::from_millis(u64::MAX)
}

/// Splits off one number with its unit, in milliseconds. Numbers that are too large saturate, and fail a bound later.
fn part(text: &str) -> Option<(u64, &str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, rest) = text.split_at_checked(digits)?;
    if number.is_empty() {
        return None;
    }
    let letters = rest.bytes().take_while(u8::is_ascii_alphabetic).count();
    let (unit, rest) = rest.split_at_checked(letters)?;
    let unit_ms = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    let number: u64 = number.parse().unwrap_or(u64::MAX);
    Some((number.saturating_mul(unit_ms), rest))
}

/// Formats a duration the way [`parse`] reads it, in the largest units that fit: `1h`, `1m30s`, `250ms`.
#[must_use]
pub fn format(duration: Duration) -> String {
    let mut rest_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if rest_ms == 0 {
        return "0s".to_owned();
    }
    let mut text = String::new();
    for (unit, unit_ms) in [
        ("d", 86_400_000),
        ("h", 3_600_000),
        ("m", 60_000),
        ("s", 1_000),
        ("ms", 1),
    ] {
        if rest_ms >= unit_ms {
            text.push_str(&format!("{}{unit}", rest_ms / unit_ms));
            rest_ms %= unit_ms;
        }
    }
    text
}

/// Why a duration was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InvalidDuration {
    /// The text is empty.
    #[error("the duration is empty; write it with a unit, like 30s")]
    Empty,
    /// A bare number.
    #[error("{0:?} has no unit; write {0}s for seconds or {0}ms for milliseconds")]
    NoUnit(String),
    /// Not of the form number-unit.
    #[error(
        "{0:?} is not a duration; write whole numbers with units ms, s, m, h or d, like 500ms, 30s or 1m30s"
    )]
    Unreadable(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_numbers_with_units() {
        let millis = |text: &str| parse(text).map(|duration| duration.as_millis());
        assert_eq!(millis("500ms"), Ok(500));
        assert_eq!(millis("1m30s"), Ok(90_000));
        assert_eq!(millis("0s"), Ok(0));
        assert_eq!(millis("30d"), Ok(2_592_000_000));
    }

    #[test]
    fn a_bare_number_is_refused_and_the_message_shows_both_readings() {
        let message = parse("30").expect_err("no unit").to_string();
        assert!(
            message.contains("30s") && message.contains("30ms"),
            "{message}"
        );
    }

    #[test]
    fn nonsense_is_refused_and_no_number_overflows() {
        for text in [
            "s", "1.5s", "-1s", "10 s", "1w", "30s5", "\u{661}s", "1\u{b5}s",
        ] {
            assert!(
                matches!(parse(text), Err(InvalidDuration::Unreadable(_))),
                "{text}"
            );
        }
        assert_eq!(
            parse("99999999999999999999h"),
            Ok(Duration::from_millis(u64::MAX))
        );
    }

    #[test]
    fn a_formatted_duration_parses_to_itself() {
        for text in ["0s", "250ms", "1m30s", "1h", "30d", "1d2h3m4s5ms"] {
            assert_eq!(format(parse(text).expect(text)), text);
        }
    }
}
