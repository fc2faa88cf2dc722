//! The same history in a store: every answer, every view and every fencing token compared with the model's.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use leasehold::domain::{
    Acquired, Attempt, Claim, Fence, Holder, LockName, LockState, NotHolder, Released, Renewed,
    Token,
};
use proptest::prelude::*;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::reference::{LOCKS, Model, Seen, Step, TOKENS, Terms, What, Why};
use crate::support::bench::{Bench, claim_on, fresh_name, hold_count, ttl};

/// Where histories are run, and which durations occur in them.
pub(super) trait Place: std::fmt::Debug + 'static {
    /// How long the model's unit of time lasts.
    const TICK: Duration;
    /// Whether time only passes when a history says so, so that every reported duration can be compared. Where it
    /// is not, histories only have durations that are clearly over or far from it.
    const IS_EXACT: bool;

    /// What claims ask for.
    fn terms() -> BoxedStrategy<Terms>;

    /// How much time passes in a step, if any ever does.
    fn passes() -> Option<BoxedStrategy<u64>>;
}

/// How many steps were compared where time really passes.
pub(super) static COMPARED_IN_TIME: AtomicUsize = AtomicUsize::new(0);

/// Histories of a place.
pub(super) struct Histories<P>(PhantomData<P>);

impl<P: Place> ReferenceStateMachine for Histories<P> {
    type State = Model;
    type Transition = Step;

    fn init_state() -> BoxedStrategy<Model> {
        Just(Model::default()).boxed()
    }

    fn transitions(_: &Model) -> BoxedStrategy<Step> {
        let claims = || (0..LOCKS, 0..TOKENS);
        let depths = || 1..4_u64;
        let acquire = (claims(), depths(), P::terms()).prop_map(|((lock, token), depth, terms)| {
            Step::Acquire {
                lock,
                token,
                depth,
                terms,
            }
        });
        let withdraw =
            (claims(), any::<bool>()).prop_map(|((lock, token), takes_first)| Step::Withdraw {
                lock,
                token,
                takes_first,
            });
        let ttl = prop::option::of(P::terms().prop_map(|terms| terms.ttl));
        let renew =
            (claims(), ttl).prop_map(|((lock, token), ttl)| Step::Renew { lock, token, ttl });
        let release = (claims(), prop::option::of(depths()))
            .prop_map(|((lock, token), depth)| Step::Release { lock, token, depth });
        let evict = (0..LOCKS).prop_map(|lock| Step::Evict { lock });
        let still = prop_oneof![6 => acquire, 2 => withdraw, 3 => renew, 4 => release, 1 => evict];
        match P::passes() {
            None => still.boxed(),
            Some(ticks) => {
                let pass = ticks.prop_map(|ticks| Step::Pass { ticks });
                prop_oneof![4 => still, 1 => pass].boxed()
            }
        }
    }

    fn preconditions(model: &Model, step: &Step) -> bool {
        model.allows(step)
    }

    fn apply(mut model: Model, step: &Step) -> Model {
        model.step(step);
        model
    }
}

/// A history being run.
pub(super) struct Run<P> {
    runtime: Arc<Runtime>,
    bench: Arc<Bench>,
    locks: [LockName; LOCKS],
    tokens: [Token; TOKENS],
    fences: [Option<Fence>; LOCKS],
    /// When time last passed; until the first tick after it, nothing ends by itself.
    passed: Instant,
    /// The machine was so busy that a tick went by unnoticed: from then on nothing can be said.
    is_inconclusive: bool,
    place: PhantomData<P>,
}

impl<P: Place> StateMachineTest for Run<P> {
    type SystemUnderTest = Self;
    type Reference = Histories<P>;

    fn init_test(_: &Model) -> Self {
        let (runtime, bench) = if P::IS_EXACT { memory() } else { redis() };
        let passed = runtime.block_on(async { Instant::now() });
        Self {
            runtime,
            bench,
            locks: [(); LOCKS].map(|()| fresh_name()),
            tokens: [(); TOKENS].map(|()| Token::random()),
            fences: [None; LOCKS],
            passed,
            is_inconclusive: false,
            place: PhantomData,
        }
    }

