//! The faults, one after the other in an order from the seed. Each reports its observed effect: a fault without one
//! does not count.

mod cluster;
mod network;
mod processes;
mod quorum;
mod redis;
mod sentinel;

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::sleep;

use super::chance::Chance;
use super::fleet::{Fleet, Store};
use super::options::Backend;
use super::record::{Effect, Micros, Outage};
use super::recorder::Recorder;

/// A fault that can be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fault {
    KillProcess,
    PauseProcess,
    LosePower,
    KillRedis,
    LoseRedis,
    PauseRedis,
    LoseBoth,
    Cut,
    Stall,
    LoseAnswers,
    LoseRequests,
    LateDelivery,
    FlushAll,
    Replaced,
    Clock,
    ScriptFlush,
    FullMemory,
    LostPubSub,
    Failover,
    PlannedFailover,
    Partition,
    KillSentinels,
    Reshard,
    Majority,
    SlowNeighbour,
}

impl Fault {
    pub(super) const ALL: [Self; 25] = [
        Self::KillProcess,
        Self::PauseProcess,
        Self::LosePower,
        Self::KillRedis,
        Self::LoseRedis,
        Self::PauseRedis,
        Self::LoseBoth,
        Self::Cut,
        Self::Stall,
        Self::LoseAnswers,
        Self::LoseRequests,
        Self::LateDelivery,
        Self::FlushAll,
        Self::Replaced,
        Self::Clock,
        Self::ScriptFlush,
        Self::FullMemory,
        Self::LostPubSub,
        Self::Failover,
        Self::PlannedFailover,
        Self::Partition,
        Self::KillSentinels,
        Self::Reshard,
        Self::Majority,
        Self::SlowNeighbour,
    ];

    /// Its name on the command line, and its description.
    pub(super) fn described(self) -> (&'static str, &'static str) {
        match self {
            Self::KillProcess => ("kill-process", "a process is killed and started again"),
            Self::PauseProcess => ("pause-process", "a process stands still for 0.1 to 6 s"),
            Self::LosePower => (
                "lose-power",
                "the process is killed, and its disk loses what was not synchronized",
            ),
            Self::KillRedis => (
                "kill-redis",
                "Redis is killed and comes back with what it had on disk",
            ),
            Self::LoseRedis => (
                "lose-redis",
                "Redis is killed and comes back with an empty disk",
            ),
            Self::PauseRedis => ("pause-redis", "Redis stands still for 0.1 to 5 s"),
            Self::LoseBoth => (
                "lose-both",
                "Redis is lost together with one process, killed or paused",
            ),
            Self::Cut => (
                "cut",
                "a process cannot reach Redis, and its connections are cut",
            ),
            Self::Stall => (
                "stall",
                "nothing passes between a process and Redis for a while",
            ),
            Self::LoseAnswers => ("lose-answers", "commands arrive, their answers do not"),
            Self::LoseRequests => ("lose-requests", "commands do not arrive"),
            Self::LateDelivery => (
                "late-delivery",
                "commands arrive 0.5 to 3 s after their connection was cut",
            ),
            Self::FlushAll => ("flushall", "Redis is emptied while it runs"),
            Self::Replaced => (
                "replaced",
                "Redis is replaced by a replica that lags behind",
            ),
            Self::Clock => (
                "clock",
                "the clock of Redis steps by 1 s, 60 s or 1 h and back again, that of a node by 20 s",
            ),
            Self::ScriptFlush => ("script-flush", "Redis forgets the scripts, again and again"),
            Self::FullMemory => ("full-memory", "Redis has no memory left for a while"),
            Self::LostPubSub => ("lost-pubsub", "subscriptions are cut again and again"),
            Self::Failover => (
                "failover",
                "a primary is killed, or stands still with Sentinels, and a replica takes over",
            ),
            Self::PlannedFailover => (
                "planned-failover",
                "a replica takes over while the primary runs",
            ),
            Self::Partition => (
                "partition",
                "the primary and a process are parted from replicas and Sentinels, and a replica takes over",
            ),
            Self::KillSentinels => (
                "kill-sentinels",
                "one or two of three Sentinels are killed and started again",
            ),
            Self::Reshard => ("reshard", "slots move between the primaries of the cluster"),
            Self::Majority => (
                "majority",
                "a majority of the nodes of the quorum is killed or stands still",
            ),
            Self::SlowNeighbour => ("slow-neighbour", "scripts of others keep Redis busy"),
        }
    }

