//! Random histories of a few locks and tokens, replayed against a pure model. They detect two holders at once, a waiter
//! that is overtaken, and a waiter that could be granted but gets no notification.
//!
//! `model::reference` defines the meaning of claims in as few lines as possible, with a number as the clock;
//! `model::histories` generates the steps; `model::run` runs the same history on a store and compares every answer and
//! every view. A failing history is shrunk and saved in `model.regressions`, which is committed.
//! `LEASEHOLD_MODEL_SEQUENCES` sets the number of histories.
//!
//! It runs on every store. A quorum may refuse two claims that meet, and shows what a majority knows; but here one request
//! is answered after the other, and all nodes have carried it out before the next one is sent, so its answers are the exact
//! ones, too. What it answers when claims meet or nodes fail is the subject of `quorum` and of the histories.

mod histories;
mod reference;
mod run;

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence};
use proptest_state_machine::prop_state_machine;

use reference::Terms;
use run::{Place, Run, Stores};

/// A store on which histories have the same durations as on another one.
trait Likewise: std::fmt::Debug + 'static {
    type Of: Place;

    const REFUSES_FOR_ANY: bool = false;

    fn open() -> Stores;
}

impl<L: Likewise> Place for L {
    const TICK: Duration = L::Of::TICK;
    const IS_EXACT: bool = L::Of::IS_EXACT;
    const PROCESSES: usize = L::Of::PROCESSES;
    const REFUSES_FOR_ANY: bool = <L as Likewise>::REFUSES_FOR_ANY;

    fn stores() -> Stores {
        L::open()
    }

    fn terms() -> BoxedStrategy<Terms> {
        L::Of::terms()
    }

    fn passes() -> Option<BoxedStrategy<u64>> {
        L::Of::passes()
    }
}

/// Time is skipped, so every duration is exact to the millisecond.
#[derive(Debug)]
struct Memory;

impl Place for Memory {
    const TICK: Duration = Duration::from_millis(1);
    const IS_EXACT: bool = true;
    const PROCESSES: usize = 1;

    fn stores() -> Stores {
        run::memory()
    }

    fn terms() -> BoxedStrategy<Terms> {
        let maybe = |durations: &'static [u64]| prop_oneof![2 => Just(None), 1 => prop::sample::select(durations).prop_map(Some)];
        (
            prop::sample::select(&[100, 250, 1_000, 20_000][..]),
            maybe(&[50, 300, 2_000]),
            maybe(&[100, 400, 3_000]),
            maybe(&[1, 200, 2_000]),
        )
            .prop_map(|(ttl, min_hold, max_hold, lock_delay)| Terms {
                ttl,
                min_hold,
                max_hold,
                lock_delay,
            })
            .boxed()
    }

    fn passes() -> Option<BoxedStrategy<u64>> {
        // Fifty of the longest are less than the minute for which tombstones are kept.
        Some(prop::sample::select(&[1, 49, 50, 99, 100, 250, 1_000][..]).boxed())
    }
}

/// The same on a disk, which takes longer.
#[derive(Debug)]
struct File;

impl Likewise for File {
    type Of = Memory;

    fn open() -> Stores {
        run::file()
    }
}

/// Hardly any time passes: nothing expires within a history.
#[derive(Debug)]
struct Redis;

impl Place for Redis {
    const TICK: Duration = Duration::from_secs(60);
    const IS_EXACT: bool = false;
    const PROCESSES: usize = 2;

    fn stores() -> Stores {
        run::redis()
    }

    fn terms() -> BoxedStrategy<Terms> {
        let maybe = || prop_oneof![3 => Just(None), 1 => Just(Some(1))];
        (maybe(), maybe(), maybe())
            .prop_map(|(min_hold, max_hold, lock_delay)| Terms {
                ttl: 1,
                min_hold,
                max_hold,
                lock_delay,
            })
            .boxed()
    }

    fn passes() -> Option<BoxedStrategy<u64>> {
        None
    }
}

/// The same where each lock may be on another primary of a cluster.
#[derive(Debug)]
struct Cluster;

impl Likewise for Cluster {
    type Of = Redis;
    const REFUSES_FOR_ANY: bool = true;

    fn open() -> Stores {
        run::cluster()
    }
}

