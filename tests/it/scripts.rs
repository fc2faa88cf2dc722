//! Scripts fail before their first write, or not at all: all contract tests on one Redis, whose commands are judged.
//!
//! While a slot of a Redis Cluster moves to another node, its keys are on both nodes. Redis executes a script only if
//! all of its declared keys are on one node. Then each of its commands fails on the old node if a key is absent, and on
//! the new one if it has several keys and one is absent. A script that fails in the middle loses what it has not written
//! yet, and one that goes on takes what has not arrived for absent.

mod moving_slot;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use leasehold::domain::Attempt;
use redis::aio::MultiplexedConnection;
use redis::{Client, Cmd, Pipeline, Value};
use tokio::runtime::Builder;
use tokio::task::spawn_blocking;

use crate::contract;
use crate::support::fixture::{Fixture, claim, rival};
use crate::support::monitor::{Executed, Monitor};
use crate::support::redis_server::{Persistence, RedisOptions, RedisServer};

/// How many contract tests run at a time.
const AT_ONCE: usize = 8;

/// What Redis says of a command.
struct CommandProperties {
    is_write: bool,
    /// Whether Redis refuses it when memory is full, unless the script has written before.
    is_refused_when_full: bool,
    /// The positions of the first and the last key, and the step between keys.
    keys: [i64; 3],
}

/// The properties of the commands in a trace, by their names in lower case.
struct CommandTable(BTreeMap<String, CommandProperties>);

/// A script that was executed, with the commands that it called.
struct Execution<'a> {
    keys: &'a [Vec<u8>],
    commands: Vec<&'a Executed>,
}

/// A copy of the data, from the same commands. It keeps what has expired.
struct Copy(MultiplexedConnection);

impl CommandTable {
    async fn of(commands: &[Executed], server: &RedisServer) -> Self {
        let names: BTreeSet<_> = commands.iter().map(Executed::name).collect();
        let names: Vec<_> = names.into_iter().collect();
        let words = ["COMMAND", "INFO"].into_iter();
        let words: Vec<_> = words.chain(names.iter().map(String::as_str)).collect();
        let facts = server.command(&words).await;
        type Row = (String, i64, Vec<String>, i64, i64, i64);
        let rows: Vec<Vec<Value>> = redis::from_redis_value(facts).expect("rows");
        let facts = rows.into_iter().map(|mut row| {
            row.truncate(6);
            let row = Value::Array(row);
            let (_, _, flags, first, last, step): Row =
                redis::from_redis_value(row).expect("name, arity, flags and keys");
            let has = |flag: &str| flags.iter().any(|it| it == flag);
            CommandProperties {
                is_write: has("write"),
                is_refused_when_full: has("denyoom"),
                keys: [first, last, step],
            }
        });
        Self(names.into_iter().zip(facts).collect())
    }

    fn properties_of(&self, command: &Executed) -> &CommandProperties {
        &self.0[&command.name()]
    }

    fn keys<'a>(&self, command: &'a Executed) -> Vec<&'a [u8]> {
        let [first, last, step] = self.properties_of(command).keys;
        let Ok(first @ 1..) = usize::try_from(first) else {
            return Vec::new();
        };
        let words = &command.words;
        let last = match usize::try_from(last) {
            Ok(last) => last,
            Err(_) => words.len() - usize::try_from(-last).expect("small"),
        };
        let step = usize::try_from(step).expect("a step");
        let keys = words[first..=last].iter().step_by(step);
        keys.map(Vec::as_slice).collect()
    }
}

