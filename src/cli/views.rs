//! The tables: grants, locks and former holders, from the documents of the service.

use std::time::Duration;

use serde_json::Value;

use super::output::{Cell, TextTable, time_left};
use crate::client::GrantedLease;

/// The claim and what it holds.
pub(super) fn grants(document: &Value) -> String {
    let rows = GrantedLease::documents(document).iter().map(|grant| {
        vec![
            text(&grant["name"]),
            text(&grant["token"]),
            number(&grant["fencing_token"]),
            Cell::from(&time_left(millis(&grant["expires_in_ms"]))),
        ]
    });
    TextTable::new(&["NAME", "TOKEN", "FENCING TOKEN", "EXPIRES IN"]).text_of(rows.collect())
}

/// A table of locks.
pub(super) fn lock_table() -> TextTable {
    let columns = [
        "NAME",
        "STATE",
        "OWNER",
        "MODE",
        "FENCING TOKEN",
        "EXPIRES IN",
        "WAITING",
    ];
    TextTable::new(&columns)
}

/// The rows of one lock, at most `rows_max`: one for each holder that the document lists. `age` is how old it is.
pub(super) fn lock_rows(lock: &Value, age: Duration, rows_max: usize) -> Vec<Vec<Cell>> {
    let holders = lock["holders"].as_array().map_or(&[][..], Vec::as_slice);
    let holders = &holders[..holders.len().min(rows_max)];
    let total = lock["holders_total"].as_u64().unwrap_or_default();
    let more = total - total.min(holders.len() as u64);
    let waiting = match lock["queue_length"].as_u64() {
        Some(0) | None => Cell::from(""),
        Some(length) => Cell::from(&length),
    };
    let name_and_state = [text(&lock["name"]), state(lock)];
    if holders.is_empty() {
        let left = match lock["free_in_ms"].as_u64() {
            Some(ms) => time_left(Duration::from_millis(ms).saturating_sub(age)),
            None => String::new(),
        };
        let owner = match more {
            0 => String::new(),
            more => format!("{more} holders"),
        };
        let rest = [owner.as_str(), "", "", &left].map(Cell::from);
        return vec![
            name_and_state
                .into_iter()
                .chain(rest)
                .chain([waiting])
                .collect(),
        ];
    }
    let last = holders.len() - 1;
    let row = |(index, holder): (usize, &Value)| {
        let more = if index == last { more } else { 0 };
        let [owner, mode, fence, left] = holder_cells(holder, age, more);
        let [name, state, waiting] = match index {
            0 => [
                name_and_state[0].clone(),
                name_and_state[1].clone(),
                waiting.clone(),
            ],
            _ => [""; 3].map(Cell::from),
        };
        vec![name, state, owner, mode, fence, left, waiting]
    };
    holders.iter().enumerate().map(row).collect()
}

/// The holders that were evicted.
pub(super) fn evicted(name: &str, document: &Value) -> String {
    let holders = document["evicted"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let total = document["evicted_total"].as_u64().unwrap_or_default();
    let more = total - total.min(holders.len() as u64);
    let last = holders.len().saturating_sub(1);
    let row = |(index, holder): (usize, &Value)| {
        let more = if index == last { more } else { 0 };
        let cells = holder_cells(holder, Duration::ZERO, more);
        std::iter::once(Cell::from(name)).chain(cells).collect()
    };
    let columns = ["NAME", "EVICTED OWNER", "MODE", "FENCING TOKEN", "HAD LEFT"];
    TextTable::new(&columns).text_of(holders.iter().enumerate().map(row).collect())
}

/// A lock that had no holder to evict. It may stay closed nevertheless, which no eviction shortens.
pub(super) fn not_held(name: &str, free_in_ms: Option<u64>) -> String {
    match free_in_ms {
        Some(ms) => {
            let left = time_left(Duration::from_millis(ms));
            format!(
                "nobody held {name}; it stays closed for {left}, which an eviction does not shorten\n"
            )
        }
        None => format!("nobody held {name}\n"),
    }
}

/// Owner, mode, fencing token and the time that is left; `more` holders are not listed.
fn holder_cells(holder: &Value, age: Duration, more: u64) -> [Cell; 4] {
    let owner = holder["owner"].as_str().unwrap_or_default();
    let owner = match (owner, more) {
        (owner, 0) => owner.to_owned(),
        ("", more) => format!("and {more} more"),
        (owner, more) => format!("{owner} and {more} more"),
    };
    let mode = holder["mode"].as_str().unwrap_or_default();
    let mode = match (holder["permits"].as_u64(), holder["limit"].as_u64()) {
        (Some(permits), Some(limit)) => format!("{mode} {permits}/{limit}"),
        _ => mode.to_owned(),
    };
    let left = millis(&holder["expires_in_ms"]).saturating_sub(age);
    [
        Cell::from(&owner),
        Cell::from(&mode),
        number(&holder["fencing_token"]),
        Cell::from(&time_left(left)),
    ]
}

fn state(lock: &Value) -> Cell {
    Cell::state(lock["state"].as_str().unwrap_or_default())
}

fn text(value: &Value) -> Cell {
    Cell::from(value.as_str().unwrap_or_default())
}

fn number(value: &Value) -> Cell {
    match value.as_u64() {
        Some(number) => Cell::from(&number),
        None => Cell::from(""),
    }
}

fn millis(value: &Value) -> Duration {
    Duration::from_millis(value.as_u64().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn plain(rows: Vec<Vec<Cell>>) -> Vec<String> {
        let text = lock_table().text_of(rows);
        let text = anstream::adapter::strip_str(&text).to_string();
        let lines = text.lines().skip(1);
        lines
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect()
    }

    #[test]
    fn a_lock_has_a_row_for_each_holder_and_the_last_says_how_many_are_left_out() {
        let holder = |owner: &str| {
            json!({"owner": owner, "mode": "shared", "limit": 4, "permits": 1, "fencing_token": 7,
                "expires_in_ms": 1500})
        };
        let lock = json!({"name": "gpu", "state": "held", "holders": [holder("a"), holder("b")],
            "holders_total": 3, "queue_length": 2});
        assert_eq!(
            plain(lock_rows(&lock, Duration::ZERO, 9)),
            [
                "gpu held a shared 1/4 7 2s 2",
                "b and 1 more shared 1/4 7 2s"
            ]
        );
        let one = plain(lock_rows(&lock, Duration::from_secs(1), 1));
        assert_eq!(one, ["gpu held a and 2 more shared 1/4 7 1s 2"]);
    }

    #[test]
    fn a_lock_without_holders_says_how_long_it_stays_closed() {
        let free = json!({"name": "a", "state": "free", "holders": [], "holders_total": 0});
        assert_eq!(plain(lock_rows(&free, Duration::ZERO, 9)), ["a free"]);
        assert!(not_held("a", Some(8001)).contains("a; it stays closed for 9s"));
        assert_eq!(not_held("a", None), "nobody held a\n");
        let cooling = json!({"name": "a", "state": "cooling", "holders": [], "free_in_ms": 9000});
        assert_eq!(
            plain(lock_rows(&cooling, Duration::ZERO, 9)),
            ["a cooling 9s"]
        );
    }
}
