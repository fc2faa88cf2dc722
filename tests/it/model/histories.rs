//! Generates histories: random steps, with meaningful ones more often than by chance.

use std::marker::PhantomData;

use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use proptest::strategy::Union;
use proptest_state_machine::ReferenceStateMachine;

use super::reference::{ClaimSpec, LOCKS, Mode, Model, Step, TOKENS};
use super::run::Place;

/// Histories for a place.
pub(super) struct Histories<P>(PhantomData<P>);

impl<P: Place> ReferenceStateMachine for Histories<P> {
    type State = Model;
    type Transition = Step;

    fn init_state() -> BoxedStrategy<Model> {
        Just(Model::default()).boxed()
    }

    fn transitions(model: &Model) -> BoxedStrategy<Step> {
        let terms = || P::terms().prop_map(|terms| terms.ttl);
        let renew = (locks(), 0..TOKENS, prop::option::of(terms()), new_mode()).prop_map(
            |(locks, token, ttl, mode)| Step::Renew {
                locks,
                token,
                ttl,
                mode,
            },
        );
        let release =
            (locks(), 0..TOKENS, depth()).prop_map(|(locks, token, depth)| Step::Release {
                locks,
                token,
                depth,
            });
        let withdraw = (0..TOKENS, any::<bool>(), any::<bool>()).prop_map(
            |(token, takes_first, is_closed)| Step::Withdraw {
                token,
                takes_first,
                is_closed,
            },
        );
        let evict = (0..LOCKS).prop_map(|lock| Step::Evict { lock });
        let acquire = (spec::<P>(), waits_on::<P>())
            .prop_map(|(spec, waits_on)| Step::Acquire { spec, waits_on });
        let mut steps = vec![
            (12, acquire.boxed()),
            (2, withdraw.boxed()),
            (1, renew.boxed()),
            (1, release.boxed()),
            (1, evict.boxed()),
        ];
        steps.extend(of_holders::<P>(model));
        steps.extend(of_waiters::<P>(model));
        if let Some(ticks) = P::passes() {
            steps.push((5, ticks.prop_map(|ticks| Step::Pass { ticks }).boxed()));
        }
        Union::new_weighted(steps).boxed()
    }

    fn preconditions(model: &Model, step: &Step) -> bool {
        model.allows(step)
    }

    fn apply(mut model: Model, step: &Step) -> Model {
        model.step(step);
        model
    }
}

/// Steps of claims that hold, which would be rare among random ones.
fn of_holders<P: Place>(model: &Model) -> Vec<(u32, BoxedStrategy<Step>)> {
    let held = model.held();
    if held.is_empty() {
        return Vec::new();
    }
    let again =
        (select(held.clone()), spec::<P>(), any::<bool>()).prop_map(|(held, spec, same_mode)| {
            let (locks, token, mode) = held;
            Step::Acquire {
                spec: ClaimSpec {
                    locks,
                    token,
                    mode: if same_mode { mode } else { spec.mode },
                    ..spec
                },
                waits_on: None,
            }
        });
    let release =
        (select(held.clone()), depth()).prop_map(|((locks, token, _), depth)| Step::Release {
            locks,
            token,
            depth,
        });
    let roll_back = (select(held.clone()), any::<bool>()).prop_map(|((_, token, _), is_closed)| {
        Step::Withdraw {
            token,
            takes_first: false,
            is_closed,
        }
    });
    let renew = (select(held), new_mode()).prop_map(|((locks, token, _), mode)| Step::Renew {
        locks,
        token,
        ttl: None,
        mode,
    });
    vec![
        (4, again.boxed()),
        (5, release.boxed()),
        (3, roll_back.boxed()),
        (2, renew.boxed()),
    ]
}

/// Steps of claims that wait or have waited.
fn of_waiters<P: Place>(model: &Model) -> Vec<(u32, BoxedStrategy<Step>)> {
    let requests = model.requests();
    if requests.is_empty() {
        return Vec::new();
    }
    let token = || select(requests.iter().map(|spec| spec.token).collect::<Vec<_>>());
    let poll = token().prop_map(|token| Step::Poll { token });
    let keep = P::terms().prop_map(|terms| terms.ttl);
    let suspend = (token(), keep).prop_map(|(token, keep)| Step::Suspend { token, keep });
    let leave = select(requests.clone()).prop_map(|spec| Step::Release {
        locks: spec.locks,
        token: spec.token,
        depth: None,
    });
    let again = (select(requests), waits_on::<P>())
        .prop_map(|(spec, waits_on)| Step::Acquire { spec, waits_on });
    vec![
        (6, poll.boxed()),
        (3, suspend.boxed()),
        (1, leave.boxed()),
        (3, again.boxed()),
    ]
}

/// Usually one lock, sometimes several.
fn locks() -> BoxedStrategy<Vec<usize>> {
    let all: Vec<_> = (0..LOCKS).collect();
    prop_oneof![
        3 => (0..LOCKS).prop_map(|lock| vec![lock]),
        1 => subsequence(all, 2..=LOCKS),
    ]
    .boxed()
}

fn mode() -> BoxedStrategy<Mode> {
    let shared = |limit, permits| Just(Mode::Shared { limit, permits });
    prop_oneof![
        4 => Just(Mode::Alone),
        2 => shared(None, 1),
        2 => shared(Some(2), 1),
        1 => shared(Some(2), 2),
    ]
    .boxed()
}

/// The mode of a renewal, if it has one.
fn new_mode() -> BoxedStrategy<Option<Mode>> {
    prop_oneof![2 => Just(None), 1 => mode().prop_map(Some)].boxed()
}

/// The hold count to release down to; `None` for a full release.
fn depth() -> BoxedStrategy<Option<u64>> {
    prop_oneof![3 => Just(None), 1 => (1..4_u64).prop_map(Some)].boxed()
}

fn spec<P: Place>() -> BoxedStrategy<ClaimSpec> {
    let is_fair = prop::bool::weighted(0.9);
    let takes_over = prop::bool::weighted(0.3);
    let how = (mode(), is_fair, takes_over, P::terms());
    (locks(), 0..TOKENS, 1..4_u64, how)
        .prop_map(
            |(locks, token, depth, (mode, fair, takes_over, terms))| ClaimSpec {
                locks,
                token,
                depth,
                mode,
                fair,
                takes_over,
                terms,
            },
        )
        .boxed()
}

/// The process on which a request waits, if it does.
fn waits_on<P: Place>() -> BoxedStrategy<Option<usize>> {
    prop::option::weighted(0.6, 0..P::PROCESSES).boxed()
}