    fn apply(mut run: Self, model: &Model, step: Step) -> Self {
        let runtime = Arc::clone(&run.runtime);
        runtime.block_on(run.take(model, &step));
        run
    }
}

impl<P: Place> Run<P> {
    async fn take(&mut self, model: &Model, step: &Step) {
        let answer = self.answer(model, step).await;
        let mut views = Vec::new();
        for name in &self.locks {
            views.push(self.seen_state(self.bench.state(name).await));
        }
        self.is_inconclusive |= !P::IS_EXACT && self.passed.elapsed() > P::TICK / 2;
        if self.is_inconclusive {
            return;
        }
        if !P::IS_EXACT && P::passes().is_some() {
            COMPARED_IN_TIME.fetch_add(1, Ordering::Relaxed);
        }
        Self::assert_agree(&answer, &model.answer, &format_args!("{step:?}"));
        for (lock, view) in views.iter().enumerate() {
            let what = format_args!("the view of lock {lock} after {step:?}");
            Self::assert_agree(view, &model.view(lock), &what);
        }
    }

    fn assert_agree(actual: &Seen, expected: &Seen, what: &dyn std::fmt::Display) {
        if P::IS_EXACT {
            assert_eq!(actual, expected, "{what}");
        } else {
            let [actual, expected] = [actual, expected].map(|seen| (seen.what, seen.depth));
            assert_eq!(actual, expected, "{what}");
        }
    }

    async fn answer(&mut self, model: &Model, step: &Step) -> Seen {
        let attempt = Attempt(model.attempt);
        match *step {
            Step::Acquire {
                lock,
                token,
                depth,
                terms,
            } => {
                let claim = self.claim(lock, token, depth, Some(terms));
                let answer = self.bench.attempt(&claim, attempt).await;
                self.seen_acquired(lock, answer.expect("the store answers"))
            }
            Step::Withdraw { lock, token, .. } => {
                let claim = self.claim(lock, token, 1, None);
                self.bench.withdraw(&claim, attempt).await;
                What::Nothing.bare()
            }
            Step::Renew { lock, token, ttl } => {
                let claim = self.claim(lock, token, 1, None);
                let ttl = ttl.map(Self::duration);
                self.seen_renewed(lock, self.bench.renew_for(&claim, ttl).await)
            }
            Step::Release { lock, token, depth } => {
                let claim = self.claim(lock, token, 1, None);
                let answer = match depth {
                    Some(depth) => self.bench.step_back(&claim, depth).await,
                    None => self.bench.release(&claim).await,
                };
                self.seen_released(lock, answer)
            }
            Step::Evict { lock } => {
                let holders = self.bench.evict(&self.locks[lock], "").await;
                match holders.as_slice() {
                    [] => What::NobodyEvicted.bare(),
                    [holder] => self.seen_holder(What::Evicted, holder, &[]),
                    several => panic!("two holders at once: {several:?}"),
                }
            }
            Step::Pass { ticks } => {
                self.bench.advance(Self::duration(ticks)).await;
                self.passed = Instant::now();
                What::Nothing.bare()
            }
        }
    }

    fn claim(&self, lock: usize, token: usize, depth: u64, terms: Option<Terms>) -> Claim {
        let mut claim = Claim {
            token: self.tokens[token],
            hold_count: hold_count(depth),
            ..claim_on(&self.locks[lock])
        };
        if let Some(terms) = terms {
            claim.ttl = ttl(Self::duration(terms.ttl));
            claim.min_hold = terms.min_hold.map(Self::duration);
            claim.max_hold = terms.max_hold.map(Self::duration);
            claim.lock_delay = terms.lock_delay.map(Self::duration);
        }
        claim
    }

