//! Records a run while it happens. Every client, observer and fault has a handle to the same record.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::Instant;

use super::record::{
    Absence, Action, Answer, Bounds, Claim, ClockStep, End, History, Micros, Outage, Request, View,
    Watch,
};

/// A handle to the record.
#[derive(Clone)]
pub(super) struct Recorder {
    began: Instant,
    history: Arc<Mutex<History>>,
}

impl Recorder {
    pub(super) fn new(bounds: Bounds) -> Self {
        let history = History {
            bounds,
            ..History::default()
        };
        Self {
            began: Instant::now(),
            history: Arc::new(Mutex::new(history)),
        }
    }

    /// Microseconds since the run began.
    pub(super) fn now(&self) -> Micros {
        self.at(Instant::now())
    }

    pub(super) fn at(&self, moment: Instant) -> Micros {
        let since = moment.saturating_duration_since(self.began);
        Micros::try_from(since.as_micros()).expect("a short run")
    }

    /// Adds a claim and returns its number.
    pub(super) fn claim(&self, claim: Claim) -> usize {
        let mut history = self.lock();
        history.claims.push(claim);
        history.claims.len() - 1
    }

    /// Adds a request that is about to be sent.
    pub(super) fn sent(
        &self,
        claim: Option<usize>,
        names: &[String],
        process: usize,
        action: Action,
    ) -> usize {
        let mut history = self.lock();
        let sent = self.now();
        history.requests.push(Request {
            claim,
            names: names.to_vec(),
            process,
            action,
            sent,
            arrivals: Vec::new(),
            end: None,
        });
        history.requests.len() - 1
    }

    pub(super) fn arrived(&self, request: usize, at: Instant, answer: Answer) {
        let at = self.at(at);
        let mut history = self.lock();
        history.requests[request].arrivals.push((at, answer));
    }

    pub(super) fn ended(&self, request: usize, end: End) {
        let now = self.now();
        let mut history = self.lock();
        history.requests[request].end = Some((now, end));
    }

    /// Adds successive views of one observer.
    pub(super) fn seen(&self, views: Vec<View>) {
        self.lock().views.extend(views);
    }

    pub(super) fn watched(&self, watch: Watch) {
        self.lock().watches.push(watch);
    }

    pub(super) fn outage(&self, outage: Outage) {
        self.lock().outages.push(outage);
    }

    pub(super) fn clock_step(&self, step: ClockStep) {
        self.lock().clock_steps.push(step);
    }

    pub(super) fn absence(&self, absence: Absence) {
        self.lock().absences.push(absence);
    }

    /// The record so far.
    pub(super) fn history(&self) -> History {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, History> {
        self.history.lock().expect("nobody fails with it")
    }
}

/// A duration as it is recorded.
pub(super) fn micros(duration: Duration) -> Micros {
    Micros::try_from(duration.as_micros()).expect("a short duration")
}
