//! Processes that are killed or paused.

use nix::sys::signal::Signal;
use tokio::time::sleep;

use super::super::record::Effect;
use super::{Nemesis, Struck};

/// How often power is lost until the disk has something to lose.
const POWER_LOSSES_MAX: usize = 8;

impl Nemesis<'_> {
    pub(super) async fn kill_process(&mut self) -> Struck {
        let process = self.any_process();
        let away = self.chance.millis(50, 2_500);
        let before = self.fleet.processes[process].pid();
        let from = self.recorder.now();
        self.fleet.kill(process);
        sleep(away).await;
        self.fleet.restart(process);
        let is_another = self.fleet.processes[process].pid() != before;
        Struck {
            process: Some(process),
            ends_process: true,
            ..self.struck(from, Effect::Away, u64::from(is_another))
        }
    }

    /// Counts the sectors that are lost. Between two commits a process has none to lose, so power is then lost again.
    pub(super) async fn lose_power(&mut self) -> Struck {
        let from = self.recorder.now();
        let mut lost = 0;
        for _ in 0..POWER_LOSSES_MAX {
            let away = self.chance.millis(50, 2_500);
            self.fleet.kill(0);
            let directory = self.fleet.directory.as_ref();
            let directory = directory.expect("the fault is for the file store");
            lost += directory.lose_power(|end| self.chance.index(end));
            sleep(away).await;
            self.fleet.restart(0);
            if lost > 0 {
                break;
            }
            sleep(self.chance.millis(500, 1_000)).await;
        }
        Struck {
            process: Some(0),
            ends_process: true,
            ..self.struck(from, Effect::Away, lost as u64)
        }
    }

    pub(super) async fn pause_process(&mut self) -> Struck {
        let process = self.any_process();
        let away = self.chance.millis(100, 6_000);
        let from = self.recorder.now();
        self.fleet.processes[process].signal(Signal::SIGSTOP);
        sleep(away).await;
        let is_stopped = self.fleet.is_stopped(process);
        self.fleet.processes[process].signal(Signal::SIGCONT);
        Struck {
            process: Some(process),
            ..self.struck(from, Effect::Away, u64::from(is_stopped))
        }
    }

    /// Redis loses all of its data, and a process is lost with it: killed, or paused until the others have continued.
    pub(super) async fn lose_both(&mut self) -> Struck {
        let process = self.any_process();
        let (redis_away, process_away) = (
            self.chance.millis(50, 800),
            self.chance.millis(2_500, 5_000),
        );
        let kills = self.chance.percent(50);
        let before = self.run_id().await;
        let from = self.recorder.now();
        if kills {
            self.fleet.kill(process);
        } else {
            self.fleet.processes[process].signal(Signal::SIGSTOP);
        }
        let store = self.store_mut();
        store.redis.kill();
        store.redis.forget();
        sleep(redis_away).await;
        store.redis.restart().await;
        let mut loss = self.struck(from, Effect::Loss, 0);
        loss.observed = u64::from(self.run_id().await != before);
        sleep(process_away).await;
        if kills {
            self.fleet.restart(process);
        } else {
            self.fleet.processes[process].signal(Signal::SIGCONT);
        }
        // The process was unavailable for longer than the store.
        self.recorder.outage(super::Outage {
            fault: "lose-both: the process",
            process: Some(process),
            node: None,
            from,
            until: self.recorder.now(),
            effect: Effect::Away,
            ends_process: kills,
        });
        loss
    }
}
