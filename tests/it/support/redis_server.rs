//! A real `redis-server` that a test starts, kills, pauses and queries.
//!
//! Each has its own port and directory, and ends with its owner, even when the test process is killed.

// Benches include this file by its path, too.
#[path = "redis_server/options.rs"]
mod options;
#[path = "redis_server/preloaded.rs"]
mod preloaded;
#[path = "redis_server/process.rs"]
mod process;

use std::fmt::Debug;
use std::fs::File;
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, SystemTime};

use leasehold::config::RedisAddress;
use nix::sys::signal::{Signal, kill};
use redis::{AsyncConnectionConfig, Client, RedisResult, ToRedisArgs, Value};
use tempfile::TempDir;
use tokio::time::Instant;

pub(crate) use options::{Persistence, RedisOptions, TlsFiles};
pub(crate) use preloaded::preloaded;
pub(crate) use process::Process;

/// How long a start may take before another port is tried.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// The timeout of a command that a test sends itself.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(5);

/// A running (or killed, or paused) Redis.
pub(crate) struct RedisServer {
    options: RedisOptions,
    port: u16,
    /// The ports for TLS and for the other nodes of a cluster, if it has them.
    tls_port: u16,
    bus_port: u16,
    directory: TempDir,
    process: Option<Process>,
}

