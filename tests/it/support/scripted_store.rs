//! The embedded store, with scripted faults: operations fail, stay unanswered or are answered late, answers and
//! messages are lost. It records the polls of waiters and the clean-up operations. All tests of the service use it.

mod answers;
mod messages;

use std::collections::{HashSet, VecDeque};
use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::config::WaitingConfig;
use leasehold::domain::{Acquired, Attempt, Claim, LockName, LockView, Ticket, Token};
use leasehold::service::LockService;
use leasehold::store::memory::MemoryStore;
use leasehold::store::{
    Deadlines, Fault, Listener, LockStore, StoreError, StoreHealth, StoreResult,
};
use leasehold::telemetry::Metrics;
use tokio::time::{Instant, sleep};

use super::stores::{OPERATION_TIMEOUT, service_with, waiting_config};
use messages::Messages;

/// What happens to an operation.
#[derive(Clone, Debug)]
pub(crate) enum Behavior {
    /// It is applied and answered at once.
    Answered,
    /// It is applied at once, and the answer is delayed.
    Late(Duration),
    /// It is delayed, then applied and answered.
    Delayed(Duration),
    /// It is applied, and the answer is lost.
    Lost,
    /// It is not applied, and fails with this error.
    Fails(StoreError),
    /// It is neither applied nor answered.
    Unanswered,
    /// It panics.
    Panics,
}

/// The operations that a script tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Acquire,
    Suspend,
    Withdraw,
    Renew,
    Release,
    Evict,
    Inspect,
    List,
    AssignFences,
    CountLeases,
    Close,
}

/// An operation that the store has executed, whatever became of the answer, and the lock after it.
#[derive(Clone, Debug)]
pub(crate) struct Executed {
    pub(crate) operation: Operation,
    pub(crate) token: Token,
    pub(crate) attempt: Option<Attempt>,
    pub(crate) answer: Option<Acquired>,
    pub(crate) view: LockView,
}

#[derive(Debug)]
pub(crate) struct ScriptedStore {
    /// The store below, for operations without a fault.
    pub(crate) store: Arc<MemoryStore>,
    /// The behavior of every operation that has no behavior of its own.
    behavior: Mutex<Behavior>,
    behaviors_by_operation: Vec<(Operation, Behavior)>,
    /// The behaviors of the next polls. Later polls are answered normally.
    behaviors_of_polls: Mutex<VecDeque<Behavior>>,
    /// The behaviors of the next assignments of fencing tokens.
    behaviors_of_assignments: Mutex<VecDeque<Behavior>>,
    /// The acquires so far.
    acquires: AtomicUsize,
    /// The assignments of fencing tokens so far.
    assignments: AtomicUsize,
    /// Whether it delays new grants, and lets claims wait in the queue of a free lock.
    is_recovering: AtomicBool,
    /// After how many holders it stops an eviction.
    evicted: Option<u64>,
    health: Option<StoreHealth>,
    /// Whether its last check has found it down.
    pub(crate) is_known_down: AtomicBool,
    /// The polls, in order, with the tickets that they sent.
    polls: Mutex<Vec<(Token, Option<Ticket>)>>,
    /// The attempts that were undone. As Redis does, it refuses their requests from then on.
    undone: Mutex<HashSet<(Token, Attempt)>>,
    /// All operations, in order.
    operations: Mutex<Vec<Operation>>,
    /// How long the last listing or eviction had.
    longest: Mutex<Option<Duration>>,
    /// The operations on the queue as the store executed them, in order, if they are recorded.
    executed: Mutex<Option<Vec<Executed>>>,
    messages: Arc<Messages>,
    pub(crate) event_deliveries: Mutex<Vec<bool>>,
}

impl Default for ScriptedStore {
    fn default() -> Self {
        Self::on(Arc::new(MemoryStore::new(100_000)))
    }
}

impl ScriptedStore {
    /// A scripted way to a store, which may have several.
    pub(crate) fn on(store: Arc<MemoryStore>) -> Self {
        let messages = Arc::<Messages>::default();
        store.set_listener(Arc::clone(&messages) as _);
        Self {
            store,
            behavior: Mutex::new(Behavior::Answered),
            behaviors_by_operation: Vec::new(),
            behaviors_of_polls: Mutex::default(),
            behaviors_of_assignments: Mutex::default(),
            acquires: AtomicUsize::new(0),
            assignments: AtomicUsize::new(0),
            is_recovering: AtomicBool::new(false),
            evicted: None,
            health: None,
            is_known_down: AtomicBool::new(false),
            polls: Mutex::default(),
            undone: Mutex::default(),
            operations: Mutex::default(),
            longest: Mutex::default(),
            executed: Mutex::default(),
            messages,
            event_deliveries: Mutex::default(),
        }
    }

