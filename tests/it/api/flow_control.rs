//! HTTP/2 clients with a small flow-control window, or none: data that does not fit into the window was not delivered.

use std::time::{Duration, SystemTime};

use leasehold::config::ServerConfig;
use serde_json::{Value, json};

use super::sockets::Server;
use super::support::{Api, Event, get};
use crate::sockets::config;
use crate::support::eventually;
use crate::support::http2::{DATA, Frame, HEADERS, Http2, RST_STREAM};

/// The length of a `text/plain` response: a token and a newline.
const ANSWER_LEN: u32 = 37;

/// A connection with one request, whose response is read frame by frame.
struct Client {
    connection: Http2,
    stream: u32,
}

impl Client {
    /// Acquires a lock, with a window for `room` bytes of the response.
    async fn acquire(server: &Server, name: &str, room: u32) -> Self {
        let path = format!("/locks/{name}?ttl=1h");
        Self::begin(server, "text/plain", &path, "", room).await
    }

    /// Acquires several locks, whose response has many data frames.
    async fn acquire_several(server: &Server, room: u32) -> Self {
        let names: Vec<_> = (0..8).map(|number| format!("large/{number}")).collect();
        let metadata = json!({"text": "x".repeat(3_000)});
        let body = json!({"names": names, "metadata": metadata, "ttl": "1h"}).to_string();
        Self::begin(server, "application/json", "/locks", &body, room).await
    }

    /// Opens a stream that holds a lock, with a window for `room` bytes.
    async fn hold(server: &Server, path: &str, room: u32) -> Self {
        Self::begin(server, "text/event-stream", path, "", room).await
    }

    async fn begin(server: &Server, accept: &str, path: &str, body: &str, room: u32) -> Self {
        let connection = Http2::open(server.address, room).await;
        let mut connection = connection.expect("a connection");
        let stream = connection.ask_for(accept, "POST", path, body).await;
        Self {
            stream: stream.expect("sent"),
            connection,
        }
    }

    /// The next frame of the response.
    async fn frame(&mut self) -> Frame {
        loop {
            let frame = self.connection.next().await.expect("a frame");
            if frame.stream == self.stream {
                return frame;
            }
        }
    }

    /// Reads the head of the response and `len` bytes of its body, which do not complete it.
    async fn reads(&mut self, len: u32) {
        let (mut is_answered, mut received) = (false, 0);
        while !is_answered || received < len as usize {
            let frame = self.frame().await;
            assert!([HEADERS, DATA].contains(&frame.kind), "{}", frame.kind);
            assert!(!frame.ends_stream(), "there is more to come");
            is_answered = true;
            received += usize::from(frame.kind == DATA) * frame.payload.len();
        }
        assert_eq!(received, len as usize);
    }

    /// Reads the end of the stream, after the whole response.
    async fn reads_the_end(&mut self) {
        let frame = self.frame().await;
        let is_empty = frame.kind == DATA && frame.payload.is_empty();
        assert!(is_empty && frame.ends_stream());
    }

    /// Reads `count` events of a stream.
    async fn reads_events(&mut self, count: usize) -> Vec<Event> {
        let (mut text, mut events) = (String::new(), Vec::new());
        while events.len() < count {
            let frame = self.frame().await;
            if frame.kind == DATA {
                text += std::str::from_utf8(&frame.payload).expect("events are UTF-8");
            }
            while let Some((block, rest)) = text.split_once("\n\n") {
                events.extend(Event::read(block));
                text = rest.to_owned();
            }
        }
        events
    }

    /// Reads the whole response, and returns its length.
    async fn reads_all(&mut self) -> usize {
        let mut received = 0;
        loop {
            let frame = self.frame().await;
            if frame.kind == DATA {
                received += frame.payload.len();
            }
            if frame.ends_stream() {
                return received;
            }
        }
    }

    /// Opens the window by `len` bytes.
    async fn makes_room(&mut self, len: u32) {
        let widened = self.connection.widen(self.stream, len).await;
        widened.expect("sent");
    }

    /// Reads until the server resets the stream.
    async fn is_reset(&mut self) {
        while self.frame().await.kind != RST_STREAM {}
    }

    /// Resets the stream; the connection stays open.
    async fn resets(&mut self) {
        let reset = self.connection.reset(self.stream).await;
        reset.expect("sent");
    }
}

