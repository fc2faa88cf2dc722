//! The plan of a client for its next claim, drawn in advance: the same seed draws the same plans.

use std::time::Duration;

use serde_json::{Value, json};

use super::chance::Chance;
use super::record::{Claim, Mode};
use super::recorder::micros;

/// The locks that claims hold exclusively or share.
pub(super) const SINGLE: [&str; 4] = ["one/a", "one/b", "share/a", "share/b"];
/// The locks that claims acquire together.
pub(super) const PAIR: [&str; 2] = ["pair/a", "pair/b"];

/// The locks that are held for long and requested by few: only one process may know of a lease when it is lost.
pub(super) const KEPT: [&str; 6] = ["kept/0", "kept/1", "kept/2", "kept/3", "kept/4", "kept/5"];

/// The terms of a claim.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    pub(super) names: Vec<String>,
    pub(super) mode: Mode,
    pub(super) ttl: Duration,
    pub(super) wait: Duration,
    pub(super) is_fair: bool,
    pub(super) min_hold: Duration,
    pub(super) max_hold: Duration,
    pub(super) lock_delay: Duration,
    pub(super) has_own_token: bool,
}

/// What the client does with the claim.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scene {
    /// Acquires with a wait, holds, renews, repeats requests, releases.
    Plain {
        renewals: usize,
        repeats: bool,
        returns: bool,
        reenters: bool,
        steps_down: bool,
        abandons: bool,
    },
    /// Disconnects during the wait, and may come back at another process.
    HangUp {
        after: Duration,
        away: Option<Duration>,
    },
    /// Moves to another process while it waits.
    Move { after: Duration, cuts: bool },
    /// Holds with a stream.
    Stream { ending: Ending },
    /// An operator takes a lock away.
    Evict,
    /// Acquires a lock that few request, and sends nothing for long.
    Keep,
}

/// How a stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// It is closed.
    Closed,
    /// Another stream at another process takes over, and then the first one is closed.
    TakenOver,
    /// The same, but the second one is closed after this many milliseconds.
    TakenOverBriefly(u64),
    /// A plain `POST` takes over, and then the stream is closed.
    Posted,
    /// The same with a `PUT`.
    Put,
}

/// One claim from its beginning to its end.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) terms: Terms,
    pub(super) scene: Scene,
    /// Where its requests go, one after the other.
    pub(super) processes: [usize; 3],
    pub(super) hold: Duration,
    pub(super) pause: Duration,
    pub(super) token: String,
}

impl Plan {
    /// Draws a plan. Leases last at most `ttl_max`.
    pub(super) fn draw(chance: &mut Chance, processes: usize, ttl_max: Duration) -> Self {
        let scene = Scene::draw(chance);
        let mut terms = Terms::draw(chance, ttl_max);
        match scene {
            Scene::Stream { .. } | Scene::Evict => terms.names.truncate(1),
            Scene::Plain { abandons: true, .. } => {
                terms.ttl = terms.ttl.min(Duration::from_millis(1_500));
            }
            Scene::Plain {
                steps_down: true, ..
            } => terms.mode = Mode::Exclusive,
            Scene::Plain { .. } | Scene::HangUp { .. } | Scene::Move { .. } | Scene::Keep => {}
        }
        if matches!(
            scene,
            Scene::HangUp { .. } | Scene::Move { .. } | Scene::Stream { .. }
        ) {
            terms.has_own_token = true;
            terms.wait = terms.wait.max(Duration::from_secs(1));
        }
        let first = chance.index(processes);
        let hold = if chance.percent(15) {
            chance.millis(300, 2_000)
        } else {
            chance.millis(0, 150)
        };
        Self {
            terms,
            scene,
            processes: [first, first + 1, first + chance.index(processes)].map(|at| at % processes),
            hold,
            pause: chance.millis(0, 80),
            token: chance.token(),
        }
    }
}

impl Plan {
    /// Draws a plan for a client that keeps locks for long.
    pub(super) fn draw_keeper(chance: &mut Chance, processes: usize, ttl_max: Duration) -> Self {
        let most = u64::try_from(ttl_max.as_millis()).expect("short");
        // Half of them use the same lock, so that its queue is long.
        let name = if chance.percent(50) {
            KEPT[0]
        } else {
            chance.pick(&KEPT)
        };
        let (scene, wait) = match chance.below(10) {
            0..3 => (Scene::Keep, Duration::ZERO),
            3 => (Scene::Keep, chance.millis(200, 2_000)),
            // Long enough to detect a process that has stopped polling for its waiters.
            4..7 => {
                let after = chance.millis(100, 1_000);
                (
                    Scene::Move { after, cuts: false },
                    chance.millis(6_000, 12_000),
                )
            }
            _ => {
                let ending = Ending::Closed;
                (Scene::Stream { ending }, chance.millis(6_000, 12_000))
            }
        };
        let terms = Terms {
            names: vec![name.to_owned()],
            mode: Mode::Exclusive,
            ttl: chance.millis(most / 3, most),
            wait,
            is_fair: true,
            min_hold: Duration::ZERO,
            max_hold: Duration::ZERO,
            lock_delay: Duration::ZERO,
            has_own_token: true,
        };
        Self {
            hold: chance.millis(most / 10, most / 2),
            terms,
            scene,
            processes: [(); 3].map(|()| chance.index(processes)),
            pause: chance.millis(20, 300),
            token: chance.token(),
        }
    }
}

