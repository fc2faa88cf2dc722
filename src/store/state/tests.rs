//! Tests of what a step returns beside its answer, and of how much it does. What operations mean is tested by the contract
//! of all stores.

mod endings;
mod loading;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::domain::{
    Claim, GrantKind, HoldCount, LockNames, LockState, Metadata, Mode, Owner, Refused, Share,
    Token, Ttl,
};

/// One step, and how long after the one before.
#[derive(Clone, Debug)]
struct TimedStep {
    after_ms: u64,
    claim: Claim,
    attempt: Attempt,
    operation: TestStep,
}

#[derive(Clone, Copy, Debug)]
enum TestStep {
    Acquire,
    Wait,
    Suspend,
    Renew(Option<Mode>),
    Release(Option<HoldCount>),
    Withdraw(Rollback),
    Evict,
    Inspect,
    Sweep,
}

fn mode(limit: Option<u64>) -> Mode {
    Mode::Shared(Share::new(limit, 1).expect("one permit"))
}

fn claims() -> impl Strategy<Value = Claim> {
    let modes = select(vec![
        Mode::Exclusive,
        mode(None),
        mode(Some(2)),
        mode(Some(3)),
    ]);
    let optional = |ms: u64| prop::option::weighted(0.2, Just(Duration::from_millis(ms)));
    let texts = prop::option::weighted(0.3, Just(r#"{"of":"a test"}"#));
    let times = (
        select(vec![100, 5_000]),
        optional(300),
        optional(8_000),
        optional(500),
    );
    (
        1_u8..8,
        1_u8..5,
        modes,
        times,
        texts,
        1_u64..3,
        any::<[bool; 2]>(),
    )
        .prop_map(
            |(mask, token, mode, times, text, depth, [fair, takes_over])| {
                let (ttl_ms, min_hold, max_hold, lock_delay) = times;
                let names = ["a", "b", "c"].into_iter().enumerate();
                let names = names.filter(|(bit, _)| mask & (1 << bit) != 0);
                let names =
                    names.map(|(_, name)| LockName::parse(name.as_bytes()).expect("a name"));
                let token = format!("00000000-0000-4000-8000-00000000000{token}");
                Claim {
                    names: LockNames::several(names.collect()).expect("at least one"),
                    token: Token::parse(&token).expect("a UUID"),
                    mode,
                    fair,
                    ttl: Ttl::from_store(Duration::from_millis(ttl_ms)),
                    hold_count: HoldCount::new(depth).expect("a small one"),
                    owner: Owner::from_store(text.map_or("", |_| "pod-1")),
                    metadata: text.and_then(|text| Metadata::from_json_object(text).ok()),
                    min_hold,
                    max_hold,
                    lock_delay,
                    takes_over,
                    has_new_token: false,
                }
            },
        )
}

fn steps() -> impl Strategy<Value = Vec<TimedStep>> {
    let operations = prop_oneof![
        6 => Just(TestStep::Acquire),
        6 => Just(TestStep::Wait),
        1 => Just(TestStep::Suspend),
        2 => Just(TestStep::Renew(None)),
        1 => Just(TestStep::Renew(Some(mode(None)))),
        3 => Just(TestStep::Release(None)),
        1 => Just(TestStep::Release(Some(HoldCount::ONE))),
        2 => Just(TestStep::Withdraw(Rollback::Undo)),
        1 => Just(TestStep::Withdraw(Rollback::Refuse)),
        1 => Just(TestStep::Withdraw(Rollback::Close)),
        1 => Just(TestStep::Evict),
        1 => Just(TestStep::Inspect),
        1 => Just(TestStep::Sweep),
    ];
    let after_ms = select(vec![0, 0, 0, 1, 50, 120, 700, 3_000, 61_000]);
    let step = (after_ms, claims(), 0_u64..3, operations);
    let step = step.prop_map(|(after_ms, claim, attempt, operation)| TimedStep {
        after_ms,
        claim,
        attempt: Attempt(attempt),
        operation,
    });
    prop::collection::vec(step, 1..60)
}

/// How the request of a step waits.
fn request(claim: &Claim) -> QueueRequest {
    QueueRequest {
        ticket: None,
        age: Duration::ZERO,
        wait: Duration::from_secs(2),
        execute_within: Duration::from_secs(1),
        place_kept: Duration::from_secs(1),
        poll_interval: Duration::from_secs(1),
        waiters_max: 3,
        wants_position: true,
        is_head: false,
        takes_over: claim.takes_over,
    }
}

/// What a step returned, as text, and the rows that it listed.
fn run(state: &mut State, now: StoreTime, step: &TimedStep) -> (String, Vec<Row>) {
    fn observed<T: fmt::Debug>(applied: StepResult<'_, T>) -> (String, Vec<Row>) {
        let (answer, notifications) = (applied.answer, applied.notifications);
        (
            format!("{answer:?} {notifications:?}"),
            applied.changed.to_vec(),
        )
    }
    let claim = &KeyedClaim::new(&step.claim);
    let (keys, attempt) = (&claim.keys, step.attempt);
    let request = request(claim);
    match step.operation {
        TestStep::Acquire => observed(state.acquire(now, claim, attempt, None)),
        TestStep::Wait => observed(state.acquire(now, claim, attempt, Some(&request))),
        TestStep::Suspend => {
            let options = SuspendOptions {
                keep: Duration::from_secs(1),
                lists_conflicts: true,
            };
            observed(state.suspend(now, claim, options))
        }
        TestStep::Renew(mode) => {
            let change = RenewOptions {
                mode,
                ..RenewOptions::default()
            };
            observed(state.renew(now, keys, change))
        }
        TestStep::Release(depth) => observed(state.release(now, keys, depth.map(Into::into))),
        TestStep::Withdraw(rollback) => observed(state.withdraw(now, claim, attempt, rollback)),
        TestStep::Evict => {
            let name = &keys[0].name;
            let begun = state.begin_eviction(now, name);
            let (mut changed, (holders, _)) = (begun.changed.to_vec(), begun.answer);
            let (observed, rest) = observed(state.evict(now, name, &holders, "stuck"));
            changed.extend(rest);
            (observed, changed)
        }
        TestStep::Inspect => observed(state.inspect(now, &keys[0].name)),
        TestStep::Sweep => observed(state.sweep(now)),
    }
}

/// All rows with their values. At this time, a fencing counter below it is as good as one that shows it.
fn rows(state: &State, now: StoreTime) -> BTreeMap<Row, String> {
    let table = &state.0;
    let mut rows: BTreeMap<_, _> = table.tombstones.rows().collect();
    for name in ["a", "b", "c"] {
        let name = LockName::parse(name.as_bytes()).expect("a name");
        let fence = table.fences[name.bucket().index()];
        let fence = now.unix_us().max(fence);
        rows.insert(Row::Fence(name.bucket()), fence.to_string());
    }
    let mut after = None;
    while let Some(lock) = table.locks.next("", after) {
        rows.extend(lock.rows());
        after = Some(&lock.name);
    }
    rows
}

/// The rows that differ.
fn difference(mut before: BTreeMap<Row, String>, after: BTreeMap<Row, String>) -> Vec<Row> {
    let mut changed = Vec::new();
    for (row, value) in after {
        match before.entry(row) {
            Entry::Occupied(same) if *same.get() == value => drop(same.remove()),
            Entry::Occupied(other) => changed.push(other.key().clone()),
            Entry::Vacant(new) => changed.push(new.into_key()),
        }
    }
    changed.extend(before.into_keys());
    changed
}

/// A plain claim for a second.
fn claim(name: &str, mode: Mode) -> Claim {
    let name = LockName::parse(name.as_bytes()).expect("a name");
    let ttl = Ttl::from_store(Duration::from_secs(1));
    Claim {
        mode,
        ..Claim::plain(name.into(), Token::random(), ttl)
    }
}

/// Otherwise an operation on some lock would have to wait until all permits of another were swept.
#[test]
fn a_step_sweeps_few_of_the_leases_that_expired_together() {
    const HOLDERS: usize = 1_000;
    let mut state = State::new(HOLDERS);
    let now = StoreTime::at(Duration::from_secs(1_000_000));
    for _ in 0..HOLDERS {
        let claim = claim("shared", mode(None));
        let granted = state.acquire(now, &KeyedClaim::new(&claim), Attempt(1), None);
        assert!(matches!(&granted.answer, Ok(granted) if granted.kind() == Some(GrantKind::New)));
    }
    assert_eq!(state.count_kept(), HOLDERS);
    let late = now + Duration::from_secs(2);
    let other = LockName::parse(b"other").expect("a name");
    state.inspect(late, &other);
    assert!(state.count_kept() > HOLDERS - 100);
    // An operation on the lock itself finds none of them.
    let claim = claim("shared", Mode::Exclusive);
    let granted = state.acquire(late, &KeyedClaim::new(&claim), Attempt(1), None);
    assert!(matches!(&granted.answer, Ok(granted) if granted.kind() == Some(GrantKind::New)));
    assert_eq!(state.count_kept(), 1);
}

/// A state that lists changed rows, and the time.
fn listing() -> (State, StoreTime) {
    let mut state = State::new(1_000_000);
    state.list_changed_rows(true);
    (state, StoreTime::at(Duration::from_secs(1_000_000)))
}

fn grant(state: &mut State, now: StoreTime, claim: &Claim) {
    let granted = state.acquire(now, &KeyedClaim::new(claim), Attempt(1), None);
    assert!(matches!(&granted.answer, Ok(granted) if granted.kind() == Some(GrantKind::New)));
}

/// Fails if the step has done so much that others notice. A lease that ends changes up to four rows.
fn assert_short<T>(applied: StepResult<'_, T>) -> T {
    let rows = applied.changed.len();
    assert!(rows < 5 * WORK_PER_STEP, "{rows} rows in one step");
    applied.answer
}

/// Everything that a lock can have very many of ends in the same moment.
#[test]
fn no_step_of_a_sweep_is_long() {
    const EACH: usize = 2_000;
    let (mut state, now) = listing();
    let held = claim("held", Mode::Exclusive);
    grant(&mut state, now, &held);
    for number in 0..EACH {
        let shared = claim("shared", mode(None));
        grant(&mut state, now, &shared);
        let mut closing = claim("closing", mode(None));
        closing.min_hold = Some(Duration::from_secs(2));
        grant(&mut state, now, &closing);
        grant(
            &mut state,
            now,
            &claim(&format!("{}", number % 200), mode(None)),
        );
        let keys = KeyedClaim::new(&closing).keys;
        state.release(now, &keys, None);
        let waiting = claim("held", Mode::Exclusive);
        let mut request = request(&waiting);
        request.waiters_max = u32::MAX;
        let waiting = KeyedClaim::new(&waiting);
        let answer = state.acquire(now, &waiting, Attempt(1), Some(&request));
        assert!(matches!(answer.answer, Ok(Acquired::Waiting(_))));
    }
    for late in [10, 100, 200] {
        let late = now + Duration::from_secs(late);
        while assert_short(state.sweep(late)) {}
    }
    assert_eq!(state.count_kept(), 0);
    assert!(state.0.tombstones.rows().next().is_none());
}

/// A renewal or a release is not delayed by what has expired on the same lock; others are, but no step of it is long.
#[test]
fn no_step_on_a_lock_is_long_that_very_many_have_held() {
    let (mut state, now) = listing();
    let (mut renewed, mut released) = (claim("shared", mode(None)), claim("shared", mode(None)));
    let expired = claim("shared", mode(None));
    for lasting in [&mut renewed, &mut released] {
        lasting.ttl = Ttl::from_store(Duration::from_secs(60));
        grant(&mut state, now, lasting);
    }
    grant(&mut state, now, &expired);
    for _ in 0..2_000 {
        grant(&mut state, now, &claim("shared", mode(None)));
    }
    let late = now + Duration::from_secs(2);
    let [renewed, released, expired] = [&renewed, &released, &expired].map(KeyedClaim::new);
    let renewal = state.renew(late, &renewed.keys, RenewOptions::default());
    assert!(matches!(assert_short(renewal), Renewed::Extended(_)));
    let release = state.release(late, &released.keys, None);
    assert!(matches!(
        assert_short(release)[..],
        [Released::Freed { .. }]
    ));
    let renewal = state.renew(late, &expired.keys, RenewOptions::default());
    assert!(matches!(assert_short(renewal), Renewed::NotHolder(_)));
    let names = [renewed.names[0].clone()];
    let mut steps = 0;
    while !assert_short(state.expire_due(late, &names)) {
        steps += 1;
    }
    let most = 2_000 / WORK_PER_STEP;
    assert!((3..=most).contains(&steps), "{steps} steps");
    let view = assert_short(state.inspect(late, &names[0]));
    let LockState::Held(holders) = view.state else {
        panic!("one still holds it");
    };
    assert_eq!(holders.total, 1);
}

/// The head waiter of each lock waits for others as well, on each of which much has expired.
#[test]
fn no_step_is_long_that_opens_a_lock_whose_waiters_wait_for_many() {
    const LOCKS: usize = 100;
    let (mut state, now) = listing();
    let held = claim("held", Mode::Exclusive);
    grant(&mut state, now, &held);
    let name = |number: usize| LockName::parse(format!("{number}").as_bytes()).expect("a name");
    for number in 0..LOCKS {
        for _ in 0..20 {
            grant(&mut state, now, &claim(&format!("{number}"), mode(None)));
        }
    }
    for number in 0..LOCKS {
        let mut waiting = claim("held", Mode::Exclusive);
        let others = (number..number + 50).map(|other| name(other % LOCKS));
        waiting.names = LockNames::several(others.chain([held.names[0].clone()]).collect())
            .expect("at least one");
        let mut request = request(&waiting);
        (request.waiters_max, request.wait) = (u32::MAX, Duration::from_secs(60));
        let waiting = KeyedClaim::new(&waiting);
        assert_short(state.acquire(now, &waiting, Attempt(1), Some(&request))).expect("room");
    }
    let late = now + Duration::from_secs(2);
    let held = KeyedClaim::new(&held);
    assert_short(state.release(late, &held.keys, None));
    while assert_short(state.sweep(late)) {}
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever comes when. And the same steps at the same times have the same effects.
    #[test]
    fn every_change_is_among_the_changed_rows(steps in steps()) {
        let (mut state, mut other) = (State::new(12), State::new(12));
        state.list_changed_rows(true);
        let mut now = StoreTime::at(Duration::from_secs(1_000_000));
        for state in [&mut state, &mut other] {
            state.set_event_delivery(now, true);
        }
        for step in &steps {
            now = now + Duration::from_millis(step.after_ms);
            let before = rows(&state, now);
            let (answer, listed) = run(&mut state, now, step);
            for row in difference(before, rows(&state, now)) {
                prop_assert!(listed.contains(&row), "{row:?} is not listed by {step:?}");
            }
            let (same, unlisted) = run(&mut other, now, step);
            prop_assert_eq!(answer, same);
            prop_assert_eq!(unlisted, Vec::new());
        }
        let end = now + Duration::from_secs(200);
        while state.sweep(end).answer {}
        prop_assert_eq!(state.count_kept(), 0);
        prop_assert!(state.0.tombstones.rows().next().is_none());
    }
}
