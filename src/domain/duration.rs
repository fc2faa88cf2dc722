//! Durations as people write them: `500ms`, `30s`, `1m30s`. A bare number is refused, because its unit is a guess.

use std::fmt;
use std::time::Duration;

/// Why a text is not a duration; its `Display` shows how to write one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidDuration(String);

impl fmt::Display for InvalidDuration {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for InvalidDuration {}

/// Parses a duration: numbers with the units `ms`, `s`, `m`, `h` and `d`, one after the other.
///
/// # Errors
///
/// When a number has no unit, a unit is unknown, or the sum does not fit.
pub fn parse(text: &str) -> Result<Duration, InvalidDuration> {
    let invalid = || {
        InvalidDuration(format!(
            "\"{text}\" is not a duration; write 500ms, 30s or 1m30s"
        ))
    };
    let mut total = Duration::ZERO;
    let mut rest = text;
    if rest.is_empty() {
        return Err(invalid());
    }
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, tail) = rest.split_at(digits);
        let letters = tail.len()
            - tail
                .trim_start_matches(|c: char| c.is_ascii_alphabetic())
                .len();
        let (unit, tail) = tail.split_at(letters);
        let number: u64 = number.parse().map_err(|_| invalid())?;
        let unit_ms = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            "" => {
                return Err(InvalidDuration(format!(
                    "\"{text}\" has no unit; write {number}s or {number}ms"
                )));
            }
            _ => return Err(invalid()),
        };
        let part = number
            .checked_mul(unit_ms)
            .map(Duration::from_millis)
            .ok_or_else(invalid)?;
        total = total.checked_add(part).ok_or_else(invalid)?;
        rest = tail;
    }
    Ok(total)
}