impl Scene {
    fn draw(chance: &mut Chance) -> Self {
        match chance.below(100) {
            0..45 => Self::Plain {
                renewals: chance.index(4),
                repeats: chance.percent(30),
                returns: chance.percent(20),
                reenters: chance.percent(15),
                steps_down: chance.percent(8),
                abandons: chance.percent(8),
            },
            45..60 => Self::HangUp {
                after: chance.millis(0, 400),
                away: chance.percent(60).then(|| chance.millis(0, 1_500)),
            },
            60..74 => Self::Move {
                after: chance.millis(5, 600),
                cuts: chance.percent(40),
            },
            74..97 => Self::Stream {
                ending: match chance.below(8) {
                    0..3 => Ending::Closed,
                    3 | 4 => Ending::TakenOver,
                    5 => Ending::TakenOverBriefly(chance.below(4)),
                    6 => Ending::Posted,
                    _ => Ending::Put,
                },
            },
            _ => Self::Evict,
        }
    }
}

impl Terms {
    fn draw(chance: &mut Chance, ttl_max: Duration) -> Self {
        let ttl = match chance.below(10) {
            0..5 => chance.millis(600, 2_500),
            5..9 => chance.millis(2_500, 6_000),
            // Usually longer than all before.
            _ => chance.millis(6_000, 20_000),
        };
        let ttl = ttl.min(ttl_max);
        let wait = match chance.below(10) {
            0 | 1 => Duration::ZERO,
            2 | 3 => chance.millis(20, 400),
            _ => chance.millis(1_500, 5_000),
        };
        let is_pair = chance.percent(20);
        let names: Vec<&str> = if is_pair {
            PAIR.to_vec()
        } else {
            vec![chance.pick(&SINGLE)]
        };
        let mode = match chance.below(10) {
            _ if !names[0].starts_with("share/") => Mode::Exclusive,
            0..2 => Mode::Exclusive,
            2..4 => Mode::Shared {
                limit: None,
                permits: 1,
            },
            4 => Mode::Shared {
                limit: Some(2),
                permits: 1,
            },
            _ => Mode::Shared {
                limit: Some(3),
                permits: u32::try_from(1 + chance.below(3)).expect("few"),
            },
        };
        let mut names: Vec<_> = names.into_iter().map(str::to_owned).collect();
        chance.shuffle(&mut names);
        let sometimes = |chance: &mut Chance, percent: u64, to: u64| {
            let duration = chance.millis(100, to);
            if chance.percent(percent) {
                duration
            } else {
                Duration::ZERO
            }
        };
        Self {
            names,
            mode,
            ttl,
            wait,
            is_fair: !chance.percent(7),
            min_hold: sometimes(chance, 10, 600),
            max_hold: sometimes(chance, 5, 900),
            lock_delay: sometimes(chance, 10, 800),
            has_own_token: !chance.percent(25),
        }
    }

    /// How long its lease may last.
    fn lease(&self) -> Duration {
        if self.max_hold.is_zero() {
            self.ttl
        } else {
            self.ttl.min(self.max_hold)
        }
    }

    /// The claim as it is recorded, with the owner that views show.
    pub(super) fn claim(&self, owner: &str) -> Claim {
        Claim {
            lease: micros(self.lease()),
            is_capped: !self.max_hold.is_zero(),
            owner: owner.to_owned(),
            names: self.names.clone(),
            mode: self.mode,
            is_fair: self.is_fair,
            min_hold: micros(self.min_hold.min(self.lease())),
            lock_delay: micros(self.lock_delay),
        }
    }

    /// The body of an acquire.
    pub(super) fn body(&self, owner: &str, wait: Duration) -> Value {
        let text = |duration: Duration| format!("{}ms", duration.as_millis());
        let mut body = json!({ "owner": owner, "ttl": text(self.ttl), "fair": self.is_fair });
        if wait > Duration::ZERO {
            body["wait"] = text(wait).into();
        }
        if let Mode::Shared { limit, permits } = self.mode {
            body["mode"] = "shared".into();
            body["permits"] = permits.into();
            if limit.is_some() {
                body["limit"] = limit.into();
            } else {
                body["permits"] = 1.into();
            }
        }
        let optional = [
            ("min_hold", self.min_hold.min(self.lease())),
            ("max_hold", self.max_hold),
            ("lock_delay", self.lock_delay),
        ];
        for (field, duration) in optional {
            if duration > Duration::ZERO {
                body[field] = text(duration).into();
            }
        }
        body
    }
}
