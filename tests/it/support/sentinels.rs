//! Real Sentinels that a test starts over its own Redis servers.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use leasehold::config::SentinelAddress;
use redis::{Client, Cmd, FromRedisValue};
use tempfile::TempDir;

use super::eventually;
use super::redis_server::{Process, RedisOptions, RedisServer, TlsFiles, free_port};

/// The name under which they watch the primary.
pub(crate) const PRIMARY: &str = "locks";

/// How long a Redis is silent before a Sentinel takes it for down.
const DOWN_AFTER_MS: u64 = 500;

/// Name and password of the processes, where they are another user than Sentinels and replicas.
pub(crate) const PROCESSES: [&str; 2] = ["processes", "password"];

/// Name and password by which the Sentinels know each other, where they ask for them.
const PEERS: [&str; 2] = ["peers", "of-the-sentinels"];

/// Some Sentinels, which know each other from the start.
pub(crate) struct Sentinels {
    ports: Vec<u16>,
    processes: Vec<Option<Process>>,
    is_encrypted: bool,
    /// Whether they ask who connects.
    is_closed: bool,
    /// Of their configuration files, which they rewrite.
    directory: TempDir,
}

/// What a Sentinel says about one server, by name.
type Properties = BTreeMap<String, String>;

impl Sentinels {
    /// Starts this number of Sentinels, which watch the Redis at this port.
    pub(crate) async fn watch(primary: u16, count: usize, tls: Option<&TlsFiles>) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let ports: Vec<u16> = (0..count).map(|_| free_port()).collect();
        let id = |number: usize| format!("{:040x}", number + 1);
        for (number, port) in ports.iter().enumerate() {
            let mut config = String::new();
            let path = directory.path().display();
            writeln!(config, "bind 127.0.0.1\ndir {path}\nprotected-mode no").expect("a text");
            match tls {
                None => writeln!(config, "port {port}"),
                Some(tls) => writeln!(
                    config,
                    "port 0\ntls-port {port}\ntls-replication yes\ntls-auth-clients no\ntls-cert-file {}\n\
                     tls-key-file {}\ntls-ca-cert-file {}",
                    tls.certificate, tls.key, tls.authority
                ),
            }
            .expect("a text");
            let quorum = count / 2 + 1;
            writeln!(
                config,
                "sentinel myid {}\nsentinel monitor {PRIMARY} 127.0.0.1 {primary} {quorum}\n\
                 sentinel down-after-milliseconds {PRIMARY} {DOWN_AFTER_MS}\n\
                 sentinel failover-timeout {PRIMARY} 3000",
                id(number)
            )
            .expect("a text");
            for (other, port) in ports.iter().enumerate().filter(|(it, _)| *it != number) {
                let id = id(other);
                writeln!(
                    config,
                    "sentinel known-sentinel {PRIMARY} 127.0.0.1 {port} {id}"
                )
                .expect("a text");
            }
            let file = directory.path().join(format!("{port}.conf"));
            std::fs::write(&file, config).expect("a writable directory");
        }
        let mut sentinels = Self {
            processes: ports.iter().map(|_| None).collect(),
            ports,
            is_encrypted: tls.is_some(),
            is_closed: false,
            directory,
        };
        for number in 0..count {
            sentinels.restart(number);
        }
        if !sentinels.is_encrypted {
            eventually("all Sentinels answer", async || {
                for number in 0..count {
                    sentinels.ask::<String>(number, &["MYID"]).await?;
                }
                Some(())
            })
            .await;
        }
        sentinels
    }

    /// Where they listen.
    pub(crate) fn addresses(&self) -> Vec<String> {
        let ports = self.ports.iter();
        ports.map(|port| format!("127.0.0.1:{port}")).collect()
    }

    /// The address of a database of the primary, for a store.
    pub(crate) fn database(&self, database: u16) -> SentinelAddress {
        let place = |port: &u16| ("127.0.0.1".to_owned(), *port);
        SentinelAddress {
            sentinels: self.ports.iter().map(place).collect(),
            primary: PRIMARY.to_owned(),
            database: database.into(),
            is_encrypted: self.is_encrypted,
        }
    }

    /// Gives a user these rights and this password at each of them, and refuses everybody without a password.
    pub(crate) async fn admit_only(&mut self, user: &str, password: &str, rights: &str) {
        let [peer, secret] = PEERS;
        for number in 0..self.ports.len() {
            let set = ["CONFIG", "SET"];
            for (key, value) in [("sentinel-user", peer), ("sentinel-pass", secret)] {
                let words = [&set[..], &[key, value]].concat();
                self.ask::<redis::Value>(number, &words).await;
            }
            let all = "~* &* +@all";
            for (user, password, rights) in [(peer, secret, all), (user, password, rights)] {
                self.set_user(number, user, password, rights).await;
            }
            if user != "default" {
                let mut off = redis::cmd("ACL");
                off.arg(&["SETUSER", "default", "off"]);
                let done: Option<String> = self.send(number, &off).await;
                done.expect("a Sentinel has users");
            }
        }
        self.is_closed = true;
    }

    /// Gives a user another password at each of them.
    pub(crate) async fn change_password(&self, user: &str, password: &str) {
        for number in 0..self.ports.len() {
            let mut change = redis::cmd("ACL");
            change.arg(&["SETUSER", user, "resetpass", &format!(">{password}")]);
            let done: Option<String> = self.send(number, &change).await;
            done.expect("a Sentinel has users");
        }
    }

    /// Has one of them refuse everybody without this password, as with `requirepass`.
    pub(crate) async fn require_password(&self, number: usize, password: &str) {
        self.set_user(number, "default", password, "~* &* +@all")
            .await;
    }

    async fn set_user(&self, number: usize, user: &str, password: &str, rights: &str) {
        let password = format!(">{password}");
        let mut command = redis::cmd("ACL");
        command.arg(&["SETUSER", user, "reset", "on", &password]);
        command.arg(rights.split(' ').collect::<Vec<_>>());
        let done: Option<String> = self.send(number, &command).await;
        done.expect("a Sentinel has users");
    }

    /// Kills one of them.
    pub(crate) fn kill(&mut self, number: usize) {
        drop(self.processes[number].take());
    }

    /// Starts one that does not run, with the configuration that it had.
    pub(crate) fn restart(&mut self, number: usize) {
        let file = format!("{}.conf", self.ports[number]);
        let file = self.directory.path().join(file);
        let file = file.to_str().expect("a path in UTF-8").to_owned();
        let process = Process::start(&[file, "--sentinel".to_owned()], None, &[]);
        self.processes[number] = Some(process);
    }

    /// Whether this one answers.
    pub(crate) async fn answers(&self, number: usize) -> bool {
        self.ask::<String>(number, &["MYID"]).await.is_some()
    }

    /// The port of the primary, as the first one that lives knows it.
    pub(crate) async fn primary(&self) -> Option<u16> {
        let alive = self.processes.iter().position(Option::is_some)?;
        let words = ["GET-MASTER-ADDR-BY-NAME", PRIMARY];
        let (_, port): (String, String) = self.ask(alive, &words).await?;
        port.parse().ok()
    }

    /// The port of the primary, if all of them name the same one and reach it and this number of replicas, and no failover
    /// is in progress.
    pub(crate) async fn settled_primary(&self, replicas: usize) -> Option<u16> {
        let mut ports = Vec::new();
        for number in 0..self.ports.len() {
            let primary: Properties = self.ask(number, &["MASTER", PRIMARY]).await?;
            let known: Vec<Properties> = self.ask(number, &["REPLICAS", PRIMARY]).await?;
            // Anything else that it knows, such as that a server is silent, would be a flag, too.
            let is_only =
                |server: &Properties, role| server.get("flags").is_some_and(|it| it == role);
            let well = known.iter().filter(|replica| is_only(replica, "slave"));
            (is_only(&primary, "master") && well.count() == replicas).then_some(())?;
            ports.push(primary.get("port")?.parse().ok()?);
        }
        ports.dedup();
        <[u16; 1]>::try_from(ports).ok().map(|[port]| port)
    }

    /// Promotes a replica, as an operator does.
    pub(crate) async fn fail_over(&self) {
        eventually("a failover begins", async || {
            self.ask::<String>(0, &["FAILOVER", PRIMARY]).await
        })
        .await;
    }

    /// How many replicas the first one knows.
    async fn replicas(&self) -> Option<usize> {
        let replicas: Vec<redis::Value> = self.ask(0, &["REPLICAS", PRIMARY]).await?;
        Some(replicas.len())
    }

    /// How many connections listen to messages of theirs, in all.
    pub(crate) async fn listeners(&self) -> Option<usize> {
        self.listeners_as("default").await
    }

    /// How many of them are those of a user.
    pub(crate) async fn listeners_as(&self, user: &str) -> Option<usize> {
        let mut all = 0;
        for number in 0..self.ports.len() {
            let mut command = redis::cmd("CLIENT");
            command.arg(&["LIST", "TYPE", "pubsub"]);
            let list: String = self.send(number, &command).await?;
            let user = format!(" user={user} ");
            let listening = list.lines().filter(|line| line.contains(" sub=1 "));
            all += listening.filter(|line| line.contains(&user)).count();
        }
        Some(all)
    }

    /// What one of them answers to `SENTINEL` with these words; none if it does not, or refuses.
    async fn ask<T: FromRedisValue>(&self, number: usize, words: &[&str]) -> Option<T> {
        self.send(number, redis::cmd("SENTINEL").arg(words)).await
    }

    async fn send<T: FromRedisValue>(&self, number: usize, command: &Cmd) -> Option<T> {
        let [name, password] = PEERS;
        let login = match self.is_closed {
            true => format!("{name}:{password}@"),
            false => String::new(),
        };
        let url = format!("redis://{login}127.0.0.1:{}", self.ports[number]);
        let client = Client::open(url).expect("a URL");
        let mut connection = client.get_multiplexed_async_connection().await.ok()?;
        command.query_async(&mut connection).await.ok()
    }
}

