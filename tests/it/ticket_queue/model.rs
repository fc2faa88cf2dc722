//! Every step that is possible in a state.
//!
//! A process completes its pending work before time advances: it polls its queue, reports grants, and rolls back
//! undelivered ones. Everything else may happen at any time, or never.

use stateright::{Model, Property};

use super::Mistake;
use super::calls::Calls;
use super::properties;
use super::scenario::{ATTEMPTS, CLAIMS, PROCESSES, Scenario, UNLUCKY};
use super::state::{Client, Phase, Process, State};
use super::store::{Lease, OUTSIDER, TTL};

/// The possible steps. A claim comes with the number of its request, where it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Post(usize),
    PostWithoutAnswer(usize),
    HangUp(usize),
    ComeAgain(usize),
    StayAway(usize),
    Release(usize),
    Poll(usize),
    PollWithoutReply(usize),
    Receive(usize),
    Lose(usize),
    /// The process detects that the client is gone.
    Notice(usize, usize),
    TimeOut(usize, usize),
    Report(usize, usize),
    Withdraw(usize, usize),
    Suspend(usize, usize),
    /// The late poll arrives.
    Arrive,
    /// The late poll is lost.
    Vanish,
    Crash,
    Pause,
    Resume,
    Tick,
}

impl Model for Scenario {
    type State = State;
    type Action = Action;

    /// Initially an outsider holds the lock.
    fn init_states(&self) -> Vec<State> {
        let mut state = State {
            delays_left: self.delays,
            may_pause: self.may_pause,
            ..State::default()
        };
        state.store.leases[OUTSIDER] = Some(Lease {
            shared: false,
            time_left: TTL,
            attempt: None,
        });
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if properties::is_lost(self, state) {
            return;
        }
        for claim in 0..CLAIMS {
            self.of_client(state, claim, actions);
            for attempt in 0..ATTEMPTS {
                of_request(state, claim, attempt, actions);
            }
        }
        for process in 0..PROCESSES {
            self.of_process(state, process, actions);
        }
        if state.store.leases[OUTSIDER].is_some() {
            actions.push(Action::Release(OUTSIDER));
        }
        if state.late.is_some() {
            actions.extend([Action::Arrive, Action::Vanish]);
        }
        match state.processes[UNLUCKY] {
            Process::Runs if self.may_crash => actions.push(Action::Crash),
            Process::Runs if state.may_pause => actions.push(Action::Pause),
            Process::Paused => actions.push(Action::Resume),
            Process::Runs | Process::IsDead => {}
        }
        if self.owes_nothing(state) {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let state = self.after(last, action);
        // A step must change the state: otherwise a final state would not be detected as an end.
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }
}

impl Scenario {
    /// The state after a step.
    pub(super) fn after(&self, last: &State, action: Action) -> State {
        let mut state = State {
            calls: Calls::default(),
            ..*last
        };
        self.step(&mut state, action);
        if action != Action::Tick {
            state.seen.is_unreserved = state.store.is_unreserved() && !last.store.is_unreserved();
        }
        state.forget();
        state
    }

    fn of_client(&self, state: &State, claim: usize, actions: &mut Vec<Action>) {
        match state.clients[claim] {
            Client::Idle if state.runs(self.target(state, claim, 0)) => {
                actions.push(Action::Post(claim));
                if state.delays_left > 0 {
                    actions.push(Action::PostWithoutAnswer(claim));
                }
            }
            Client::Waiting(_) if self.may_hang_up[claim] => actions.push(Action::HangUp(claim)),
            Client::Away { may_come_again } if may_come_again => {
                actions.push(Action::StayAway(claim));
                if state.runs(self.target(state, claim, 1)) {
                    actions.push(Action::ComeAgain(claim));
                }
            }
            Client::Holding => actions.push(Action::Release(claim)),
            Client::Idle | Client::Waiting(_) | Client::Away { .. } | Client::Done => {}
        }
    }

    fn of_process(&self, state: &State, process: usize, actions: &mut Vec<Action>) {
        if state.store.messages[process] {
            actions.push(Action::Lose(process));
        }
        if !state.runs(process) || !state.has_waiting(process) {
            return;
        }
        if state.store.messages[process] {
            // The message is not removed, so that it may arrive twice or late.
            actions.push(Action::Receive(process));
        }
        if self.mistake != Some(Mistake::WakesByMessageAlone) {
            // As often as it likes, and at least once in each step of time.
            actions.push(Action::Poll(process));
            if state.delays_left > 0 && state.first_waiting(process).is_some() {
                actions.push(Action::PollWithoutReply(process));
            }
        }
    }

    /// Whether every running process has completed its pending work.
    fn owes_nothing(&self, state: &State) -> bool {
        let polls = self.mistake != Some(Mistake::WakesByMessageAlone);
        let mut processes = 0..PROCESSES;
        let has_polled = processes.all(|process| {
            let must_poll = polls && state.runs(process) && state.has_waiting(process);
            !must_poll || state.has_polled[process]
        });
        has_polled
            && state.each_request().all(|(claim, attempt, request)| {
                let is_done = match request.phase {
                    Phase::Over => true,
                    Phase::Waiting => state.is_there(claim, attempt) && request.time_left > 1,
                    Phase::Answering | Phase::Withdrawing { .. } | Phase::Suspending { .. } => {
                        false
                    }
                };
                is_done || !state.runs(request.process)
            })
    }
}

fn of_request(state: &State, claim: usize, attempt: usize, actions: &mut Vec<Action>) {
    let request = state.requests[claim][attempt];
    if !state.runs(request.process) {
        return;
    }
    let is_there = state.is_there(claim, attempt);
    match request.phase {
        Phase::Waiting | Phase::Answering if !is_there => {
            actions.push(Action::Notice(claim, attempt));
        }
        Phase::Waiting if request.time_left <= 1 => actions.push(Action::TimeOut(claim, attempt)),
        Phase::Answering => actions.push(Action::Report(claim, attempt)),
        Phase::Withdrawing { .. } => actions.push(Action::Withdraw(claim, attempt)),
        Phase::Suspending { .. } => actions.push(Action::Suspend(claim, attempt)),
        Phase::Waiting | Phase::Over => {}
    }
}
