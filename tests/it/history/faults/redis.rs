//! Faults of Redis: killed, emptied, replaced, with another time, full, or without its scripts and subscribers.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::super::record::{ClockStep, Effect, Micros, Outage};
use super::{Fault, Nemesis, Struck, quorum};
use crate::support::eventually;
use crate::support::neighbour;
use crate::support::proxy::Proxy;
use crate::support::redis_server::Persistence;

impl Nemesis<'_> {
    pub(super) async fn run_id(&self) -> String {
        self.store().redis.info("server", "run_id").await
    }

    async fn size(&self) -> i64 {
        self.store().redis.integer(0, &["DBSIZE"]).await
    }

    async fn figure(&self, section: &str, field: &str) -> u64 {
        let found = self.store().redis.info_if_any(section, field).await;
        let digits = |text: &str| -> String { text.chars().filter(char::is_ascii_digit).collect() };
        found.map_or(0, |text| digits(&text).parse().unwrap_or(0))
    }

    pub(super) async fn kill_redis(&mut self, forgets: bool) -> Struck {
        let away = self.chance.millis(50, 4_500);
        let (run_id, size) = (self.run_id().await, self.size().await);
        let from = self.recorder.now();
        let store = self.store_mut();
        store.redis.kill();
        if forgets {
            store.redis.forget();
        }
        let is_lost = forgets || store.persistence == Persistence::Nothing;
        let killed = self.recorder.now();
        sleep(away).await;
        self.was_away(killed);
        self.store_mut().redis.restart().await;
        let is_another = self.run_id().await != run_id && size > 0;
        let effect = if is_lost { Effect::Loss } else { Effect::Away };
        self.struck(from, effect, u64::from(is_another))
    }

    pub(super) async fn pause_redis(&mut self) -> Struck {
        let away = self.chance.millis(100, 5_000);
        let from = self.recorder.now();
        self.store().redis.pause();
        let began = Instant::now();
        // The system still accepts connections, but Redis does not reply.
        let is_silent = timeout(away, self.store().redis.command(&["PING"]))
            .await
            .is_err();
        sleep(away.saturating_sub(began.elapsed())).await;
        self.was_away(from);
        self.store().redis.resume();
        self.struck(from, Effect::Away, u64::from(is_silent))
    }

    pub(super) async fn flush_all(&mut self) -> Struck {
        let size = self.size().await;
        let from = self.recorder.now();
        self.store().redis.command(&["FLUSHALL"]).await;
        self.struck(from, Effect::Loss, u64::try_from(size).unwrap_or(0))
    }

    /// Promotes a replica: everything since its link was cut is lost.
    pub(super) async fn replaced(&mut self) -> Struck {
        // After a short lag only a single lease is missing, which a single process knows.
        let is_brief = self.chance.percent(50);
        let lag = if is_brief {
            self.chance.millis(5, 60)
        } else {
            self.chance.millis(300, 1_500)
        };
        let old = &self.store().redis;
        old.command(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"])
            .await;
        let link = Proxy::start(old.address()).await;
        let new = self.store().another().await;
        let address = link.address();
        new.command(&[
            "REPLICAOF".to_owned(),
            address.ip().to_string(),
            address.port().to_string(),
        ])
        .await;
        eventually("the replica has everything", async || {
            let status = new.info_if_any("replication", "master_link_status").await?;
            (status == "up").then_some(())
        })
        .await;
        let from = self.recorder.now();
        link.refuse(true);
        link.cut();
        sleep(lag).await;
        let offset = |text: String| text.parse::<u64>().unwrap_or(0);
        let written = offset(old.info("replication", "master_repl_offset").await);
        let copied = offset(new.info("replication", "slave_repl_offset").await);
        let store = self.store_mut();
        store.redis.kill();
        new.command(&["REPLICAOF", "NO", "ONE"]).await;
        for proxy in &store.proxies {
            proxy.switch(new.address());
        }
        store.redis = new;
        self.struck(from, Effect::Loss, written.saturating_sub(copied))
    }

    pub(super) async fn clock(&mut self) -> Struck {
        const SECOND: i64 = 1_000_000;
        let steps: &[i64] = match self.fleet.is_quorum() {
            true => &[20, -20],
            false => &[1, -1, 60, -60, 3_600, -3_600],
        };
        let by = self.chance.pick(steps) * SECOND;
        let lasts = self.chance.millis(1_500, 9_000);
        let from = self.recorder.now();
        let moved = self.step(by).await;
        sleep(lasts).await;
        let back = self.step(-by).await;
        let is_near = |moved: i64, by: i64| (moved - by).abs() < SECOND / 2;
        let observed = is_near(moved, by) && is_near(back, -by);
        self.struck(from, Effect::Slower, u64::from(observed))
    }

    /// Steps the clock. Returns by how much the time of Redis really changed.
    async fn step(&self, by: i64) -> i64 {
        let (before, began) = (self.time().await, self.recorder.now());
        let clock = self.store().clock.as_ref().expect("Redis has such a clock");
        clock.step(by);
        let (after, ended) = (self.time().await, self.recorder.now());
        // The clock of one node explains nothing.
        if !self.fleet.is_quorum() {
            self.recorder.clock_step(ClockStep {
                before: began,
                after: ended,
                by,
            });
        }
        let passed = i64::try_from(ended - began).unwrap_or(0);
        after - before - passed
    }

    async fn time(&self) -> i64 {
        let answer = self.store().redis.command(&["TIME"]).await;
        let (seconds, micros): (i64, i64) = redis::from_redis_value(answer).expect("a time");
        seconds * 1_000_000 + micros
    }

    pub(super) async fn script_flush(&mut self) -> Struck {
        let from = self.recorder.now();
        let mut forgotten = 0;
        for _ in 0..20 {
            forgotten += self.figure("memory", "number_of_cached_scripts").await;
            self.store().redis.command(&["SCRIPT", "FLUSH"]).await;
            sleep(Duration::from_millis(50)).await;
        }
        self.struck(from, Effect::Slower, forgotten)
    }

    pub(super) async fn full_memory(&mut self) -> Struck {
        let lasts = self.chance.millis(500, 3_000);
        let before = self.figure("errorstats", "errorstat_OOM").await;
        let from = self.recorder.now();
        self.store()
            .redis
            .command(&["CONFIG", "SET", "maxmemory", "1"])
            .await;
        sleep(lasts).await;
        self.store()
            .redis
            .command(&["CONFIG", "SET", "maxmemory", "0"])
            .await;
        let refused = self.figure("errorstats", "errorstat_OOM").await - before;
        self.struck(from, Effect::Full, refused)
    }

    pub(super) async fn lost_pubsub(&mut self) -> Struck {
        let from = self.recorder.now();
        let mut cut: Micros = 0;
        for _ in 0..10 {
            let killed = self
                .store()
                .redis
                .integer(0, &["CLIENT", "KILL", "TYPE", "pubsub"])
                .await;
            cut += u64::try_from(killed).unwrap_or(0);
            sleep(Duration::from_millis(200)).await;
        }
        self.struck(from, Effect::Slower, cut)
    }

    /// Scripts of another program run for 300 ms each second, and Redis answers all others `BUSY` meanwhile.
    pub(super) async fn slow_neighbour(&mut self) -> Struck {
        let redis = &self.store().redis;
        let before = redis.busy_answers().await;
        let steps = redis.steps_in(neighbour::BUSY).await;
        redis.answers_busy_after(20).await;
        let from = self.recorder.now();
        for _ in 0..5 {
            let began = self.recorder.now();
            self.store().redis.spin(steps).await;
            self.was_busy(began);
            sleep(neighbour::PAUSE).await;
        }
        let redis = &self.store().redis;
        redis.answers_busy_after(5_000).await;
        let answers = redis.busy_answers().await.saturating_sub(before);
        self.struck(from, Effect::Slower, answers)
    }

    /// Notes that a script has run since `from`: a request that ends meanwhile has no answer in time.
    fn was_busy(&self, from: Micros) {
        let fault = Fault::SlowNeighbour;
        let effect = match self.fleet.is_quorum() {
            true => quorum::effect(fault, Effect::Away),
            false => Effect::Away,
        };
        self.recorder.outage(Outage {
            fault: "a script of the neighbour",
            process: None,
            node: self.struck_node(fault),
            from,
            until: self.recorder.now(),
            effect,
            ends_process: false,
        });
    }
}