    fn seen_acquired(&mut self, lock: usize, answer: Acquired) -> Seen {
        match answer {
            Acquired::Granted {
                lease,
                after_expiry,
            } => {
                let fence = Some(lease.holder.fence);
                assert!(
                    fence > self.fences[lock],
                    "{fence:?} after {:?}",
                    self.fences
                );
                self.fences[lock] = fence;
                let reported: Vec<_> = after_expiry.into_iter().collect();
                self.seen_holder(What::Granted, &lease.holder, &reported)
            }
            Acquired::Reentered(lease) => self.seen_own(What::Reentered, lock, &lease.holder, &[]),
            Acquired::Replayed(lease) => self.seen_own(What::Replayed, lock, &lease.holder, &[]),
            Acquired::Held(holders) => self.seen_state(LockState::Held(holders)),
            Acquired::Cooling { free_in } => self.seen_state(LockState::Cooling { free_in }),
            Acquired::Ended(reason) => What::Ended(why(&reason)).bare(),
            Acquired::Recovering { .. } => panic!("nothing was lost here"),
        }
    }

    fn seen_renewed(&self, lock: usize, answer: Renewed) -> Seen {
        match answer {
            Renewed::Extended(renewal) => {
                let holder = &renewal.lease.holder;
                self.seen_own(What::Extended, lock, holder, &[renewal.slack])
            }
            Renewed::NotHolder(reason) => What::NotHolder(why(&reason)).bare(),
        }
    }

    fn seen_released(&self, lock: usize, answer: Released) -> Seen {
        match answer {
            Released::Freed { held_for } => What::Freed.seen(0, &[Self::ticks(held_for)]),
            Released::SteppedBack(lease) => {
                self.seen_own(What::SteppedBack, lock, &lease.holder, &[])
            }
            Released::Repeated => What::Repeated.bare(),
            Released::NotHolder(reason) => What::NotHolder(why(&reason)).bare(),
        }
    }

    fn seen_state(&self, state: LockState) -> Seen {
        match state {
            LockState::Free => What::Free.bare(),
            LockState::Cooling { free_in } => What::Cooling.seen(0, &[Self::ticks(free_in)]),
            LockState::Held(holders) => match holders.as_slice() {
                [holder] => self.seen_holder(What::Held, holder, &[]),
                other => panic!("not one holder: {other:?}"),
            },
        }
    }

    /// A lease that was granted before has the fencing token that it was granted with.
    fn seen_own(&self, what: What, lock: usize, holder: &Holder, also: &[Duration]) -> Seen {
        assert_eq!(Some(holder.fence), self.fences[lock], "{what:?}");
        self.seen_holder(what, holder, also)
    }

    fn seen_holder(&self, what: What, holder: &Holder, also: &[Duration]) -> Seen {
        let durations = std::iter::once(&holder.expires_in).chain(also);
        let ticks: Vec<_> = durations.map(|duration| Self::ticks(*duration)).collect();
        what.seen(holder.hold_count.get().into(), &ticks)
    }

    fn duration(ticks: u64) -> Duration {
        P::TICK * u32::try_from(ticks).expect("a short time")
    }

    fn ticks(duration: Duration) -> u64 {
        u64::try_from(duration.as_nanos() / P::TICK.as_nanos()).expect("a short time")
    }
}

fn why(reason: &NotHolder) -> Why {
    match reason {
        NotHolder::Expired => Why::Expired,
        NotHolder::Lost => Why::Lost,
        NotHolder::Evicted { .. } => Why::Evicted,
        NotHolder::Released => Why::Released,
        NotHolder::Unknown => Why::Unknown,
    }
}

/// An embedded store of its own, on a stopped clock of its own.
fn memory() -> (Arc<Runtime>, Arc<Bench>) {
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let bench = runtime.block_on(Bench::memory());
    (Arc::new(runtime), Arc::new(bench))
}

/// One store for all histories; they have their own locks.
fn redis() -> (Arc<Runtime>, Arc<Bench>) {
    static RUNTIME: LazyLock<Arc<Runtime>> =
        LazyLock::new(|| Arc::new(Runtime::new().expect("a runtime")));
    static BENCH: OnceCell<Arc<Bench>> = OnceCell::const_new();
    let bench = BENCH.get_or_init(|| async { Arc::new(Bench::redis().await) });
    let bench = RUNTIME.block_on(bench);
    (Arc::clone(&RUNTIME), Arc::clone(bench))
}
