//! The router behind a real socket: requests of curl, bytes that no client library would send, and HTTP/2.

use std::net::SocketAddr;
use std::time::Duration;

use leasehold::config::ServerConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::support::Api;
use crate::sockets::{config, local};
use crate::support::EFFECT_TIMEOUT;

/// A server that runs until this is dropped.
pub(super) struct Server {
    pub(super) address: SocketAddr,
    pub(super) api: Api,
    _task: JoinSet<()>,
}

impl Server {
    pub(super) async fn start() -> Self {
        Self::of(Api::new().await).await
    }

    async fn of(api: Api) -> Self {
        Self::configured(api, &config()).await
    }

    pub(super) async fn configured(api: Api, config: &ServerConfig) -> Self {
        let server = leasehold::server::Server::bind(config, local());
        let server = server.expect("a port");
        let address = server.local_addr();
        let mut task = JoinSet::new();
        let running = server.run(
            api.router.clone(),
            leasehold::server::Workers::here(),
            std::future::pending(),
        );
        task.spawn(async move {
            running.await;
        });
        Self {
            address,
            api,
            _task: task,
        }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Sends raw bytes and reads until the server closes the connection.
    async fn raw(&self, request: impl AsRef<[u8]>) -> String {
        let mut stream = TcpStream::connect(self.address)
            .await
            .expect("a connection");
        stream.write_all(request.as_ref()).await.expect("sent");
        let mut answer = Vec::new();
        // The server may reset the connection after its response.
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    }
}

#[tokio::test]
async fn a_grant_arrives_whole_with_its_length() {
    let server = Server::start().await;
    let answer = server
        .raw("POST /locks/a HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .await;
    let (head, body) = answer.split_once("\r\n\r\n").expect("a body");
    assert!(head.starts_with("HTTP/1.1 201"), "{head}");
    assert!(
        head.contains(&format!("content-length: {}", body.len())),
        "{head}"
    );
    assert_eq!(
        server
            .api
            .send(super::support::get("/locks/a"))
            .await
            .json()["state"],
        "held"
    );
}

#[tokio::test]
async fn what_curl_sends_is_understood() {
    let server = Server::start().await;
    let client = reqwest::Client::new();
    let form = "application/x-www-form-urlencoded";
    for (path, content_type, body) in [
        ("/locks/a", form, "ttl=30s&owner=me"),
        ("/locks/b", form, r#"{"ttl":"30s"}"#),
        ("/locks/c", "application/json", r#"{"ttl":"30s"}"#),
    ] {
        let request = client
            .post(server.url(path))
            .header("content-type", content_type)
            .body(body);
        assert_eq!(
            request.send().await.expect("an answer").status(),
            201,
            "{body}"
        );
    }
}

#[tokio::test]
async fn http_2_without_encryption_is_spoken() {
    let server = Server::start().await;
    let client = reqwest::Client::builder()
        .http2_prior_knowledge()
        .build()
        .expect("a client");
    let granted = client
        .post(server.url("/locks/a"))
        .send()
        .await
        .expect("an answer");
    assert_eq!(
        (granted.version(), granted.status().as_u16()),
        (reqwest::Version::HTTP_2, 201)
    );
    assert!(
        granted
            .bytes()
            .await
            .expect("a body")
            .starts_with(b"{\"name\":\"a\"")
    );
    let head = client
        .head(server.url("/locks/%FF"))
        .send()
        .await
        .expect("an answer");
    assert_eq!(head.status(), 400);
    assert!(head.bytes().await.expect("no body").is_empty());
}

#[tokio::test]
async fn odd_bytes_are_refused_and_never_a_5xx() {
    let server = Server::start().await;
    let wrap = |line: &[u8]| [line, b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"].concat();
    for (line, status) in [
        (&b"GET /locks/%00"[..], "400"),
        (b"GET /locks/../../etc/passwd", "400"),
        (b"GET /locks/a//b", "400"),
        (b"GET /locks/\xff", "400"),
        (b"GET /locks/caf\xc3\xa9", "400"),
        (b"GET /locks?prefix=\xff", "400"),
        (b"OPTIONS *", "404"),
        (b"GET http://elsewhere/locks/a", "200"),
        (b"CONNECT elsewhere:80", "404"),
        (b"GET nonsense", "404"),
        (b"BREW /locks/a", "405"),
        (b"PRI *", "404"),
    ] {
        let answer = server.raw(wrap(line)).await;
        let line = String::from_utf8_lossy(line);
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{line}: {answer}"
        );
    }
}

#[tokio::test]
async fn a_head_request_has_no_body_even_when_it_is_refused() {
    let server = Server::start().await;
    let answer = server
        .raw("HEAD /locks/%FF HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .await;
    assert!(
        answer.starts_with("HTTP/1.1 400") && answer.ends_with("\r\n\r\n"),
        "{answer}"
    );
}

#[tokio::test]
async fn a_large_body_is_refused_before_it_is_sent() {
    let server = Server::start().await;
    let answer = server
        .raw("POST /locks/a HTTP/1.1\r\nhost: x\r\ncontent-length: 70000\r\nexpect: 100-continue\r\nconnection: close\r\n\r\n")
        .await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
}

#[tokio::test]
async fn a_body_that_does_not_come_is_answered_and_the_connection_closed() {
    let api = Api::with(|settings| settings.body_timeout = Duration::from_millis(20)).await;
    let server = Server::of(api).await;
    let answer = server
        .raw("POST /locks/a HTTP/1.1\r\nhost: x\r\ncontent-length: 7\r\n\r\nttl")
        .await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
}

/// The socket of a client that is gone looks the same.
#[tokio::test]
async fn a_client_that_shuts_down_its_sending_side_gets_no_answer() {
    let server = Server::start().await;
    server.api.token_of("/locks/a").await;
    let mut stream = TcpStream::connect(server.address)
        .await
        .expect("a connection");
    let request = "POST /locks/a?wait=50s HTTP/1.1\r\nhost: x\r\n\r\n";
    stream.write_all(request.as_bytes()).await.expect("sent");
    server.api.has_waiters("a", 1).await;
    stream.shutdown().await.expect("it is open");
    let mut answer = Vec::new();
    let closed = timeout(EFFECT_TIMEOUT, stream.read_to_end(&mut answer)).await;
    assert!(closed.is_ok(), "the connection is not closed");
    assert!(answer.is_empty(), "{answer:?}");
    server.api.has_waiters("a", 0).await;
}

#[tokio::test]
async fn a_lock_that_is_held_by_a_stream_is_free_when_its_connection_closes() {
    let server = Server::start().await;
    let mut stream = TcpStream::connect(server.address)
        .await
        .expect("a connection");
    let request = "POST /locks/a?ttl=1h HTTP/1.1\r\nhost: x\r\naccept: text/event-stream\r\n\r\n";
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut received = Vec::new();
    while !String::from_utf8_lossy(&received).contains("event: acquired") {
        let count = stream.read_buf(&mut received).await.expect("an event");
        assert_ne!(count, 0, "the stream ended early");
    }
    server.api.is_soon("a", "held").await;
    drop(stream);
    server.api.is_soon("a", "free").await;
}

#[tokio::test]
async fn a_stream_of_http_2_is_released_when_it_is_reset_and_its_connection_lives_on() {
    let server = Server::start().await;
    let client = reqwest::Client::builder()
        .http2_prior_knowledge()
        .build()
        .expect("a client");
    let request = client
        .post(server.url("/locks/a?ttl=1h"))
        .header("accept", "text/event-stream");
    let mut response = request.send().await.expect("an answer");
    let first = response.chunk().await.expect("a stream").expect("an event");
    assert!(first.starts_with(b"event: acquired\n"), "{first:?}");
    server.api.is_soon("a", "held").await;
    drop(response);
    server.api.is_soon("a", "free").await;
    let alive = client.get(server.url("/livez")).send().await;
    assert_eq!(alive.expect("an answer").status(), 200);
}

/// `DELETE` needs no body, so the names of the largest claim must fit into the query string, in any encoding.
#[tokio::test]
async fn the_longest_release_there_can_be_is_understood() {
    let server = Server::start().await;
    let names = (10..74).map(|number| format!("{:@>255}", number));
    let query = names.map(|name| {
        let bytes = name.bytes().map(|byte| format!("%{byte:02X}"));
        format!("names={}", bytes.collect::<String>())
    });
    let url = server.url(&format!("/locks?{}", query.collect::<Vec<_>>().join("&")));
    for client in [
        reqwest::Client::builder().http1_only(),
        reqwest::Client::builder().http2_prior_knowledge(),
    ] {
        let client = client.build().expect("a client");
        let granted = client.post(&url).send().await.expect("an answer");
        assert_eq!(granted.status(), 201);
        let token = granted.headers()["lock-token"].clone();
        let released = client.delete(&url).header("lock-token", token);
        assert_eq!(released.send().await.expect("an answer").status(), 204);
    }
}
