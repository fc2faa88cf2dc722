//! Tests of what a process finds that starts after a commit in parts was cut short, wherever that was.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use super::super::super::state::{
    ClaimKeys, Downtime, KeyedClaim, LoadTimes, Loading, State, StoreTime,
};
use super::*;
use crate::domain::{
    Acquired, Attempt, Claim, LockName, LockNames, LockState, QueueRequest, Refused, RenewOptions,
    Renewed, Token, Ttl,
};

const SECOND: Duration = Duration::from_secs(1);

/// A state, and the rows that no commit has written yet.
struct Unwritten {
    state: State,
    now: StoreTime,
    rows: Rows,
}

impl Unwritten {
    fn new() -> Self {
        let mut state = State::new(100);
        state.list_changed_rows(true);
        let now = StoreTime::at(SECOND * 1_000_000);
        let rows = Rows::new();
        Self { state, now, rows }
    }

    fn step(&mut self, step: impl FnOnce(&mut State, StoreTime)) {
        step(&mut self.state, self.now);
        let changed = self.state.encode_changed_rows(Downtime::default());
        self.rows.extend(changed);
    }

    /// Asks for the locks, and waits for them if they are not free.
    fn acquire(&mut self, claim: &Claim) {
        self.step(|state, now| {
            let answer = state.acquire(now, &KeyedClaim::new(claim), Attempt(1), Some(&request()));
            assert!(answer.answer.is_ok());
        });
    }

    fn evict(&mut self, name: &str) {
        let name = lock(name);
        self.step(|state, now| {
            let (claims, _) = state.begin_eviction(now, &name).answer;
            state.evict(now, &name, &claims, "stuck");
        });
    }

    fn release(&mut self, claim: &Claim) {
        self.step(|state, now| {
            state.release(now, &ClaimKeys::of(&claim.names, claim.token), None);
        });
    }
}

fn request() -> QueueRequest {
    QueueRequest {
        ticket: None,
        age: Duration::ZERO,
        wait: SECOND * 50,
        execute_within: SECOND,
        place_kept: SECOND,
        poll_interval: SECOND,
        waiters_max: 10,
        wants_position: false,
        is_head: false,
        takes_over: true,
    }
}

fn lock(name: &str) -> LockName {
    LockName::parse(name.as_bytes()).expect("a name")
}

fn claim_on(names: &[&str]) -> Claim {
    let names = names.iter().map(|name| lock(name)).collect();
    let names = LockNames::several(names).expect("at least one");
    Claim::plain(names, Token::random(), Ttl::from_store(SECOND * 3_600))
}

/// Writes the rows in parts of one, and ends before this commit of those that write something. Returns what is written,
/// and the clocks if they are.
fn write_some(
    written: &mut BTreeMap<Vec<u8>, Vec<u8>>,
    rows: &Rows,
    now: StoreTime,
    end: usize,
) -> Option<Clocks> {
    let (mut count, mut found) = (0, None);
    let clocks = Clocks {
        store: now,
        rows: now,
    };
    let _ = write_in_parts(rows, clocks, |part, clocks| {
        if part.len() > 1 {
            return Err(io::Error::from(io::ErrorKind::StorageFull).into());
        }
        count += part.len();
        if count > end {
            return Err(io::Error::other("power is lost").into());
        }
        for (key, value) in part.iter().copied() {
            match value {
                Some(value) => written.insert(key.clone(), value.clone()),
                None => written.remove(key),
            };
        }
        found = found.or(clocks);
        Ok(())
    });
    found
}

/// On how many of its locks the claim holds.
fn held(state: &mut State, now: StoreTime, claim: &Claim) -> usize {
    let keys = ClaimKeys::of(&claim.names, claim.token);
    let count = claim.names.len();
    match state.renew(now, &keys, RenewOptions::default()).answer {
        Renewed::Extended(_) => count,
        Renewed::NotHolder(locks) => count - locks.len(),
        Renewed::Mismatched(_) => panic!("the mode is the same"),
    }
}

#[test]
fn no_lock_has_two_holders_and_no_claim_some_of_its_locks() {
    // The order of the rows depends on the tokens.
    for _ in 0..20 {
        let mut store = Unwritten::new();
        let [evicted, next, both, waiting] =
            [&["a"][..], &["a"], &["b", "c"], &["b", "c"]].map(claim_on);
        for claim in [&evicted, &next, &both, &waiting] {
            store.acquire(claim);
        }
        let mut before = BTreeMap::new();
        let rows = std::mem::take(&mut store.rows);
        assert!(write_some(&mut before, &rows, store.now, rows.len()).is_some());
        let last = store.now;
        store.now = store.now + SECOND;
        store.state.admit_claims(false);
        store.evict("a");
        store.release(&both);
        store.acquire(&next);
        store.acquire(&waiting);
        for end in 0..=store.rows.len() {
            let mut written = before.clone();
            let clocks = write_some(&mut written, &store.rows, store.now, end);
            assert_eq!(clocks.is_some(), end == store.rows.len());
            let times = LoadTimes {
                committed: clocks.map_or(last, |clocks| clocks.store),
                now: store.now,
            };
            let mut loading = Loading::new(100, Downtime::default(), times);
            for (key, value) in &written {
                loading
                    .row(key, value)
                    .expect("no row refers to one that is missing");
            }
            let mut state = loading.finish(times.now);
            let mut held = |claim| held(&mut state, times.now, claim);
            let is_whole = clocks.is_some();
            assert_eq!(
                [held(&next), held(&waiting)],
                if is_whole { [1, 2] } else { [0, 0] }
            );
            // A release of several locks that was not reported may have ended on some of them.
            let ended = [held(&evicted), held(&both)];
            assert!(!is_whole || ended == [0, 0]);
            let keyed = KeyedClaim::new(&evicted);
            let answer = state.acquire(times.now, &keyed, Attempt(2), None).answer;
            let is_ended = matches!(answer, Ok(Acquired::Refused(Refused::Ended(_))));
            assert_eq!(is_ended, ended[0] == 0);
            let view = state.inspect(times.now, &lock("a")).answer;
            let is_held = matches!(view.state, LockState::Held(_));
            assert_eq!(is_held, is_whole || ended[0] == 1);
        }
    }
}
