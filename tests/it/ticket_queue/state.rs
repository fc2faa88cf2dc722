//! Clients, processes and the network around the store, as they are at one moment.

use super::properties;
use super::scenario::{ATTEMPTS, CLAIMS, PROCESSES, Scenario};
use super::store::{Ask, Store, count_down};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Client {
    #[default]
    Idle,
    /// Its request of this number is being answered.
    Waiting(usize),
    Holding,
    /// It hung up, was cut off, or was told that its wait is over.
    Away {
        may_come_again: bool,
    },
    Done,
}

/// What a process does about one request of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    #[default]
    Over,
    Waiting,
    /// It was granted, and the answer is being written.
    Answering,
    Withdrawing {
        then_parks: bool,
    },
    Parking {
        then_withdraws: bool,
    },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Request {
    pub(super) process: usize,
    pub(super) phase: Phase,
    /// The place that it was told.
    pub(super) sequence: Option<u8>,
    /// How long the store may grant it from there; the process ends the wait one step sooner.
    pub(super) time_left: u8,
    /// An ask got no answer, and may arrive yet.
    pub(super) is_unsure: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Process {
    #[default]
    Runs,
    StandsStill,
    IsDead,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) store: Store,
    pub(super) clients: [Client; CLAIMS],
    pub(super) requests: [[Request; ATTEMPTS]; CLAIMS],
    pub(super) processes: [Process; PROCESSES],
    /// Whether each process has looked after its queue in this step of time.
    pub(super) has_looked: [bool; PROCESSES],
    /// The ask that nobody waits for the answer of.
    pub(super) late: Option<Ask>,
    pub(super) delays_left: u8,
    pub(super) may_stand_still: bool,
    pub(super) seen: Seen,
}

/// What the properties remember of the past.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Seen {
    /// A claim was granted past another that had come before.
    pub(super) overtook: bool,
    /// A claim was granted from a place whose time was over.
    pub(super) granted_late: bool,
    /// A step opened the lock and offered it to nobody.
    pub(super) kept_secret: bool,
    /// Claims whose grant may have been told to nobody, and no process can know.
    pub(super) is_untold: [bool; CLAIMS],
    /// For how many steps of time nobody has held the lock that somebody waits for.
    pub(super) idle_for: u8,
}

impl Request {
    pub(super) fn is_waiting_at(&self, process: usize) -> bool {
        self.phase == Phase::Waiting && self.process == process
    }
}

impl State {
    /// Every request as it is now, with its claim and its number.
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

    /// The first of a process's waiters that were told a place.
    pub(super) fn first_waiting(&self, process: usize) -> Option<(usize, usize)> {
        self.each_request()
            .filter(|(.., request)| request.is_waiting_at(process))
            .filter_map(|(claim, attempt, request)| Some((request.sequence?, claim, attempt)))
            .min()
            .map(|(_, claim, attempt)| (claim, attempt))
    }

    /// The claims that stand somewhere as far as their clients can know, each with its place.
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
        self.has_looked = [false; PROCESSES];
        for request in self.requests.iter_mut().flatten() {
            count_down(&mut request.time_left);
        }
        if let Some(ask) = &mut self.late {
            count_down(&mut ask.time_left);
        }
        for (client, lease) in self.clients.iter_mut().zip(self.store.leases) {
            // A client counts the time of its lease by itself.
            if *client == Client::Holding && lease.is_none() {
                *client = Client::Done;
            }
        }
    }

    /// Drops what cannot matter any more, so that states are the same that differ in nothing else.
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
                && self.late.is_none_or(|ask| ask.claim != claim);
            if is_over {
                self.store.forget_marks(claim);
                self.seen.is_untold[claim] &= self.store.leases[claim].is_some();
            }
        }
        for process in 0..PROCESSES {
            self.store.messages[process] &= self.processes[process] != Process::IsDead;
            self.has_looked[process] &= self.has_waiting(process);
        }
        // An ask that the store will refuse may as well have been lost.
        self.late = self.late.filter(|ask| !self.store.refuses(ask));
        let told = self.requests.iter_mut().flatten();
        let told = told.filter_map(|request| request.sequence.as_mut());
        let late = self.late.as_mut().and_then(|ask| ask.sequence.as_mut());
        self.store.close_ranks(told.chain(late).collect());
    }
}
