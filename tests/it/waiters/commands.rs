//! The cost of a hand-over in Redis, for few and for many waiters.

use std::collections::BTreeMap;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::LASTING;
use super::fleet::Fleet;
use crate::support::monitor::{Executed, Monitor};

const PROCESSES: usize = 3;
const HAND_OVERS: usize = 200;
/// Release and claim are two commands. The rest is for the polls.
const COMMANDS_MAX: f64 = 4.0;

/// The commands within scripts: a release and a claim take 25, the rest is for the polls.
const STEPS_MAX: f64 = 32.0;

/// The counts of a trace: each command of clients, and all commands within scripts.
fn counts(commands: Vec<Executed>) -> (BTreeMap<String, usize>, usize) {
    let (steps, sent): (Vec<_>, Vec<_>) = commands
        .into_iter()
        .partition(|command| command.is_of_script);
    let mut counts = BTreeMap::new();
    for command in sent {
        *counts.entry(command.name()).or_insert(0) += 1;
    }
    (counts, steps.len())
}

/// Commands of clients and within scripts per hand-over, with this many waiters. The measured hand-overs empty the
/// queue, which is then filled again.
async fn commands_with(waiters: usize) -> (f64, f64) {
    let fleet = Fleet::start(PROCESSES).await;
    let lock = format!("commands/{waiters}");
    let mut watcher = fleet.client(0, &lock);
    let mut monitor = Monitor::start(&fleet.redis.address()).await;
    let (mut sent, mut steps) = (BTreeMap::new(), 0);
    let at_once = HAND_OVERS.min(waiters);
    for _ in 0..HAND_OVERS / at_once {
        let mut holder = fleet.client(0, &lock);
        holder.granted(LASTING).await;
        let (tx, mut granted) = mpsc::channel(1);
        let mut clients = JoinSet::new();
        for number in 0..waiters {
            let mut client = fleet.client(number % PROCESSES, &lock);
            let tx = tx.clone();
            clients.spawn(async move {
                client.granted(LASTING).await;
                // Fails for the clients that still wait at the end, which is fine.
                let _ = tx.send(client).await;
            });
        }
        watcher.until_queued(waiters).await;
        monitor.take().await;
        for _ in 0..at_once {
            holder.release().await;
            holder = granted.recv().await.expect("the next one is granted");
        }
        let (sent_now, steps_now) = counts(monitor.take().await);
        steps += steps_now;
        for (command, count) in sent_now {
            *sent.entry(command).or_insert(0) += count;
        }
        clients.abort_all();
        // A grant to a client that disconnects at that moment may count as delivered.
        watcher.until_queued(0).await;
        holder.release().await;
        fleet.becomes_empty(crate::support::EFFECT_TIMEOUT).await;
    }
    let each = sent.values().sum::<usize>() as f64 / HAND_OVERS as f64;
    let steps = steps as f64 / HAND_OVERS as f64;
    println!("{waiters} waiters: {each:.2} commands, {steps:.1} steps for a hand-over: {sent:?}");
    (each, steps)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_costs_few_commands_and_no_more_when_many_wait() {
    let (few, few_steps) = commands_with(10).await;
    let (many, many_steps) = commands_with(1_000).await;
    assert!(few <= COMMANDS_MAX, "{few} with 10 waiters");
    assert!(many <= COMMANDS_MAX, "{many} with 1,000 waiters");
    // The number of polls depends on the duration, so the two differ a little.
    assert!(many < few + 0.5, "{many} with 1,000 waiters, {few} with 10");
    for steps in [few_steps, many_steps] {
        assert!(steps <= STEPS_MAX, "{steps} steps");
    }
}
