//! What the locks protect: a counter for each lock, on a server of its own, which judges by fencing tokens.
//!
//! Whoever uses a counter presents its fencing token, to read as well as to write. The server keeps the largest one of each
//! lock, and refuses what comes with a smaller one. It knows nothing of leases and asks nobody. It notes every use in its
//! own order, by which the judge finds out who was refused, who came too late, and what was lost.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use super::record::{Bounds, Lease, Use};
use super::recorder::Recorder;

/// Which fencing tokens clients present. All but the first let a run show that the judge notices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Presented {
    /// Those of their leases.
    #[default]
    AsGranted,
    /// As if a later grant had a smaller one.
    Reversed,
    /// As if all grants had the same one.
    Equal,
}

/// The server, on a thread of its own.
pub(super) struct Resource {
    pub(super) address: SocketAddr,
    uses: Arc<Mutex<Vec<Use>>>,
    thread: JoinHandle<()>,
    end: oneshot::Sender<()>,
}

/// The counter of a lock.
#[derive(Default)]
struct Counter {
    largest_fence: u64,
    value: u64,
}

type Counters = Arc<Mutex<BTreeMap<String, Counter>>>;

impl Resource {
    pub(super) fn start(recorder: Recorder) -> Self {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        listener.set_nonblocking(true).expect("a socket can do so");
        let address = listener.local_addr().expect("it is bound");
        let uses = Arc::default();
        let of_server = Arc::clone(&uses);
        let (end, ended) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_io()
                .build();
            runtime.expect("a thread may have one").block_on(async {
                tokio::select! {
                    () = serve(listener, of_server, recorder) => {}
                    _ = ended => {}
                }
            });
        });
        Self {
            address,
            uses,
            thread,
            end,
        }
    }

    /// Ends the server, and returns all uses in the order in which it decided them.
    pub(super) fn end(self) -> Vec<Use> {
        drop(self.end);
        self.thread.join().expect("the server has not failed");
        std::mem::take(&mut *self.uses.lock().expect("nobody fails with it"))
    }
}

async fn serve(listener: std::net::TcpListener, uses: Arc<Mutex<Vec<Use>>>, recorder: Recorder) {
    let listener = TcpListener::from_std(listener).expect("a runtime runs");
    let counters = Counters::default();
    while let Ok((stream, _)) = listener.accept().await {
        let (counters, uses, recorder) = (counters.clone(), uses.clone(), recorder.clone());
        tokio::spawn(async move {
            let mut stream = BufReader::new(stream);
            let mut line = String::new();
            while stream
                .read_line(&mut line)
                .await
                .is_ok_and(|length| length > 0)
            {
                let answer = answer(&line, &counters, &uses, &recorder);
                if stream.write_all(answer.as_bytes()).await.is_err() {
                    return;
                }
                line.clear();
            }
        });
    }
}

/// Answers `NAME CLAIM LEASE FENCE` by the value, and the same with the value that was read by the new value; or refuses.
fn answer(line: &str, counters: &Counters, uses: &Mutex<Vec<Use>>, recorder: &Recorder) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let number = |word: &str| word.parse::<u64>().expect("a number");
    let [name, claim, lease, fence] = words[..4] else {
        panic!("a client sent {line:?}");
    };
    let [lease, fence] = [lease, fence].map(number);
    let read = words.get(4).map(|word| number(word));
    let mut counters = counters.lock().expect("nobody fails with it");
    let counter = counters.entry(name.to_owned()).or_default();
    let is_accepted = fence >= counter.largest_fence;
    uses.lock().expect("nobody fails with it").push(Use {
        name: name.to_owned(),
        claim: claim.parse().expect("a number"),
        lease,
        fence,
        update: read.map(|read| (read, counter.value)),
        is_accepted,
        at: recorder.now(),
    });
    if !is_accepted {
        return "refused\n".to_owned();
    }
    counter.largest_fence = fence;
    if let Some(read) = read {
        counter.value = read + 1;
    }
    format!("{}\n", counter.value)
}

/// The work of one claim with the counters of its locks: it has read them and not yet written.
#[derive(Default)]
pub(super) struct Work(Vec<Open>);

/// A counter that was read.
struct Open {
    request: String,
    stream: BufReader<TcpStream>,
    read: u64,
}

impl Work {
    /// Reads the counters of these leases.
    pub(super) async fn begin(
        server: SocketAddr,
        presented: Presented,
        claim: usize,
        leases: &[Lease],
    ) -> Self {
        let mut work = Self::default();
        for lease in leases {
            let fence = match presented {
                Presented::AsGranted => lease.fence,
                Presented::Reversed => u64::MAX - lease.fence,
                Presented::Equal => 1,
            };
            let request = format!("{} {claim} {} {fence}", lease.name, lease.fence);
            let stream = TcpStream::connect(server).await.expect("it listens");
            let mut stream = BufReader::new(stream);
            if let Some(read) = ask(&mut stream, &request).await {
                work.0.push(Open {
                    request,
                    stream,
                    read,
                });
            }
        }
        work
    }

    /// Writes them, each increased by one.
    pub(super) async fn finish(self) {
        for mut open in self.0 {
            let request = format!("{} {}", open.request, open.read);
            ask(&mut open.stream, &request).await;
        }
    }
}

/// The value, unless the server refuses.
async fn ask(stream: &mut BufReader<TcpStream>, request: &str) -> Option<u64> {
    let request = format!("{request}\n");
    let mut line = String::new();
    stream.write_all(request.as_bytes()).await.expect("it runs");
    stream.read_line(&mut line).await.expect("it runs");
    line.trim().parse().ok()
}

#[tokio::test]
async fn what_comes_with_a_smaller_fencing_token_is_refused_to_read_and_to_write() {
    let server = Resource::start(Recorder::new(Bounds::default()));
    let lease = |fence| Lease {
        name: "a".to_owned(),
        fence,
        expires_in: 0,
    };
    let begin = async |claim, fence| {
        Work::begin(server.address, Presented::AsGranted, claim, &[lease(fence)]).await
    };
    let replaced = begin(0, 5).await;
    let holder = begin(1, 7).await;
    begin(2, 6).await.finish().await;
    replaced.finish().await;
    holder.finish().await;
    begin(3, 8).await.finish().await;
    let uses = server.end();
    let uses = uses.iter().map(|it| (it.claim, it.update, it.is_accepted));
    let expected = [
        (0, None, true),
        (1, None, true),
        (2, None, false),
        (0, Some((0, 0)), false),
        (1, Some((0, 0)), true),
        (3, None, true),
        (3, Some((1, 1)), true),
    ];
    assert_eq!(uses.collect::<Vec<_>>(), expected);
}
