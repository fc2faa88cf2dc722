//! HTTP/2 clients that grant little room for an answer or none: what they have no room for was not delivered.
//!
//! The frames are written by hand, because client libraries grant room by themselves.

use std::time::Duration;

use leasehold::config::ServerConfig;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::sockets::Server;
use super::support::{Api, get};
use crate::sockets::config;

/// An answer of `text/plain`: a token and the end of its line.
const ANSWER_LEN: u32 = 37;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// The only request of a connection.
const STREAM: u32 = 1;

/// A connection with one request, whose answer is read frame by frame.
struct Client(TcpStream);

/// A frame as it arrives.
struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl Client {
    /// Asks for a lock, with room for so much of the answer.
    async fn acquire(server: &Server, name: &str, room: u32) -> Self {
        let path = format!("/locks/{name}?ttl=1h");
        Self::begin(server, &path, END_STREAM, room).await
    }

    /// Asks for several locks, whose answer is many frames of data.
    async fn acquire_several(server: &Server, room: u32) -> Self {
        let names: Vec<_> = (0..8).map(|number| format!("large/{number}")).collect();
        let metadata = json!({"text": "x".repeat(3_000)});
        let body = json!({"names": names, "metadata": metadata, "ttl": "1h"}).to_string();
        let mut client = Self::begin(server, "/locks", 0, room).await;
        client.send(DATA, END_STREAM, STREAM, body.as_bytes()).await;
        client
    }

    async fn begin(server: &Server, path: &str, flags: u8, room: u32) -> Self {
        let connected = TcpStream::connect(server.address).await;
        let mut client = Self(connected.expect("a connection"));
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        client.0.write_all(preface).await.expect("sent");
        // SETTINGS_INITIAL_WINDOW_SIZE.
        let settings = [&[0, 4], &room.to_be_bytes()[..]].concat();
        client.send(SETTINGS, 0, 0, &settings).await;
        let accept: &[u8] = match path {
            "/locks" => b"application/json",
            _ => b"text/plain",
        };
        // `:method: POST` and `:scheme: http` are in the static table, as are the names of the others.
        let fields = [
            [&[0x83, 0x86, 0x04, path.len() as u8], path.as_bytes()].concat(),
            [&[0x01, 1], &b"x"[..]].concat(),
            [&[0x0f, 19 - 15, accept.len() as u8], accept].concat(),
        ];
        let flags = flags | END_HEADERS;
        client.send(HEADERS, flags, STREAM, &fields.concat()).await;
        client
    }

    async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let len = &(payload.len() as u32).to_be_bytes()[1..];
        let head = [len, &[kind, flags], &stream.to_be_bytes()].concat();
        let frame = [&head, payload].concat();
        self.0.write_all(&frame).await.expect("sent");
    }

    async fn frame(&mut self) -> Frame {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).await.expect("a frame");
        let [a, b, c, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        self.0.read_exact(&mut payload).await.expect("a payload");
        Frame {
            kind,
            flags,
            stream: u32::from_be_bytes(stream),
            payload,
        }
    }

    /// Reads the head of the answer and so much of its body, which is not the end of it.
    async fn reads(&mut self, len: u32) {
        let (mut is_answered, mut received) = (false, 0);
        while !is_answered || received < len as usize {
            let frame = self.frame().await;
            if frame.stream == STREAM {
                assert!([HEADERS, DATA].contains(&frame.kind), "{}", frame.kind);
                assert_eq!(frame.flags & END_STREAM, 0, "there is more to come");
                is_answered = true;
                received += usize::from(frame.kind == DATA) * frame.payload.len();
            }
        }
        assert_eq!(received, len as usize);
    }

    /// Reads the end of an answer of which nothing is missing.
    async fn reads_the_end(&mut self) {
        loop {
            let frame = self.frame().await;
            if frame.stream == STREAM {
                let is_empty = frame.kind == DATA && frame.payload.is_empty();
                assert!(is_empty && frame.flags & END_STREAM != 0);
                return;
            }
        }
    }

    /// Reads everything, and returns how much that was.
    async fn reads_all(&mut self) -> usize {
        let mut received = 0;
        loop {
            let frame = self.frame().await;
            if frame.stream == STREAM && frame.kind == DATA {
                received += frame.payload.len();
                if frame.flags & END_STREAM != 0 {
                    return received;
                }
            }
        }
    }

    /// Reads until the server resets the stream.
    async fn is_reset(&mut self) {
        loop {
            let frame = self.frame().await;
            if frame.stream == STREAM && frame.kind == RST_STREAM {
                return;
            }
        }
    }

    /// Has no more use for the answer, on a connection that lives on.
    async fn resets(&mut self) {
        let cancel = 8_u32.to_be_bytes();
        self.send(RST_STREAM, 0, STREAM, &cancel).await;
    }
}