    /// A store in which this happens to every operation.
    pub(crate) fn always(behavior: Behavior) -> Self {
        Self {
            behavior: Mutex::new(behavior),
            ..Self::default()
        }
    }

    /// Every operation fails with this error.
    pub(crate) fn failing(error: StoreError) -> Self {
        Self::always(Behavior::Fails(error))
    }

    /// This happens to one kind of operation, whatever happens to the others.
    pub(crate) fn with(mut self, operation: Operation, behavior: Behavior) -> Self {
        self.behaviors_by_operation.push((operation, behavior));
        self
    }

    /// A store that delays new grants, and lets claims wait in the queue of a free lock.
    pub(crate) fn recovering() -> Self {
        Self {
            is_recovering: AtomicBool::new(true),
            ..Self::default()
        }
    }

    /// Sets whether it delays new grants.
    pub(crate) fn recovers(&self, is_recovering: bool) {
        self.is_recovering.store(is_recovering, Ordering::Relaxed);
    }

    /// A store that stops an eviction after `count` holders.
    pub(crate) fn evicting(count: u64) -> Self {
        Self {
            evicted: Some(count),
            ..Self::default()
        }
    }

    /// A store with this health.
    pub(crate) fn in_health(health: StoreHealth) -> Self {
        Self {
            health: Some(health),
            ..Self::default()
        }
    }

    /// A service on a scripted store, configured as in production.
    pub(crate) fn service() -> (LockService, Arc<Self>) {
        Self::service_with(|_| {})
    }

    pub(crate) fn service_with(
        change: impl FnOnce(&mut WaitingConfig),
    ) -> (LockService, Arc<Self>) {
        let store = Arc::new(Self::default());
        (store.another_service(change), store)
    }

    /// Another service, which replaces the former one as the listener.
    pub(crate) fn another_service(
        self: &Arc<Self>,
        change: impl FnOnce(&mut WaitingConfig),
    ) -> LockService {
        let mut config = WaitingConfig {
            poll_interval: Duration::from_secs(1),
            events_kept: 10,
            ..waiting_config()
        };
        change(&mut config);
        let store = Arc::clone(self) as _;
        service_with(store, OPERATION_TIMEOUT, config, &Metrics::default())
    }

    /// Loses messages from now on: reservations, evictions and releases.
    pub(crate) fn loses_messages(&self) {
        self.messages.are_lost.store(true, Ordering::Relaxed);
    }

    /// Reconnects: messages arrive again, and the service is notified that some were lost.
    pub(crate) fn reconnects(&self) {
        self.messages.are_lost.store(false, Ordering::Relaxed);
        self.listener().messages_lost();
    }

    pub(crate) fn listener(&self) -> Arc<dyn Listener> {
        let listener = self.messages.listener.lock().unwrap();
        Arc::clone(listener.as_ref().expect("there is a service"))
    }

    /// Adds the behaviors of the next polls.
    pub(crate) fn next(&self, behaviors: impl IntoIterator<Item = Behavior>) {
        self.behaviors_of_polls.lock().unwrap().extend(behaviors);
    }

    /// From now on, this happens to every operation.
    pub(crate) fn behaves(&self, behavior: Behavior) {
        *self.behavior.lock().unwrap() = behavior;
    }

    /// Adds the behaviors of the next assignments of fencing tokens.
    pub(crate) fn next_assignments(&self, behaviors: impl IntoIterator<Item = Behavior>) {
        self.behaviors_of_assignments
            .lock()
            .unwrap()
            .extend(behaviors);
    }

    /// The number of acquires so far.
    pub(crate) fn acquires(&self) -> usize {
        self.acquires.load(Ordering::Relaxed)
    }

    /// The number of assignments of fencing tokens so far.
    pub(crate) fn assignments(&self) -> usize {
        self.assignments.load(Ordering::Relaxed)
    }

    /// The number of polls so far.
    pub(crate) fn polls(&self) -> usize {
        self.polls.lock().unwrap().len()
    }

