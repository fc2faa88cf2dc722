//! Faults of a primary that Sentinels watch: failovers of all kinds, a former primary that still runs, and Sentinels that
//! are gone.

use tokio::time::{Instant, sleep, timeout};

use super::super::record::{Effect, Micros, SECOND};
use super::super::watched::{SENTINELS, Watched};
use super::{Nemesis, Outage, Struck};

/// How long after it follows another primary an answer of a former primary may still arrive: the operation timeout.
const ANSWERED: Micros = 2 * SECOND;

impl Nemesis<'_> {
    fn watched(&mut self) -> &mut Watched {
        let watched = self.fleet.watched.as_mut();
        watched.expect("the fault is for Sentinels")
    }

    /// Waits until all servers follow one primary, and returns its number. Sentinels also replace one that is only slow, as
    /// on a busy machine: that is a failover, too.
    async fn settled(&mut self) -> usize {
        let primary = self.watched().is_settled().await;
        let now = self.recorder.now();
        let before = self.settled.replace((primary, now));
        if let Some((_, since)) = before.filter(|(former, _)| *former != primary) {
            self.former_primary(None, since);
            self.recorder.outage(Outage {
                fault: "Sentinels replaced a slow primary",
                process: None,
                node: None,
                from: since,
                until: now,
                effect: Effect::Failover,
                ends_process: false,
            });
        }
        primary
    }

    /// Notes that this server is the primary since a fault that began at `from`.
    fn is_primary(&mut self, primary: usize, from: Micros) {
        self.settled = Some((primary, from));
    }

    /// At the end of a run, finds out whether the Sentinels have replaced the primary since the last fault.
    pub(in super::super) async fn is_over(&mut self) {
        if self.fleet.watched.is_some() {
            self.settled().await;
        }
    }

    /// Promotes a replica while the primary runs, as an operator does.
    pub(super) async fn planned_failover(&mut self) -> Struck {
        let away = self.chance.millis(0, 1_500);
        let former = self.settled().await;
        let from = self.recorder.now();
        let recorder = self.recorder.clone();
        let watched = self.watched();
        let (promoted, primary) = tokio::join!(
            watched.is_promoted(former, &recorder),
            watched.fail_over(former)
        );
        self.is_primary(primary, from);
        sleep(away).await;
        self.watched().demote(former, primary).await;
        self.former_primary(None, promoted);
        self.is_whole(from).await
    }

    /// Kills the primary, or pauses it until a replica is promoted, and lets it come back.
    pub(super) async fn unplanned_failover(&mut self) -> Struck {
        let kills = self.chance.percent(50);
        let away = self.chance.millis(50, 1_500);
        let former = self.settled().await;
        let from = self.recorder.now();
        let watched = self.watched();
        match kills {
            true => watched.servers[former].kill(),
            false => watched.servers[former].pause(),
        }
        let primary = watched.is_replaced(former).await;
        self.is_primary(primary, from);
        sleep(away).await;
        if kills {
            self.watched().restart(former).await;
            self.watched().demote(former, primary).await;
            return self.is_whole(from).await;
        }
        let resumed = self.recorder.now();
        self.watched().servers[former].resume();
        sleep(away).await;
        self.watched().demote(former, primary).await;
        self.former_primary(None, resumed);
        self.is_whole(from).await
    }

    /// Pauses the primary for less or more than it takes to replace it.
    pub(super) async fn pause_watched(&mut self) -> Struck {
        let away = self.chance.millis(100, 5_000);
        let paused = self.settled().await;
        let from = self.recorder.now();
        let watched = self.watched();
        let server = &watched.servers[paused];
        server.pause();
        let began = Instant::now();
        let is_silent = timeout(away, server.command(&["PING"])).await.is_err();
        sleep(away.saturating_sub(began.elapsed())).await;
        let resumed = self.recorder.now();
        let watched = self.watched();
        watched.servers[paused].resume();
        let primary = watched.is_settled_or_replaced(paused).await;
        let observed = u64::from(is_silent);
        if primary == paused {
            return self.struck(from, Effect::Away, observed);
        }
        watched.demote(paused, primary).await;
        self.is_primary(primary, from);
        self.former_primary(None, resumed);
        let struck = self.is_whole(from).await;
        Struck { observed, ..struck }
    }

    /// Cuts the replication, kills the primary after a while, and lets it come back. Counts the bytes that are lost.
    pub(super) async fn replaced_by_one_behind(&mut self) -> Struck {
        let lag = match self.chance.percent(50) {
            true => self.chance.millis(5, 60),
            false => self.chance.millis(300, 1_500),
        };
        let former = self.settled().await;
        let from = self.recorder.now();
        let watched = self.watched();
        watched.servers[former].stop_replication().await;
        let cut_at = watched.offset(former).await;
        sleep(lag).await;
        watched.has_written(former, cut_at).await;
        let written = watched.offset(former).await;
        watched.servers[former].kill();
        let primary = watched.is_replaced(former).await;
        self.is_primary(primary, from);
        let watched = self.watched();
        let copied = watched.promoted_at(primary).await;
        watched.restart(former).await;
        watched.demote(former, primary).await;
        let struck = self.is_whole(from).await;
        Struck {
            observed: written.saturating_sub(copied),
            ..struck
        }
    }

    /// Parts the primary and one process from the replicas and the Sentinels, which promote a replica; the other processes
    /// reach both. Counts what the former primary is asked by the process after that.
    pub(super) async fn partition(&mut self) -> Struck {
        let process = self.any_process();
        let lasts = self.chance.millis(1_000, 6_000);
        let former = self.settled().await;
        let from = self.recorder.now();
        let recorder = self.recorder.clone();
        let watched = self.watched();
        watched.hide_sentinels(process);
        watched.servers[former].part_from_peers().await;
        let promoted = watched.is_promoted(former, &recorder).await;
        let primary = watched.is_replaced(former).await;
        self.is_primary(primary, from);
        let replaced = self.recorder.now();
        sleep(lasts).await;
        let rejoined = self.recorder.now();
        let watched = self.watched();
        watched.servers[former].rejoin_peers().await;
        watched.demote(former, primary).await;
        watched.show_sentinels(process);
        self.former_primary(Some(process), promoted);
        let observed = self.answered_within(process, replaced, rejoined);
        let struck = self.is_whole(from).await;
        Struck { observed, ..struck }
    }

    /// Kills one or two of the Sentinels. Without two of them a process grants nothing after five seconds.
    pub(super) async fn kill_sentinels(&mut self) -> Struck {
        let count = 1 + self.chance.index(2);
        let first = self.chance.index(SENTINELS);
        let away = self.chance.millis(300, 8_000);
        let from = self.recorder.now();
        let killed = (first..first + count).map(|number| number % SENTINELS);
        let watched = self.watched();
        let mut silent = 0;
        for number in killed.clone() {
            watched.sentinels.kill(number);
            silent += u64::from(!watched.sentinels.answers(number).await);
        }
        sleep(away).await;
        for number in killed {
            watched.sentinels.restart(number);
        }
        self.settled().await;
        let effect = match count > SENTINELS / 2 {
            true => Effect::Away,
            false => Effect::Slower,
        };
        self.struck(from, effect, silent)
    }

    pub(super) async fn flush_watched(&mut self) -> Struck {
        let primary = self.settled().await;
        let watched = self.watched();
        let server = &watched.servers[primary];
        let size = server.integer(0, &["DBSIZE"]).await;
        let from = self.recorder.now();
        self.watched().servers[primary].command(&["FLUSHALL"]).await;
        self.struck(from, Effect::Loss, u64::try_from(size).unwrap_or(0))
    }

    /// The end of a failover: all servers follow the new primary.
    async fn is_whole(&mut self, from: Micros) -> Struck {
        self.settled().await;
        self.struck(from, Effect::Failover, 1)
    }

    /// Records that a former primary, which follows another one now, may have answered this process, or any, since then.
    fn former_primary(&self, process: Option<usize>, from: Micros) {
        self.recorder.outage(Outage {
            fault: "a former primary",
            process,
            node: None,
            from,
            until: self.recorder.now() + ANSWERED,
            effect: Effect::FormerPrimary,
            ends_process: false,
        });
    }

    /// How many answers and events the process has sent in this time, to requests of this time.
    fn answered_within(&self, process: usize, from: Micros, until: Micros) -> u64 {
        let history = self.recorder.history();
        let requests = history.requests.iter();
        let requests = requests.filter(|it| it.process == process && it.sent >= from);
        let arrivals = requests.flat_map(|request| &request.arrivals);
        arrivals.filter(|(at, _)| *at < until).count() as u64
    }
}