#[tokio::test]
async fn a_grant_that_does_not_fit_the_window_is_rolled_back_when_its_client_leaves() {
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
async fn a_grant_that_just_fits_the_window_is_delivered() {
    let server = Server::start().await;
    let mut client = Client::acquire(&server, "a", ANSWER_LEN).await;
    client.reads(ANSWER_LEN).await;
    client.reads_the_end().await;
    drop(client);
    assert_stays_held(&server, "a").await;
}

#[tokio::test]
async fn a_grant_is_delivered_when_its_client_opens_the_window() {
    let server = Server::start().await;
    let mut client = Client::acquire(&server, "a", 10).await;
    client.reads(10).await;
    client.makes_room(ANSWER_LEN - 10).await;
    client.reads(ANSWER_LEN - 10).await;
    client.reads_the_end().await;
    client.resets().await;
    drop(client);
    assert_stays_held(&server, "a").await;
}

#[tokio::test]
async fn a_grant_that_its_client_does_not_read_in_time_is_rolled_back() {
    let config = ServerConfig {
        write_timeout: Duration::from_millis(50),
        ..config()
    };
    let server = Server::configured(Api::new().await, &config).await;
    for room in [0, 1, ANSWER_LEN - 1] {
        let mut client = Client::acquire(&server, "a", room).await;
        client.is_reset().await;
        server.api.is_soon("a", "free").await;
    }
}

#[tokio::test]
async fn a_large_grant_is_rolled_back_unless_all_of_it_was_read() {
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

/// The service renews meanwhile, for a while at least, and the client cannot know when the event was written.
#[tokio::test]
async fn an_event_that_does_not_fit_the_window_arrives_late_and_the_current_state_follows_at_once()
{
    let server = Server::start().await;
    let sent = SystemTime::now();
    let mut client = Client::hold(&server, "/locks/a?ttl=3s", 0).await;
    server.api.is_soon("a", "held").await;
    let end = async || {
        let lock = server.api.send(get("/locks/a")).await.json();
        lock["holders"][0]["expires_at"].clone()
    };
    let first_end = end().await;
    eventually("the lease is renewed", async || {
        (end().await != first_end).then_some(())
    })
    .await;
    client.makes_room(10_000).await;
    let [late, next] = &client.reads_events(2).await[..] else {
        panic!("two events");
    };
    assert_eq!((&late.kind[..], &next.kind[..]), ("acquired", "renewed"));
    // The nodes of a quorum may differ by a millisecond; the renewal has moved it by much more.
    let millis = |time: &Value| {
        let time = humantime::parse_rfc3339(time.as_str().expect("a time")).expect("a time");
        let since_1970 = time.duration_since(SystemTime::UNIX_EPOCH);
        since_1970.expect("it is after 1970").as_millis()
    };
    let differ = millis(&late.data["expires_at"]).abs_diff(millis(&first_end));
    assert!(differ < 100, "as when it was written, but for {differ} ms");
    assert!(at(&next.data) > at(&late.data));
    // Counted from when the request was sent, the remaining time is correct however late the event is read.
    let millis = |field: &str| {
        let millis = late.data[field].as_u64().expect("a number");
        Duration::from_millis(millis)
    };
    let counted = sent + millis("waited_ms") + millis("expires_in_ms");
    assert!(counted <= at(&late.data) + Duration::from_millis(1));
}

/// The end of the lease of a grant.
fn at(grant: &Value) -> SystemTime {
    let text = grant["expires_at"].as_str().expect("a time");
    humantime::parse_rfc3339(text).expect("a time of RFC 3339")
}

/// So no event waits for the window longer than the write timeout.
#[tokio::test]
async fn a_stream_that_is_not_read_in_time_releases_the_lock() {
    let config = ServerConfig {
        write_timeout: Duration::from_millis(50),
        ..config()
    };
    let server = Server::configured(Api::new().await, &config).await;
    for room in [0, 1, 100] {
        let mut client = Client::hold(&server, "/locks/a?ttl=1h", room).await;
        server.api.is_soon("a", "held").await;
        client.is_reset().await;
        server.api.is_soon("a", "free").await;
    }
}

/// Lets the tasks run that would roll back the grant. They need no time, only to be polled.
async fn assert_stays_held(server: &Server, name: &str) {
    // When other connections have been served, everything pending on the earlier one has happened.
    for _ in 0..3 {
        let mut client = Client::acquire(server, "another", ANSWER_LEN).await;
        client.reads(0).await;
        drop(client);
        tokio::task::yield_now().await;
    }
    let lock = server.api.send(get(&format!("/locks/{name}"))).await;
    assert_eq!(lock.json()["state"], "held");
}
