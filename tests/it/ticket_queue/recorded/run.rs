//! Records a run: clients of one service, on the memory store and a stopped clock, that do what they like.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use leasehold::domain::{Acquired, Attempt, Claim, LockName, LockState, LockView, Refused, Token};
use leasehold::service::{AcquireAnswer, AcquireOutcome, LockService};
use leasehold::store::StoreError;
use tokio::task::JoinHandle;

use super::replay::{Event, LockSeen, Recorded};
use crate::support::fixture::{claim_on, fresh_name, lock_of, owned_by, reader, ttl};
use crate::support::scripted_store::{Executed, Operation, ScriptedStore};
use crate::ticket_queue::calls::{Call, Outcome};
use crate::ticket_queue::scenario::{CLAIMS, Scenario};
use crate::ticket_queue::store::OUTSIDER;

const STEPS: usize = 30;

/// A step of time.
const TICK: Duration = Duration::from_secs(1);

/// What the model lets last for two steps: leases, kept places, and limited waits. All of it begins soon after a step and
/// ends between two.
const TWO_TICKS: Duration = Duration::from_millis(1_500);

/// Heads of queues poll once in each step.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Longer than a run.
const LONG_WAIT: Duration = Duration::from_secs(50);

type Answer = JoinHandle<Result<AcquireAnswer, StoreError>>;

/// A client, and how often it has posted its claim.
enum Party {
    Away(usize),
    Waiting(usize, Answer),
    Holding,
    Done,
}

struct Run {
    scenario: Scenario,
    chance: Rng,
    service: LockService,
    store: Arc<ScriptedStore>,
    claims: [Arc<Claim>; CLAIMS + 1],
    /// The requests of each claim, in their order.
    attempts: [Vec<Attempt>; CLAIMS],
    parties: [Party; CLAIMS],
    history: Vec<Recorded>,
}

/// A run of these claims, in which every client may do what it may do in the scenario.
pub(super) fn record(scenario: Scenario, chance: Rng) -> Vec<Recorded> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut run = Run::begin(scenario, chance).await;
        for _ in 0..STEPS {
            run.step().await;
        }
        run.history
    })
}

impl Run {
    /// At the beginning an outsider holds the lock.
    async fn begin(scenario: Scenario, chance: Rng) -> Self {
        let (service, store) = ScriptedStore::service_with(|waiting| {
            waiting.poll_interval = POLL_INTERVAL;
            waiting.place_kept = TWO_TICKS;
        });
        let name = fresh_name();
        let claims = std::array::from_fn(|number| {
            let is_shared = scenario.shares.get(number).is_some_and(|shares| *shares);
            let claim = owned_by(&claim_on(&name), &number.to_string());
            let mode = if is_shared {
                reader(&claim).mode
            } else {
                claim.mode
            };
            Arc::new(Claim {
                mode,
                ttl: ttl(TWO_TICKS),
                ..claim
            })
        });
        let mut run = Self {
            scenario,
            chance,
            service,
            store,
            claims,
            attempts: Default::default(),
            parties: std::array::from_fn(|_| Party::Away(0)),
            history: Vec::new(),
        };
        let outsider = Arc::clone(&run.claims[OUTSIDER]);
        let answer = run.service.acquire(outsider, Duration::ZERO).await;
        answer.unwrap().unclaimed.delivered();
        if run.chance.bool() {
            run.store.loses_messages();
        }
        run.store.records_operations();
        run
    }

    /// One client acts, or time passes.
    async fn step(&mut self) {
        let claim = self.chance.usize(..CLAIMS);
        match self.chance.u8(..10) {
            0..3 => self.time_passes().await,
            3 => self.release(OUTSIDER).await,
            4 => self.hang_up(claim),
            5..10 => match &self.parties[claim] {
                Party::Away(posted) if *posted < 2 => self.post(claim),
                Party::Holding => self.release(claim).await,
                Party::Away(_) | Party::Waiting(..) | Party::Done => {}
            },
            10.. => {}
        }
        // Sometimes the service has not finished with one when the next one acts.
        if self.chance.u8(..4) > 0 {
            self.settle().await;
        }
    }

    async fn time_passes(&mut self) {
        self.settle().await;
        self.note(Event::TimePasses, None);
        tokio::time::advance(TICK).await;
        self.settle().await;
        let holders = self.seen().await.holders;
        for (claim, party) in self.parties.iter_mut().enumerate() {
            if matches!(party, Party::Holding) && !holders.contains(&claim) {
                *party = Party::Done;
            }
        }
    }

    fn post(&mut self, claim: usize) {
        let Party::Away(posted) = self.parties[claim] else {
            return;
        };
        let wait = match self.scenario.is_impatient[claim] && posted == 0 {
            true => TWO_TICKS,
            false => LONG_WAIT,
        };
        let (service, asked) = (self.service.clone(), Arc::clone(&self.claims[claim]));
        let answer = tokio::spawn(async move { Ok(service.acquire(asked, wait).await?) });
        self.parties[claim] = Party::Waiting(posted + 1, answer);
    }

