//! A client with one claim, which moves to another process when its process stops or crashes, as the guide to waiting
//! says.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::http1::{Answer, Connection, Request};
use super::pace::Turn;

/// How long a client waits before it tries another process.
const PAUSE: Duration = Duration::from_millis(20);

/// The addresses of the processes. They change when a process is restarted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Addresses(Arc<RwLock<Vec<SocketAddr>>>);

impl Addresses {
    pub(crate) fn set(&self, process: usize, address: SocketAddr) {
        let mut all = self.0.write().expect("nobody fails with it");
        if all.len() <= process {
            all.resize(process + 1, address);
        }
        all[process] = address;
    }

    pub(crate) fn get(&self, process: usize) -> SocketAddr {
        let all = self.0.read().expect("nobody fails with it");
        all[process % all.len()]
    }
}

/// A client with a token.
pub(super) struct Client {
    addresses: Addresses,
    /// The process that it uses.
    process: usize,
    connection: Option<Connection>,
    /// Its API key.
    key: Option<String>,
    pub(super) token: String,
    path: String,
    /// How often it had to post its token again.
    pub(super) reposts: usize,
}

impl Client {
    pub(super) fn new(addresses: &Addresses, process: usize, lock: &str) -> Self {
        Self {
            addresses: addresses.clone(),
            process,
            connection: None,
            key: None,
            token: uuid::Uuid::new_v4().to_string(),
            path: format!("/locks/{lock}"),
            reposts: 0,
        }
    }

    /// The same with an API key.
    pub(super) fn with_key(mut self, key: Option<&str>) -> Self {
        self.key = key.map(str::to_owned);
        self
    }

    /// Connects, if it is not connected already.
    pub(super) async fn connect(&mut self) -> io::Result<&mut Connection> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let mut opened = Connection::open(self.addresses.get(self.process)).await?;
                opened.key.clone_from(&self.key);
                opened
            }
        };
        Ok(self.connection.insert(connection))
    }

    /// Uses the next process from now on.
    pub(super) fn move_on(&mut self) {
        self.process += 1;
        self.connection = None;
    }

    /// Sends one request with the token.
    pub(super) async fn ask(&mut self, method: &str, body: &str) -> io::Result<Answer> {
        let path = self.path.clone();
        self.ask_at(method, &path, body).await
    }

    /// Sends one request with the token to another path.
    pub(super) async fn ask_at(
        &mut self,
        method: &str,
        path: &str,
        body: &str,
    ) -> io::Result<Answer> {
        let token = self.token.clone();
        let request = Request {
            method,
            path,
            token: (method != "GET").then_some(&token),
            body,
        };
        let answer = self.connect().await?.ask(request).await;
        if answer.is_err() {
            self.connection = None;
        }
        answer
    }

    /// Posts the token until the lock is granted. Returns the fencing token and when the response arrived.
    pub(super) async fn granted(&mut self, fields: &str) -> (u64, Instant) {
        loop {
            match self.ask("POST", fields).await {
                Ok(answer) if answer.grants() => {
                    let fence = answer.json()["fencing_token"].as_u64();
                    return (fence.expect("a number"), answer.at);
                }
                Ok(answer) if answer.json()["code"] == "wait_timeout" => {}
                Ok(answer) if answer.status == 503 => self.try_elsewhere().await,
                Ok(answer) => panic!("{}: {}", answer.status, answer.json()),
                Err(_) => self.try_elsewhere().await,
            }
            self.reposts += 1;
        }
    }

    /// Retries the release until it gets a response. Returns when it arrived.
    pub(super) async fn release(&mut self) -> Instant {
        loop {
            match self.ask("DELETE", "").await {
                Ok(answer) if answer.status == 204 => return answer.at,
                Ok(answer) if answer.status == 503 => self.try_elsewhere().await,
                Ok(answer) => panic!("{}: {}", answer.status, answer.json()),
                Err(_) => self.try_elsewhere().await,
            }
        }
    }

    /// Waits for the lock, holds it for a while and releases it.
    pub(super) async fn take_turn(&mut self, number: usize, fields: &str, hold: Duration) -> Turn {
        let (fence, granted) = self.granted(fields).await;
        sleep(hold).await;
        let ends = Instant::now();
        let released = self.release().await;
        Turn {
            number,
            fence,
            granted,
            ends,
            released,
        }
    }

    /// The number of waiters.
    pub(super) async fn queue_length(&mut self) -> io::Result<u64> {
        let lock = self.ask("GET", "").await?.json();
        Ok(lock["queue_length"].as_u64().expect("a number"))
    }

    /// Polls until the queue has this length. The requests themselves take long enough to need no pause.
    pub(super) async fn until_queued(&mut self, length: usize) {
        let give_up = Instant::now() + crate::support::EFFECT_TIMEOUT;
        loop {
            let seen = self.queue_length().await.expect("this process lives");
            if seen == length as u64 {
                return;
            }
            assert!(Instant::now() < give_up, "{seen} wait, not {length}");
        }
    }

    async fn try_elsewhere(&mut self) {
        self.move_on();
        sleep(PAUSE).await;
    }
}
