//! Histories on a real network that is cut: a primary with two replicas, three Sentinels and two processes, each at a node
//! of its own. Half of the clients use one process, half the other one. Each client stays on its side.
//!
//! `LEASEHOLD_NAMESPACES=50` repeats the faults so often; CONTRIBUTING.md has the whole command.

mod site;

use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use self::site::{PROCESSES, REDIS_PORT, SENTINELS, SERVERS, SETTLES, Site};
use super::fleet::place_kept;
use super::observe;
use super::options::Options;
use super::record::{Answer, Bounds, Effect, Micros, Outage, SECOND};
use super::recorder::Recorder;
use super::report;
use super::resource::{Presented, Resource};
use super::run::{BUSY, Round, by_both_judges, left_over};
use super::scenes::{self, Stage};
use crate::support::eventually_within;
use crate::support::net::{ROUNDS, on_bridge};
use crate::waiters::client::Addresses;

const CLIENTS: usize = 8;
/// With fewer grants a run is invalid.
const GRANTS_MIN: usize = 20;

const TTL_MAX: Duration = Duration::from_secs(2);

/// How long after it follows another primary an answer of a former one may arrive: the operation timeout.
const ANSWERED: Micros = 2 * SECOND;

/// So long after its last contact with most of the Sentinels a process sends its primary nothing more.
const UNVERIFIED: Micros = 5 * SECOND;

/// What the faults have shown.
#[derive(Debug, Default)]
struct Seen {
    /// How long it took until the process without replicas answered 503.
    refused_after: Vec<Duration>,
    /// How long it took until the other process granted again.
    granted_after: Vec<Duration>,
    /// New leases that processes reported while no replica, or not all, could confirm them.
    granted_without: usize,
    /// Those of them that a process without the Sentinels was asked for later than [`UNVERIFIED`].
    granted_late: usize,
}

/// The run: the site, its record, and who strikes it.
struct Run {
    site: Site,
    recorder: Recorder,
    seen: Seen,
    /// Whether all replicas confirm.
    is_confirmed: bool,
}

/// How the link between the primary and a replica is cut.
#[derive(Clone, Copy, Debug)]
enum Cut {
    Both,
    /// The replica does not receive what the primary writes.
    ToReplica,
    /// The primary does not receive what the replica confirms.
    ToPrimary,
}

impl Run {
    /// Cuts the replication of one replica and nothing else, so that no Sentinel notices. All replicas have to confirm, so
    /// no process may report a lease.
    async fn cut_replication(&mut self, cut: Cut) {
        let primary = self.site.is_settled().await;
        let replica = SERVERS
            .into_iter()
            .find(|node| *node != primary)
            .expect("there are three");
        let net = &self.site.net;
        let from = self.recorder.now();
        match cut {
            Cut::Both => net.cut(primary, replica),
            Cut::ToReplica => net.cut_one_way(primary, replica),
            Cut::ToPrimary => net.cut_one_way(replica, primary),
        }
        let is_cut = self.recorder.now();
        for node in PROCESSES {
            let after = self.site.answers(node, 503).await;
            self.seen.refused_after.push(after);
        }
        sleep(Duration::from_secs(1)).await;
        let whole = self.recorder.now();
        let net = &self.site.net;
        match cut {
            Cut::Both => net.mend(primary, replica),
            Cut::ToReplica => net.mend_one_way(primary, replica),
            Cut::ToPrimary => net.mend_one_way(replica, primary),
        }
        for process in 0..PROCESSES.len() {
            self.seen.granted_without += self.grants(process, is_cut, whole);
        }
        for node in PROCESSES {
            self.seen
                .granted_after
                .push(self.site.grants_at(node).await);
        }
        assert_eq!(self.site.is_settled().await, primary, "nobody is promoted");
        self.outage(
            "the replication is cut",
            None,
            (from, self.recorder.now()),
            Effect::Away,
        );
    }

