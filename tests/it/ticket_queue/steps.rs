//! What each step does.

use super::Mistake;
use super::model::Action;
use super::scenario::{ATTEMPTS, CLAIMS, PROCESSES, Scenario, UNLUCKY, WAIT};
use super::state::{Client, Phase, Process, Request, State};
use super::store::{Answer, Ask, FOREVER, OUTSIDER};

impl Scenario {
    pub(super) fn step(&self, state: &mut State, action: Action) {
        match action {
            Action::Post(claim) => self.post(state, claim, 0),
            Action::PostWithoutAnswer(claim) => {
                self.begin(state, claim, 0);
                self.ask_without_answer(state, claim, 0);
            }
            Action::ComeAgain(claim) => self.post(state, claim, 1),
            Action::HangUp(claim) => self.go_away(state, claim),
            Action::StayAway(claim) => {
                let may_come_again = false;
                state.clients[claim] = Client::Away { may_come_again };
            }
            Action::Release(claim) => {
                state.store.release(claim, self.mistake);
                if claim != OUTSIDER {
                    state.clients[claim] = Client::Done;
                }
            }
            Action::Look(process) => {
                state.has_looked[process] = true;
                self.look(state, process);
            }
            Action::LookWithoutAnswer(process) => {
                state.has_looked[process] = true;
                if let Some((claim, attempt)) = state.first_waiting(process) {
                    self.ask_without_answer(state, claim, attempt);
                }
            }
            Action::Hear(process) => self.look(state, process),
            Action::Lose(process) => state.store.messages[process] = false,
            Action::Notice(claim, attempt) | Action::TimeOut(claim, attempt) => {
                self.close(state, claim, attempt);
            }
            Action::Report(claim, attempt) => report(state, claim, attempt),
            Action::Withdraw(claim, attempt) => self.withdraw(state, claim, attempt),
            Action::Park(claim, attempt) => self.park(state, claim, attempt),
            Action::Arrive => self.arrive(state),
            Action::Vanish => state.late = None,
            Action::Crash => self.kill(state),
            Action::StandStill => {
                state.may_stand_still = false;
                state.processes[UNLUCKY] = Process::StandsStill;
            }
            Action::GoOn => state.processes[UNLUCKY] = Process::Runs,
            Action::Tick => state.tick(self),
        }
    }

    /// The process that a client posts its claim to.
    pub(super) fn target(&self, state: &State, claim: usize, attempt: usize) -> usize {
        let moves = if self.returns_home { 0 } else { attempt };
        let process = (self.homes[claim] + moves) % PROCESSES;
        if state.processes[process] == Process::IsDead {
            1 - process
        } else {
            process
        }
    }

    fn post(&self, state: &mut State, claim: usize, attempt: usize) {
        self.begin(state, claim, attempt);
        self.ask(state, claim, attempt);
    }

    fn begin(&self, state: &mut State, claim: usize, attempt: usize) {
        let is_impatient = self.is_impatient[claim] && attempt == 0;
        state.requests[claim][attempt] = Request {
            process: self.target(state, claim, attempt),
            phase: Phase::Waiting,
            sequence: None,
            time_left: if is_impatient { WAIT + 1 } else { FOREVER },
            is_unsure: false,
        };
        state.clients[claim] = Client::Waiting(attempt);
    }

    /// Asks for whom nobody knows what became of the last ask, and for the first of the others; for all of them, if the
    /// store had forgotten that this process waits.
    fn look(&self, state: &mut State, process: usize) {
        for (claim, attempt, request) in state.each_request() {
            let must_know = request.is_unsure && self.mistake != Some(Mistake::FirstAloneAsks);
            if must_know || request.sequence.is_none() {
                self.ask_if_waiting(state, claim, attempt, process);
            }
        }
        while let Some((claim, attempt)) = state.first_waiting(process) {
            let restored = self.ask(state, claim, attempt);
            if restored {
                self.ask_for_all(state, process);
            }
            let phase = state.requests[claim][attempt].phase;
            if matches!(phase, Phase::Waiting | Phase::Answering) {
                break;
            }
        }
    }

    fn ask_for_all(&self, state: &mut State, process: usize) {
        for (claim, attempt, _) in state.each_request() {
            self.ask_if_waiting(state, claim, attempt, process);
        }
    }

    fn ask_if_waiting(&self, state: &mut State, claim: usize, attempt: usize, process: usize) {
        if state.requests[claim][attempt].is_waiting_at(process) {
            self.ask(state, claim, attempt);
        }
    }

    /// Asks and gets the answer. Says whether the store had lost the place.
    fn ask(&self, state: &mut State, claim: usize, attempt: usize) -> bool {
        let ask = self.request(state, claim, attempt);
        let answer = self.execute(state, ask);
        let request = &mut state.requests[claim][attempt];
        match answer {
            Answer::Granted | Answer::Replayed => {
                request.phase = Phase::Answering;
                let process = request.process;
                self.call(state, claim, process);
            }
            Answer::Waiting { sequence, restored } => {
                request.sequence = Some(sequence);
                return restored;
            }
            Answer::Overdue => self.close(state, claim, attempt),
            Answer::Ended => {
                request.phase = Phase::Over;
                if state.is_there(claim, attempt) {
                    state.clients[claim] = Client::Done;
                }
            }
        }
        false
    }

