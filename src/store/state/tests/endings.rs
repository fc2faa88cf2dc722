//! Tests of the moments at which something ends, together with more than one step sweeps.

use super::*;
use crate::store::TOMBSTONE_TTL;

/// How many others end in the same moment, each on a lock of its own.
const OTHERS: usize = 100;

/// What is held from now on by the same kind of claim, many times over, and last on the lock `last`.
fn held(change: impl Fn(&mut Claim)) -> (State, StoreTime, Vec<Claim>) {
    let (mut state, now) = listing();
    let others = (0..OTHERS).map(|number| number.to_string());
    let claims = others.chain(["last".to_owned()]).map(|name| {
        let mut claim = claim(&name, Mode::Exclusive);
        change(&mut claim);
        grant(&mut state, now, &claim);
        claim
    });
    let claims = claims.collect();
    (state, now, claims)
}

/// The same, released.
fn released(change: impl Fn(&mut Claim)) -> (State, StoreTime, Claim) {
    let (mut state, now, mut claims) = held(change);
    for claim in &claims {
        let released = state.release(now, &KeyedClaim::new(claim).keys, None);
        assert!(matches!(released.answer[..], [Released::Freed { .. }]));
    }
    (state, now, claims.pop().expect("there is one"))
}

/// The end, and the last moment before it, each with whether it has come.
fn around(end: StoreTime) -> [(StoreTime, bool); 2] {
    let before = StoreTime::from_unix_us(end.unix_us() - 1);
    [(before, false), (end, true)]
}

fn is_granted(state: &mut State, now: StoreTime, claim: &Claim) -> bool {
    let answer = state.acquire(now, &KeyedClaim::new(claim), Attempt(1), None);
    let answer = answer.answer.expect("there is room");
    answer.kind() == Some(GrantKind::New)
}

fn rival_is_granted(state: &mut State, now: StoreTime, claim: &Claim) -> bool {
    let rival = Claim {
        token: Token::random(),
        ..claim.clone()
    };
    is_granted(state, now, &rival)
}

/// Operations on the lock of a claim, each of which tells whether its lease has ended.
const OPERATIONS: [fn(&mut State, StoreTime, &Claim) -> bool; 8] = [
    |state, now, claim| {
        let keys = KeyedClaim::new(claim).keys;
        let renewed = state.renew(now, &keys, RenewOptions::default());
        matches!(renewed.answer, Renewed::NotHolder(_))
    },
    |state, now, claim| {
        let released = state.release(now, &KeyedClaim::new(claim).keys, None);
        matches!(released.answer[..], [Released::NotHolder(_)])
    },
    |state, now, claim| {
        let withdrawn = state.withdraw(now, &KeyedClaim::new(claim), Attempt(1), Rollback::Undo);
        withdrawn.answer == 0
    },
    |state, now, claim| {
        let key = &KeyedClaim::new(claim).keys[0];
        let evicted = state.evict(now, &key.name, &[key.claim], "stuck");
        evicted.answer.is_empty()
    },
    |state, now, claim| {
        state
            .begin_eviction(now, &claim.names[0])
            .answer
            .0
            .is_empty()
    },
    |state, now, claim| state.inspect(now, &claim.names[0]).answer.state == LockState::Free,
    rival_is_granted,
    |state, now, claim| {
        let query = ListQuery {
            prefix: claim.names[0].as_str().to_owned(),
            within: None,
            after: None,
            snapshot: None,
            page_size: 10,
        };
        let mut page = ListingProgress::new(&query);
        while !page.is_over() {
            state.list(now, &query, &mut page);
        }
        page.into_listing().locks.is_empty()
    },
];

#[test]
fn a_lease_has_ended_at_its_end_and_not_before() {
    for (number, has_ended) in OPERATIONS.iter().enumerate() {
        let (_, now, _) = held(|_| {});
        for (now, is_over) in around(now + Duration::from_secs(1)) {
            let (mut state, _, claims) = held(|_| {});
            let last = claims.last().expect("there is one");
            assert_eq!(has_ended(&mut state, now, last), is_over, "{number}");
        }
    }
}

#[test]
fn a_claim_that_has_ended_is_remembered_until_its_minute_is_over() {
    let (mut state, now, last) = released(|_| {});
    for (now, is_over) in around(now + TOMBSTONE_TTL) {
        assert_eq!(is_granted(&mut state, now, &last), is_over);
    }
}

#[test]
fn a_lock_is_cooling_until_its_minimum_is_over() {
    let minimum = Duration::from_secs(2);
    let (mut state, now, last) = released(|claim| claim.min_hold = Some(minimum));
    for (now, is_over) in around(now + minimum) {
        let view = state.inspect(now, &last.names[0]).answer;
        assert_eq!(view.state == LockState::Free, is_over);
        assert_eq!(rival_is_granted(&mut state, now, &last), is_over);
    }
}

#[test]
fn a_sweep_at_the_end_of_all_leaves_nothing() {
    let (mut state, now, _) = held(|_| {});
    let end = now + Duration::from_secs(1);
    while state.sweep(end).answer {}
    assert_eq!(state.held(end).answer, 0);
    while state.sweep(end + TOMBSTONE_TTL).answer {}
    assert_eq!(state.count_kept(), 0);
    assert!(state.0.tombstones.rows().next().is_none());
}
