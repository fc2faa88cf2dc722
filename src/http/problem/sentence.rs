//! What is in the way of a claim, as a sentence for people. Programs read the members of the problem instead.

use std::time::Duration;

use crate::domain::{Conflict, ConflictKind, Holders};
use crate::http::extract::echo;

/// Who or what is in the way, for how long, and how many wait: `held by "tour" for 1.9 s more; nobody waits`.
pub(in crate::http) fn conflict(conflict: &Conflict) -> String {
    let in_the_way = match &conflict.by {
        ConflictKind::Holders(holders) => held(holders),
        ConflictKind::Cooling { free_in } => {
            let free_in = rounded(*free_in);
            format!("held by nobody, but closed for {free_in} more after its last lease")
        }
        ConflictKind::Waiters => "held by nobody, but others are ahead in the queue".to_owned(),
    };
    match conflict.queue_length {
        0 => format!("{in_the_way}; nobody waits"),
        1 => format!("{in_the_way}; 1 claim waits"),
        waiting => format!("{in_the_way}; {waiting} claims wait"),
    }
}

fn held(holders: &Holders) -> String {
    // The list may be empty although there are holders, if their metadata is large.
    let Some(first) = holders.listed.iter().min_by_key(|holder| holder.expires_in) else {
        return format!("held by {} claims", holders.total);
    };
    let expires_in = rounded(first.expires_in);
    match (holders.total, first.owner.as_str()) {
        (0 | 1, "") => format!("held by a claim without an owner for {expires_in} more"),
        (0 | 1, owner) => format!("held by {:?} for {expires_in} more", echo(owner)),
        (total, _) => {
            format!("held by {total} claims, the first of them for {expires_in} more")
        }
    }
}

/// A duration as precise as people need it, rounded up: to tenths below ten seconds, to seconds below two minutes, and
/// so on.
pub(super) fn rounded(duration: Duration) -> String {
    const MINUTE: u128 = 60_000;
    let ms = duration.as_millis();
    let units_of = |unit_ms| ms.div_ceil(unit_ms);
    match ms {
        0..=9_900 if !units_of(100).is_multiple_of(10) => {
            let tenths = units_of(100);
            format!("{}.{} s", tenths / 10, tenths % 10)
        }
        _ if ms < 2 * MINUTE => format!("{} s", units_of(1_000)),
        _ if ms < 120 * MINUTE => format!("{} min", units_of(MINUTE)),
        _ => format!("{} h", units_of(60 * MINUTE)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_as_precise_as_people_need_it() {
        for (ms, text) in [
            (0, "0 s"),
            (1, "0.1 s"),
            (1_850, "1.9 s"),
            (1_999, "2 s"),
            (9_900, "9.9 s"),
            (9_901, "10 s"),
            (119_999, "120 s"),
            (120_000, "2 min"),
            (300_001, "6 min"),
            (7_200_000, "2 h"),
        ] {
            assert_eq!(rounded(Duration::from_millis(ms)), text, "{ms}");
        }
    }
}
