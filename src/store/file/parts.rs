//! A commit that is written in parts, for lack of room. Power may be lost between any two of them, and none of the changes
//! has been reported. What a part is written to is not known here.
//!
//! The clocks are written with the last part. So a process that starts finds out which leases belong to a commit that was
//! cut short: they were granted after the time on the clocks, and are left out. Otherwise two claims could hold one lock,
//! whose rows are in two parts, and a claim could hold some of its locks.

use super::super::state::is_referred_to;
use super::room::is_lack_of_room;
use super::rows::{Clocks, Rows};

/// How many rows a commit writes at first.
const PART_MAX: usize = 256;

/// Some of the rows of a batch.
pub(super) type Part<'a> = [(&'a Vec<u8>, &'a Option<Vec<u8>>)];

/// Writes rows in commits so small that each fits into the pages that the database does not use. A commit leaves as many
/// of them behind as it took, for the second one after it.
///
/// What an ended lease leaves is written before its row goes, which the order of the kinds of rows ensures, and no row
/// refers to one that is missing.
///
/// # Errors
/// That of a commit. The ones before it have succeeded.
pub(super) fn write_in_parts(
    rows: &Rows,
    clocks: Clocks,
    mut commit: impl FnMut(&Part<'_>, Option<Clocks>) -> Result<(), redb::Error>,
) -> Result<(), redb::Error> {
    let is_last = |key: &[u8], value: &Option<_>| value.is_none() && is_referred_to(key);
    let (last, first): (Vec<_>, Vec<_>) = rows
        .iter()
        .partition(|(key, value)| is_last(key.as_slice(), value));
    let rows = [first, last].concat();
    let (mut left, mut size) = (&rows[..], rows.len().min(PART_MAX));
    loop {
        // This makes the pages usable that the commit before it has replaced.
        commit(&[], None)?;
        let (part, rest) = left.split_at(size.min(left.len()));
        match commit(part, rest.is_empty().then_some(clocks)) {
            Ok(()) if rest.is_empty() => return Ok(()),
            Ok(()) => left = rest,
            Err(error) if is_lack_of_room(&error) && size > 1 => size /= 4,
            Err(error) => return Err(error),
        }
        size = size.max(1);
    }
}

#[cfg(test)]
mod tests;
