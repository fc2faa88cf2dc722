//! The experiments, one file each, by the names that `--only` knows.

mod access;
mod added_cost;
mod cluster;
mod commands;
mod connections;
mod cpu_time;
mod cycles;
mod file;
mod hand_over;
mod handshakes;
mod idle;
mod instructions;
mod locks;
mod processes;
mod quorum;
mod redis_floor;
mod redis_memory;
mod run;
mod sentinel;
mod throughput;
mod traces;
mod transports;
mod waiters;

use futures_util::future::LocalBoxFuture;

use crate::report::Finding;

/// How much of everything.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Plan {
    /// How often the contestants take their turns.
    pub(crate) rounds: usize,
    /// How long each is measured in a round.
    pub(crate) seconds: f64,
    /// Divides what is counted rather than timed: locks, waiters.
    pub(crate) less: usize,
}

impl Plan {
    pub(crate) const FULL: Self = Self {
        rounds: 5,
        seconds: 5.0,
        less: 1,
    };
    pub(crate) const QUICK: Self = Self {
        rounds: 2,
        seconds: 1.0,
        less: 20,
    };
}

type Experiment = fn(Plan) -> LocalBoxFuture<'static, Vec<Finding>>;

/// All of them, in the order of the table.
pub(crate) const ALL: [(&str, Experiment); 21] = [
    ("throughput", |plan| Box::pin(throughput::run(plan))),
    ("cpu_time", |plan| Box::pin(cpu_time::run(plan))),
    ("cycles", |plan| Box::pin(cycles::run(plan))),
    ("access", |plan| Box::pin(access::run(plan))),
    ("traces", |plan| Box::pin(traces::run(plan))),
    ("transports", |plan| Box::pin(transports::run(plan))),
    ("handshakes", |plan| Box::pin(handshakes::run(plan))),
    ("hand_over", |plan| Box::pin(hand_over::run(plan))),
    ("locks", |plan| Box::pin(locks::run(plan))),
    ("redis_memory", |plan| Box::pin(redis_memory::run(plan))),
    ("waiters", |plan| Box::pin(waiters::run(plan))),
    ("commands", |_| Box::pin(commands::run())),
    ("instructions", |_| Box::pin(instructions::run())),
    ("idle", |plan| Box::pin(idle::run(plan))),
    ("processes", |plan| Box::pin(processes::run(plan))),
    ("sentinel", |plan| Box::pin(sentinel::run(plan))),
    ("cluster", |plan| Box::pin(cluster::run(plan))),
    ("quorum", |plan| Box::pin(quorum::run(plan))),
    ("file", |plan| Box::pin(file::run(plan))),
    ("connections", |plan| Box::pin(connections::run(plan))),
    ("run", |plan| Box::pin(run::run(plan))),
];

/// Ratios round by round, so that what the machine does to all in a round does not count.
fn ratios(over: &[f64], under: &[f64]) -> Vec<f64> {
    over.iter()
        .zip(under)
        .map(|(over, under)| over / under)
        .collect()
}

fn redis_url(redis: &crate::redis_server::RedisServer) -> String {
    format!("redis://{}", redis.address())
}

async fn redis_pid(redis: &crate::redis_server::RedisServer) -> u32 {
    redis.info("server", "process_id").await.parse().unwrap()
}
