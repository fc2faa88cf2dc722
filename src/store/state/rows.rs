//! Rows as bytes: the format in which a durable store writes the state. Loading is in `loading`; where and when rows are
//! written is not known here.
//!
//! The first byte of a key is the kind of row, the first byte of a value its version. A kind keeps its byte for ever. If
//! the values of a kind have to change, all get another version. A process refuses rows of a version that is not its own.

use super::bytes::{Downtime, Encoder};
use super::claim::{Text, TicketNames};
use super::effects::Row;
use super::lease::LeaseRecord;
use super::receivers::{Receivers, Turn};
use super::table::Table;
use super::tombstones::{End, Tombstone};
use super::wait_queue::QueueEntry;
use super::{State, micros};
use crate::domain::{LockName, Metadata, Mode};

/// The version of all values.
pub(super) const VERSION: u8 = 3;

/// The first of all kinds, because leases and tickets refer to texts, and tickets to names.
pub(super) const TEXT: u8 = b'a';
pub(super) const NAMES: u8 = b'b';
pub(super) const LEASE: u8 = b'l';
pub(super) const TICKET: u8 = b't';
pub(super) const COOLDOWN: u8 = b'c';
pub(super) const LAST_EXPIRED: u8 = b'x';
pub(super) const TOMBSTONE: u8 = b'e';
pub(super) const FENCE: u8 = b'f';

/// Ends a name in a key. No name contains it.
pub(super) const NAME_END: u8 = 0;

impl Row {
    /// The key under which the row is written.
    pub(super) fn to_key(&self) -> Vec<u8> {
        let of_lock = |kind, name: &LockName, rest: &[u8]| {
            let name = name.as_str().as_bytes();
            [&[kind], name, &[NAME_END], rest].concat()
        };
        match self {
            Self::Text(number) => [&[TEXT], &number.to_be_bytes()[..]].concat(),
            Self::Names(number) => [&[NAMES], &number.to_be_bytes()[..]].concat(),
            Self::Lease(key) => of_lock(LEASE, &key.name, &key.claim.0),
            Self::Ticket(key) => of_lock(TICKET, &key.name, &key.claim.0),
            Self::Cooldown(name, _, fence) => of_lock(COOLDOWN, name, &fence.get().to_be_bytes()),
            Self::LastExpired(name) => of_lock(LAST_EXPIRED, name, &[]),
            Self::Tombstone(claim) => [&[TOMBSTONE], &claim.0[..]].concat(),
            Self::Fence(bucket) => {
                let index = u16::try_from(bucket.index()).expect("there are 1024 buckets");
                [&[FENCE], &index.to_be_bytes()[..]].concat()
            }
        }
    }
}

/// Whether other rows may refer to the row with this key, so that it has to be there as long as they are.
pub fn is_referred_to(key: &[u8]) -> bool {
    matches!(key.first(), Some(&(TEXT | NAMES)))
}

impl State {
    /// The rows that the last step changed, as bytes: the key, and the value or none if the row is gone.
    ///
    /// While claims that need more room are [not admitted](State::admit_claims), an ended lease leaves only its tombstone,
    /// without the reason of an eviction: that is smaller than the lease, and without it a late request with the token
    /// could be granted the lock after a restart. What the lock remembers of its last holder is not written, because
    /// together they would take more room than the lease.
    pub fn encode_changed_rows(
        &self,
        downtime: Downtime,
    ) -> impl Iterator<Item = (Vec<u8>, Option<Vec<u8>>)> {
        let rows = self.0.effects.rows().iter();
        rows.map(move |row| (row.to_key(), encode(&self.0, row, downtime)))
    }
}