impl Copy {
    /// Executes commands, and answers of each of the scripts' which of its keys were absent before; first of all, of
    /// the declared keys.
    async fn execute(
        &mut self,
        database: u16,
        declared: &[Vec<u8>],
        commands: &[&Executed],
        table: &CommandTable,
    ) -> Vec<Vec<bool>> {
        let mut pipeline = Pipeline::new();
        pipeline.cmd("SELECT").arg(database);
        let all_keys: Vec<Vec<&[u8]>> = [declared.iter().map(Vec::as_slice).collect()]
            .into_iter()
            .chain(commands.iter().map(|command| table.keys(command)))
            .collect();
        let mut answers_of_exists = Vec::new();
        let mut sent = 1;
        for (index, keys) in all_keys.iter().enumerate() {
            for key in keys {
                pipeline.cmd("EXISTS").arg(key);
            }
            answers_of_exists.push(sent..sent + keys.len());
            sent += keys.len();
            let command = index.checked_sub(1).map(|index| commands[index]);
            if let Some(command) = command.and_then(|command| without_expiry(command, table)) {
                pipeline.add_command(command);
                sent += 1;
            }
        }
        // Some fail, because what has expired was there still. It counts as present, which is all that matters here.
        let answers = self.0.send_packed_commands(&pipeline, 0, sent).await;
        let answers = answers.expect("it answers");
        let is_absent = |answer: &Value| matches!(answer, Value::Int(0));
        let ranges = answers_of_exists.into_iter();
        ranges
            .map(|range| answers[range].iter().map(is_absent).collect())
            .collect()
    }
}

async fn connection(server: &RedisServer) -> MultiplexedConnection {
    let url = format!("redis://{}", server.address());
    let client = Client::open(url).expect("an address");
    let connection = client.get_multiplexed_async_connection().await;
    connection.expect("it listens")
}

/// A command that writes, but lets nothing expire.
fn without_expiry(command: &Executed, table: &CommandTable) -> Option<Cmd> {
    let name = command.name();
    if !table.properties_of(command).is_write || name == "pexpire" {
        return None;
    }
    let words = &command.words;
    let words = &words[..if name == "set" { 3 } else { words.len() }];
    let mut copied = Cmd::new();
    for word in words {
        copied.arg(word.as_slice());
    }
    Some(copied)
}

impl<'a> Execution<'a> {
    /// The script that begins a trace; `None` for any other command.
    fn first_of(commands: &'a [Executed]) -> Option<Self> {
        let (script, rest) = commands.split_first()?;
        if !["eval", "evalsha"].contains(&script.name().as_str()) {
            return None;
        }
        let count = std::str::from_utf8(&script.words[2]).ok()?.parse().ok()?;
        let keys = script.words.get(3..)?.get(..count)?;
        let called = rest.iter().take_while(|command| command.is_of_script);
        let commands = called.collect();
        Some(Self { keys, commands })
    }

    /// What is wrong with it, given which keys were absent when.
    fn faults(&self, absent: &[Vec<bool>], table: &CommandTable) -> Vec<&'static str> {
        let mut faults = Vec::new();
        if self.is_refused_when_full(table) {
            faults.push("its first write fails when memory is full");
        }
        let (declared, absent) = absent.split_first().expect("the declared keys");
        // Redis does not execute a script of which only some keys are on a node. Those that scan are for all slots.
        let scans = self.commands.iter().any(|it| it.name() == "scan");
        if scans || self.keys.len() > 1 && declared.contains(&true) {
            return faults;
        }
        let has_moved = declared.contains(&true);
        let (mut has_written, mut has_read_others) = (false, false);
        for (command, absent) in self.commands.iter().zip(absent) {
            let is_absent = absent.contains(&true);
            if is_absent && absent.len() > 1 && !has_written {
                // It fails here on both nodes.
                return faults;
            }
            if is_absent && has_written && !has_moved {
                faults.push("it fails in the middle");
                break;
            }
            let keys = table.keys(command);
            has_read_others |= !keys.iter().all(|key| self.keys.iter().any(|it| it == key));
            has_written |= table.properties_of(command).is_write;
        }
        if has_read_others {
            faults.push("it reads what may not have arrived");
        }
        faults
    }

    /// Only new grants and places may fail when memory is full: their scripts take a fencing counter. The fast path of a
    /// renewal writes once more if Redis refuses that.
    fn is_refused_when_full(&self, table: &CommandTable) -> bool {
        let may_be = self.keys.iter().any(|key| key.ends_with(b"}:f"));
        let is_write = |command: &&&Executed| table.properties_of(command).is_write;
        let first_write = self.commands.iter().find(is_write);
        let is_renewal = |command: &Executed| {
            command.name() == "set" && self.keys == [command.words[1].as_slice()]
        };
        first_write.is_some_and(|command| {
            table.properties_of(command).is_refused_when_full && !may_be && !is_renewal(command)
        })
    }

    /// The commands, for people.
    fn described(&self) -> String {
        let line = |words: &[Vec<u8>]| {
            let words = words.iter().map(|word| word.escape_ascii().to_string());
            words.collect::<Vec<_>>().join(" ")
        };
        let commands = self.commands.iter().map(|command| line(&command.words));
        let lines: Vec<_> = [format!("keys: {}", line(self.keys))]
            .into_iter()
            .chain(commands)
            .collect();
        lines.join("\n    ")
    }
}