    /// Parts the primary, a Sentinel and a process from all others, which promote a replica, and lets them meet again.
    async fn partition(&mut self) {
        let former = self.site.is_settled().await;
        let minority = [former, SENTINELS[0], PROCESSES[0]];
        let all = SERVERS.into_iter().chain(SENTINELS).chain(PROCESSES);
        let majority: Vec<u8> = all.filter(|node| !minority.contains(node)).collect();
        let links = minority
            .into_iter()
            .flat_map(|one| majority.iter().map(move |other| (one, *other)));
        let links: Vec<_> = links.collect();
        let from = self.recorder.now();
        for (one, other) in &links {
            self.site.net.cut(*one, *other);
        }
        let is_cut = self.recorder.now();
        let site = &self.site;
        // The new primary has only one of its two replicas, so with all of them to confirm it reports nothing either.
        let other = async {
            match self.is_confirmed {
                true => None,
                false => Some(site.grants_at(PROCESSES[1]).await),
            }
        };
        let refused = site.answers(PROCESSES[0], 503);
        let (refused, granted, promoted) = tokio::join!(refused, other, self.promoted(former));
        self.seen.refused_after.push(refused);
        self.seen.granted_after.extend(granted);
        sleep(Duration::from_secs(1)).await;
        let whole = self.recorder.now();
        for (one, other) in &links {
            self.site.net.mend(*one, *other);
        }
        // The Sentinels do so too, but only after some seconds.
        let primary = self
            .site
            .net
            .address(self.site.primary(SENTINELS[2]).await.expect("it answers"));
        let (primary, port) = (primary.to_string(), REDIS_PORT.to_string());
        eventually_within(SETTLES, "it follows the new primary", async || {
            let words = ["REPLICAOF", &primary, &port];
            self.site.ask::<String>(former, &words).await
        })
        .await;
        self.seen.granted_without += self.grants(0, is_cut, whole);
        self.seen.granted_late += self.grants(0, is_cut + UNVERIFIED, whole);
        if self.is_confirmed {
            self.seen.granted_without += self.grants(1, is_cut, whole);
        }
        self.site.is_settled().await;
        for node in PROCESSES {
            self.site.grants_at(node).await;
        }
        let until = self.recorder.now();
        self.outage(
            "a former primary",
            Some(0),
            (promoted, until + ANSWERED),
            Effect::FormerPrimary,
        );
        self.outage("a partition", None, (from, until), Effect::Failover);
    }

    /// Waits until a replica is the primary, and returns the last time at which none was.
    async fn promoted(&self, former: u8) -> Micros {
        let mut none_was = self.recorder.now();
        eventually_within(SETTLES, "a replica becomes a primary", async || {
            let asked = self.recorder.now();
            for server in SERVERS.into_iter().filter(|node| *node != former) {
                let section: String = self.site.ask(server, &["INFO", "replication"]).await?;
                if section.contains("role:master") {
                    return Some(none_was);
                }
            }
            none_was = asked;
            None
        })
        .await
    }

    /// How many new leases a process reported until then to requests that were sent since.
    fn grants(&self, process: usize, from: Micros, until: Micros) -> usize {
        let history = self.recorder.history();
        let requests = history.requests.iter();
        let requests = requests.filter(|it| it.process == process && it.sent >= from);
        let arrivals = requests.flat_map(|request| &request.arrivals);
        let granted = |(at, answer): &&(Micros, Answer)| {
            *at < until && matches!(answer, Answer::Granted { is_new: true, .. })
        };
        arrivals.filter(granted).count()
    }

    fn outage(
        &self,
        fault: &'static str,
        process: Option<usize>,
        time: (Micros, Micros),
        effect: Effect,
    ) {
        let (from, until) = time;
        self.recorder.outage(Outage {
            fault,
            process,
            node: None,
            from,
            until,
            effect,
            ends_process: false,
        });
    }
}