/// The value of a row; none if the row is gone.
pub(super) fn encode(table: &Table, row: &Row, downtime: Downtime) -> Option<Vec<u8>> {
    let mut to = Encoder::new(VERSION, downtime);
    let lock = |name| table.locks.get(name);
    match row {
        Row::Text(number) => {
            let whole = &table.texts.get(*number)?.value;
            to.text(whole.owner.as_str());
            let metadata = whole.metadata.as_ref().map(Metadata::as_json);
            to.option(metadata, Encoder::text);
        }
        Row::Names(number) => {
            let names = &table.name_lists.get(*number)?.value;
            to.number(names.len() as u64);
            names.iter().for_each(|name| to.text(name.as_str()));
        }
        Row::Lease(key) => lease(&mut to, lock(&key.name)?.leases.get(key.claim)?),
        Row::Ticket(key) => ticket(&mut to, lock(&key.name)?.queue()?.ticket(key.claim)?),
        Row::Cooldown(name, until, fence) => {
            let taken = lock(name)?.cooldown(*until, *fence)?;
            to.time(*until);
            mode(&mut to, taken);
        }
        Row::LastExpired(_) if !table.admits_claims => return None,
        Row::LastExpired(name) => {
            let last_expired = lock(name)?.last_expired()?;
            to.fixed(&last_expired.claim.0);
            to.time(last_expired.until);
            to.number(micros(last_expired.held_for));
        }
        Row::Tombstone(claim) => {
            let ended = table.tombstones.of(*claim)?;
            tombstone(&mut to, ended, table.admits_claims);
        }
        Row::Fence(bucket) => to.number(table.fences[bucket.index()]),
    }
    Some(to.finish())
}

fn lease(to: &mut Encoder, record: &LeaseRecord) {
    to.number(record.fence.get());
    // By the store's clock, unlike the times that follow: whoever loads the row compares it with that of the last commit.
    to.number(record.acquired.unix_us());
    to.time(record.until);
    to.number(record.ttl_us);
    receivers(to, &record.receivers);
    to.option(record.options.as_deref(), |to, options| {
        to.byte(1);
        mode(to, options.mode);
        to.number(options.hold_count.get().into());
        to.flag(options.is_of_stream);
        to.option(options.ceiling, Encoder::time);
        let min_hold = Some(options.min_hold).filter(|min_hold| !min_hold.is_zero());
        to.option(min_hold.map(|it| record.acquired + it), Encoder::time);
        to.number(micros(options.lock_delay));
        text(to, &options.text);
    });
}

fn receivers(to: &mut Encoder, receivers: &Receivers) {
    match receivers {
        Receivers::Independent => to.byte(0),
        Receivers::Grantee(attempt) => {
            to.byte(1);
            to.fixed(&attempt.0.to_be_bytes());
        }
        Receivers::InTurn(turns) => {
            to.byte(2);
            to.number(turns.0.len() as u64);
            for turn in &turns.0 {
                match turn {
                    // A rollback after a restart is late: the difference matters no more.
                    Turn::Closed | Turn::Undone | Turn::Refused => to.byte(0),
                    Turn::Independent => to.byte(1),
                    Turn::Attempt(attempt) => {
                        to.byte(2);
                        to.fixed(&attempt.0.to_be_bytes());
                    }
                }
            }
        }
    }
}

fn ticket(to: &mut Encoder, ticket: &QueueEntry) {
    to.number(ticket.sequence);
    to.time(ticket.until);
    mode(to, ticket.mode);
    let list = match &ticket.names {
        TicketNames::One(_) => None,
        TicketNames::Several(list) => Some(list.number),
    };
    to.option(list, Encoder::number);
    text(to, &ticket.text);
}

fn tombstone(to: &mut Encoder, tombstone: &Tombstone, has_room: bool) {
    to.time(tombstone.until);
    match &tombstone.end {
        End::Released => to.byte(0),
        End::Evicted { reason } => {
            to.byte(1);
            to.text(if has_room { reason } else { "" });
        }
        End::Expired {
            is_lost,
            unacknowledged,
        } => {
            to.byte(2);
            to.flag(*is_lost);
            to.option(unacknowledged.as_deref(), |to, grant| {
                to.number(grant.fence.get());
                to.fixed(&grant.attempt.0.to_be_bytes());
                to.time(grant.kept);
            });
        }
    }
}

fn mode(to: &mut Encoder, mode: Mode) {
    match mode {
        Mode::Exclusive => to.byte(0),
        Mode::Shared(share) => {
            to.byte(1);
            to.option(share.limit().map(u64::from), Encoder::number);
            to.number(share.permits().into());
        }
    }
}

fn text(to: &mut Encoder, text: &Text) {
    match text {
        Text::Owner(owner) => {
            to.byte(0);
            to.text(owner.as_str());
        }
        // It has a row of its own: a claim on many locks would write it many times.
        Text::Whole(whole) => {
            to.byte(1);
            to.number(whole.number);
        }
    }
}