impl RedisServer {
    /// Starts a Redis and waits until it answers.
    pub(crate) async fn start(options: RedisOptions) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut server = Self {
            options,
            port: 0,
            tls_port: 0,
            bus_port: 0,
            directory,
            process: None,
        };
        for _ in 0..5 {
            [server.port, server.tls_port, server.bus_port] = [(); 3].map(|()| free_port());
            // Another process may have taken the port since; then the next one is tried.
            if server.try_start().await {
                return server;
            }
        }
        panic!("redis-server did not start on any of five ports; is it installed?");
    }

    /// Starts a killed Redis again, on the same port and with the same directory, and waits until it answers.
    pub(crate) async fn restart(&mut self) {
        assert!(self.process.is_none(), "kill it before restarting it");
        assert!(
            self.try_start().await,
            "redis-server did not start again on port {}",
            self.port
        );
    }

    /// The same, but Redis loads its data slowly, and refuses most commands meanwhile. Returns as soon as it answers.
    pub(crate) async fn restart_loading(&mut self) {
        assert!(self.process.is_none(), "kill it before restarting it");
        self.options.loads_slowly = true;
        self.launch();
        let is_loading = |error: redis::RedisError| error.code() == Some("LOADING");
        let give_up = Instant::now() + START_TIMEOUT;
        while !self.try_command(0, &["PING"]).await.is_err_and(is_loading) {
            assert!(Instant::now() < give_up, "it does not load its data");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Ends a slow load: Redis loads the rest of its data at once.
    pub(crate) async fn load_the_rest(&self) {
        self.command(&["CONFIG", "SET", "key-load-delay", "0"])
            .await;
    }

    /// The options for the next start of a killed Redis.
    pub(crate) fn options(&mut self) -> &mut RedisOptions {
        assert!(self.process.is_none(), "kill it before configuring it");
        &mut self.options
    }

    /// Kills Redis like a crash (SIGKILL).
    pub(crate) fn kill(&mut self) {
        drop(self.process.take());
    }

    /// Deletes all data of a killed Redis, like a lost volume.
    pub(crate) fn forget(&mut self) {
        assert!(self.process.is_none(), "kill it before its disk is lost");
        self.directory = tempfile::tempdir().expect("a temporary directory");
    }

    /// The length of its append-only file.
    pub(crate) fn aof_len(&self) -> u64 {
        std::fs::metadata(self.aof()).expect("it exists").len()
    }

    /// Truncates the append-only file of a killed Redis, as a power loss does with unsynced data.
    pub(crate) fn truncate_aof(&self, len: u64) {
        assert!(self.process.is_none(), "kill it before its file is cut");
        let file = File::options().write(true).open(self.aof());
        file.and_then(|file| file.set_len(len))
            .expect("the file is there");
    }

    /// Its append-only file.
    pub(crate) fn aof(&self) -> PathBuf {
        let directory = self.directory.path();
        let since_redis_7 = directory.join("appendonlydir/appendonly.aof.1.incr.aof");
        match since_redis_7.exists() {
            true => since_redis_7,
            false => directory.join("appendonly.aof"),
        }
    }

    /// Moves the clock of a Redis with a movable clock ahead of the machine's, and waits until Redis uses it: Valkey 9.1
    /// reads the clock of the system once a millisecond.
    pub(crate) async fn move_clock(&self, ahead: Duration) {
        assert!(self.options.has_movable_clock);
        let micros = i64::try_from(ahead.as_micros()).expect("not so far");
        self.write_clock_offset(micros);
        let give_up = Instant::now() + COMMAND_TIMEOUT;
        loop {
            let time = self.command(&["TIME"]).await;
            let (seconds, _): (u64, u64) = redis::from_redis_value(time).expect("TIME answers two");
            let expected = SystemTime::now() + ahead;
            let actual = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            let off = match expected.duration_since(actual) {
                Ok(late) => late,
                Err(early) => early.duration(),
            };
            if off < COMMAND_TIMEOUT {
                return;
            }
            assert!(Instant::now() < give_up, "Redis does not use the new clock");
        }
    }

    fn write_clock_offset(&self, micros: i64) {
        // Never truncated: Redis has it mapped.
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(self.clock_offset());
        file.and_then(|file| file.write_all_at(&micros.to_ne_bytes(), 0))
            .expect("a writable directory");
    }

    fn clock_offset(&self) -> PathBuf {
        self.directory.path().join("clock-offset")
    }

    /// Stops Redis (SIGSTOP): connections stay open without answers.
    pub(crate) fn pause(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Resumes a paused Redis (SIGCONT).
    pub(crate) fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// The port without TLS.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// `127.0.0.1:port`.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The port for the other nodes of its cluster.
    pub(crate) fn cluster_port(&self) -> u16 {
        assert!(self.options.is_cluster_node);
        self.bus_port
    }

    /// The port for clients that the nodes of its cluster know: the one with TLS, if it has one.
    pub(crate) fn announced_port(&self) -> u16 {
        match self.options.tls {
            None => self.port,
            Some(_) => self.tls_port,
        }
    }

    /// The address of one of its databases, for a store.
    pub(crate) fn database(&self, database: u16) -> RedisAddress {
        RedisAddress {
            host: "127.0.0.1".to_owned(),
            port: self.port,
            database: database.into(),
            is_encrypted: false,
        }
    }

    /// The same with TLS.
    pub(crate) fn encrypted_database(&self, database: u16) -> RedisAddress {
        RedisAddress {
            port: self.tls_port,
            is_encrypted: true,
            ..self.database(database)
        }
    }

    /// Runs a command in database 0, on a new connection.
    pub(crate) async fn command(&self, words: &[impl ToRedisArgs + Debug]) -> Value {
        self.command_in(0, words).await
    }

    /// Runs a command in a database, on a new connection.
    pub(crate) async fn command_in(
        &self,
        database: u16,
        words: &[impl ToRedisArgs + Debug],
    ) -> Value {
        self.try_command(database, words)
            .await
            .unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// A command whose answer is an integer.
    pub(crate) async fn integer(&self, database: u16, words: &[impl ToRedisArgs + Debug]) -> i64 {
        redis::from_redis_value(self.command_in(database, words).await)
            .unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// All keys of a database that match. They may end in binary bytes.
    pub(crate) async fn keys(&self, database: u16, pattern: &str) -> Vec<Vec<u8>> {
        let answer = self.command_in(database, &["KEYS", pattern]).await;
        redis::from_redis_value(answer).expect("KEYS answers keys")
    }

    /// The remaining TTL of a key in milliseconds; negative if it has none.
    pub(crate) async fn kept_ms(&self, database: u16, key: &[u8]) -> i64 {
        self.integer(database, &[b"PTTL", key]).await
    }

    /// One line of a section of `INFO`.
    pub(crate) async fn info(&self, section: &str, field: &str) -> String {
        let found = self.info_if_any(section, field).await;
        found.unwrap_or_else(|| panic!("INFO {section} has no {field}"))
    }

    /// One line of a section of `INFO`, if the section has it.
    pub(crate) async fn info_if_any(&self, section: &str, field: &str) -> Option<String> {
        let text = self.info_section(section).await;
        field_of(&text, field).map(str::to_owned)
    }

    /// A whole section of `INFO`.
    pub(crate) async fn info_section(&self, section: &str) -> String {
        let answer = self.command(&["INFO", section]).await;
        redis::from_redis_value(answer).expect("INFO answers a text")
    }

    /// How many clients are connected, without this one.
    pub(crate) async fn connections(&self) -> usize {
        let count = self.info("clients", "connected_clients").await;
        count.parse::<usize>().expect("a number") - 1
    }

    /// The answer to a command, or why there is none.
    pub(crate) async fn try_command(
        &self,
        database: u16,
        words: &[impl ToRedisArgs],
    ) -> RedisResult<Value> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(COMMAND_TIMEOUT))
            .set_response_timeout(Some(COMMAND_TIMEOUT));
        let mut connection = Client::open(format!("redis://{}/{database}", self.address()))?
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(word);
        }
        command.query_async(&mut connection).await
    }

    fn launch(&mut self) -> String {
        let directory = self.directory.path().to_str().expect("a path in UTF-8");
        let clock_offset = self.options.has_movable_clock.then(|| self.clock_offset());
        if clock_offset.as_ref().is_some_and(|file| !file.exists()) {
            self.write_clock_offset(0);
        }
        let arguments = self
            .options
            .arguments([self.port, self.tls_port, self.bus_port], directory);
        let environment = &self.options.environment;
        let process = Process::start(&arguments, clock_offset.as_deref(), environment);
        let pid = process.pid().to_string();
        self.process = Some(process);
        pid
    }

    async fn try_start(&mut self) -> bool {
        let own = self.launch();
        let give_up = Instant::now() + START_TIMEOUT;
        while Instant::now() < give_up {
            // While Redis loads its data it answers with an error. Another process may also answer on this port.
            match self.try_command(0, &["PING"]).await {
                Ok(_) if self.process_id().await.as_deref() == Some(&own) => return true,
                Ok(_) => break,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
        self.process = None;
        false
    }

    /// The pid that is reported by whatever answers on its port.
    async fn process_id(&self) -> Option<String> {
        let answer = self.try_command(0, &["INFO", "server"]).await.ok()?;
        let text: String = redis::from_redis_value(answer).ok()?;
        field_of(&text, "process_id").map(str::to_owned)
    }

    fn signal(&self, signal: Signal) {
        let process = self.process.as_ref().expect("it was killed before");
        kill(process.pid(), signal).expect("the process exists until its keeper has ended");
    }
}

/// A port without a listener, below the range for outgoing connections, so that it stays free while a killed Redis is
/// down.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = std::process::id().wrapping_mul(97);
    loop {
        let step = u32::from(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = 15_000 + u16::try_from(start.wrapping_add(step) % 15_000).expect("below 15,000");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

fn field_of<'a>(text: &'a str, field: &str) -> Option<&'a str> {
    text.lines()
        .find_map(|line| line.trim_end().strip_prefix(field)?.strip_prefix(':'))
}

#[tokio::test]
async fn a_redis_with_an_append_only_file_keeps_its_data_after_a_kill_and_one_without_does_not() {
    for (persistence, remembered) in [(Persistence::AofAlways, 1), (Persistence::Nothing, 0)] {
        let options = RedisOptions {
            persistence,
            ..RedisOptions::default()
        };
        let mut server = RedisServer::start(options).await;
        server.command(&["SET", "key", "value"]).await;
        server.kill();
        server.restart().await;
        let kept = server.integer(0, &["EXISTS", "key"]).await;
        assert_eq!(kept, remembered, "{persistence:?}");
    }
}

#[tokio::test]
async fn a_paused_redis_answers_when_it_is_resumed() {
    let server = RedisServer::start(RedisOptions::default()).await;
    server.pause();
    let ping = server.command(&["PING"]);
    tokio::pin!(ping);
    let paused_for = Duration::from_millis(100);
    let early = tokio::time::timeout(paused_for, &mut ping).await;
    assert!(early.is_err(), "a paused Redis answered {early:?}");
    server.resume();
    ping.await;
}