impl RedisServer {
    /// Lets processes be a user of their own, so that they can use it while others cannot.
    pub(crate) async fn admit_processes(&self) {
        let [name, password] = PROCESSES;
        let password = format!(">{password}");
        let words = ["ACL", "SETUSER", name, "on", &password, "~*", "&*", "+@all"];
        self.command(&words).await;
    }

    /// Cuts it off from its replicas and from the Sentinels, but not from the processes.
    pub(crate) async fn part_from_peers(&self) {
        let rights = ["-@all", "+client|kill", "+acl|setuser"];
        let words = [&["ACL", "SETUSER", "default"][..], &rights].concat();
        self.command(&words).await;
        self.command(&["CLIENT", "KILL", "TYPE", "replica"]).await;
    }

    /// Ends that.
    pub(crate) async fn rejoin_peers(&self) {
        self.command(&["ACL", "SETUSER", "default", "+@all"]).await;
    }

    /// Cuts the replication: from now on its replicas miss new writes.
    pub(crate) async fn stop_replication(&self) {
        let forbidden = ["ACL", "SETUSER", "default", "-psync", "-sync", "-replconf"];
        self.command(&forbidden).await;
        self.command(&["CLIENT", "KILL", "TYPE", "replica"]).await;
    }
}

/// A primary with a replica, and three Sentinels that watch them.
pub(crate) struct WatchedPair {
    pub(crate) primary: RedisServer,
    pub(crate) replica: RedisServer,
    pub(crate) sentinels: Sentinels,
}

impl WatchedPair {
    pub(crate) async fn start(options: RedisOptions) -> Self {
        let primary = RedisServer::start(options.clone()).await;
        let replica = primary.replica(options).await;
        let sentinels = Sentinels::watch(primary.port(), 3, None).await;
        let pair = Self {
            primary,
            replica,
            sentinels,
        };
        eventually("the Sentinels know the replica", async || {
            (pair.sentinels.replicas().await? == 1).then_some(())
        })
        .await;
        pair
    }

    /// Waits until the replica has everything.
    pub(crate) async fn is_in_step(&self) {
        self.primary.is_in_step_with(&self.replica).await;
    }

    /// Cuts the replication for ever: from now on the replica misses new writes.
    pub(crate) async fn separate(&self) {
        self.is_in_step().await;
        self.primary.stop_replication().await;
    }

    /// Waits until the replica is the primary.
    pub(crate) async fn is_promoted(&self) {
        eventually("the replica is promoted", async || {
            (self.sentinels.primary().await? == self.replica.port()).then_some(())
        })
        .await;
    }
}