    /// The number of polls of this claim so far.
    pub(crate) fn polls_of(&self, claim: &Claim) -> usize {
        self.tickets_of(claim).len()
    }

    /// The tickets that the polls of this claim sent, in order.
    pub(crate) fn tickets_of(&self, claim: &Claim) -> Vec<Option<Ticket>> {
        let polls = self.polls.lock().unwrap();
        let own = polls.iter().filter(|(token, _)| *token == claim.token);
        own.map(|(_, ticket)| *ticket).collect()
    }

    /// The suspensions and withdrawals so far.
    pub(crate) fn cleanups(&self) -> Vec<Operation> {
        let mut operations = self.operations();
        operations.retain(|it| matches!(it, Operation::Suspend | Operation::Withdraw));
        operations
    }

    /// All operations so far.
    pub(crate) fn operations(&self) -> Vec<Operation> {
        self.operations.lock().unwrap().clone()
    }

    /// How long the last listing or eviction had.
    pub(crate) fn longest(&self) -> Option<Duration> {
        *self.longest.lock().unwrap()
    }

    /// Records the acquires, suspensions, withdrawals and releases from now on.
    pub(crate) fn records_operations(&self) {
        *self.executed.lock().unwrap() = Some(Vec::new());
    }

    /// What was recorded since the last time.
    pub(crate) fn take_executed(&self) -> Vec<Executed> {
        let mut executed = self.executed.lock().unwrap();
        executed.as_mut().map(std::mem::take).unwrap_or_default()
    }

    async fn note(
        &self,
        operation: Operation,
        name: &LockName,
        token: Token,
        (attempt, answer): (Option<Attempt>, Option<&Acquired>),
    ) {
        if self.executed.lock().unwrap().is_none() {
            return;
        }
        let deadline = Instant::now() + OPERATION_TIMEOUT;
        let view = self.store.inspect(name, deadline).await;
        let executed = Executed {
            operation,
            token,
            attempt,
            answer: answer.cloned(),
            view: view.expect("an embedded store answers"),
        };
        self.executed
            .lock()
            .unwrap()
            .as_mut()
            .unwrap()
            .push(executed);
    }

    /// Sets whether the store is unreachable.
    pub(crate) fn goes_down(&self, is_down: bool) {
        self.set_behavior(is_down.then(unavailable));
    }

    /// Sets whether requests are lost, so that their outcome is unknown.
    pub(crate) fn goes_silent(&self, loses_requests: bool) {
        self.set_behavior(loses_requests.then(unknown));
    }

    fn set_behavior(&self, error: Option<StoreError>) {
        *self.behavior.lock().unwrap() = error.map_or(Behavior::Answered, Behavior::Fails);
    }

    fn note_deadlines(&self, deadlines: Deadlines) {
        *self.longest.lock().unwrap() = Some(deadlines.end - Instant::now());
    }

    /// Runs an operation as scripted.
    async fn run<T>(
        &self,
        operation: Operation,
        answer: impl Future<Output = StoreResult<T>>,
    ) -> StoreResult<T> {
        self.operations.lock().unwrap().push(operation);
        let mut own = self.behaviors_by_operation.iter();
        let own = own.find(|(of, _)| *of == operation);
        let behavior = own.map(|(_, behavior)| behavior.clone());
        let behavior = behavior.unwrap_or_else(|| self.behavior.lock().unwrap().clone());
        behaves(behavior, answer).await
    }
}

async fn behaves<T>(
    behavior: Behavior,
    answer: impl Future<Output = StoreResult<T>>,
) -> StoreResult<T> {
    match behavior {
        Behavior::Answered => answer.await,
        Behavior::Late(delay) => {
            let answer = answer.await;
            sleep(delay).await;
            answer
        }
        Behavior::Delayed(delay) => {
            sleep(delay).await;
            answer.await
        }
        Behavior::Lost => answer.await.and(Err(unknown())),
        Behavior::Fails(error) => Err(error),
        Behavior::Unanswered => pending().await,
        Behavior::Panics => panic!("scripted"),
    }
}

pub(crate) fn unavailable() -> StoreError {
    StoreError::Unavailable {
        fault: Fault::Io,
        detail: "scripted".to_owned(),
    }
}

fn unknown() -> StoreError {
    StoreError::Unknown {
        fault: Fault::Timeout,
        detail: "scripted".to_owned(),
    }
}
