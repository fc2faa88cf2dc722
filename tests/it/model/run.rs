//! Runs a history on a store, and compares answers, views and tokens with the model, into whose types `seen` translates.

mod seen;
mod stores;

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::domain::{Attempt, Claim, Fence, LockName, Metadata, Token};
use leasehold::store::memory::MemoryStore;
use leasehold::store::{LockStore as _, RESERVATION_TTL, TOMBSTONE_TTL};
use proptest::prelude::*;
use proptest_state_machine::StateMachineTest;
use tokio::runtime::Runtime;
use tokio::time::Instant;

use super::histories::Histories;
use super::reference::{
    ClaimSpec, LOCKS, Model, Part, Seen, Step, TOKENS, Terms, WAITERS_MAX, What,
};
pub(super) use stores::{Stores, cluster, file, memory, quorum, quorum_redis, redis, sentinel};

use crate::support::eventually_within;
use crate::support::fixture::{
    Fixture, Waiter, claim_on_all, fresh_name, hold_count, metadata, names, owner, ttl,
};

/// The store that histories run on, and the durations in them.
pub(super) trait Place: std::fmt::Debug + 'static {
    /// The length of the model's unit of time.
    const TICK: Duration;
    /// Whether time passes only when a history says so, so that every reported duration can be compared. Otherwise,
    /// histories only have durations that are clearly over or far from over.
    const IS_EXACT: bool;
    /// The number of processes that poll for waiters.
    const PROCESSES: usize;

    /// Whether a claim may be refused for any reason of several: it contradicts another of its token in several ways, or
    /// several queues are full.
    const REFUSES_FOR_ANY: bool = false;

    /// Opens the stores of a history.
    fn stores() -> Stores;

    /// The durations of claims.
    fn terms() -> BoxedStrategy<Terms>;

    /// How much time passes in a step; `None` if time never passes.
    fn passes() -> Option<BoxedStrategy<u64>>;
}

/// The number of compared steps where time really passes.
pub(super) static COMPARED_IN_TIME: AtomicUsize = AtomicUsize::new(0);

/// A running history.
pub(super) struct Run<P> {
    runtime: Arc<Runtime>,
    /// One for each process.
    benches: Arc<[Fixture]>,
    /// The store itself, if it counts its records.
    memory: Option<Arc<MemoryStore>>,
    locks: [LockName; LOCKS],
    tokens: [Token; TOKENS],
    fences: [Fences; LOCKS],
    /// The claims that wait or have waited: on which process, and how many notifications it had received at their last
    /// poll.
    waiters: BTreeMap<usize, (usize, Waiter, usize)>,
    /// When time last passed; until the first tick after that, nothing expires.
    passed: Instant,
    /// Set when the machine was so busy that a tick passed unnoticed: from then on nothing is compared.
    is_inconclusive: bool,
    place: PhantomData<P>,
}

/// The fencing tokens of one lock.
#[derive(Debug, Default)]
struct Fences {
    last: Option<Fence>,
    of: BTreeMap<usize, Fence>,
}

impl<P: Place> StateMachineTest for Run<P> {
    type SystemUnderTest = Self;
    type Reference = Histories<P>;