/// The same where Sentinels name the Redis, and a replica confirms what is reported.
#[derive(Debug)]
struct Sentinel;

impl Likewise for Sentinel {
    type Of = Redis;

    fn open() -> Stores {
        run::sentinel()
    }
}

/// A quorum of embedded nodes, on which time is skipped.
#[derive(Debug)]
struct Quorum;

impl Likewise for Quorum {
    type Of = Memory;

    fn open() -> Stores {
        run::quorum()
    }
}

/// A quorum of Redis, for two processes.
#[derive(Debug)]
struct QuorumOfRedis;

impl Likewise for QuorumOfRedis {
    type Of = Redis;

    fn open() -> Stores {
        run::quorum_redis()
    }
}

/// Time really passes: every end is either one tick away or far away, and three ticks pass at a time, so that even a
/// `lock_delay` of one tick after a lease of one tick is clearly over.
#[derive(Debug)]
struct RedisInTime;

impl Place for RedisInTime {
    const TICK: Duration = Duration::from_millis(300);
    const IS_EXACT: bool = false;
    const PROCESSES: usize = 2;

    fn stores() -> Stores {
        run::redis()
    }

    fn terms() -> BoxedStrategy<Terms> {
        let duration = || prop::sample::select(&[1, 200][..]);
        let maybe = || prop::option::of(prop::sample::select(&[1, 200][..]));
        (duration(), maybe(), maybe(), maybe())
            .prop_map(|(ttl, min_hold, max_hold, lock_delay)| Terms {
                ttl,
                min_hold,
                max_hold,
                lock_delay,
            })
            .boxed()
    }

    fn passes() -> Option<BoxedStrategy<u64>> {
        Some(Just(3).boxed())
    }
}

/// The number of histories: from the environment, or `default`.
#[allow(
    clippy::disallowed_methods,
    reason = "a knob of the tests is no configuration of the service"
)]
pub(crate) fn sequences(default: u32) -> u32 {
    match std::env::var("LEASEHOLD_MODEL_SEQUENCES") {
        Ok(number) => number
            .parse()
            .expect("LEASEHOLD_MODEL_SEQUENCES is a number"),
        Err(_) => default,
    }
}

fn config(cases: u32) -> Config {
    Config {
        cases,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..Config::default()
    }
}

prop_state_machine! {
    #![proptest_config(config(sequences(1_000)))]

    #[test]
    fn memory_does_what_the_model_does(sequential 1..=50 => Run<Memory>);
}

prop_state_machine! {
    #![proptest_config(config(sequences(1_000).div_ceil(20)))]

    #[test]
    fn file_does_what_the_model_does(sequential 1..=50 => Run<File>);
}

prop_state_machine! {
    #![proptest_config(config(sequences(100)))]

    #[test]
    fn redis_does_what_the_model_does(sequential 1..=50 => Run<Redis>);
}

prop_state_machine! {
    #![proptest_config(config(sequences(100).div_ceil(2)))]

    #[test]
    fn a_cluster_does_what_the_model_does(sequential 1..=50 => Run<Cluster>);
}

prop_state_machine! {
    #![proptest_config(config(sequences(100).div_ceil(10)))]

    #[test]
    fn a_redis_that_sentinels_name_does_what_the_model_does(sequential 1..=50 => Run<Sentinel>);
}

prop_state_machine! {
    #![proptest_config(config(sequences(100)))]

    #[test]
    fn a_quorum_does_what_the_model_does(sequential 1..=50 => Run<Quorum>);
}

prop_state_machine! {
    #![proptest_config(config(sequences(100).div_ceil(10)))]

    #[test]
    fn a_quorum_of_redis_does_what_the_model_does(sequential 1..=50 => Run<QuorumOfRedis>);
}

prop_state_machine! {
    #![proptest_config(config(sequences(200).div_ceil(50)))]

    fn histories_in_time(sequential 1..=16 => Run<RedisInTime>);
}

#[test]
fn redis_does_what_the_model_does_while_time_passes() {
    histories_in_time();
    // On a machine that is too busy, nothing would have been compared.
    let compared = run::COMPARED_IN_TIME.load(std::sync::atomic::Ordering::Relaxed);
    assert!(compared > 0, "no step was quick enough to be compared");
}
