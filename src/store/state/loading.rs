//! Loading a state from the rows that a durable store has read. Their format is that of `rows`.

use std::collections::BTreeMap;
use std::time::Duration;

use super::bytes::{Decoder, Downtime, InvalidRow};
use super::claim::{Text, TicketNames};
use super::lease::{LeaseOptions, LeaseRecord};
use super::lock::{LastExpired, Lock};
use super::receivers::{Receivers, Turn, Turns};
use super::rows::{
    COOLDOWN, FENCE, LAST_EXPIRED, LEASE, NAME_END, NAMES, TEXT, TICKET, TOMBSTONE, VERSION,
};
use super::tombstones::{End, ExpiredGrant, Tombstone};
use super::wait_queue::QueueEntry;
use super::{ClaimKey, State, StoreTime};
use crate::domain::{
    Attempt, ClaimDigest, Fence, HoldCount, LockName, LockNames, Metadata, Mode, Owner, Share,
};

/// The times that a process knows when it loads a state, on the store's clock.
#[derive(Clone, Copy, Debug)]
pub struct LoadTimes {
    /// The last commit of which all rows were written.
    pub committed: StoreTime,
    /// The present.
    pub now: StoreTime,
}

/// A state that is being loaded, row by row in the order of their keys: texts and names come before the claims that have
/// them.
pub struct Loading {
    state: State,
    downtime: Downtime,
    times: LoadTimes,
    tombstones: BTreeMap<ClaimDigest, Tombstone>,
    /// The texts that have rows. A row that no claim refers to goes with the first step.
    texts: BTreeMap<u64, Text>,
    /// The same for the names of claims that wait for several locks.
    name_lists: BTreeMap<u64, TicketNames>,
}

impl Loading {
    /// An empty state, as [`State::new`] makes it. What is loaded may exceed `locks_max`.
    #[must_use]
    pub fn new(locks_max: usize, downtime: Downtime, times: LoadTimes) -> Self {
        Self {
            state: State::new(locks_max),
            downtime,
            times,
            tombstones: BTreeMap::new(),
            texts: BTreeMap::new(),
            name_lists: BTreeMap::new(),
        }
    }

    /// Takes one row.
    ///
    /// # Errors
    /// This is not a row, or one of a version that this program does not know.
    pub fn row(&mut self, key: &[u8], value: &[u8]) -> Result<(), InvalidRow> {
        let (kind, key) = key.split_first().ok_or(InvalidRow::Damaged)?;
        let mut from = Decoder::new(VERSION, value, self.downtime)?;
        match *kind {
            TEXT => self.whole_text(u64::from_be_bytes(exactly(key)?), &mut from)?,
            NAMES => self.names(u64::from_be_bytes(exactly(key)?), &mut from)?,
            LEASE => self.lease(claim_key(key)?, &mut from)?,
            TICKET => self.ticket(claim_key(key)?, &mut from)?,
            COOLDOWN => {
                let (name, fence) = name_and(key)?;
                let fence = read_fence(u64::from_be_bytes(exactly(fence)?))?;
                let (until, mode) = (from.time()?, read_mode(&mut from)?);
                self.lock(&name).add_cooldown(until, fence, mode);
            }
            LAST_EXPIRED => {
                let (name, []) = name_and(key)? else {
                    return Err(InvalidRow::Damaged);
                };
                let last_expired = LastExpired {
                    claim: ClaimDigest(from.fixed()?),
                    until: from.time()?,
                    held_for: Duration::from_micros(from.number()?),
                };
                self.lock(&name).restore_last_expired(last_expired);
            }
            TOMBSTONE => {
                let claim = ClaimDigest(exactly(key)?);
                self.tombstones.insert(claim, read_tombstone(&mut from)?);
            }
            FENCE => {
                let bucket = usize::from(u16::from_be_bytes(exactly(key)?));
                let fence = self.state.0.fences.get_mut(bucket);
                *fence.ok_or(InvalidRow::Damaged)? = from.number()?;
            }
            _ => return Err(InvalidRow::Damaged),
        }
        from.finish()
    }