    fn init_test(_: &Model) -> Self {
        let Stores {
            runtime,
            benches,
            memory,
        } = P::stores();
        let passed = runtime.block_on(async { Instant::now() });
        let mut locks = [(); LOCKS].map(|()| fresh_name());
        locks.sort();
        Self {
            runtime,
            benches,
            memory,
            locks,
            tokens: [(); TOKENS].map(|()| Token::random()),
            fences: Default::default(),
            waiters: BTreeMap::new(),
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

    fn teardown(run: Self, _: Model) {
        let Some(memory) = run.memory else { return };
        run.runtime.block_on(async {
            tokio::time::advance(TOMBSTONE_TTL * 10).await;
            memory.refresh_health().await;
        });
        assert_eq!(memory.count_kept(), 0, "what is kept when all is over");
    }
}

impl<P: Place> Run<P> {
    async fn take(&mut self, model: &Model, step: &Step) {
        let answer = self.answer(model, step).await;
        self.settle().await;
        let mut polled = Vec::new();
        for (token, expected) in &model.polled {
            polled.push((*token, self.poll(*token).await, expected));
            self.settle().await;
        }
        let mut views = Vec::new();
        for (lock, name) in self.locks.iter().enumerate() {
            views.push(self.seen_view(lock, self.benches[0].view(name).await));
        }
        let longest = match model.queued().is_empty() {
            true => P::TICK / 2,
            false => (P::TICK / 2).min(RESERVATION_TTL / 2),
        };
        self.is_inconclusive |= !P::IS_EXACT && self.passed.elapsed() > longest;
        if self.is_inconclusive {
            return;
        }
        if !P::IS_EXACT && P::passes().is_some() {
            COMPARED_IN_TIME.fetch_add(1, Ordering::Relaxed);
        }
        Self::assert_agree(&answer, &model.answer, &format_args!("{step:?}"));
        for (token, answer, expected) in polled {
            let what = format_args!("what token {token} is answered after {step:?}");
            Self::assert_agree(&answer, expected, &what);
        }
        for (lock, view) in views.iter().enumerate() {
            let what = format_args!("the view of lock {lock} after {step:?}");
            Self::assert_agree(view, &model.view(lock), &what);
        }
        if let Some(memory) = &self.memory {
            let expected = model.count(|token| self.counts_of_text(token));
            assert_eq!(memory.count_kept(), expected, "what is kept after {step:?}");
        }
        self.assert_due_waiters_are_notified(model).await;
    }

    /// Waits until all nodes of a quorum have carried out what a majority has decided: only then do they agree.
    async fn settle(&self) {
        for bench in self.benches.iter() {
            bench.settled().await;
        }
    }

    fn assert_agree(actual: &Seen, expected: &Seen, what: &dyn std::fmt::Display) {
        if P::IS_EXACT {
            assert_eq!(actual, expected, "{what}");
        } else {
            let timeless = |seen: &Seen| -> Vec<_> {
                let parts = seen.iter().cloned();
                let timeless = parts.map(|part| Part {
                    ticks: Vec::new(),
                    ..Self::of_any_reason(part)
                });
                let mut timeless: Vec<_> = timeless.collect();
                // Holders and evicted holders are in the order of time.
                timeless.sort();
                timeless
            };
            assert_eq!(timeless(actual), timeless(expected), "{what}");
        }
    }

    fn of_any_reason(part: Part) -> Part {
        match part.what {
            What::ContradictsClaim | What::ContradictsUpgrade | What::ContradictsLimit
                if P::REFUSES_FOR_ANY =>
            {
                What::ContradictsClaim.bare(0)
            }
            What::TooManyWaiters if P::REFUSES_FOR_ANY => What::TooManyWaiters.bare(0),
            _ => part,
        }
    }

    /// Asserts that no wake-up is lost: each waiter that could be granted was notified since its last poll.
    async fn assert_due_waiters_are_notified(&self, model: &Model) {
        for token in model.due() {
            let (process, waiter, notified_before) = &self.waiters[&token];
            let is_notified = || self.notifications_of(*process, waiter) > *notified_before;
            if P::IS_EXACT {
                assert!(is_notified(), "token {token} is due and was not notified");
            } else if !is_notified() {
                let what = format!("token {token} is due and gets notified");
                eventually_within(RESERVATION_TTL, &what, async || is_notified().then_some(()))
                    .await;
            }
        }
    }

    fn notifications_of(&self, process: usize, waiter: &Waiter) -> usize {
        let ear = self.benches[process].listener();
        let names = waiter.claim.names.iter();
        names.map(|name| ear.reservations_of(name)).sum()
    }

    async fn answer(&mut self, model: &Model, step: &Step) -> Seen {
        let attempt = Attempt(model.attempt.0);
        match step {
            Step::Acquire { spec, waits_on } => self.acquire(spec, attempt, *waits_on).await,
            Step::Poll { token } => self.poll(*token).await,
            Step::Suspend { token, keep } => {
                let (process, waiter, _) = &self.waiters[token];
                let keep = Self::duration(*keep);
                let suspended = self.benches[*process].suspend(&waiter.claim, keep).await;
                self.seen_suspended(&waiter.claim, &suspended)
            }
            Step::Withdraw {
                token, is_closed, ..
            } => {
                let claim = self.claim(*token, &model.attempt.1);
                match is_closed {
                    true => self.benches[0].close(&claim, attempt).await,
                    false => self.benches[0].withdraw(&claim, attempt).await,
                }
                Seen::new()
            }
            Step::Renew {
                locks,
                token,
                ttl,
                mode,
            } => {
                let claim = self.claim(*token, locks);
                let ttl = ttl.map(Self::duration);
                let mode = mode.map(seen::mode);
                let answer = self.benches[0].renew_to(&claim, ttl, mode).await;
                self.seen_renewed(&claim, answer)
            }
            Step::Release {
                locks,
                token,
                depth,
            } => {
                let claim = self.claim(*token, locks);
                let answers = match depth {
                    Some(depth) => self.benches[0].step_back_all(&claim, *depth).await,
                    None => self.benches[0].release_all(&claim).await,
                };
                self.seen_released(&claim, answers)
            }
            Step::Evict { lock } => {
                let holders = self.benches[0].evict(&self.locks[*lock], "").await;
                self.seen_evicted(*lock, &holders)
            }
            Step::Pass { ticks } => {
                self.benches[0].advance(Self::duration(*ticks)).await;
                self.passed = Instant::now();
                Seen::new()
            }
        }
    }

    async fn acquire(
        &mut self,
        spec: &ClaimSpec,
        attempt: Attempt,
        waits_on: Option<usize>,
    ) -> Seen {
        let claim = Claim {
            hold_count: hold_count(spec.depth),
            mode: seen::mode(spec.mode),
            fair: spec.fair,
            takes_over: spec.takes_over,
            ttl: ttl(Self::duration(spec.terms.ttl)),
            min_hold: spec.terms.min_hold.map(Self::duration),
            max_hold: spec.terms.max_hold.map(Self::duration),
            lock_delay: spec.terms.lock_delay.map(Self::duration),
            ..self.claim(spec.token, &spec.locks)
        };
        let Some(process) = waits_on else {
            let answer = self.benches[0].attempt(&claim, attempt).await;
            return self.seen_acquired(&claim, answer.expect("the store answers"));
        };
        let mut waiter = Waiter::new(claim).with(|stand| stand.waiters_max = WAITERS_MAX);
        waiter.attempt = attempt;
        self.send(spec.token, process, waiter).await
    }

    async fn poll(&mut self, token: usize) -> Seen {
        let (process, waiter, _) = self.waiters.remove(&token).expect("it has waited");
        self.send(token, process, waiter).await
    }

    async fn send(&mut self, token: usize, process: usize, mut waiter: Waiter) -> Seen {
        let answer = self.benches[process].poll(&mut waiter).await;
        let seen = self.seen_acquired(&waiter.claim, answer);
        if waiter.queue_request.ticket.is_some() {
            // A notification that was in flight during the poll may be obsolete after it. So it does not count, and
            // another one must arrive.
            let notified = self.notifications_of(process, &waiter);
            self.waiters.insert(token, (process, waiter, notified));
        }
        seen
    }

    /// The amount that the text of a claim counts.
    fn counts_of_text(&self, token: usize) -> usize {
        let claim = self.claim(token, &[0]);
        let metadata = claim.metadata.as_ref().map_or("", Metadata::as_json);
        (claim.owner.as_str().len() + metadata.len()) / 256
    }

    /// A plain claim of a token, with a text: the larger the token, the longer the text.
    fn claim(&self, token: usize, locks: &[usize]) -> Claim {
        Claim {
            token: self.tokens[token],
            owner: owner(&token.to_string()),
            metadata: metadata(&format!(r#"{{"m":"{}"}}"#, "x".repeat(token * 200))),
            ..claim_on_all(names(locks.iter().map(|&lock| &self.locks[lock])))
        }
    }

    fn duration(ticks: u64) -> Duration {
        P::TICK * u32::try_from(ticks).expect("a short time")
    }

    fn ticks(duration: Duration) -> u64 {
        u64::try_from(duration.as_nanos() / P::TICK.as_nanos()).expect("a short time")
    }
}
