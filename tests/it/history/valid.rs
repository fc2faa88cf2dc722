//! A valid history, written by hand.

use super::record::{
    Action, Answer, Claim, Effect, End, History, Lease, Micros, Mode, Outage, Refusal, Request,
    SECOND, View, Watch, WatchEntry,
};

pub(super) const MS: Micros = 1_000;

/// The claims of the valid history, by their numbers.
pub(super) const ANN: usize = 0;
pub(super) const BEN: usize = 1;
pub(super) const CID: usize = 2;
pub(super) const DEE: usize = 3;
pub(super) const EVA: usize = 4;
pub(super) const FAY: usize = 5;

pub(super) const PERMIT: Mode = Mode::Shared {
    limit: Some(2),
    permits: 1,
};

pub(super) fn claim(owner: &str, names: &[&str], mode: Mode) -> Claim {
    Claim {
        owner: owner.to_owned(),
        names: names.iter().map(|name| (*name).to_owned()).collect(),
        mode,
        is_fair: true,
        lease: 5 * SECOND,
        is_capped: false,
        min_hold: 0,
        lock_delay: 0,
    }
}

pub(super) fn granted(leases: &[(&str, u64)], is_new: bool, waited: Micros) -> Answer {
    let lease = |(name, fence): &(&str, u64)| Lease {
        name: (*name).to_owned(),
        fence: *fence,
        expires_in: 5 * SECOND,
    };
    Answer::Granted {
        leases: leases.iter().map(lease).collect(),
        is_new,
        waited,
    }
}

pub(super) fn refused(status: u16, code: &str) -> Answer {
    let refusal = Refusal {
        status,
        code: code.to_owned(),
        ..Refusal::default()
    };
    Answer::Refused(refusal)
}

pub(super) fn view(name: &str, sent: Micros, holders: &[(&str, u64)], queue: &[&str]) -> View {
    let holders = holders
        .iter()
        .map(|(owner, fence)| ((*owner).to_owned(), *fence));
    View {
        name: name.to_owned(),
        process: 0,
        sent,
        at: sent + MS,
        is_free: holders.len() == 0,
        holders: holders.collect(),
        queue_length: queue.len() as u64,
        head: queue.first().map(|owner| (*owner).to_owned()),
    }
}

impl History {
    /// Adds a request with one answer, which ends a millisecond after it arrived.
    pub(super) fn ask(
        &mut self,
        claim: usize,
        action: Action,
        sent: Micros,
        at: Micros,
        answer: Answer,
    ) -> usize {
        let process = claim % 2;
        self.requests.push(Request {
            claim: Some(claim),
            names: self.claims[claim].names.clone(),
            process,
            action,
            sent: sent * MS,
            arrivals: vec![(at * MS, answer)],
            end: Some((at * MS, End::Answered)),
        });
        self.requests.len() - 1
    }

    /// The request of a claim with this number.
    pub(super) fn request(&mut self, claim: usize, number: usize) -> &mut Request {
        let own = self.requests.iter_mut();
        let mut own = own.filter(|request| request.claim == Some(claim));
        own.nth(number).expect("it is in the history")
    }

    pub(super) fn answer(&mut self, claim: usize, number: usize) -> &mut Answer {
        let arrivals = &mut self.request(claim, number).arrivals;
        &mut arrivals.last_mut().expect("it was answered").1
    }

    pub(super) fn fence(&mut self, claim: usize, number: usize, fence: u64) {
        for (_, answer) in &mut self.request(claim, number).arrivals {
            if let Answer::Granted { leases, .. } = answer {
                leases[0].fence = fence;
            }
        }
    }
}

/// Ann holds and renews; Ben waits with a stream, Cid after him with a normal request. Dee and Eva share with permits;
/// Fay acquires two locks at once.
pub(super) fn valid() -> History {
    const WAIT: Action = Action::Acquire { wait: 9 * SECOND };
    const NOW: Action = Action::Acquire { wait: 0 };
    let mut history = History {
        claims: vec![
            claim("ann", &["a"], Mode::Exclusive),
            claim("ben", &["a"], Mode::Exclusive),
            claim("cid", &["a"], Mode::Exclusive),
            claim("dee", &["s"], PERMIT),
            claim("eva", &["s"], PERMIT),
            claim("fay", &["p", "q"], Mode::Exclusive),
        ],
        ended: 20 * SECOND,
        ..History::default()
    };
    history.ask(ANN, NOW, 10, 20, granted(&[("a", 100)], true, 0));
    history.ask(
        ANN,
        Action::Renew,
        1_000,
        1_010,
        granted(&[("a", 100)], false, 0),
    );
    let hold = Action::Hold { wait: 60 * SECOND };
    let ben = history.ask(BEN, hold, 1_100, 1_120, Answer::Queued);
    history.ask(
        CID,
        WAIT,
        1_200,
        2_510,
        granted(&[("a", 300)], true, 1_300 * MS),
    );
    history.ask(ANN, Action::Release, 2_000, 2_010, Answer::Freed);
    let acquired = granted(&[("a", 200)], true, 915 * MS);
    history.requests[ben].arrivals.push((2_020 * MS, acquired));
    history.requests[ben].end = Some((2_500 * MS, End::HungUp));
    history.ask(CID, Action::Release, 3_000, 3_010, Answer::Freed);
    history.ask(DEE, NOW, 100, 110, granted(&[("s", 100)], true, 0));
    history.ask(EVA, NOW, 200, 210, granted(&[("s", 200)], true, 0));
    history.ask(
        FAY,
        NOW,
        100,
        110,
        granted(&[("p", 100), ("q", 150)], true, 0),
    );
    look(&mut history);
    history
}

/// The views of an observer and the events of a watcher.
fn look(history: &mut History) {
    history.views = vec![
        view("a", 1_500 * MS, &[("ann", 100)], &["ben", "cid"]),
        view("p", 1_000 * MS, &[("fay", 100)], &[]),
        view("q", 1_100 * MS, &[("fay", 150)], &[]),
        view("p", 1_200 * MS, &[("fay", 100)], &[]),
        view("a", 4_000 * MS, &[], &[]),
    ];
    let grants = [
        ("a", 100),
        ("a", 200),
        ("a", 300),
        ("s", 100),
        ("s", 200),
        ("p", 100),
        ("q", 150),
    ];
    let acquired = |(name, fence): &(&str, u64)| WatchEntry::Acquired {
        name: (*name).to_owned(),
        fence: *fence,
    };
    let mut entries = vec![(0, WatchEntry::Opened { resumed: false })];
    entries.extend(grants.iter().map(|grant| (2_600 * MS, acquired(grant))));
    entries.push((20 * SECOND, WatchEntry::Closed));
    history.watches = vec![Watch { entries }];
}

pub(super) fn outage(effect: Effect, from: Micros, until: Micros) -> Outage {
    Outage {
        fault: "written by hand",
        process: None,
        node: None,
        from: from * MS,
        until: until * MS,
        effect,
        ends_process: false,
    }
}