    /// The loaded state. The time must not be before that of any step of the state before: a fencing counter that was not
    /// ahead of the time of its step has no row.
    #[must_use]
    pub fn finish(mut self, now: StoreTime) -> State {
        for fence in &mut self.state.0.fences {
            *fence = now.unix_us().max(*fence);
        }
        self.state.0.tombstones.restore(self.tombstones);
        self.state.0.finish_step(now);
        self.state
    }

    fn lock(&mut self, name: &LockName) -> &mut Lock {
        let table = &mut self.state.0;
        let slot = table.locks.find_or_insert(name);
        table.touch(slot);
        &mut table.locks[slot]
    }

    fn lease(&mut self, key: ClaimKey, from: &mut Decoder<'_>) -> Result<(), InvalidRow> {
        let fence = read_fence(from.number()?)?;
        let acquired = StoreTime::from_unix_us(from.number()?);
        let record = LeaseRecord {
            claim: key.claim,
            fence,
            acquired,
            until: from.time()?,
            ttl_us: from.number()?,
            receivers: read_receivers(from)?,
            options: from.option(|from| match from.byte()? {
                1 => self.options(acquired, from).map(Box::new),
                _ => Err(InvalidRow::Damaged),
            })?,
        };
        if !self.is_unfinished(&record) {
            self.lock(&key.name).leases.insert(record);
        }
        Ok(())
    }

    /// Whether the lease is left of a commit of which only some rows were written: that commit was to write the grant, or
    /// to remove the lease after its tombstone. It reported neither.
    fn is_unfinished(&self, record: &LeaseRecord) -> bool {
        let ended = self.tombstones.get(&record.claim);
        record.acquired > self.times.committed
            || ended.is_some_and(|tombstone| tombstone.until > self.times.now)
    }

    fn options(
        &mut self,
        acquired: StoreTime,
        from: &mut Decoder<'_>,
    ) -> Result<LeaseOptions, InvalidRow> {
        let mode = read_mode(from)?;
        let hold_count = HoldCount::new(from.number()?).map_err(|_| InvalidRow::Damaged)?;
        let is_of_stream = from.flag()?;
        let ceiling = from.option(Decoder::time)?;
        let kept = from.option(Decoder::time)?;
        Ok(LeaseOptions {
            mode,
            hold_count,
            reentered_by: None,
            is_of_stream,
            ceiling,
            min_hold: kept.map_or(Duration::ZERO, |kept| kept.since(acquired)),
            lock_delay: Duration::from_micros(from.number()?),
            text: self.text(from)?,
        })
    }

    fn ticket(&mut self, mut key: ClaimKey, from: &mut Decoder<'_>) -> Result<(), InvalidRow> {
        let sequence = from.number()?;
        let until = from.time()?;
        let mode = read_mode(from)?;
        let names = match from.option(Decoder::number)? {
            None => TicketNames::One(key.name.clone().into()),
            Some(number) => {
                let list = self.name_lists.get(&number).ok_or(InvalidRow::Damaged)?;
                // The lock then shares the memory of its name with the list.
                let place = list.binary_search(&key.name);
                key.name = list[place.map_err(|_| InvalidRow::Damaged)?].clone();
                list.clone()
            }
        };
        let ticket = QueueEntry {
            sequence,
            names,
            mode,
            text: self.text(from)?,
            until,
        };
        let queue = self.lock(&key.name).queue_or_new();
        queue.restore(key.claim, ticket);
        let last = &mut self.state.0.last_sequence;
        *last = sequence.max(*last);
        Ok(())
    }

    fn names(&mut self, number: u64, from: &mut Decoder<'_>) -> Result<(), InvalidRow> {
        let count = from.number()?.min(LockNames::COUNT_MAX as u64 + 1);
        let names = (0..count).map(|_| read_name(from.text()?.as_bytes()));
        let names = LockNames::several(names.collect::<Result<_, _>>()?);
        let names = names.map_err(|_| InvalidRow::Damaged)?;
        let list = self.state.0.name_lists.restore(number, names, 0);
        self.name_lists.insert(number, TicketNames::Several(list));
        Ok(())
    }