    /// The client hangs up, if its request has reached the store.
    fn hang_up(&mut self, claim: usize) {
        if let Party::Waiting(posted, answer) = &self.parties[claim]
            && self.attempts[claim].len() == *posted
            && !answer.is_finished()
        {
            answer.abort();
            self.parties[claim] = Party::Away(*posted);
            self.note(Event::HangsUp(claim), None);
        }
    }

    async fn release(&mut self, claim: usize) {
        self.settle().await;
        if !self.seen().await.holders.contains(&claim) {
            return;
        }
        let claim = Arc::clone(&self.claims[claim]);
        let released = self
            .service
            .release(claim.names.clone(), claim.token, None, |_| {});
        released.await.unwrap();
        for (party, own) in self.parties.iter_mut().zip(&self.claims) {
            if own.token == claim.token {
                *party = Party::Done;
            }
        }
    }

    /// Lets the service finish, and notes what it did.
    async fn settle(&mut self) {
        loop {
            tokio::time::sleep(Duration::from_millis(1)).await;
            for executed in self.store.take_executed() {
                let event = Event::Call(self.call(&executed));
                let lock = self.lock_in(&executed.view);
                self.note(event, Some(lock));
            }
            let is_answered =
                |party: &Party| matches!(party, Party::Waiting(_, answer) if answer.is_finished());
            let Some(claim) = self.parties.iter().position(is_answered) else {
                return;
            };
            let done = std::mem::replace(&mut self.parties[claim], Party::Done);
            if let Party::Waiting(posted, answer) = done {
                self.end_wait(claim, posted, answer.await.unwrap().unwrap());
            }
        }
    }

    /// The client receives the answer, or has disconnected just before.
    fn end_wait(&mut self, claim: usize, posted: usize, answer: AcquireAnswer) {
        let (party, event) = match answer.outcome {
            AcquireOutcome::Granted(_) if self.chance.u8(..4) == 0 => {
                drop(answer.unclaimed);
                (Party::Away(posted), Event::HangsUp(claim))
            }
            AcquireOutcome::Granted(_) => {
                answer.unclaimed.delivered();
                (Party::Holding, Event::Holds(claim))
            }
            AcquireOutcome::TimedOut(_) => (Party::Away(posted), Event::IsAway(claim)),
            AcquireOutcome::Refused(Refused::Ended(_)) => (Party::Done, Event::HasEnded(claim)),
            other => panic!("{other:?}"),
        };
        self.parties[claim] = party;
        self.note(event, None);
    }

    fn note(&mut self, event: Event, lock: Option<LockSeen>) {
        self.history.push(Recorded { event, lock });
    }

    /// What the operation is in the model.
    fn call(&mut self, executed: &Executed) -> Call {
        let claim = self.number_of(executed.token);
        match executed.operation {
            Operation::Acquire => {
                let attempt = self.attempt(claim, executed.attempt);
                Call::Acquire(claim, attempt, outcome(executed.answer.as_ref()))
            }
            Operation::Withdraw => Call::Withdraw(claim, self.attempt(claim, executed.attempt)),
            Operation::Suspend => Call::Suspend(claim),
            Operation::Release => Call::Release(claim),
            other => panic!("{other:?} is not recorded"),
        }
    }

    fn number_of(&self, token: Token) -> usize {
        let is_own = |claim: &Arc<Claim>| claim.token == token;
        self.claims.iter().position(is_own).expect("it is known")
    }

    fn attempt(&mut self, claim: usize, attempt: Option<Attempt>) -> usize {
        let attempt = attempt.expect("the operation has one");
        let attempts = &mut self.attempts[claim];
        let known = attempts.iter().position(|known| *known == attempt);
        known.unwrap_or_else(|| {
            attempts.push(attempt);
            attempts.len() - 1
        })
    }

    async fn seen(&self) -> LockSeen {
        let name: LockName = lock_of(&self.claims[OUTSIDER]).clone();
        self.lock_in(&self.service.inspect(&name).await.unwrap())
    }

    /// Owners of claims are their numbers.
    fn lock_in(&self, view: &LockView) -> LockSeen {
        let number = |owner: &str| owner.parse().expect("a number");
        let holders = match &view.state {
            LockState::Held(holders) => &holders.listed[..],
            LockState::Free | LockState::Cooling { .. } => &[],
        };
        let head = view.queue.head.as_ref();
        LockSeen {
            holders: holders.iter().map(|it| number(it.owner.as_str())).collect(),
            waiting: usize::try_from(view.queue.length).unwrap(),
            first: head.map(|head| number(head.owner.as_str())),
        }
    }
}

fn outcome(answer: Option<&Acquired>) -> Outcome {
    match answer {
        Some(Acquired::Granted(_)) => Outcome::Granted,
        Some(Acquired::Waiting(_)) => Outcome::Waiting,
        Some(Acquired::WaitExpired) => Outcome::Overdue,
        Some(Acquired::Refused(Refused::Ended(_))) => Outcome::Ended,
        other => panic!("{other:?} is not in the model"),
    }
}
