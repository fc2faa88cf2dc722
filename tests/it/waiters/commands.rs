//! The cost of a hand-over in Redis, for few and for many waiters.

use std::collections::BTreeMap;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::LASTING;
use super::fleet::Fleet;

const PROCESSES: usize = 3;
const HAND_OVERS: usize = 200;
/// Release and claim are two commands. The rest is for the polls.
const COMMANDS_MAX: f64 = 4.0;

/// The commands within scripts: a release and a claim take 25, the rest is for the polls.
const STEPS_MAX: f64 = 32.0;

/// The activity of a Redis by `MONITOR`: the commands of clients, and those within scripts.
struct Monitor {
    lines: Lines<BufReader<TcpStream>>,
    /// Another connection, to put marks into the output.
    marks: TcpStream,
}

impl Monitor {
    async fn start(fleet: &Fleet) -> Self {
        let connect = async || TcpStream::connect(fleet.redis.address()).await;
        let mut stream = connect().await.expect("it listens");
        stream.write_all(b"MONITOR\r\n").await.expect("it is open");
        let mut lines = BufReader::new(stream).lines();
        let begun = lines.next_line().await.expect("an answer");
        assert_eq!(begun.as_deref(), Some("+OK"));
        let marks = connect().await.expect("it listens");
        Self { lines, marks }
    }

    /// The counts since the last call: each command of clients, and all commands within scripts.
    async fn take(&mut self) -> (BTreeMap<String, usize>, usize) {
        let mark = uuid::Uuid::new_v4().to_string();
        let echo = format!("ECHO {mark}\r\n");
        let marked = self.marks.write_all(echo.as_bytes()).await;
        marked.expect("it is open");
        let (mut sent, mut steps) = (BTreeMap::new(), 0);
        loop {
            // +1700000000.123456 [0 127.0.0.1:40000] "EVALSHA" "…" …
            let line = self.lines.next_line().await.expect("it reports");
            let line = line.expect("it reports");
            if line.contains(&mark) {
                return (sent, steps);
            }
            match line.split_once("] \"") {
                Some((head, _)) if head.ends_with(" lua") => steps += 1,
                Some((_, words)) => {
                    let name = words.split('"').next().unwrap_or_default();
                    *sent.entry(name.to_lowercase()).or_insert(0) += 1;
                }
                None => {}
            }
        }
    }
}

/// Commands of clients and within scripts per hand-over, with this many waiters. The measured hand-overs empty the
/// queue, which is then filled again.
async fn commands_with(waiters: usize) -> (f64, f64) {
    let fleet = Fleet::start(PROCESSES).await;
    let lock = format!("commands/{waiters}");
    let mut watcher = fleet.client(0, &lock);
    let mut monitor = Monitor::start(&fleet).await;
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
        let (sent_now, steps_now) = monitor.take().await;
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
