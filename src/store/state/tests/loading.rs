//! Tests of what is written and loaded, after any steps.

use super::*;

/// Before rows are loaded, the last of which was written by now.
fn loading_at(now: StoreTime, downtime: Downtime) -> Loading {
    let committed = now;
    Loading::new(12, downtime, LoadTimes { committed, now })
}

/// Loads the rows that were written.
fn loaded(written: &BTreeMap<Vec<u8>, Vec<u8>>, downtime: Downtime, now: StoreTime) -> State {
    let mut loading = loading_at(now, downtime);
    for (key, value) in written {
        loading.row(key, value).expect("it was written as a row");
    }
    loading.finish(now)
}

/// What a restart keeps of the rows: whether a claim waits ends with the process, and so do how a turn ended and which
/// attempt raised a hold count.
fn kept(state: &State, now: StoreTime) -> BTreeMap<Row, String> {
    let rows = rows(state, now).into_iter();
    let lasting = |value: String| {
        let value = value.trim_end_matches(" true").trim_end_matches(" false");
        let value = value.replace("Undone", "Closed");
        let value = value.replace("Refused", "Closed");
        let raised_by = value
            .split_once("reentered_by: Some(")
            .and_then(|(before, after)| {
                let (_, after) = after.split_once("))")?;
                Some(format!("{before}reentered_by: None{after}"))
            });
        raised_by.unwrap_or(value)
    };
    rows.map(|(row, value)| (row, lasting(value))).collect()
}

