//! What the service does for one request, in instructions: a count that holds from run to run and from machine to
//! machine, where times do not. The limits here are a ratchet: a change that needs more fails, one that needs less by
//! more than noise lowers them.
//!
//! Every request hashes its token, which counts 3,400 instructions here: valgrind has no SHA instructions. Where there are
//! some, it takes less than 60 ns. Its permit, which is kept after the client has gone until the store is done, counts
//! about 200.
//!
//! `scripts/hot-path` installs valgrind and the harness's runner, and runs it. Client, service and runtime are one thread,
//! which is counted as a whole; Redis is a process of its own, which is not.

#![allow(
    clippy::unwrap_used,
    reason = "a measurement that cannot go on should stop where it stands"
)]
#![allow(missing_docs, reason = "the harness makes public items")]

#[allow(
    dead_code,
    unused_imports,
    reason = "tests need more of it than a measurement does"
)]
#[path = "../tests/it/support/redis_server.rs"]
mod redis_server;

use std::net::SocketAddr;
use std::sync::Arc;

use gungraun::{
    Callgrind, EventKind, LibraryBenchmarkConfig, library_benchmark, library_benchmark_group, main,
};
use leasehold::config::{Config, Sources};
use leasehold::http::{self, Access, App, HttpSettings};
use leasehold::server::{Server, Workers};
use leasehold::service::LockService;
use leasehold::service::metrics::{self, LockMetrics};
use leasehold::telemetry::Metrics;
use redis_server::{RedisOptions, RedisServer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio_util::sync::CancellationToken;

/// The allocator of the binary is part of what is counted.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Enough for what happens once in a while, such as a fuller map, to weigh little.
const REQUESTS: usize = 500;
/// Before anything is counted: the connection is there, and what is made once is made.
const WARM_UP: usize = 100;

/// A service with a connection to it.
struct Rig {
    runtime: Runtime,
    client: TcpStream,
    next: usize,
    _redis: Option<RedisServer>,
}

impl Rig {
    fn memory() -> Self {
        let runtime = runtime();
        let client = runtime.block_on(serve("memory:"));
        Self::warm(runtime, client, None)
    }

    fn redis() -> Self {
        let runtime = runtime();
        let (client, redis) = runtime.block_on(async {
            let redis = RedisServer::start(RedisOptions::forgetful()).await;
            (serve(&format!("redis://{}", redis.address())).await, redis)
        });
        Self::warm(runtime, client, Some(redis))
    }

    fn warm(runtime: Runtime, client: TcpStream, redis: Option<RedisServer>) -> Self {
        let mut rig = Self {
            runtime,
            client,
            next: 0,
            _redis: redis,
        };
        for (method, status) in [("POST", "201"), ("PUT", "200"), ("DELETE", "204")] {
            rig.next = 0;
            rig.ask(WARM_UP, method, status);
        }
        rig
    }

    /// The same with locks that are held by the tokens of the requests to come.
    fn held(mut self) -> Self {
        let first = self.next;
        self.ask(REQUESTS, "POST", "201");
        self.next = first;
        self
    }

    /// One request after the other, each on a lock and with a token of its own.
    fn ask(&mut self, count: usize, method: &str, status: &str) {
        let Self {
            runtime,
            client,
            next,
            ..
        } = self;
        runtime.block_on(async {
            let mut answer = vec![0; 4096];
            for number in *next..*next + count {
                let request = format!(
                    "{method} /locks/orders-{number} HTTP/1.1\r\nHost: localhost\r\n\
                     Lock-Token: 6f1c3b0e-8f0a-4f57-9c55-{number:012}\r\n\
                     Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{}",
                    if method == "DELETE" { 0 } else { 7 },
                    if method == "DELETE" { "" } else { "ttl=60s" },
                );
                client.write_all(request.as_bytes()).await.unwrap();
                let length = client.read(&mut answer).await.unwrap();
                let answer = &answer[..length];
                let is_expected = answer[9..].starts_with(status.as_bytes());
                assert!(is_expected, "{}", String::from_utf8_lossy(answer));
            }
        });
        *next += count;
    }
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// The service as `leasehold serve` puts it together, on the runtime that this is called in.
async fn serve(store: &str) -> TcpStream {
    let sources = Sources {
        flags: vec![("store".to_owned(), store.to_owned())],
        ..Sources::default()
    };
    let (config, _) = Config::load(&sources).unwrap();
    let buckets: Vec<_> = metrics::BUCKETS
        .into_iter()
        .chain([http::BUCKETS])
        .collect();
    let metrics = Arc::new(Metrics::with_buckets(&buckets));
    let service = LockService::new(
        leasehold::store::open(&config).await.unwrap(),
        config.operation_timeout,
        config.waiting.clone(),
        LockMetrics::new(&metrics),
        CancellationToken::new(),
    );
    let settings = HttpSettings::new(&config, Access::open());
    let app = App::new(service, metrics, settings);
    let server = Server::bind(&config.server, SocketAddr::from(([127, 0, 0, 1], 0)));
    let server = server.unwrap();
    let address = server.local_addr();
    let never = std::future::pending();
    tokio::spawn(server.run(http::router(app), Workers::here(), never));
    TcpStream::connect(address).await.unwrap()
}

/// At most so many instructions for one request. Runs differ by up to 0.2 %, and builds in other directories by more than a
/// percent, so a limit is about 2.5 % above the last figure.
fn at_most(instructions: usize) -> LibraryBenchmarkConfig {
    let mut callgrind = Callgrind::default();
    // A Redis is started before anything is counted, and is not to run under valgrind.
    callgrind.args(["--trace-children=no"]);
    callgrind.hard_limits([(EventKind::Ir, (instructions * REQUESTS) as u64)]);
    let mut config = LibraryBenchmarkConfig::default();
    config.pass_through_env("PATH");
    config.tool(callgrind);
    config
}

#[library_benchmark(config = at_most(55_000))]
#[bench::one(Rig::memory())]
fn memory_acquire(mut rig: Rig) -> Rig {
    rig.ask(REQUESTS, "POST", "201");
    rig
}

#[library_benchmark(config = at_most(49_000))]
#[bench::one(Rig::memory().held())]
fn memory_renew(mut rig: Rig) -> Rig {
    rig.ask(REQUESTS, "PUT", "200");
    rig
}

#[library_benchmark(config = at_most(39_300))]
#[bench::one(Rig::memory().held())]
fn memory_release(mut rig: Rig) -> Rig {
    rig.ask(REQUESTS, "DELETE", "204");
    rig
}

#[library_benchmark(config = at_most(74_300))]
#[bench::one(Rig::redis())]
fn redis_acquire(mut rig: Rig) -> Rig {
    rig.ask(REQUESTS, "POST", "201");
    rig
}

#[library_benchmark(config = at_most(67_200))]
#[bench::one(Rig::redis().held())]
fn redis_renew(mut rig: Rig) -> Rig {
    rig.ask(REQUESTS, "PUT", "200");
    rig
}

#[library_benchmark(config = at_most(56_000))]
#[bench::one(Rig::redis().held())]
fn redis_release(mut rig: Rig) -> Rig {
    rig.ask(REQUESTS, "DELETE", "204");
    rig
}

library_benchmark_group!(
    name = per_request,
    benchmarks = [
        memory_acquire,
        memory_renew,
        memory_release,
        redis_acquire,
        redis_renew,
        redis_release
    ]
);

main!(library_benchmark_groups = per_request);
