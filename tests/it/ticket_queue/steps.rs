//! The effect of each step.

use super::Mistake;
use super::calls::Call;
use super::model::Action;
use super::scenario::{ATTEMPTS, CLAIMS, PROCESSES, Scenario, UNLUCKY, WAIT};
use super::state::{Client, Phase, Process, Request, State};
use super::store::{Answer, FOREVER, OUTSIDER, Poll};

impl Scenario {
    pub(super) fn step(&self, state: &mut State, action: Action) {
        match action {
            Action::Post(claim) => self.post(state, claim, 0),
            Action::PostWithoutAnswer(claim) => {
                self.begin(state, claim, 0);
                self.poll_without_reply(state, claim, 0);
            }
            Action::ComeAgain(claim) => self.post(state, claim, 1),
            Action::HangUp(claim) => self.go_away(state, claim),
            Action::StayAway(claim) => {
                let may_come_again = false;
                state.clients[claim] = Client::Away { may_come_again };
            }
            Action::Release(claim) => {
                state.calls.add(Call::Release(claim));
                state.store.release(claim, self.mistake);
                if claim != OUTSIDER {
                    state.clients[claim] = Client::Done;
                }
            }
            Action::Poll(process) => {
                state.has_polled[process] = true;
                self.poll_queue(state, process);
            }
            Action::PollWithoutReply(process) => {
                state.has_polled[process] = true;
                if let Some((claim, attempt)) = state.first_waiting(process) {
                    self.poll_without_reply(state, claim, attempt);
                }
            }
            Action::Receive(process) => self.poll_queue(state, process),
            Action::Lose(process) => state.store.messages[process] = false,
            Action::Notice(claim, attempt) | Action::TimeOut(claim, attempt) => {
                self.close(state, claim, attempt);
            }
            Action::Report(claim, attempt) => report(state, claim, attempt),
            Action::Withdraw(claim, attempt) => self.withdraw(state, claim, attempt),
            Action::Suspend(claim, attempt) => self.suspend(state, claim, attempt),
            Action::Arrive => self.arrive(state),
            Action::Vanish => state.late = None,
            Action::Crash => self.kill(state),
            Action::Pause => {
                state.may_pause = false;
                state.processes[UNLUCKY] = Process::Paused;
            }
            Action::Resume => state.processes[UNLUCKY] = Process::Runs,
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
        self.poll(state, claim, attempt);
        // The next regular poll of a queue is one interval after the last poll of its head.
        let process = self.target(state, claim, attempt);
        state.has_polled[process] |= state.first_waiting(process) == Some((claim, attempt));
    }

    fn begin(&self, state: &mut State, claim: usize, attempt: usize) {
        let is_impatient = self.is_impatient[claim] && attempt == 0;
        state.requests[claim][attempt] = Request {
            process: self.target(state, claim, attempt),
            phase: Phase::Waiting,
            sequence: None,
            time_left: if is_impatient { WAIT + 1 } else { FOREVER },
            is_ambiguous: false,
        };
        state.clients[claim] = Client::Waiting(attempt);
    }

    /// Polls for the waiters whose last poll has an unknown outcome, and for the first of the others; for all of them,
    /// if the store had dropped the queue of this process.
    fn poll_queue(&self, state: &mut State, process: usize) {
        for (claim, attempt, request) in state.each_request() {
            let must_know =
                request.is_ambiguous && self.mistake != Some(Mistake::PollsForTheFirstOnly);
            if must_know || request.sequence.is_none() {
                self.poll_if_waiting(state, claim, attempt, process);
            }
        }
        while let Some((claim, attempt)) = state.first_waiting(process) {
            let restored = self.poll(state, claim, attempt);
            if restored {
                self.poll_for_all(state, process);
            }
            let phase = state.requests[claim][attempt].phase;
            if matches!(phase, Phase::Waiting | Phase::Answering) {
                break;
            }
        }
    }

    fn poll_for_all(&self, state: &mut State, process: usize) {
        for (claim, attempt, _) in state.each_request() {
            self.poll_if_waiting(state, claim, attempt, process);
        }
    }

    fn poll_if_waiting(&self, state: &mut State, claim: usize, attempt: usize, process: usize) {
        if state.requests[claim][attempt].is_waiting_at(process) {
            self.poll(state, claim, attempt);
        }
    }

    /// Polls and gets the reply. Returns whether the store had lost the place.
    pub(super) fn poll(&self, state: &mut State, claim: usize, attempt: usize) -> bool {
        let poll = self.request(state, claim, attempt);
        let answer = self.execute(state, poll);
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

    /// After a change of a claim: its other requests on this process poll at once.
    fn call(&self, state: &mut State, claim: usize, process: usize) {
        for attempt in 0..ATTEMPTS {
            self.poll_if_waiting(state, claim, attempt, process);
        }
    }

    /// Polls and never gets a reply, whether the poll arrives or not.
    fn poll_without_reply(&self, state: &mut State, claim: usize, attempt: usize) {
        state.delays_left -= 1;
        state.late = Some(self.request(state, claim, attempt));
        state.requests[claim][attempt].is_ambiguous = true;
    }

    fn request(&self, state: &State, claim: usize, attempt: usize) -> Poll {
        let request = state.requests[claim][attempt];
        Poll {
            claim,
            attempt,
            process: request.process,
            shared: self.shares[claim],
            sequence: request.sequence,
            time_left: request.time_left,
        }
    }

    /// Executes a poll in the store, whichever request gets the reply.
    fn execute(&self, state: &mut State, poll: Poll) -> Answer {
        let before = state.store;
        let answer = state.store.acquire(poll, self.mistake);
        state
            .calls
            .add(Call::Acquire(poll.claim, poll.attempt, answer.into()));
        // Two requests got the lease, and the store cannot know whether it was delivered.
        state.seen.is_undelivered[poll.claim] |= answer == Answer::Replayed;
        if answer == Answer::Granted && before.leases[poll.claim].is_none() {
            let place = poll.sequence.or(before.place_of(poll.claim));
            state.seen.idle_for = 0;
            state.seen.granted_late |= poll.sequence.is_some() && poll.time_left == 0;
            let overtook = state.live_waiters().any(|(sequence, claim, process)| {
                claim != poll.claim
                    && place.is_none_or(|place| sequence < place)
                    && before.waits_for(process, claim)
            });
            state.seen.overtook |= overtook;
        }
        answer
    }

    fn arrive(&self, state: &mut State) {
        if let Some(poll) = state.late.take() {
            let answer = self.execute(state, poll);
            let is_dead = state.processes[poll.process] == Process::IsDead;
            state.seen.is_undelivered[poll.claim] |= answer == Answer::Granted && is_dead;
        }
    }

    /// Ends a request that was not granted, or whose grant is not delivered.
    fn close(&self, state: &mut State, claim: usize, attempt: usize) {
        let is_last = !self.others_wait(state, claim, attempt);
        let request = &mut state.requests[claim][attempt];
        let is_ambiguous = request.is_ambiguous;
        request.phase = match request.phase {
            Phase::Waiting if is_ambiguous && self.mistake == Some(Mistake::SuspendsFirst) => {
                let then_withdraws = true;
                Phase::Suspending { then_withdraws }
            }
            Phase::Waiting if is_ambiguous => Phase::Withdrawing {
                then_suspends: is_last,
            },
            Phase::Waiting if is_last => {
                let then_withdraws = false;
                Phase::Suspending { then_withdraws }
            }
            Phase::Waiting => Phase::Over,
            Phase::Answering => Phase::Withdrawing {
                then_suspends: false,
            },
            phase @ (Phase::Withdrawing { .. } | Phase::Suspending { .. } | Phase::Over) => phase,
        };
    }

    /// Whether another request of the same claim waits on the process: then the place belongs to that one.
    fn others_wait(&self, state: &State, claim: usize, attempt: usize) -> bool {
        let process = state.requests[claim][attempt].process;
        state.requests[claim][1 - attempt].is_waiting_at(process)
    }

    fn withdraw(&self, state: &mut State, claim: usize, attempt: usize) {
        let request = &mut state.requests[claim][attempt];
        request.phase = if request.phase
            == (Phase::Withdrawing {
                then_suspends: true,
            }) {
            let then_withdraws = false;
            Phase::Suspending { then_withdraws }
        } else {
            Phase::Over
        };
        state.calls.add(Call::Withdraw(claim, attempt));
        state.store.withdraw(claim, attempt, self.mistake);
    }

    fn suspend(&self, state: &mut State, claim: usize, attempt: usize) {
        let request = &mut state.requests[claim][attempt];
        let process = request.process;
        request.phase = match request.phase {
            Phase::Suspending { then_withdraws } if then_withdraws => Phase::Withdrawing {
                then_suspends: false,
            },
            Phase::Over | Phase::Waiting | Phase::Answering => return,
            Phase::Suspending { .. } | Phase::Withdrawing { .. } => Phase::Over,
        };
        state.calls.add(Call::Suspend(claim));
        state.store.suspend(claim, process, self.mistake);
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
                state.seen.is_undelivered[claim] |= state.store.leases[claim].is_some();
                if state.is_there(claim, attempt) {
                    self.go_away(state, claim);
                }
            }
        }
    }
}

/// Writes the response for a grant, if the lease is still alive.
fn report(state: &mut State, claim: usize, attempt: usize) {
    state.requests[claim][attempt].phase = Phase::Over;
    state.clients[claim] = match state.store.leases[claim] {
        Some(_) => Client::Holding,
        None => Client::Done,
    };
}
