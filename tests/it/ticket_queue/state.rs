//! The state of clients, processes and the network around the store.

use super::calls::Calls;
use super::properties;
use super::scenario::{ATTEMPTS, CLAIMS, PROCESSES, Scenario};
use super::store::{Poll, Store, count_down};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Client {
    #[default]
    Idle,
    /// Its request with this number is in flight.
    Waiting(usize),
    Holding,
    /// It disconnected, was cut off, or its wait timed out.
    Away {
        may_come_again: bool,
    },
    Done,
}

/// The state of one request on a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    #[default]
    Over,
    Waiting,
    /// It was granted, and the response is being written.
    Answering,
    Withdrawing {
        then_suspends: bool,
    },
    Suspending {
        then_withdraws: bool,
    },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Request {
    pub(super) process: usize,
    pub(super) phase: Phase,
    /// Its known place.
    pub(super) sequence: Option<u8>,
    /// How long the store may grant it from this place; the process ends the wait one step earlier.
    pub(super) time_left: u8,
    /// A poll got no reply, and may still arrive.
    pub(super) is_ambiguous: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Process {
    #[default]
    Runs,
    Paused,
    IsDead,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) store: Store,
    pub(super) clients: [Client; CLAIMS],
    pub(super) requests: [[Request; ATTEMPTS]; CLAIMS],
    pub(super) processes: [Process; PROCESSES],
    /// Whether each process has polled its queue in this step of time.
    pub(super) has_polled: [bool; PROCESSES],
    /// The poll whose reply no request waits for any more.
    pub(super) late: Option<Poll>,
    pub(super) delays_left: u8,
    pub(super) may_pause: bool,
    pub(super) seen: Seen,
    /// What the last step asked of the store.
    pub(super) calls: Calls,
}

/// The history that the properties need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Seen {
    /// A claim was granted before an earlier one.
    pub(super) overtook: bool,
    /// A claim was granted from a place whose wait had timed out.
    pub(super) granted_late: bool,
    /// A step opened the lock without a reservation.
    pub(super) is_unreserved: bool,
    /// Claims whose grant may be undelivered, without any process knowing.
    pub(super) is_undelivered: [bool; CLAIMS],
    /// For how many steps of time the lock has been free while claims wait for it.
    pub(super) idle_for: u8,
}

impl Request {
    pub(super) fn is_waiting_at(&self, process: usize) -> bool {
        self.phase == Phase::Waiting && self.process == process
    }
}

impl State {
    /// Every request, with its claim and its number.
    pub(super) fn each_request(&self) -> impl Iterator<Item = (usize, usize, Request)> + use<> {
        let requests = self.requests.into_iter().enumerate();
        requests.flat_map(|(claim, attempts)| {
            let attempts = attempts.into_iter().enumerate();
            attempts.map(move |(attempt, request)| (claim, attempt, request))
        })
    }

    pub(super) fn runs(&self, process: usize) -> bool {
        self.processes[process] == Process::Runs
    }

    pub(super) fn is_there(&self, claim: usize, attempt: usize) -> bool {
        self.clients[claim] == Client::Waiting(attempt)
    }

    pub(super) fn has_waiting(&self, process: usize) -> bool {
        self.each_request()
            .any(|(.., request)| request.is_waiting_at(process))
    }

    /// The first of a process's waiters with a known place.
    pub(super) fn first_waiting(&self, process: usize) -> Option<(usize, usize)> {
        self.each_request()
            .filter(|(.., request)| request.is_waiting_at(process))
            .filter_map(|(claim, attempt, request)| Some((request.sequence?, claim, attempt)))
            .min()
            .map(|(_, claim, attempt)| (claim, attempt))
    }

    /// The claims that wait as far as their clients can know, each with its place.
    pub(super) fn live_waiters(&self) -> impl Iterator<Item = (u8, usize, usize)> {
        self.each_request().filter_map(|(claim, attempt, request)| {
            let is_live = self.is_there(claim, attempt)
                && self.store.leases[claim].is_none()
                && request.phase == Phase::Waiting
                && request.time_left > 1
                && self.processes[request.process] != Process::IsDead;
            is_live.then_some((request.sequence?, claim, request.process))
        })
    }

    pub(super) fn tick(&mut self, scenario: &Scenario) {
        self.seen.idle_for = if properties::is_idle(scenario, self) {
            self.seen.idle_for + 1
        } else {
            0
        };
        self.store.tick();
        self.has_polled = [false; PROCESSES];
        for request in self.requests.iter_mut().flatten() {
            count_down(&mut request.time_left);
        }
        if let Some(poll) = &mut self.late {
            count_down(&mut poll.time_left);
        }
        for (client, lease) in self.clients.iter_mut().zip(self.store.leases) {
            // A client tracks the time of its lease by itself.
            if *client == Client::Holding && lease.is_none() {
                *client = Client::Done;
            }
        }
    }

    /// Drops details that cannot matter any more, so that states that differ only in these become equal.
    pub(super) fn forget(&mut self) {
        for request in self.requests.iter_mut().flatten() {
            if request.phase == Phase::Over {
                *request = Request::default();
            }
        }
        for claim in 0..CLAIMS {
            let mut requests = self.requests[claim].iter();
            let is_over = properties::is_settled(self.clients[claim])
                && requests.all(|request| request.phase == Phase::Over)
                && self.late.is_none_or(|poll| poll.claim != claim);
            if is_over {
                self.store.forget_marks(claim);
                self.seen.is_undelivered[claim] &= self.store.leases[claim].is_some();
            }
        }
        for process in 0..PROCESSES {
            self.store.messages[process] &= self.processes[process] != Process::IsDead;
            self.has_polled[process] &= self.has_waiting(process);
        }
        // A poll that the store will refuse is equivalent to a lost one.
        self.late = self.late.filter(|poll| !self.store.refuses(poll));
        let sequences = self.requests.iter_mut().flatten();
        let sequences = sequences.filter_map(|request| request.sequence.as_mut());
        let late = self.late.as_mut().and_then(|poll| poll.sequence.as_mut());
        self.store.close_ranks(sequences.chain(late).collect());
    }
}