    pub(super) fn name(self) -> &'static str {
        self.described().0
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fault| fault.name() == name)
    }

    /// Whether it is applicable to locks that are kept there.
    pub(super) fn strikes(self, backend: Backend) -> bool {
        let is_common = matches!(self, Self::KillProcess | Self::PauseProcess);
        let is_of_one_redis = !matches!(
            self,
            Self::LosePower
                | Self::Failover
                | Self::PlannedFailover
                | Self::Partition
                | Self::KillSentinels
                | Self::Reshard
        );
        match backend {
            Backend::Redis => is_of_one_redis && self != Self::Majority,
            Backend::Quorum => is_of_one_redis && self != Self::Replaced,
            Backend::Cluster => {
                let own = [
                    Self::PauseRedis,
                    Self::FlushAll,
                    Self::Failover,
                    Self::Reshard,
                ];
                is_common || own.contains(&self)
            }
            Backend::Sentinel => {
                let own = [
                    Self::PauseRedis,
                    Self::FlushAll,
                    Self::Replaced,
                    Self::Failover,
                    Self::PlannedFailover,
                    Self::Partition,
                    Self::KillSentinels,
                ];
                is_common || own.contains(&self)
            }
            Backend::Memory => self == Self::PauseProcess,
            Backend::File => is_common || self == Self::LosePower,
        }
    }
}

/// The effect of a fault: when, on which process, and how much was observed.
struct Struck {
    process: Option<usize>,
    effect: Effect,
    from: Micros,
    until: Micros,
    ends_process: bool,
    /// The observed amount; 0 if it had no effect.
    observed: u64,
}

/// The effects of each fault in a run: how often it was tried, how often it had an effect, and the observed amount.
pub(super) type Effects = BTreeMap<Fault, (usize, usize, u64)>;

/// Executes the faults.
pub(super) struct Nemesis<'a> {
    pub(super) fleet: &'a mut Fleet,
    pub(super) recorder: Recorder,
    pub(super) chance: Chance,
    pub(super) effects: Effects,
    /// The Redis that the current fault strikes.
    node: usize,
    /// The longest lease.
    ttl_max: Duration,
    /// When data or a process were lost last. Not everything may be lost at once: then no process would know the
    /// leases.
    last_loss: Micros,
    /// Of servers that Sentinels watch, the last one that was known to be the primary, and since when.
    settled: Option<(usize, Micros)>,
}

impl<'a> Nemesis<'a> {
    pub(super) fn new(
        fleet: &'a mut Fleet,
        recorder: Recorder,
        chance: Chance,
        ttl_max: Duration,
    ) -> Self {
        Self {
            settled: fleet.watched.as_ref().map(|_| (0, 0)),
            fleet,
            recorder,
            chance,
            effects: Effects::new(),
            node: 0,
            ttl_max,
            last_loss: 0,
        }
    }