    fn whole_text(&mut self, number: u64, from: &mut Decoder<'_>) -> Result<(), InvalidRow> {
        let owner = Owner::from_store(from.text()?);
        let metadata = from.option(Decoder::text)?;
        let metadata = metadata.map(Metadata::from_json_object).transpose();
        let metadata = metadata.map_err(|_| InvalidRow::Damaged)?;
        let text = Text::restored(number, &owner, metadata.as_ref(), &self.state.0.texts);
        self.texts.insert(number, text);
        Ok(())
    }

    fn text(&self, from: &mut Decoder<'_>) -> Result<Text, InvalidRow> {
        match from.byte()? {
            0 => Ok(Text::Owner(Owner::from_store(from.text()?))),
            1 => {
                let text = self.texts.get(&from.number()?);
                text.cloned().ok_or(InvalidRow::Damaged)
            }
            _ => Err(InvalidRow::Damaged),
        }
    }
}

fn read_receivers(from: &mut Decoder<'_>) -> Result<Receivers, InvalidRow> {
    Ok(match from.byte()? {
        0 => Receivers::Independent,
        1 => Receivers::Grantee(read_attempt(from)?),
        2 => {
            let count = from.number()?;
            let turns = (0..count).map(|_| match from.byte()? {
                0 => Ok(Turn::Closed),
                1 => Ok(Turn::Independent),
                2 => read_attempt(from).map(Turn::Attempt),
                _ => Err(InvalidRow::Damaged),
            });
            Receivers::InTurn(Box::new(Turns(turns.collect::<Result<_, _>>()?)))
        }
        _ => return Err(InvalidRow::Damaged),
    })
}

fn read_tombstone(from: &mut Decoder<'_>) -> Result<Tombstone, InvalidRow> {
    let until = from.time()?;
    let end = match from.byte()? {
        0 => End::Released,
        1 => End::Evicted {
            reason: from.text()?.into(),
        },
        2 => End::Expired {
            is_lost: from.flag()?,
            unacknowledged: from.option(|from| {
                Ok(Box::new(ExpiredGrant {
                    fence: read_fence(from.number()?)?,
                    attempt: read_attempt(from)?,
                    kept: from.time()?,
                }))
            })?,
        },
        _ => return Err(InvalidRow::Damaged),
    };
    Ok(Tombstone { until, end })
}

fn read_mode(from: &mut Decoder<'_>) -> Result<Mode, InvalidRow> {
    match from.byte()? {
        0 => Ok(Mode::Exclusive),
        1 => {
            let share = Share::new(from.option(Decoder::number)?, from.number()?);
            share.map(Mode::Shared).map_err(|_| InvalidRow::Damaged)
        }
        _ => Err(InvalidRow::Damaged),
    }
}

fn read_attempt(from: &mut Decoder<'_>) -> Result<Attempt, InvalidRow> {
    Ok(Attempt(u64::from_be_bytes(from.fixed()?)))
}

fn read_fence(fence: u64) -> Result<Fence, InvalidRow> {
    Fence::new(fence).ok_or(InvalidRow::Damaged)
}

fn read_name(name: &[u8]) -> Result<LockName, InvalidRow> {
    LockName::parse(name).map_err(|_| InvalidRow::Damaged)
}

fn claim_key(key: &[u8]) -> Result<ClaimKey, InvalidRow> {
    let (name, claim) = name_and(key)?;
    Ok(ClaimKey::new(&name, ClaimDigest(exactly(claim)?)))
}

/// A name and what follows it.
fn name_and(key: &[u8]) -> Result<(LockName, &[u8]), InvalidRow> {
    let end = key.iter().position(|byte| *byte == NAME_END);
    let (name, rest) = key.split_at(end.ok_or(InvalidRow::Damaged)?);
    Ok((read_name(name)?, &rest[1..]))
}

fn exactly<const LENGTH: usize>(bytes: &[u8]) -> Result<[u8; LENGTH], InvalidRow> {
    bytes.try_into().map_err(|_| InvalidRow::Damaged)
}