/// One run: clients on both sides, and the faults one after the other. Returns the findings, and what was seen.
async fn run(seed: u64, wait_replicas: usize) -> (Round, Seen) {
    let began = tokio::time::Instant::now();
    let recorder = Recorder::new(Bounds {
        place_kept: place_kept(),
        late: Bounds::default().late + BUSY,
        is_confirmed: wait_replicas > 0,
        ..Bounds::default()
    });
    let resource = Resource::start(recorder.clone());
    let site = Site::start(wait_replicas).await;
    let (end, over) = watch::channel(false);
    let side = |first_process: usize| {
        let addresses = Addresses::default();
        addresses.set(0, site.http(PROCESSES[first_process]));
        Stage {
            recorder: recorder.clone(),
            addresses,
            resource: resource.address,
            presented: Presented::AsGranted,
            processes: 1,
            first_process,
            ttl_max: TTL_MAX,
            seed,
            over: over.clone(),
        }
    };
    let sides = [side(0), side(1)];
    let mut clients = clients(&site, &sides);
    let mut run = Run {
        site,
        recorder: recorder.clone(),
        seen: Seen::default(),
        is_confirmed: wait_replicas > 0,
    };
    sleep(Duration::from_secs(1)).await;
    if run.is_confirmed {
        for cut in [Cut::Both, Cut::ToReplica, Cut::ToPrimary] {
            run.cut_replication(cut).await;
        }
    }
    run.partition().await;
    sleep(Duration::from_secs(1)).await;
    end.send_replace(true);
    let finished = timeout(SETTLES, async {
        while clients.join_next().await.is_some() {}
    });
    let is_finished = finished.await.is_ok();
    let ended = recorder.now();
    let options = Options {
        ttl_max: TTL_MAX,
        ..Options::default()
    };
    let left_over = left_over(&sides[1], &options, &recorder).await;
    let mut history = recorder.history();
    (history.ended, history.left_over, history.uses) = (ended, left_over, resource.end());
    let (violations, counts) = by_both_judges(&history);
    let round = Round {
        seed,
        time: began.elapsed(),
        counts,
        violations,
        crashed: Vec::new(),
        is_finished,
    };
    println!("{}\n  {:?}", report::line(&round), run.seen);
    (round, run.seen)
}

/// Starts the clients of both sides, and what observes whether the machine was too busy.
fn clients(site: &Site, sides: &[Stage; 2]) -> JoinSet<()> {
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        clients.spawn(scenes::client(sides[number % 2].clone(), number, false));
    }
    clients.spawn(observe::pulse(sides[0].clone()));
    for server in SERVERS {
        let address = (site.net.address(server), REDIS_PORT).into();
        clients.spawn(observe::store_pulse(sides[0].clone(), address, None));
    }
    clients
}

/// Fails unless no run breaks a promise, and each was worth something.
async fn check(wait_replicas: usize) {
    for seed in 1..=rounds() {
        let (round, seen) = run(seed, wait_replicas).await;
        assert!(round.is_finished, "a client did not come to its end");
        assert!(round.violations.is_empty(), "{:#?}", round.violations);
        let (grants, writes) = (round.counts.grants, round.counts.writes);
        assert!(
            grants >= GRANTS_MIN && writes > 0,
            "invalid: {:?}",
            round.counts
        );
        assert_eq!(seen.granted_late, 0, "of {seen:?}");
        if wait_replicas > 0 {
            assert_eq!(seen.granted_without, 0, "of {seen:?}");
        } else {
            assert!(
                seen.granted_without > 0,
                "invalid: the former primary was not used"
            );
        }
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "a knob of the tests is no configuration of the service"
)]
fn rounds() -> u64 {
    let rounds = std::env::var(ROUNDS).ok();
    rounds.map_or(1, |rounds| rounds.parse().expect("a number"))
}

#[test]
fn replicas_that_confirm_keep_leases_apart_when_links_are_cut_and_the_network_is_parted() {
    let name =
        "replicas_that_confirm_keep_leases_apart_when_links_are_cut_and_the_network_is_parted";
    on_bridge(
        &format!("history::namespaces::{name}"),
        check(SERVERS.len() - 1),
    );
}

#[test]
fn a_parted_network_breaks_no_order_if_no_replica_confirms() {
    let name = "a_parted_network_breaks_no_order_if_no_replica_confirms";
    on_bridge(&format!("history::namespaces::{name}"), check(0));
}