/// A state, and what it has written.
struct Written {
    state: State,
    now: StoreTime,
    rows: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Written {
    fn new() -> Self {
        let (state, now) = listing();
        let rows = BTreeMap::new();
        Self { state, now, rows }
    }

    fn write(&mut self, step: impl FnOnce(&mut State, StoreTime)) {
        step(&mut self.state, self.now);
        for (key, value) in self.state.encode_changed_rows(Downtime::default()) {
            match value {
                Some(value) => self.rows.insert(key, value),
                None => self.rows.remove(&key),
            };
        }
    }

    fn of_kind(&self, kind: u8) -> Vec<(Vec<u8>, Vec<u8>)> {
        let rows = self.rows.iter().filter(|(key, _)| key[0] == kind);
        rows.map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    }
}

fn several(names: &[&str]) -> Claim {
    let parse = |name: &&str| LockName::parse(name.as_bytes()).expect("a name");
    Claim {
        names: LockNames::several(names.iter().map(parse).collect()).expect("at least one"),
        ..claim("unused", Mode::Exclusive)
    }
}

/// A claim that holds three locks, and two that wait for them.
fn waiting() -> (Written, [Claim; 3]) {
    let mut written = Written::new();
    let claims = [(); 3].map(|()| several(&["a", "b", "c"]));
    for claim in &claims {
        // Each polls more than once.
        for _ in 0..2 {
            written.write(|state, now| {
                let (keyed, request) = (KeyedClaim::new(claim), request(claim));
                let answer = state.acquire(now, &keyed, Attempt(1), Some(&request));
                assert!(answer.answer.is_ok());
            });
        }
    }
    (written, claims)
}

/// The list that each ticket of the claim refers to.
fn lists(state: &State, claim: &Claim) -> Vec<*const LockNames> {
    let keyed = KeyedClaim::new(claim);
    let list = |key: &ClaimKey| {
        let ticket = state.0.queue(&key.name)?.ticket(key.claim)?;
        Some(std::ptr::from_ref(&*ticket.names))
    };
    keyed.keys.iter().filter_map(list).collect()
}

#[test]
fn the_names_of_a_waiting_claim_are_one_row_and_one_list() {
    let (written, claims) = waiting();
    assert_eq!(written.of_kind(rows::NAMES).len(), 2);
    let restarted = loaded(&written.rows, Downtime::default(), written.now);
    for state in [&written.state, &restarted] {
        for claim in &claims[1..] {
            let lists = lists(state, claim);
            assert_eq!(lists.len(), 3);
            assert!(lists.iter().all(|list| *list == lists[0]));
        }
    }
    for (key, value) in written.of_kind(rows::TICKET) {
        assert!(value.len() < 40, "{key:?} has {} bytes", value.len());
    }
}

#[test]
fn the_row_of_the_names_goes_with_the_last_place() {
    let (mut written, [holder, first, second]) = waiting();
    let release = |state: &mut State, now, claim: &Claim| {
        state.release(now, &KeyedClaim::new(claim).keys, None);
    };
    written.write(|state, now| release(state, now, &second));
    assert_eq!(written.of_kind(rows::NAMES).len(), 1);
    // The places of the other one go when it is granted its locks, and after a restart.
    let mut restarted = loaded(&written.rows, Downtime::default(), written.now);
    restarted.list_changed_rows(true);
    let mut restarted = Written {
        state: restarted,
        now: written.now,
        rows: written.rows.clone(),
    };
    for written in [&mut written, &mut restarted] {
        written.write(|state, now| release(state, now, &holder));
        assert_eq!(written.of_kind(rows::NAMES).len(), 1);
        written.write(|state, now| grant(state, now, &first));
        assert_eq!(written.of_kind(rows::TICKET), []);
        assert_eq!(written.of_kind(rows::NAMES), []);
    }
    // Or when they expire.
    let (mut expiring, _) = waiting();
    expiring.now = expiring.now + Duration::from_secs(1_000);
    expiring.write(|state, now| while state.sweep(now).answer {});
    expiring.write(|state, now| drop(state.sweep(now)));
    assert_eq!(expiring.of_kind(rows::NAMES), []);
}

/// A commit may be written in parts, between which power may be lost.
#[test]
fn no_row_of_names_gets_the_number_of_an_earlier_one() {
    let (mut written, [_, first, second]) = waiting();
    let before = written.of_kind(rows::NAMES);
    for claim in [&first, &second] {
        written.write(|state, now| {
            state.release(now, &KeyedClaim::new(claim).keys, None);
        });
    }
    let other = several(&["a", "z"]);
    written.write(|state, now| {
        let (keyed, request) = (KeyedClaim::new(&other), request(&other));
        let answer = state.acquire(now, &keyed, Attempt(1), Some(&request));
        assert!(matches!(answer.answer, Ok(Acquired::Waiting(_))));
    });
    let after = written.of_kind(rows::NAMES);
    assert_eq!((before.len(), after.len()), (2, 1));
    assert!(before.iter().all(|(key, _)| *key != after[0].0));
}

#[test]
fn tickets_without_their_names_are_damaged() {
    let (written, _) = waiting();
    let load = |rows: &BTreeMap<Vec<u8>, Vec<u8>>| {
        let mut loading = loading_at(written.now, Downtime::default());
        let mut rows = rows.iter();
        rows.try_for_each(|(key, value)| loading.row(key, value))
    };
    assert_eq!(load(&written.rows), Ok(()));
    let mut without = written.rows.clone();
    without.retain(|key, _| key[0] != rows::NAMES);
    assert_eq!(load(&without), Err(InvalidRow::Damaged));
    // Names among which the lock of the ticket is not.
    let mut other = written.rows.clone();
    let names = other.iter_mut().find(|(key, _)| key[0] == rows::NAMES);
    let (_, value) = names.expect("a claim waits");
    *value.last_mut().expect("it has names") = b'd';
    assert_eq!(load(&other), Err(InvalidRow::Damaged));
}

#[test]
fn rows_of_another_version_are_refused_with_their_version() {
    let (mut written, _) = waiting();
    for value in written.rows.values_mut() {
        value[0] = 2;
    }
    let mut loading = loading_at(written.now, Downtime::default());
    let (key, value) = written.rows.first_key_value().expect("there are rows");
    let refused = loading.row(key, value).expect_err("it is too old");
    assert_eq!(
        refused.to_string(),
        "another version of Leasehold has written one of its rows in format 2, and this one reads format 3"
    );
}

/// Most counters have no row, and the clock of a restarted store may stand where it stood.
#[test]
fn a_grant_at_the_moment_of_the_last_one_before_a_restart_has_a_larger_fence() {
    let mut written = Written::new();
    let mut last = 0;
    for _ in 0..3 {
        // One that follows the clock, and one that is ahead of it.
        for _ in 0..2 {
            let claim = claim("a", Mode::Exclusive);
            written.write(|state, now| grant(state, now, &claim));
            let keys = KeyedClaim::new(&claim).keys;
            let fence = written
                .state
                .0
                .lease(&keys[0])
                .expect("it holds")
                .fence
                .get();
            assert!(fence > last, "{fence} after {last}");
            last = fence;
            written.write(|state, now| drop(state.release(now, &keys, None)));
            written.state = loaded(&written.rows, Downtime::default(), written.now);
            written.state.list_changed_rows(true);
        }
        written.now = written.now + Duration::from_secs(1);
    }
}

/// A disk that is full has no room for rows that are larger than those that go.
#[test]
fn a_token_that_expired_on_a_full_disk_is_not_granted_again_after_a_restart() {
    let mut written = Written::new();
    let claim = claim("a", Mode::Exclusive);
    written.write(|state, now| grant(state, now, &claim));
    let bytes = |written: &Written| {
        let rows = written.rows.iter();
        let rows = rows.filter(|(key, _)| key[0] != rows::FENCE);
        rows.map(|(key, value)| key.len() + value.len())
            .sum::<usize>()
    };
    let before = bytes(&written);
    written.state.admit_claims(false);
    written.now = written.now + Duration::from_secs(2);
    written.write(|state, now| drop(state.sweep(now)));
    assert_eq!(written.of_kind(rows::LEASE), []);
    assert!(bytes(&written) < before);
    let mut restarted = loaded(&written.rows, Downtime::default(), written.now);
    let keyed = KeyedClaim::new(&claim);
    let answer = restarted.acquire(written.now, &keyed, Attempt(2), None);
    let refused = matches!(answer.answer, Ok(Acquired::Refused(Refused::Ended(_))));
    assert!(refused, "{:?}", answer.answer);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever comes when, and whenever the process ends. With a downtime, everything lasts that much longer.
    #[test]
    fn what_was_written_is_loaded(steps in steps()) {
        let mut state = State::new(12);
        state.list_changed_rows(true);
        let mut now = StoreTime::at(Duration::from_secs(1_000_000));
        let mut written = BTreeMap::new();
        for step in &steps {
            now = now + Duration::from_millis(step.after_ms);
            let (_, changed) = run(&mut state, now, step);
            for row in changed {
                match rows::encode(&state.0, &row, Downtime::default()) {
                    Some(value) => written.insert(row.to_key(), value),
                    None => written.remove(&row.to_key()),
                };
            }
        }
        let same = loaded(&written, Downtime::default(), now);
        prop_assert_eq!(kept(&same, now), kept(&state, now));
        prop_assert_eq!(same.count_kept(), state.count_kept());
        let downtime = Downtime::between(now, now + Duration::from_secs(1_000));
        let mut later = loaded(&written, downtime, now + Duration::from_secs(1_000));
        let end = now + Duration::from_secs(200);
        while state.sweep(end).answer {}
        let end = now + Duration::from_secs(1_200);
        while later.sweep(end).answer {}
        prop_assert_eq!(later.count_kept(), state.count_kept());
        prop_assert!(later.0.tombstones.rows().next().is_none());
    }
}