/// The trace of all contract tests. Each has a runtime of its own, like elsewhere, and some run at the same time.
async fn trace_of_the_contract(server: &'static RedisServer) -> Vec<Executed> {
    let mut monitor = Monitor::start(&server.address()).await;
    let tests: Vec<_> = (1..).zip(contract::all()).collect();
    let rest = Arc::new(Mutex::new(tests.into_iter()));
    let run = move || {
        let next = || rest.lock().expect("no test panics here").next();
        while let Some((database, (_, test))) = next() {
            let mut runtime = Builder::new_current_thread();
            let runtime = runtime.enable_all().build().expect("a runtime");
            runtime.block_on(async {
                test(&Fixture::on_server(server, database).await).await;
            });
        }
    };
    let threads: Vec<_> = (0..AT_ONCE).map(|_| spawn_blocking(run.clone())).collect();
    for thread in threads {
        thread.await.expect("all tests pass");
    }
    release_after_a_roll_back(&Fixture::on_server(server, 0).await).await;
    monitor.take().await
}

/// All declared keys exist, so Redis executes the release in a slot that moves, too.
async fn release_after_a_roll_back(fixture: &Fixture) {
    let (claim, undelivered) = (claim(), Attempt::random());
    let granted = fixture.attempt(&claim, undelivered).await;
    granted.expect("the store answers");
    fixture.withdraw(&claim, undelivered).await;
    fixture.granted(&claim).await;
    for _ in 0..2 {
        fixture.waiting(&rival(&claim)).await;
    }
    fixture.freed(&claim).await;
}

#[tokio::test]
async fn a_script_fails_before_its_first_write_or_not_at_all() {
    let options = RedisOptions {
        persistence: Persistence::Nothing,
        databases: 1_000,
        ..RedisOptions::default()
    };
    let server = Box::leak(Box::new(RedisServer::start(options.clone()).await));
    let trace = trace_of_the_contract(server).await;
    let table = CommandTable::of(&trace, server).await;
    let behind = RedisServer::start(options).await;
    let mut copy = Copy(connection(&behind).await);

    let (mut rest, mut executions) = (trace.as_slice(), 0);
    let mut faults = BTreeMap::new();
    while let Some(first) = rest.first() {
        let execution = Execution::first_of(rest);
        let Some(execution) = execution else {
            copy.execute(first.database, &[], &[first], &table).await;
            rest = &rest[1..];
            continue;
        };
        rest = &rest[1 + execution.commands.len()..];
        let (keys, commands) = (execution.keys, &execution.commands);
        let absent = copy.execute(first.database, keys, commands, &table).await;
        executions += 1;
        for fault in execution.faults(&absent, &table) {
            let names = commands.iter().map(|command| command.name());
            let kind = (fault, keys.len(), names.collect::<Vec<_>>());
            faults.entry(kind).or_insert_with(|| execution.described());
        }
    }
    assert!(executions > 1_000, "only {executions} scripts");
    let described = faults
        .iter()
        .map(|((what, ..), how)| format!("{what}:\n    {how}"));
    let described: Vec<_> = described.collect();
    assert!(described.is_empty(), "{}", described.join("\n\n"));
}
