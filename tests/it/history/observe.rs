//! Passive clients: observers, which read the state of the locks, and watchers, which read event streams.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use super::actor::connect;
use super::plan::{PAIR, SINGLE};
use super::record::{Effect, Outage, View, Watch, WatchEntry};
use super::scenes::Stage;
use super::sse::{self, Opened, Stream};
use crate::waiters::http1::{Connection, Request};

/// How long an observer waits for a response.
const LOOKS: Duration = Duration::from_millis(1_500);

/// The pause of an observer between two rounds, and of a watcher before it reconnects.
const RESTS: Duration = Duration::from_millis(60);

/// After a stall of this length, the test process cannot measure how long others took.
const STALL: Duration = Duration::from_millis(300);

/// A Redis counts as slow when one write takes this long.
const SLOW: Duration = Duration::from_millis(150);

/// The same of a node of a quorum, which after a tenth of a second has no say in an operation.
const SLOW_NODE: Duration = Duration::from_millis(80);

/// Inspects one lock after the other, and the pair in both orders; at one process after the other if `alternates`.
pub(super) async fn observer(stage: Stage, number: usize, alternates: bool) {
    let mut process = number;
    let mut connection = None;
    let mut turn = number;
    while !*stage.over.borrow() {
        let three = [PAIR[turn % 2], PAIR[(turn + 1) % 2], PAIR[turn % 2]];
        turn += 1;
        let mut views = Vec::new();
        for name in three.iter().chain(&SINGLE) {
            match look(&stage, process % stage.processes, &mut connection, name).await {
                Some(view) => views.push(view),
                None => {
                    connection = None;
                    process += 1;
                    break;
                }
            }
        }
        stage.recorder.seen(views);
        if alternates {
            connection = None;
            process += 1;
        }
        sleep(RESTS).await;
    }
}

async fn look(
    stage: &Stage,
    process: usize,
    connection: &mut Option<Connection>,
    name: &str,
) -> Option<View> {
    if connection.is_none() {
        *connection = connect(&stage.addresses, process).await.ok();
    }
    let connection = connection.as_mut()?;
    let path = format!("/locks/{name}");
    let request = Request {
        method: "GET",
        path: &path,
        token: None,
        body: "",
    };
    let sent = stage.recorder.now();
    let answer = timeout(LOOKS, connection.ask(request)).await.ok()?.ok()?;
    let lock = (answer.status == 200).then(|| answer.json())?;
    let owner = |of: &Value| of["owner"].as_str().map(str::to_owned);
    let holders = lock["holders"].as_array()?.iter();
    Some(View {
        name: name.to_owned(),
        process,
        sent,
        at: stage.recorder.at(answer.at),
        is_free: lock["state"] == "free",
        holders: holders
            .filter_map(|holder| Some((owner(holder)?, holder["fencing_token"].as_u64()?)))
            .collect(),
        queue_length: lock["queue_length"].as_u64()?,
        head: owner(&lock["queue_head"]),
    })
}

/// Watches all locks, and resumes at another process with the last id when its stream ends.
pub(super) async fn watcher(stage: Stage, number: usize) {
    let mut watch = Watch::default();
    let mut process = number;
    let mut last_id: Option<String> = None;
    let mut over = stage.over.clone();
    while !*stage.over.borrow() {
        process += 1;
        let resumed = last_id.is_some();
        let Some(stream) = open(&stage, process % stage.processes, last_id.as_deref()).await else {
            sleep(RESTS).await;
            continue;
        };
        watch
            .entries
            .push((stage.recorder.now(), WatchEntry::Opened { resumed }));
        tokio::select! {
            () = listen(&stage, stream, &mut watch, &mut last_id) => sleep(RESTS).await,
            () = async { drop(over.wait_for(|over| *over).await) } => {
                watch.entries.push((stage.recorder.now(), WatchEntry::Closed));
            }
        }
    }
    stage.recorder.watched(watch);
}

async fn open(stage: &Stage, process: usize, last_id: Option<&str>) -> Option<Stream> {
    let headers = last_id.map_or_else(String::new, |id| format!("Last-Event-ID: {id}\r\n"));
    let opened = timeout(LOOKS, async {
        let connection = connect(&stage.addresses, process).await?;
        sse::open(connection, "GET", "/events", &headers, "").await
    });
    match opened.await {
        Ok(Ok(Opened::Stream(stream))) => Some(stream),
        Ok(Ok(Opened::Answer(_)) | Err(_)) | Err(_) => None,
    }
}

async fn listen(
    stage: &Stage,
    mut stream: Stream,
    watch: &mut Watch,
    last_id: &mut Option<String>,
) {
    while let Ok(Some(event)) = stream.next().await {
        let entry = match event.kind.as_str() {
            "reset" => WatchEntry::Reset,
            "acquired" => WatchEntry::Acquired {
                name: event.data["name"].as_str().unwrap_or_default().to_owned(),
                fence: event.data["fencing_token"].as_u64().unwrap_or(0),
            },
            _ => WatchEntry::Other,
        };
        if event.id.is_some() {
            *last_id = event.id;
        }
        watch.entries.push((stage.recorder.at(event.at), entry));
    }
}

/// Records when a write to Redis was slow without a fault: a slow disk explains failures as a fault does.
pub(super) async fn store_pulse(stage: Stage, address: SocketAddr, node: Option<usize>) {
    const WRITE: &[u8] = b"*5\r\n$3\r\nSET\r\n$5\r\npulse\r\n$1\r\n1\r\n$2\r\nPX\r\n$4\r\n1000\r\n";
    let slow = node.map_or(SLOW, |_| SLOW_NODE);
    let mut connection = None;
    while !*stage.over.borrow() {
        let before = Instant::now();
        let written = timeout(LOOKS, async {
            let mut redis: TcpStream = match connection.take() {
                Some(redis) => redis,
                None => TcpStream::connect(address).await?,
            };
            redis.write_all(WRITE).await?;
            // Any reply will do.
            redis.read_u8().await?;
            connection = Some(redis);
            std::io::Result::Ok(())
        });
        let is_written = matches!(written.await, Ok(Ok(())));
        if !is_written || before.elapsed() > slow {
            stage.recorder.outage(Outage {
                fault: "Redis was slow",
                process: None,
                node,
                from: stage.recorder.at(before),
                until: stage.recorder.now(),
                effect: node.map_or(Effect::Away, |_| Effect::Minority),
                ends_process: false,
            });
        }
        if let Some(redis) = &connection {
            // The rest of earlier replies.
            drop(redis.try_read(&mut [0; 4096]));
        }
        sleep(RESTS).await;
    }
}

/// Records when the test process itself stalled.
pub(super) async fn pulse(stage: Stage) {
    const BEAT: Duration = Duration::from_millis(50);
    while !*stage.over.borrow() {
        let before = Instant::now();
        sleep(BEAT).await;
        if before.elapsed() > STALL {
            stage.recorder.outage(Outage {
                fault: "the test process stood still",
                process: None,
                node: None,
                from: stage.recorder.at(before),
                until: stage.recorder.now(),
                effect: Effect::Stall,
                ends_process: false,
            });
        }
    }
}