    /// Something became of a claim: whoever else waits for it here asks at once.
    fn call(&self, state: &mut State, claim: usize, process: usize) {
        for attempt in 0..ATTEMPTS {
            self.ask_if_waiting(state, claim, attempt, process);
        }
    }

    /// Asks and never gets an answer, whether the ask arrives or not.
    fn ask_without_answer(&self, state: &mut State, claim: usize, attempt: usize) {
        state.delays_left -= 1;
        state.late = Some(self.request(state, claim, attempt));
        state.requests[claim][attempt].is_unsure = true;
    }

    fn request(&self, state: &State, claim: usize, attempt: usize) -> Ask {
        let request = state.requests[claim][attempt];
        Ask {
            claim,
            attempt,
            process: request.process,
            shared: self.shares[claim],
            sequence: request.sequence,
            time_left: request.time_left,
        }
    }

    /// What the store makes of an ask, whoever gets the answer.
    fn execute(&self, state: &mut State, ask: Ask) -> Answer {
        let before = state.store;
        let answer = state.store.acquire(ask, self.mistake);
        // Two requests got the lease, and the store cannot know whether anybody was told.
        state.seen.is_untold[ask.claim] |= answer == Answer::Replayed;
        if answer == Answer::Granted && before.leases[ask.claim].is_none() {
            let place = ask.sequence.or(before.place_of(ask.claim));
            state.seen.idle_for = 0;
            state.seen.granted_late |= ask.sequence.is_some() && ask.time_left == 0;
            let overtook = state.live_waiters().any(|(sequence, claim, process)| {
                claim != ask.claim
                    && place.is_none_or(|place| sequence < place)
                    && before.waits_for(process, claim)
            });
            state.seen.overtook |= overtook;
        }
        answer
    }

    fn arrive(&self, state: &mut State) {
        if let Some(ask) = state.late.take() {
            let answer = self.execute(state, ask);
            let is_dead = state.processes[ask.process] == Process::IsDead;
            state.seen.is_untold[ask.claim] |= answer == Answer::Granted && is_dead;
        }
    }

    /// Ends a request that was not granted, or whose grant nobody receives.
    fn close(&self, state: &mut State, claim: usize, attempt: usize) {
        let is_last = !self.others_wait(state, claim, attempt);
        let request = &mut state.requests[claim][attempt];
        let is_unsure = request.is_unsure;
        request.phase = match request.phase {
            Phase::Waiting if is_unsure && self.mistake == Some(Mistake::ParksFirst) => {
                let then_withdraws = true;
                Phase::Parking { then_withdraws }
            }
            Phase::Waiting if is_unsure => Phase::Withdrawing {
                then_parks: is_last,
            },
            Phase::Waiting if is_last => {
                let then_withdraws = false;
                Phase::Parking { then_withdraws }
            }
            Phase::Waiting => Phase::Over,
            Phase::Answering => Phase::Withdrawing { then_parks: false },
            phase @ (Phase::Withdrawing { .. } | Phase::Parking { .. } | Phase::Over) => phase,
        };
    }

    /// Whether the process has another request that waits for the same claim: then the place is that one's.
    fn others_wait(&self, state: &State, claim: usize, attempt: usize) -> bool {
        let process = state.requests[claim][attempt].process;
        state.requests[claim][1 - attempt].is_waiting_at(process)
    }

    fn withdraw(&self, state: &mut State, claim: usize, attempt: usize) {
        let request = &mut state.requests[claim][attempt];
        request.phase = if request.phase == (Phase::Withdrawing { then_parks: true }) {
            let then_withdraws = false;
            Phase::Parking { then_withdraws }
        } else {
            Phase::Over
        };
        state.store.withdraw(claim, attempt, self.mistake);
    }

    fn park(&self, state: &mut State, claim: usize, attempt: usize) {
        let request = &mut state.requests[claim][attempt];
        let process = request.process;
        request.phase = match request.phase {
            Phase::Parking { then_withdraws } if then_withdraws => {
                Phase::Withdrawing { then_parks: false }
            }
            Phase::Over | Phase::Waiting | Phase::Answering => return,
            Phase::Parking { .. } | Phase::Withdrawing { .. } => Phase::Over,
        };
        state.store.park(claim, process, self.mistake);
        self.call(state, claim, process);
        if state.is_there(claim, attempt) {
            self.go_away(state, claim);
        }
    }

    fn go_away(&self, state: &mut State, claim: usize) {
        let may_come_again = state.is_there(claim, 0) && self.may_come_again[claim];
        state.clients[claim] = Client::Away { may_come_again };
    }

    fn kill(&self, state: &mut State) {
        state.processes[UNLUCKY] = Process::IsDead;
        for claim in 0..CLAIMS {
            for attempt in 0..ATTEMPTS {
                let request = &mut state.requests[claim][attempt];
                if request.process != UNLUCKY || request.phase == Phase::Over {
                    continue;
                }
                request.phase = Phase::Over;
                state.seen.is_untold[claim] |= state.store.leases[claim].is_some();
                if state.is_there(claim, attempt) {
                    self.go_away(state, claim);
                }
            }
        }
    }
}

/// Writes the answer to a grant, if the lease is still alive.
fn report(state: &mut State, claim: usize, attempt: usize) {
    state.requests[claim][attempt].phase = Phase::Over;
    state.clients[claim] = match state.store.leases[claim] {
        Some(_) => Client::Holding,
        None => Client::Done,
    };
}