    /// Executes one fault from its beginning to its end.
    pub(super) async fn strike(&mut self, fault: Fault) {
        self.keep_a_memory(fault).await;
        if self.fleet.is_quorum() {
            self.settle().await;
            self.node = self.chance.index(self.fleet.stores.len());
        }
        let mut struck = match fault {
            Fault::KillProcess => self.kill_process().await,
            Fault::PauseProcess => self.pause_process().await,
            Fault::LosePower => self.lose_power().await,
            Fault::LoseBoth => self.lose_both().await,
            Fault::KillRedis => self.kill_redis(false).await,
            Fault::LoseRedis => self.kill_redis(true).await,
            Fault::PauseRedis if self.fleet.cluster.is_some() => self.pause_primary().await,
            Fault::FlushAll if self.fleet.cluster.is_some() => self.flush_primary().await,
            Fault::PauseRedis if self.fleet.watched.is_some() => self.pause_watched().await,
            Fault::FlushAll if self.fleet.watched.is_some() => self.flush_watched().await,
            Fault::Failover if self.fleet.watched.is_some() => self.unplanned_failover().await,
            Fault::Replaced if self.fleet.watched.is_some() => self.replaced_by_one_behind().await,
            Fault::PauseRedis => self.pause_redis().await,
            Fault::FlushAll => self.flush_all().await,
            Fault::Failover => self.failover().await,
            Fault::PlannedFailover => self.planned_failover().await,
            Fault::Partition => self.partition().await,
            Fault::KillSentinels => self.kill_sentinels().await,
            Fault::Reshard => self.reshard().await,
            Fault::Majority => self.majority().await,
            Fault::Replaced => self.replaced().await,
            Fault::Clock => self.clock().await,
            Fault::ScriptFlush => self.script_flush().await,
            Fault::FullMemory => self.full_memory().await,
            Fault::LostPubSub => self.lost_pubsub().await,
            Fault::SlowNeighbour => self.slow_neighbour().await,
            Fault::Cut
            | Fault::Stall
            | Fault::LoseAnswers
            | Fault::LoseRequests
            | Fault::LateDelivery => self.network(fault).await,
        };
        let sum = self.effects.entry(fault).or_default();
        sum.0 += 1;
        sum.1 += usize::from(struck.observed > 0);
        sum.2 += struck.observed;
        if struck.ends_process || matches!(struck.effect, Effect::Loss | Effect::Failover) {
            self.last_loss = struck.until;
        }
        if self.fleet.is_quorum() {
            struck.effect = quorum::effect(fault, struck.effect);
        } else if fault == Fault::Clock {
            // A clock step is not an outage; it is recorded separately.
            return;
        }
        self.recorder.outage(Outage {
            fault: fault.name(),
            process: struck.process,
            node: self.struck_node(fault),
            from: struck.from,
            until: struck.until,
            effect: struck.effect,
            ends_process: struck.ends_process,
        });
    }

    /// Losing Redis and every process within a moment loses all knowledge of leases. The guarantee covers the loss of
    /// Redis and one process; so a fault with a loss waits until the other processes have detected the last one.
    async fn keep_a_memory(&self, fault: Fault) {
        const KNOWN: Micros = 4_000_000;
        let forgets = match fault {
            Fault::KillProcess
            | Fault::LoseBoth
            | Fault::LoseRedis
            | Fault::FlushAll
            | Fault::Replaced
            | Fault::Failover
            | Fault::PlannedFailover
            | Fault::Partition
            | Fault::Majority
            | Fault::KillRedis => true,
            // Sentinels replace most primaries that pause.
            Fault::PauseRedis => self.fleet.watched.is_some(),
            Fault::PauseProcess
            | Fault::LosePower
            | Fault::Cut
            | Fault::Stall
            | Fault::LoseAnswers
            | Fault::LoseRequests
            | Fault::LateDelivery
            | Fault::Clock
            | Fault::ScriptFlush
            | Fault::FullMemory
            | Fault::LostPubSub
            | Fault::SlowNeighbour
            | Fault::KillSentinels
            | Fault::Reshard => false,
        };
        if forgets && self.last_loss > 0 {
            let ready = self.last_loss + KNOWN;
            let left = ready.saturating_sub(self.recorder.now());
            sleep(Duration::from_micros(left)).await;
        }
    }

    fn store(&self) -> &Store {
        &self.fleet.stores[self.node]
    }

    fn store_mut(&mut self) -> &mut Store {
        &mut self.fleet.stores[self.node]
    }

    fn any_process(&mut self) -> usize {
        self.chance.index(self.fleet.processes.len())
    }

    /// Ends, now, a fault that began at `from`.
    fn struck(&self, from: Micros, effect: Effect, observed: u64) -> Struck {
        Struck {
            process: None,
            effect,
            from,
            until: self.recorder.now(),
            ends_process: false,
            observed,
        }
    }
}