#[tokio::test]
async fn a_grant_that_its_client_has_no_room_for_is_given_back_when_it_leaves() {
    let server = Server::start().await;
    for room in [0, 1, 10, ANSWER_LEN - 1] {
        let mut client = Client::acquire(&server, "reset", room).await;
        client.reads(room).await;
        server.api.is_soon("reset", "held").await;
        client.resets().await;
        server.api.is_soon("reset", "free").await;

        let mut client = Client::acquire(&server, "closed", room).await;
        client.reads(room).await;
        server.api.is_soon("closed", "held").await;
        drop(client);
        server.api.is_soon("closed", "free").await;
    }
}

#[tokio::test]
async fn a_grant_that_its_client_has_just_enough_room_for_is_delivered() {
    let server = Server::start().await;
    let mut client = Client::acquire(&server, "a", ANSWER_LEN).await;
    client.reads(ANSWER_LEN).await;
    client.reads_the_end().await;
    drop(client);
    assert_stays_held(&server, "a").await;
}

#[tokio::test]
async fn a_grant_that_its_client_makes_room_for_is_delivered() {
    let server = Server::start().await;
    let mut client = Client::acquire(&server, "a", 10).await;
    client.reads(10).await;
    let more = (ANSWER_LEN - 10).to_be_bytes();
    client.send(WINDOW_UPDATE, 0, STREAM, &more).await;
    client.reads(ANSWER_LEN - 10).await;
    client.reads_the_end().await;
    client.resets().await;
    drop(client);
    assert_stays_held(&server, "a").await;
}

#[tokio::test]
async fn a_grant_that_its_client_does_not_read_in_time_is_given_back() {
    let config = ServerConfig {
        write_timeout: Duration::from_millis(50),
        ..config()
    };
    let server = Server::configured(Api::new(), &config).await;
    for room in [0, 1, ANSWER_LEN - 1] {
        let mut client = Client::acquire(&server, "a", room).await;
        client.is_reset().await;
        server.api.is_soon("a", "free").await;
    }
}

#[tokio::test]
async fn a_large_grant_is_given_back_unless_all_of_it_was_read() {
    let server = Server::start().await;
    for room in [0, 10, 20_000] {
        let mut client = Client::acquire_several(&server, room).await;
        client.reads(room).await;
        server.api.is_soon("large/7", "held").await;
        client.resets().await;
        server.api.is_soon("large/7", "free").await;
    }
    let mut client = Client::acquire_several(&server, 60_000).await;
    assert!(client.reads_all().await > 24_000);
    drop(client);
    assert_stays_held(&server, "large/7").await;
}

/// Lets the tasks run that would give back. They need no time, only their turn.
async fn assert_stays_held(server: &Server, name: &str) {
    // Whatever was going to happen to a connection before has happened when another one has been served.
    for _ in 0..3 {
        let mut client = Client::acquire(server, "another", ANSWER_LEN).await;
        client.reads(0).await;
        drop(client);
        tokio::task::yield_now().await;
    }
    let lock = server.api.send(get(&format!("/locks/{name}"))).await;
    assert_eq!(lock.json()["state"], "held");
}
